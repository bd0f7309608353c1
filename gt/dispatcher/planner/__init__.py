"""From a program to what each worker does (program.py): which layouts an op wants and gives (choose.py), how a tensor
gets from one layout to another (redistribute.py), what is done for one use of an op after the other (deciding.py) and
remembered of it (effects.py), what workers run for that (running.py, moving.py, blocks.py, template.py), in which order
(actions.py), as programs of their own (local.py) that fit together (proof.py) and take some memory (memory.py). Pure
functions of records, specs and layouts.
"""
