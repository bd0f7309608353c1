"""The solver: the best layouts for a whole program. Program, mesh and hardware in; plan, price and reasons out.

It runs nothing and changes no session. The files, in the order in which a plan is found:

     1. hardware.py   what workers and the links between them can do
     2. pricing.py    what a planned program costs; knows nothing of the search
     3. options.py    the ways in which one instruction can run, each with its price
     4. regions.py    layers that are alike
     5. problem.py    the program as a graph of choices: nodes, values, conversions, and the price of an assignment
     6. propagate.py  good assignments by following splits through the rules: start, bound and fallback of the search
     7. search.py     the best assignment: an integer program
     8. solve.py      meshes, memory, and the plan that is followed
     9. plan.py       the plan as users see it: `gt.plan`, `Plan.explain()`, ...
"""
