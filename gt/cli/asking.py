"""A connection to a server that only asks: for `gt top` and `gt trace`. It is a session without tensors."""

from __future__ import annotations

import time
from typing import Any, Self

from gt import config
from gt.command_line import Parser
from gt.errors import ServerError
from gt.transport import connect, look_up
from gt.transport.messages import VERSION, Goodbye, Hello, Message, Refused, Rejected, Welcome


def add_options(parser: Parser, settings: config.Config) -> None:
    """The options that say which server."""
    parser.add_argument(
        "--server",
        default=settings.server,
        metavar="HOST:PORT",
        help="address of the server (default: GT_SERVER, or that of the latest gt login)",
    )
    parser.add_argument("--token", default=settings.token, help="secret of the server; better set GT_TOKEN")


class Asker:
    """Use it as a context."""

    def __init__(self, address: str, token: str, name: str, timeout_s: float) -> None:
        settings = config.load()
        address, key = look_up(config.home(settings), address, settings.server)
        if not address:
            raise ServerError("which server? Pass --server HOST:PORT, set GT_SERVER, or run gt login")
        self.address = address
        self._channel = connect(address, key)
        self._channel.send(Hello(VERSION, token, name))
        try:
            welcome = self.next(timeout_s)
            if not isinstance(welcome, Welcome):
                raise ServerError(f"expected a welcome, got {type(welcome).__name__}")
        except ServerError as e:
            self._channel.close()
            raise ServerError(f"{address}: {e}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._channel.send(Goodbye())
        except ServerError:
            pass  # it is gone
        self._channel.close()

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def next(self, timeout_s: float) -> Message:
        """The next message; raises ServerError if none comes in time, or if it is a refusal."""
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            came = self._channel.receive(min(left_s, 0.25))
            if came is not None:
                message: Any = came[0]
                if isinstance(message, Refused | Rejected):
                    raise ServerError(message.text)
                return message
        raise ServerError(f"no answer within {timeout_s:g} s")
