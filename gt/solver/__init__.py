"""The solver: from a training step to the best layouts for it, and why.

It stands above the client, which records the step, and the dispatcher's planner, whose ways it chooses from. Nothing of
it is loaded by `import gt`.

    recorded.py    a step as programs, with names for their inputs
"""
