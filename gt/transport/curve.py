"""CURVE: encrypted connections between processes that know each other's keys, and the thread that admits them.

Law 1: a connection without a known key is refused before a message of it is read.
Law 2: ZeroMQ asks once, when a connection begins. So the router looks at the user of every message again (router.py):
       a key that was revoked meanwhile is worth nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import zmq
from zmq.utils import z85

from gt.transport.identity import Key, Keyring

LOOK_MS = 100  #: How often the thread looks whether it should end.


def new_pair() -> tuple[bytes, bytes]:
    """A new (public, secret) pair of keys."""
    public, secret = zmq.curve_keypair()
    return z85.decode(public), z85.decode(secret)


def public_of(secret: bytes) -> bytes:
    return z85.decode(zmq.curve_public(z85.encode(secret)))


def use_key(s: zmq.Socket[bytes], key: Key) -> None:
    """Connect as the owner of this key, to its server and to no other."""
    secret = z85.encode(key.secret)
    s.curve_serverkey = z85.encode(key.server)
    s.curve_publickey = zmq.curve_public(secret)
    s.curve_secretkey = secret


def serve_with(s: zmq.Socket[bytes], ring: Keyring) -> None:
    """Accept encrypted connections alone."""
    s.curve_server = 1
    s.curve_publickey = z85.encode(ring.public)
    s.curve_secretkey = z85.encode(ring.secret)


class Gate:
    """Answers ZeroMQ's question who may connect (RFC 27, ZAP) for all sockets of a context. A connection's User-Id
    is the public key that it proved to own."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ring: Keyring) -> None:
        self._ring = ring
        self._ending = False
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind("inproc://zeromq.zap.01")
        self._thread = threading.Thread(target=self._answer, name="gt-gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending = True
        self._thread.join()

    def _answer(self) -> None:
        with suppress(zmq.ContextTerminated):
            while not self._ending:
                if self._socket.poll(LOOK_MS):
                    version, request, _, _, _, mechanism, *proofs = self._socket.recv_multipart()
                    key = proofs[0].hex() if mechanism == b"CURVE" and len(proofs) == 1 else ""
                    good = self._ring.knows(key)
                    code, text = (b"200", b"OK") if good else (b"400", b"unknown key")
                    self._socket.send_multipart([version, request, code, text, key.encode() if good else b"", b""])
        self._socket.close(0)
