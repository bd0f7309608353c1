"""`gt user`: who may join the server of this machine. It works while the server runs, and while it does not."""

from __future__ import annotations

import argparse
import socket
import sys

from gt import config
from gt.command_line import Parser, nbytes
from gt.errors import GTError
from gt.server import users
from gt.transport.identity import CLIENT, WORKER, Key, url

PORT = 12345


def parser() -> Parser:
    p = Parser(prog="gt user", description="Add, revoke and list the users of this machine's server.")
    does = p.add_subparsers(dest="does", required=True, metavar="COMMAND", parser_class=Parser)
    add = does.add_parser("add", help="add a user, and print the connection URL, which is stored nowhere")
    add.add_argument("name")
    add.add_argument("--memory", type=nbytes, default=0, help="bytes on one worker, such as 40G (default: no limit)")
    add.add_argument("--share", type=int, default=1, help="run time in proportion to other users (default: 1)")
    add.add_argument("--workers", type=int, default=0, help="workers of one session (default: no limit)")
    add.add_argument("--upload", type=nbytes, default=0, help="bytes per second, such as 100M (default: no limit)")
    key = does.add_parser("worker-key", help="make a key for workers, and print the connection URL")
    key.add_argument("name", nargs="?", default="workers", help="its name, for list and revoke (default: %(default)s)")
    for each in (add, key):
        each.add_argument("--host", help="host in the URL (default: this machine, as other machines name it)")
        each.add_argument("-p", "--port", type=int, help=f"port in the URL (default: the server's last, or {PORT})")
    revoke = does.add_parser("revoke", help="remove a user or a worker key, and end the sessions")
    revoke.add_argument("name")
    does.add_parser("list", help="list all users and worker keys")
    return p


def main(argv: list[str] | None = None) -> int:
    """Run `gt user` with these arguments; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        home = config.home(config.load())
        if args.does == "add":
            key = users.add(home, args.name, CLIENT, args.memory, args.share, args.workers, args.upload)
            _show(args, key, f"{args.name}: run gt login with this URL; it is not shown again")
        elif args.does == "worker-key":
            key = users.add(home, args.name, WORKER)
            _show(args, key, "on each machine with workers: run gt login with this URL; it is not shown again")
        elif args.does == "revoke":
            users.revoke(home, args.name)
        else:
            print("\n".join(users.table(users.read(home))))
    except (GTError, ValueError, OSError) as e:
        print(f"gt user: {e}", file=sys.stderr)
        return 2
    return 0


def _show(args: argparse.Namespace, key: Key, line: str) -> None:
    last = users.last_address(config.home(config.load()))
    host, _, port = last.rpartition(":")
    address = f"{args.host or host or socket.gethostname()}:{args.port or port or PORT}"
    print(f"gt user: {line}", file=sys.stderr, flush=True)
    print(url(address, key), flush=True)
