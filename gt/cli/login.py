"""`gt login`: store the connection URL of a server, so that clients or workers of this machine can join it."""

from __future__ import annotations

import ctypes
import getpass
import sys
from contextlib import suppress
from pathlib import Path

from gt import config
from gt.command_line import Parser
from gt.errors import GTError
from gt.transport import logins
from gt.transport.identity import WORKER


def main(argv: list[str] | None = None) -> int:
    """Run `gt login` with these arguments; returns the exit code."""
    p = Parser(prog="gt login", description="Store a connection URL, as gt user prints it, for this user alone.")
    p.add_argument("url", nargs="?", help="gt://host:port#key; better left out: then it is asked for, and not shown")
    args = p.parse_args(argv)
    try:
        url = args.url
        if url is not None:
            hide_arguments()
        else:
            url = getpass.getpass("connection URL: ") if sys.stdin.isatty() else sys.stdin.readline()
        address, key = logins.store(config.home(config.load()), url)
    except (GTError, ValueError, OSError, EOFError) as e:
        print(f"gt login: {e}", file=sys.stderr)
        return 2
    next_ = "gt worker" if key.role == WORKER else 'gt.connect(), or GT_SERVER="' + address + '"'
    print(f"gt: stored; join with: {next_}")
    return 0


def hide_arguments() -> None:
    """Overwrite the arguments of this process, which other users of the machine can see in the list of processes."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 of proc(5)
        text = Path("/proc/self/cmdline").read_bytes()
        at = text.find(b"gt://")
        if at >= 0 and start + at < end:
            ctypes.memset(start + at, ord("*"), text.index(b"\0", at) - at)
