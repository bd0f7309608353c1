"""From a program to what each worker does: which layouts an op wants and gives (choose.py), and how a tensor gets
from one layout to another (redistribute.py). Pure functions of records, specs and layouts.
"""
