"""`gt`: serve, worker, run, ops, config. Each command is imported only when it is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

#: Command -> (the module whose `main` runs it, what it does).
COMMANDS = {
    "serve": ("gt.cli.serve", "start a server"),
    "worker": ("gt.worker.main", "start a worker and join it to a server"),
    "run": ("gt.run", "run a torch script on GT, as it is"),
    "ops": ("gt.cli.ops", "list the ops"),
    "config": ("gt.cli.settings", "list the settings and their GT_* variables"),
}


def usage() -> str:
    lines = [f"  {name:<8} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: gt COMMAND [options]", "", *lines, "", "gt COMMAND --help shows a command's options."])


def _version() -> str:
    try:
        return version("gt")
    except PackageNotFoundError:  # run from a folder that was never installed
        return "unknown"


def main(argv: list[str] | None = None) -> int:
    """Run `gt` with these arguments; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"gt {_version()}")
        return 0
    if arguments[0] not in COMMANDS:
        print(f"gt: unknown command {arguments[0]!r}; expected one of: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module, _ = COMMANDS[arguments[0]]
    try:
        code: int = import_module(module).main(arguments[1:])
        return code
    except BrokenPipeError:  # `gt ops | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main())
