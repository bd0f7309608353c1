"""`gt run train.py`, or `python -m gt.run train.py`: run a script that was written for torch, as it is, on GT.

torch is imported here and not before; adoption/script.py does the work.
"""

from __future__ import annotations

import sys

USAGE = """usage: gt run SCRIPT [arguments of the script]

Runs a script that was written for torch on the session's workers: every tensor that it creates is GT's."""


def main(argv: list[str] | None = None) -> int:
    """Run a script with these arguments; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    try:
        from gt.adoption import script
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        print("gt run: torch is not installed; install it with: pip install 'gt[torch]'", file=sys.stderr)
        return 1
    return script.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
