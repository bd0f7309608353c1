"""`gt`: serve, worker, ops, config. Each command is loaded only when it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version


def _serve(arguments: list[str]) -> int:
    from gt.cli.serve import main

    return main(arguments)


def _worker(arguments: list[str]) -> int:
    from gt.worker.main import main

    return main(arguments)


def _ops(arguments: list[str]) -> int:
    from gt.cli.ops import main

    return main(arguments)


def _config(arguments: list[str]) -> int:
    from gt.cli.settings import main

    return main(arguments)


COMMANDS: dict[str, tuple[str, Callable[[list[str]], int]]] = {
    "serve": ("start a server", _serve),
    "worker": ("start a worker and join it to a server", _worker),
    "ops": ("list the ops", _ops),
    "config": ("list the settings and their GT_* variables", _config),
}


def usage() -> str:
    lines = [f"  {name:<8} {what}" for name, (what, _) in COMMANDS.items()]
    return "\n".join(
        ["usage: gt COMMAND [options]", "", *lines, "", "gt COMMAND --help tells the options of a command."]
    )


def _version() -> str:
    try:
        return version("gt")
    except PackageNotFoundError:  # run from a folder that was never installed
        return "unknown"


def main(argv: list[str] | None = None) -> int:
    """The exit code of `gt` with these arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"gt {_version()}")
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None:
        print(f"gt: no command {arguments[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return command[1](arguments[1:])
    except BrokenPipeError:  # `gt ops | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main())
