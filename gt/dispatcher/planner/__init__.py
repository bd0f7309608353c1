"""The planner: from a program and the layouts of its inputs to one local program per worker.

Pure functions of op records, specs and layouts. `plan.plan_program` is the way in. The files, in the order in which a
plan is made:

     1. plan.py          walks over the program, instruction by instruction, and collects the outputs
     2. decide.py        the layouts of each value; what is done for an instruction, decided once for all that are alike
     3. ways.py          the ways to run one op on shards: the layouts that it wants and gives
     4. choose.py        the cheapest of them
     5. redistribute.py  the cheapest steps (collectives) from one layout to another
     6. op_work.py       what each worker runs for an op
     7. step_work.py     what each worker runs for a step between layouts
     8. blocks.py        cutting and joining arrays, for both
     9. work.py          templates, works and actions, and the proof that the workers' collectives match
    10. order.py         which actions are needed and their order; which reductions travel together
    11. emit.py          the local programs, and the memory that they take
    12. memo.py          what is remembered between plans
"""
