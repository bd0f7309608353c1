"""The loop around the state machine, with machines that are easy to predict."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from gt.dispatcher import events as ev
from gt.dispatcher import server as server_module
from gt.dispatcher.plans import work_off
from gt.dispatcher.server import Server
from gt.errors import ServerError
from gt.program import Program
from gt.transport.frames import head_of
from gt.transport.messages import Define, GetStats, Goodbye, Hello, Message, Rejected, Stats, WorkerHello, WorkerWelcome
from gt.transport.plain import PlainChannel
from gt.transport.plain_router import PlainRouter

DEADLINE_S = 10.0
NOT_A_PROGRAM = Program((), "", (), (0,), (), ())
EMPTY = Program((), "", (), (), (), ())


class Machine:
    """Answers in ways that the tests can see; raises at Hello("raise"), lies at Hello("unencodable")."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.changed = threading.Condition()

    def busy(self) -> bool:
        return False

    def handle(self, event: ev.Event) -> list[ev.Effect]:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()
        if isinstance(event, ev.BadFramesCame):
            return [ev.Send(event.peer, Rejected(event.text))]
        if not isinstance(event, ev.MessageCame):
            return []
        peer, message = event.peer, event.message
        if isinstance(message, GetStats):
            return [ev.Send(peer, Stats(message.request, {}))]
        if isinstance(message, WorkerHello):
            return [ev.Send(peer, WorkerWelcome(1, 5))]
        if isinstance(message, Define):
            return [ev.CheckProgram(b"name", message.program, at_once=message.compile < 0)]
        if isinstance(message, Goodbye):
            return [ev.Disconnect(peer)]
        if isinstance(message, Hello) and message.name == "raise":
            raise RuntimeError("a defect")
        if isinstance(message, Hello) and message.name == "unencodable":
            return [ev.Send(peer, Stats(1, {"x": object()})), ev.CheckProgram(b"after", EMPTY)]
        return []

    def wait_for(self, wanted: Callable[[ev.Event], bool]) -> ev.Event:
        def found() -> ev.Event | None:
            return next((e for e in self.events if wanted(e)), None)

        with self.changed:
            event = self.changed.wait_for(found, DEADLINE_S)
        assert event is not None, "the event did not come"
        return event


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def server(machine: Machine) -> Iterator[Server]:
    s = Server(PlainRouter("127.0.0.1:0"), machine)
    thread = threading.Thread(target=s.run)
    thread.start()
    yield s
    s.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., PlainChannel]]:
    made: list[PlainChannel] = []

    def new(*messages: Message) -> PlainChannel:
        channel = PlainChannel(server.router.address)
        made.append(channel)
        for m in messages:
            channel.send(m)
        return channel

    yield new
    for channel in made:
        channel.close()


def test_messages_are_answered_and_time_passes(machine: Machine, connect: Callable[..., PlainChannel]) -> None:
    channel = connect(*(GetStats(i) for i in range(1000)))
    for i in range(1000):
        assert channel.receive(DEADLINE_S) == (Stats(i, {}), None)
    machine.wait_for(lambda e: isinstance(e, ev.TimePassed) and e is not machine.events[0])
    times = [e.now_s for e in machine.events if isinstance(e, ev.TimePassed)]
    assert times == sorted(times)


def test_a_defect_in_the_machine_ends_only_that_connection(
    machine: Machine, connect: Callable[..., PlainChannel], capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad = connect(), connect(Hello(1, "", "raise"))
    with pytest.raises(ServerError, match="is lost"):
        bad.receive(DEADLINE_S)
    came = machine.wait_for(lambda e: isinstance(e, ev.MessageCame) and isinstance(e.message, Hello))
    assert isinstance(came, ev.MessageCame)
    assert [e.peer for e in machine.events if isinstance(e, ev.PeerLost)] == [came.peer]
    good.send(GetStats(1))
    assert good.receive(DEADLINE_S) == (Stats(1, {}), None)
    said = capfd.readouterr().err
    assert "gt: the dispatcher dropped MessageCame" in said
    assert "RuntimeError: a defect" in said


def test_an_answer_that_cannot_be_encoded_ends_that_connection_and_the_rest_is_done(
    machine: Machine, connect: Callable[..., PlainChannel], capfd: pytest.CaptureFixture[str]
) -> None:
    bad = connect(Hello(1, "", "unencodable"))
    machine.wait_for(lambda e: isinstance(e, ev.ProgramChecked) and e.program == b"after")
    machine.wait_for(lambda e: isinstance(e, ev.PeerLost))
    with pytest.raises(ServerError, match="is lost"):
        bad.receive(DEADLINE_S)
    assert "gt: cannot send Send(" in capfd.readouterr().err


def test_checks_come_back(machine: Machine, connect: Callable[..., PlainChannel]) -> None:
    connect(Define(EMPTY), Define(NOT_A_PROGRAM))
    good = machine.wait_for(lambda e: isinstance(e, ev.ProgramChecked) and not e.error)
    bad = machine.wait_for(lambda e: isinstance(e, ev.ProgramChecked) and bool(e.error))
    assert good.checked.program == EMPTY
    assert bad.checked is None
    assert bad.error == "outputs must be results, each named once"


def test_programs_are_checked_in_the_background_if_others_may_wait(
    machine: Machine, connect: Callable[..., PlainChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[str] = []

    def noted(job: ev.CheckProgram) -> ev.ProgramChecked | ev.PlanReady:
        where.append(threading.current_thread().name)
        return work_off(job)

    monkeypatch.setattr(server_module, "work_off", noted)
    other = Program((((2,), "float32"),), "", (), (), (), ())
    for program, compile in ((EMPTY, -1), (other, 0)):
        connect(Define(program, compile=compile))
        machine.wait_for(lambda e, p=program: isinstance(e, ev.ProgramChecked) and e.checked.program == p)
    assert where[0] != "gt-plan"
    assert where[1] == "gt-plan"


def test_bad_frames_are_an_event(server: Server) -> None:
    host, _, port = server.router.address.rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as peer:
        peer.sendall(head_of([2]) + b"\xc1\xc1")
        assert b"not a message" in peer.recv(1000)


def test_loss_and_disconnect(machine: Machine, connect: Callable[..., PlainChannel]) -> None:
    gone = connect(GetStats(1))
    gone.receive(DEADLINE_S)
    gone.close()
    machine.wait_for(lambda e: isinstance(e, ev.PeerLost))
    sent_away = connect(Goodbye())
    with pytest.raises(ServerError, match="is lost"):
        sent_away.receive(DEADLINE_S)
    assert sum(isinstance(e, ev.PeerLost) for e in machine.events) == 1, "a disconnected peer is not lost"


def test_workers_are_told_goodbye(server: Server, connect: Callable[..., PlainChannel]) -> None:
    worker = connect(WorkerHello(1, "", "link", True))
    assert worker.receive(DEADLINE_S) == (WorkerWelcome(1, 5), None)
    assert set(server.workers.values()) == {5}
    server.stop()
    assert worker.receive(DEADLINE_S) == (Goodbye(), None)
