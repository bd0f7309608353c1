"""Addresses, and which process is at the other end of a connection on this machine.

Law 1: the system says which process that is, never the process alone. Over TCP the process sends its id, and the system
       must confirm that this process holds the other end.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from gt.errors import ServerError


def endpoint(address: str) -> str:
    """The address as ZeroMQ writes it, with the host's name looked up.

    >>> endpoint("127.0.0.1:12345")
    'tcp://127.0.0.1:12345'
    """
    host, port = host_and_port(address)
    return f"tcp://{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """The numbers of a host and port, with the host's name looked up."""
    address, _, key = address.partition("#")
    if key:  # a connection URL: its key is not repeated in the message
        raise ServerError(f"address {address!r} must have the form host:port, without a key")
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if "://" in host or not colon or not host:
        raise ServerError(f"address {address!r} must have the form host:port or ipc:///path")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise ServerError(f"address {address!r}: port must be a number from 0 to 65535, got {port!r}")
    try:
        found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ServerError(f"address {address!r}: unknown host {host!r}") from None
    return str(found[0][4][0]), int(port)


def is_loopback(address: str) -> bool:
    """Whether this address, "host:port", can be reached from this machine alone."""
    return ipaddress.ip_address(host_and_port(address)[0]).is_loopback


def no_server(address: str) -> str:
    """What to say if nothing listens there."""
    where = address.removeprefix("tcp://")
    if address.startswith("ipc://") or is_loopback(address):
        return f"no server at {where}; start one with: gt serve"
    return (
        f"no server at {where}; if one runs there, it listens for its own machine alone: "
        "start it with gt serve --host 0.0.0.0"
    )


def not_gt(address: str) -> str:
    return f"the process that listens at {address} is not a GT server"


def needs_key(address: str) -> str:
    return f"{not_gt(address)}, or it needs a key: gt login URL stores one, with the URL that gt user prints"


def pid_of(sock: socket.socket, said: int = 0) -> int:
    """The id of the process at the other end of a connection; 0 if it is not known. Over TCP it is `said`, the id that
    the process sent, if the system confirms it."""
    if sock.family == socket.AF_UNIX:
        try:
            pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except (AttributeError, OSError):
            return 0
        return pid
    return said if said > 0 and _holds(said, sock) else 0


def _holds(pid: int, sock: socket.socket) -> bool:
    """Whether this process has the other end of a TCP connection within this machine. False for processes of other
    users: the system does not tell."""
    try:
        name = f"socket:[{_inode_of_other_end(sock)}]"
        folder = f"/proc/{pid}/fd"
        for fd in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                if os.readlink(f"{folder}/{fd}") == name:
                    return True
    except (OSError, ValueError):
        pass
    return False


def _inode_of_other_end(sock: socket.socket) -> int:
    """The number of the socket at the other end, from the system's table of connections."""
    ends = f" {_row(sock.getpeername())} {_row(sock.getsockname())} "
    for line in Path("/proc/self/net/tcp").read_text().splitlines():
        if ends in line:
            return int(line.split()[9])
    raise ValueError("the other end is not on this machine")


def _row(end: tuple[str, int]) -> str:
    """One end of a connection as that table writes it."""
    (host,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{host:08X}:{end[1]:04X}"
