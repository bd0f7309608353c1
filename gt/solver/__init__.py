"""The solver: the best layouts for a whole program. Program, mesh and hardware in; plan, price and reasons out.

It stands above the client, which records a step, and the dispatcher's planner, whose ways it chooses from. It runs
nothing and changes no session; only measuring hardware runs something, in a session of its own. Nothing of it is
loaded by `import gt`. The files, in the order in which a plan is found:

     1. recorded.py     a step as programs, with names for their inputs
     2. hardware.py     what workers and the links between them can do
     3. pricing.py      what a planned program costs; knows nothing of the search
     4. options.py      the ways in which one instruction can run, each with its price
     5. conversions.py  the prices of bringing a value from one layout to another
     6. regions.py      layers that are alike
     7. facts.py        what is read off a program before anything is chosen
     8. followers.py    instructions that follow the one that makes their operand
     9. problem.py      the program as a graph of choices (choices.py), and the price of an assignment
    10. propagate.py    good assignments by following splits through the rules: start and fallback of the search
    11. memory.py       memory as rows of the integer program
    12. search.py       the best assignment: an integer program, which linear.py writes down
    13. usual.py        the layouts that people would give by hand; polish.py changes single layouts of a plan
    14. solve.py        meshes, memory, and the plan that is followed
    15. process.py      the same in other processes, for several meshes at once
    16. reasons.py      why a plan is as it is; purposes.py says what instructions are for
    17. pictures.py     a plan as a picture; units.py writes times and sizes
    18. plan.py         the plan as users see it: `gt.plan`, `Plan.explain()`, ...

calibrate.py measures the hardware of the workers of a server, with the programs of probes.py and samples.py, and the
steps of rehearsal.py. background.py searches on behalf of a running session, in a process of its own; running.py has
`gt.explain()` and `gt.autoshard`.
"""
