"""The planner: from a program and the layouts of its inputs to one local program per worker.

Pure functions of op records, specs and layouts. `plan.plan_program` is the way in. The files, in the order in which a
plan is made:

     1. plan.py          walks over the program, instruction by instruction, and collects the outputs
     2. decide.py        the layouts of each value; what is done for an instruction, decided once for all that are alike
     3. follow.py        or: the way that a plan chose for an instruction is carried out
     4. ways.py          the ways to run one op on shards: the layouts that it wants and gives
     5. choose.py        the cheapest of them
     6. redistribute.py  the cheapest steps (collectives) from one layout to another
     7. op_work.py       what each worker runs for an op
     8. step_work.py     what each worker runs for a step between layouts
     9. blocks.py        cutting and joining arrays, for both
    10. work.py          templates, works and actions, and the proof that the workers' collectives match
    11. order.py         which actions are needed and their order; which reductions travel together
    12. emit.py          the local programs, and the memory that they take
    13. memo.py          what is remembered between plans
"""
