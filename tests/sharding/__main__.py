"""Every sample of every op, on every mesh, in every way that its rule allows: like the tests here, with more draws.

python -m tests.sharding                prints what went wrong
python -m tests.sharding OP ...         of these ops
python -m tests.sharding --table        write expected.txt again
python -m tests.sharding --plan         how long planning takes
python -m tests.sharding --real         through real processes: every sample once on four meshes, and training
python -m tests.sharding --real OP ...  of these ops, and no training
"""

from __future__ import annotations

import random
import sys
import time

from gt.layout import Mesh
from gt.ops import TABLE
from tests.sharding import real, real_training, timing
from tests.sharding.cases import OPS
from tests.sharding.checking import Example, mistakes, mistakes_from_any_layout, sweep
from tests.sharding.layouts import MESHES
from tests.sharding.planned import mistakes_planned
from tests.sharding.table import EXPECTED, table

#: Layouts drawn at random for one sample on one mesh. The tests draw one.
DRAWS = 4


def main(arguments: list[str]) -> int:
    if arguments == ["--table"]:
        EXPECTED.write_text(table())
        return 0
    if arguments == ["--plan"]:
        timing.main()
        return 0
    if arguments[:1] == ["--real"]:
        return through_processes(arguments[1:])
    names = arguments or [op.name for op in OPS]
    wrong, began = 0, time.monotonic()
    for name in names:
        lines = sweep(TABLE[name], MESHES, look)
        wrong += bool(lines)
        for line in lines[:3]:
            print(line, flush=True)
    print(f"{len(names)} ops on {len(MESHES)} meshes, {wrong} of them wrong, {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


def look(example: Example, m: Mesh, rng: random.Random) -> list[str]:
    found = mistakes(example, m, rng) + mistakes_from_any_layout(example, m, rng, DRAWS)
    return found + mistakes_planned(example, m, rng, DRAWS)


def through_processes(names: list[str]) -> int:
    wrong, began = 0, time.monotonic()
    with real.serving(4) as server:
        every = names or [op.name for op in OPS]
        for at in range(0, len(every), 20):
            for line in real.check_ops(server.address, real.MESHES, every[at : at + 20], 1000, "all"):
                print(line, flush=True)
                wrong += 1
        print(f"{len(every)} ops on {len(real.MESHES)} meshes, {wrong} uses wrong, {time.monotonic() - began:.0f} s")
        if names:
            return int(wrong > 0)
        wrong += real_training.check_models(server.address, real.MESHES)
        wrong += real_training.check_scripts(server.address, real.MESHES)
    for first, second in (("numpy", "numpy"), ("jax", "jax"), ("torch", "numpy"), ("torch", "jax")):
        print(f"workers that compute with {first} and {second}:")
        with real.serving(1, first) as server:
            server.add(second)
            # Parameters begin as float32 normal numbers, which jax rounds in another way.
            rtol = 1e-8 if "jax" not in (first, second) or first == second else 1e-6
            two = [{"x": 2}]
            wrong += real_training.check_models(server.address, two, ("mlp", "cnn", "gpt"), ("both",), 10, rtol)
            wrong += real_training.check_scripts(server.address, two, ("both",), 3, rtol)
    print(f"all through processes: {wrong} wrong, {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
