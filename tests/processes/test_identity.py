"""Who may join a server with keys: those whose key it knows, as long as it does, and nobody else."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import gt
from gt.cli.main import main
from gt.dispatcher.users import REVOKED
from gt.errors import ArgumentError, ServerError, StartError
from gt.server import users
from gt.transport import connect, logins
from gt.transport.curve import new_pair, public_of
from gt.transport.identity import CLIENT, WORKER, Key, parse_url, url
from gt.transport.messages import VERSION, Hello, Message, Refused, Welcome, WorkerHello, encode

from .adversary import Between
from .running import DEADLINE_S, Process, Server, Start, answer, children, knock, until

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("own_settings")]


class Lab:
    """A server with keys, and its folder."""

    def __init__(self, home: Path, started: list[Process]) -> None:
        self.home = home
        self.key = users.add(home, "ada")
        self.worker_key = users.add(home, "workers", WORKER)
        self._started = started

    def serve(self, *arguments: str, **env: str) -> Server:
        self.server = Server("--keys", "--engine", "numpy", *arguments, GT_CONFIG_DIR=str(self.home), **env)
        self._started.append(self.server)
        return self.server

    def greet(self, key: Key | None, hello: Message | None = None) -> Message:
        with closing(connect(self.server.address, key)) as channel:
            channel.send(hello or Hello(VERSION, "", "test"))
            return answer(channel)


@pytest.fixture
def lab(tmp_path: Path, started: list[Process]) -> Lab:
    return Lab(tmp_path / "lab", started)


def test_a_key_is_needed(lab: Lab) -> None:
    lab.serve()
    assert isinstance(lab.greet(lab.key), Welcome)
    with pytest.raises(ServerError, match=r"needs a key: gt login URL stores one, with the URL that gt user prints"):
        lab.greet(None)
    unknown = Key(CLIENT, lab.key.server, new_pair()[1])
    with pytest.raises(ServerError, match="does not know this key; it was revoked, or is of another server"):
        lab.greet(unknown)
    with pytest.raises(ServerError, match="does not have the key that the connection URL names"):
        lab.greet(Key(CLIENT, new_pair()[0], lab.key.secret))
    assert isinstance(lab.greet(lab.key), Welcome)


def test_a_key_is_for_clients_or_for_workers(lab: Lab) -> None:
    lab.serve()
    assert lab.greet(lab.key, WorkerHello(VERSION, "", "link", True)) == Refused("this key is for clients alone")
    assert lab.greet(lab.worker_key) == Refused("this key is for workers alone")


def test_a_revoked_key_ends_what_runs(lab: Lab) -> None:
    """The session is over at once, the key opens nothing any more, and others go on."""
    lab.serve("--workers", "1")
    other = users.add(lab.home, "bob")
    gt.connect(url(lab.server.address, lab.key))
    assert gt.ones(3).sum().item() == 3
    with closing(connect(lab.server.address, other)) as channel:
        # A key that was added while the server runs is known at once.
        channel.send(Hello(VERSION, "", "bob"))
        assert isinstance(answer(channel), Welcome)
        users.revoke(lab.home, "bob")
        assert answer(channel) == Refused(REVOKED)
    with pytest.raises(ServerError, match="does not know this key"):
        lab.greet(other)
    assert gt.ones(4).sum().item() == 4
    users.revoke(lab.home, "ada")
    with pytest.raises(ServerError, match="this key was revoked"):
        run_until_it_fails()


def run_until_it_fails() -> None:
    for _ in range(1_000_000):
        gt.ones(2).sum().item()


def test_a_revoked_worker_key_ends_the_workers(lab: Lab, start: Start) -> None:
    lab.serve()
    arguments = ("-m", "gt.worker", "--engine", "numpy")
    worker = start(*arguments, GT_SERVER=url(lab.server.address, lab.worker_key))
    assert "joined" in worker.line("stderr")
    (door,) = children(worker.pid)
    users.revoke(lab.home, "workers")
    code, _, said = worker.end()
    assert (code, said) == (1, f"gt worker: {REVOKED}\n")
    until(lambda: not Path(f"/proc/{door}").exists(), "the end of the process at its door")


def test_strangers_at_the_port(lab: Lab) -> None:
    """Frames of ZeroMQ without a key, of other protocols, and of nobody."""
    lab.serve()
    host, _, port = lab.server.address.rpartition(":")
    plain = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48)
    hello = encode(Hello(VERSION, "", "x"))[0]
    with ExitStack() as idle:
        for _ in range(50):
            idle.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
        curve = plain.replace(b"NULL\0", b"CURVE") + bytes(200)
        for said in (plain + hello, b"GET / HTTP/1.1\r\n\r\n", bytes(1000), curve):
            assert len(knock(lab.server.address, said)) <= 64, "a greeting of ZeroMQ"
        assert isinstance(lab.greet(lab.key), Welcome)


def test_recorded_frames_are_worth_nothing(lab: Lab) -> None:
    """Somebody records what a client sends, and sends it again on a connection of their own."""
    between = Between(lab.serve().address)
    assert between.pass_on(lab.key, exchange=False)
    assert len(knock(between.address, between.said)) < 500, "a greeting, and the error of the handshake"
    assert isinstance(lab.greet(lab.key), Welcome)


def test_no_secret_is_in_a_log_or_a_list_of_processes(lab: Lab, tmp_path: Path, start: Start) -> None:
    log = tmp_path / "log"
    server = lab.serve("--workers", "2", GT_DEBUG_DISPATCHER="1", GT_VERBOSE="1", GT_INSTRUCTION_LOG=str(log))
    text = url(server.address, lab.key)
    script = "import gt\nprint(gt.mesh(x=2))\nprint(gt.ones(2, 2).sum().item())"
    code, out, err = start("-c", script, GT_SERVER=text, GT_DEBUG_CLIENT="1").end()
    assert (code, out.splitlines()[1:]) == (0, ["4.0"]), err
    workers = children(server.pid)
    pids = [server.pid, *workers, *[door for worker in workers for door in children(worker)]]
    assert len(pids) == 5
    shown = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids).decode()
    server.signal(15)
    _, said, complaints = server.end()
    everything = "".join((out, err, shown, said, complaints, log.read_text()))
    assert "Peers(" in complaints
    assert "secret=***" in complaints
    for secret in (text.partition("-")[2], lab.key.secret.hex(), (lab.home / "server.key").read_text().strip()):
        assert secret not in everything
    # The secret of the workers is not known here; nothing that looks like one was printed.
    assert not [word for word in everything.replace("'", " ").split() if len(word) == 64 and _is_hex(word)]


def _is_hex(word: str) -> bool:
    return set(word) <= set("0123456789abcdef")


# --- commands and files ----------------------------------------------------------------------------------------------


def test_a_server_for_other_machines_needs_users(tmp_path: Path, start: Start) -> None:
    server = start("-m", "gt.server", "--host", "0.0.0.0", "-p", "0", GT_CONFIG_DIR=str(tmp_path))
    code, out, err = server.end()
    assert (code, out) == (2, "")
    assert err == (
        "gt: a server that other machines can reach needs users: run gt user add NAME for each of them first; "
        "for this machine alone, leave out --host\n"
    )
    users.add(tmp_path, "workers", WORKER)
    with pytest.raises(StartError):
        users.CurrentUsers(tmp_path)


def test_a_server_has_keys_of_its_own(tmp_path: Path) -> None:
    """For its workers, and for the process that measures them. They are in no file, and stay when users change."""
    users.add(tmp_path, "ada")
    watch = users.CurrentUsers(tmp_path)
    own = {watch.key.role, watch.planner_key.role}
    assert own == {CLIENT, WORKER}
    users.add(tmp_path, "bob")
    assert watch.changed()
    for key in (watch.key, watch.planner_key):
        public = public_of(key.secret).hex()
        assert watch.ring.users[public].role == key.role
        assert public not in (tmp_path / "users.json").read_text()


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GT_CONFIG_DIR", str(tmp_path / "server"))
    assert main(["user", "add", "ada", "--memory", "40G", "--share", "2", "--workers", "4", "--host", "lab"]) == 0
    text = capsys.readouterr().out.strip()
    address, key = parse_url(text)
    assert (address, key.role) == ("lab:12345", CLIENT)
    assert main(["user", "add", "ada"]) == 2
    assert capsys.readouterr().err == "gt user: there is a user 'ada' already; gt user revoke ada removes it\n"
    assert main(["user", "worker-key", "-p", "999"]) == 0
    workers = capsys.readouterr().out.strip()
    assert main(["user", "list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[:5] for line in listed.splitlines()[1:]] == [
        ["ada", "clients", "42949672960", "2", "4"],
        ["workers", "workers", "-", "1", "-"],
    ]
    for secret in (text, workers):
        assert secret.partition("-")[2] not in listed
    assert main(["user", "revoke", "eve"]) == 2
    assert capsys.readouterr().err == "gt user: there is no user 'eve'; gt user list shows all\n"
    assert main(["user", "revoke", "ada"]) == 0
    assert [user.name for user in users.read(tmp_path / "server").values()] == ["workers"]
    monkeypatch.setenv("GT_CONFIG_DIR", str(tmp_path / "mine"))
    for stored in (text, workers):
        assert main(["login", stored]) == 0
    assert logins.find(tmp_path / "mine") == ("lab:12345", key)
    assert logins.find(tmp_path / "mine", role=WORKER)[0].endswith(":999")
    other_name = url("127.0.0.1:7", key)
    assert main(["login", other_name]) == 0
    assert logins.find(tmp_path / "mine", "localhost:7") == ("localhost:7", key)
    assert logins.find(tmp_path / "mine", "localhost:8") == ("localhost:8", None)
    assert logins.find(tmp_path / "mine") == ("127.0.0.1:7", key), "the latest"
    given = url("127.0.0.1:8", key)  # in GT_SERVER
    assert logins.find(tmp_path / "mine", "localhost:8", given=given) == ("localhost:8", key)
    assert logins.find(tmp_path / "mine", "localhost:9", given=given) == ("localhost:9", None), "another server"
    assert logins.find(tmp_path / "mine", "localhost:8", WORKER, given) == ("localhost:8", None), "a key of a user"
    assert main(["login", text[:-5]]) == 2
    said = capsys.readouterr()
    assert text.partition("-")[2][:20] not in said.out + said.err


def test_files_are_for_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        key = users.add(tmp_path / "lab", "ada")
        logins.store(tmp_path / "mine", url("lab:1", key))
    finally:
        os.umask(before)
    for folder in ("lab", "mine"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
        for file in (tmp_path / folder).iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    (tmp_path / "mine" / logins.FILE).chmod(0o644)
    with pytest.raises(ServerError, match=r"can be read by others \(mode 0644\); run: chmod 600"):
        logins.find(tmp_path / "mine")


@pytest.mark.parametrize(
    "text", ["lab:1", "gt://lab:1", "gt://lab:1#user", "gt://lab:1#root-abc", "gt://#user-abc", "http://x#user-a"]
)
def test_what_is_no_url(text: str, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="must have the form gt://host:port#key"):
        logins.store(tmp_path, text)


def test_a_url_with_half_a_key_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="incomplete; copy the whole line") as raised:
        gt.connect("gt://lab:1#user-abcdefgh")
    assert "abcdefgh" not in str(raised.value)
    with pytest.raises(ServerError, match="has a worker key; clients need one of: gt user add NAME"):
        gt.connect(url("lab:1", Key(WORKER, bytes(32), bytes(32))))


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "-x", "a\nb"])
def test_names_of_users(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="must be 1 to 64 letters"):
        users.add(tmp_path, name)


def test_without_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ServerError, match="no server to connect to: give its address, set GT_SERVER, or run gt login"):
        gt.connect()
