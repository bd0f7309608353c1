"""All of it: every sample of every op, on every mesh, in every way that its rule allows.

python -m tests.sharding                what went wrong, if anything did
python -m tests.sharding OP ...         of these ops
python -m tests.sharding --table        write expected.txt anew
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np

from gt.ops import TABLE
from gt.ops.engines import EXCEPTIONS
from tests.sharding.cases import cases
from tests.sharding.checking import mistakes, mistakes_anyhow
from tests.sharding.layouts import MESHES
from tests.sharding.table import EXPECTED, table

#: Ways of one sample on one mesh that are tried. Ops of many factors have thousands, which repeat each other.
LIMIT = 60


def main(arguments: list[str]) -> int:
    if arguments == ["--table"]:
        EXPECTED.write_text(table())
        return 0
    names = arguments or [name for name in TABLE if name not in EXCEPTIONS]
    wrong = tried = 0
    began = time.monotonic()
    for name in names:
        op = TABLE[name]
        more = [(args, attrs) for n, args, attrs in cases() if n == name]
        for i, (args, attrs) in enumerate([*op.samples(np.random.default_rng(0)), *more]):
            for m in MESHES:
                rng = random.Random(f"{name} {i} {m!r}")
                lines = mistakes(op, args, attrs, m, rng, LIMIT) + mistakes_anyhow(op, args, attrs, m, rng, 10)
                tried += 1
                wrong += bool(lines)
                for line in lines[:3]:
                    print(line)
    print(f"{tried} uses of {len(names)} ops on a mesh, {wrong} of them wrong, {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
