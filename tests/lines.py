"""How many lines the package has, folder by folder: `python tests/lines.py`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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
