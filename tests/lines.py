"""How many lines the package has, folder by folder, and how many of them are the core: `python tests/lines.py`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


#: What a reader of the core may skip: the function library, the ops, modules, optimizers, the solver, torch's models.
LIBRARY = ("gt/adoption/", "gt/client/functions/", "gt/ops/families/", "gt/nn/", "gt/optim/", "gt/solver/")


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
