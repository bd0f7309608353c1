"""The planner: from a program and the layouts of its inputs to one local program per worker.

Pure functions of op records, specs and layouts. `plan.plan_program` is the way in. The files, in the order in which a
plan is made:

    plan.py          walks over the program, instruction by instruction, and collects the outputs
    decide.py        the layouts of each value; what is done for an instruction, decided once for all that are alike
    ways.py          the ways to run one op on shards: the layouts that it wants and gives
    choose.py        the cheapest of them
    redistribute.py  the cheapest steps (collectives) from one layout to another
    op_work.py       what each worker runs for an op
    step_work.py     what each worker runs for a step between layouts
    blocks.py        cutting and joining arrays, for both
    work.py          templates, works and actions, and the proof that the workers' collectives match
    order.py         which actions are needed and their order; which reductions travel together
    emit.py          the local programs, and the memory that they take
    memo.py          what is remembered between plans
"""
