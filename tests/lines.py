"""How many lines the package has, folder by folder, and how many of them are the core: `python tests/lines.py`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


#: Modules of gt that have the names of torch's, and little else.
NAMESPACES = (
    "gt/_dynamo.py", "gt/accelerator.py", "gt/compiler.py", "gt/cuda/", "gt/distributed.py", "gt/fx.py", "gt/jit.py",
    "gt/profiler.py", "gt/serialization.py", "gt/types.py", "gt/utils/", "gt/version.py", "gt/autograd/gradcheck.py",
    "gt/autograd/grad_mode.py", "gt/autograd/graph.py", "gt/autograd/variable.py",
)  # fmt: skip
#: What a reader of the core may skip: the function library, the ops themselves, modules and optimizers, the solver.
LIBRARY = (
    "gt/adoption/",
    "gt/client/functions/",
    "gt/ops/families/",
    "gt/nn/",
    "gt/optim/",
    "gt/solver/",
    "gt/testing/",
    "gt/distributions/",
    *NAMESPACES,
)


def core() -> int:
    """Lines of Python in gt/ without the library."""
    files = [f for f in (ROOT / "gt").rglob("*.py") if not str(f.relative_to(ROOT)).startswith(LIBRARY)]
    return sum(file.read_text().count("\n") for file in files)


def lines() -> Counter[str]:
    """Lines of Python by folder of gt/; the files of gt/ itself count as `gt`."""
    found: Counter[str] = Counter()
    for file in sorted((ROOT / "gt").rglob("*.py")):
        parts = file.relative_to(ROOT).parts
        found["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += file.read_text().count("\n")
    return found


if __name__ == "__main__":
    found = lines()
    for folder, n in sorted(found.items()):
        print(f"{folder:15} {n:7,}")
    print(f"{'all':15} {sum(found.values()):7,}")
    print(f"{'core':15} {core():7,}")
