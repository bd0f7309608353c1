"""`gt`: serve, worker, up, user, login, run, log, top, trace, ops, config. Each is imported only when it is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

#: Command -> (the module whose `main` runs it, what it does).
COMMANDS = {
    "serve": ("gt.cli.serve", "start a server"),
    "worker": ("gt.cli.worker", "start a worker, or several, and join them to a server"),
    "up": ("gt.cli.up", "start a server, and workers on a Ray cluster"),
    "user": ("gt.cli.user", "add, revoke and list the users of this machine's server"),
    "login": ("gt.cli.login", "store the connection URL of a server"),
    "run": ("gt.run", "run a torch script on GT, as it is"),
    "log": ("gt.cli.log", "follow a tensor, a program or errors through an instruction log"),
    "top": ("gt.cli.top", "show what a server is doing, live"),
    "trace": ("gt.cli.trace", "record what client, dispatcher and workers do, as a timeline"),
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
        return import_module(module).main(arguments[1:])
    except BrokenPipeError:  # `gt ops | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main())
