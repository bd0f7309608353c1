"""Addresses as people write them; tests/transport/test_plain.py has who is at the other end."""

from __future__ import annotations

import pytest

from gt.errors import ServerError
from gt.transport.addresses import endpoint, host_and_port, is_loopback, no_server


@pytest.mark.parametrize(
    "address",
    ["", "localhost", ":12", "localhost:port", "localhost:70000", "http://x:1", "ipc://", "ipc://" + "x" * 108],
)
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ServerError, match="address"):
        endpoint(address)


@pytest.mark.parametrize("address", ["gt://lab:1#user-sesame", "lab:1#user-sesame", "0.0.0.0:1#worker-sesame"])
def test_a_key_in_an_address_is_not_repeated(address: str) -> None:
    with pytest.raises(ServerError, match="must have the form host:port, without a key") as raised:
        endpoint(address)
    assert "sesame" not in str(raised.value)


def test_addresses() -> None:
    assert endpoint("localhost:80") == endpoint("tcp://localhost:80") == "tcp://127.0.0.1:80"
    assert host_and_port("127.0.0.1:7") == ("127.0.0.1", 7)


def test_what_to_say_if_nobody_listens() -> None:
    assert is_loopback("localhost:80")
    assert not is_loopback("192.0.2.1:80")
    assert no_server("ipc:///tmp/s") == "no server at ipc:///tmp/s; start one with: gt serve"
    assert no_server("127.0.0.1:7").endswith("start one with: gt serve")
    assert no_server("192.0.2.1:7").endswith("start it with gt serve --host 0.0.0.0")
