"""The plan of a program changes under a loop: what is asked for, when tensors move, and that every way out leaves a
session that runs. (The simulator does the same thousands of times, with faults.)"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from dispatching import PLAIN, STEP, Hand, Settings, calls, program, sent_to

from gt import dtypes
from gt.chosen import Chosen
from gt.dispatcher import events as ev
from gt.dispatcher import moves, switches
from gt.dispatcher.planner.plan import plan_program
from gt.dispatcher.switches import Stage
from gt.dispatcher.timing import WATCH, WATCH_S, WINDOW
from gt.layout import layout, mesh, split
from gt.program import Instruction, Program, spec
from gt.transport import messages as msg

LONG_US = 1_000_000


class Loop:
    """A client that calls STEP again and again on two workers, without a word about layouts."""

    def __init__(self, after_s: float = 2.0, memory: int = 0) -> None:
        self.hand = Hand(Settings(plan_after_s=after_s))
        self.hand.planner = plan_program
        self.workers = self.hand.workers(2, memory)
        self.client = self.hand.client()
        self.client.set_mesh(split=True, x=2)
        self.client.define(STEP)
        self.x = self.client.upload(*self.workers)

    def call(self) -> list[ev.Effect]:
        """Send the next step."""
        out = self.client.call(STEP, [self.x], (0.5,))
        self.x = self.client.next_id - 1
        return out

    def done(self, seq: int, run_us: int = LONG_US) -> list[ev.Effect]:
        return [a for w in self.workers for a in w.done(self.client, seq, run_us)]

    def steps(self, count: int, run_us: int = LONG_US) -> list[ev.Effect]:
        out: list[ev.Effect] = []
        for _ in range(count):
            out += self.call()
            out += self.done(self.client.seq, run_us)
        return out

    def solved(self, *answer: Any, **more: Any) -> list[ev.Effect]:
        """A plan was found; workers make the code that it takes, if it is followed."""
        return self.prepare(self.found(*answer, **more))

    def found(
        self, layout: str = "[8@x]", time_us: float = 1.0, axes: Any = (("x", 2),), *others: ev.FoundPlan, **more: Any
    ) -> list[ev.Effect]:
        best = ev.FoundPlan(**{"axes": axes, "layouts": (layout,), "time_us": time_us, **more})
        return self.hand.feed(ev.PlanSolved(self.client.number, STEP.hash(), (best, *others), 2.0))

    def prepare(self, out: list[ev.Effect]) -> list[ev.Effect]:
        """Workers answer what they are asked to prepare."""
        for worker in self.workers:
            for asked in worker.hears(out, msg.Prepare):
                out = out + worker.say(msg.Prepared(asked.session, asked.program))
        return out

    @property
    def layout(self) -> str:
        return repr(self.client.session.tensors[self.x].layout)

    def decisions(self) -> list[str]:
        return [a.text for out in self.hand.actions for a in out if isinstance(a, ev.Decided)]


def solves(out: list[ev.Effect]) -> list[ev.Solve]:
    return [a for a in out if isinstance(a, ev.Solve)]


def searched(memory: int = 0) -> Loop:
    """A loop that has run for long enough: its plan is being searched for."""
    loop = Loop(memory=memory)
    loop.steps(switches.RUNS)
    return loop


def begun() -> tuple[Loop, list[ev.Effect]]:
    """A loop whose tensor is on its way to [8@x]: the move is on the workers."""
    loop = searched()
    loop.solved()
    return loop, loop.call()


def test_a_program_that_ran_long_enough_is_solved_once() -> None:
    loop = Loop()
    out = loop.steps(switches.RUNS)
    (job,) = solves(out)
    assert (job.session, job.program, job.most, job.layouts, job.pins) == (1, STEP.hash(), (("x", 2),), ("[]",), {})
    assert solves(loop.steps(5)) == []  # one search at a time


@pytest.mark.parametrize(("after_s", "split"), [(0.0, True), (2.0, False)])
def test_only_sessions_that_ask_for_it_are_switched(after_s: float, split: bool) -> None:
    loop = Loop(after_s)
    loop.client.set_mesh(split=split, x=2)
    assert solves(loop.steps(3 * switches.RUNS)) == []


def test_workers_make_code_before_the_change() -> None:
    """All of it: for uploads that are on their way, for those that come later, and for the moves."""
    loop = searched()
    out = loop.found()
    for worker in loop.workers:
        defined = [m.program.hash() for m in worker.hears(out, msg.Define)]
        asked = worker.hears(out, msg.Prepare)
        assert len(asked) == len(defined) == 2  # the program and one move
        assert {m.program for m in asked} == set(defined)
        assert {m.session for m in asked} == {loop.client.number}
    assert switches.about(loop.client.session)[0]["stage"] == "preparing"
    assert [c.seq for c in calls(loop.workers[0], loop.call())] == [loop.client.seq]  # the old plan runs meanwhile
    loop.done(loop.client.seq)
    first, *others = [(w, m) for w in loop.workers for m in w.hears(out, msg.Prepare)]
    for worker, asked in others:
        worker.say(msg.Prepared(asked.session, asked.program))
    assert loop.client.session.switch.stage is Stage.PREPARING
    first[0].say(msg.Prepared(99, first[1].program))  # of a session that is not there
    first[0].say(msg.Prepared(first[1].session, b"another"))
    assert loop.client.session.switch.stage is Stage.PREPARING
    first[0].say(msg.Prepared(first[1].session, first[1].program))
    assert loop.client.session.switch.stage is Stage.READY
    (move,) = calls(loop.workers[0], loop.call())
    assert move.seq == -1


def test_what_the_old_plan_has_compiled_is_compiled_before_the_change() -> None:
    loop = Loop()
    for _ in range(switches.RUNS):
        loop.call()
        for worker in loop.workers:
            worker.say(msg.CallDone(loop.client.number, loop.client.seq, LONG_US, 3))
    out = loop.found()
    for worker in loop.workers:
        compile = {m.program.hash(): m.compile for m in worker.hears(out, msg.Define)}
        assert sorted(compile.values()) == [-1, 1]  # a move is never compiled


def test_what_was_compiled_during_the_search_is_timed_before_the_change() -> None:
    """The search slows the loop down: so its plan would seem slower than it is."""
    loop = searched()

    def compiled(run_us: int) -> None:
        loop.call()
        for worker in loop.workers:
            worker.say(msg.CallDone(loop.client.number, loop.client.seq, run_us, 3))

    for _ in range(WINDOW):
        compiled(LONG_US)
    loop.found(time_us=1.2)
    assert loop.decisions() == [switches.FOUND]
    (row,) = switches.about(loop.client.session)
    assert (row["stage"], row["decision"]) == ("timing", "")
    for _ in range(WINDOW):
        assert loop.client.session.switch is None
        compiled(LONG_US // 2)
    assert loop.decisions()[1].startswith("changes: 500,000 us a call; 300,000 expected")
    assert loop.client.session.switch.stage is Stage.PREPARING


def test_a_compiler_that_takes_too_long_is_not_waited_for() -> None:
    loop = searched()
    loop.hand.pass_time(switches.PREPARE_S + 1)  # the search takes as long: that is not the compiler's time
    out = loop.found()
    loop.steps(1)
    assert loop.client.session.switch.stage is Stage.PREPARING
    loop.hand.pass_time(switches.PREPARE_S + 1)
    loop.steps(1)
    assert loop.client.session.switch.stage is Stage.READY
    loop.prepare(out)  # late answers mean nothing
    loop.call()
    assert loop.client.session.switch.stage is Stage.MOVING


def test_the_program_that_takes_the_most_time_decides_and_others_are_planned_for_its_layouts() -> None:
    """Training and evaluation in turn."""
    loop = Loop()
    loop.client.define(PLAIN)

    def evaluate() -> list[ev.Effect]:
        loop.client.call(PLAIN, [loop.x])
        return loop.done(loop.client.seq, LONG_US // 3)

    for _ in range(switches.RUNS - 1):
        assert solves(loop.steps(1)) == solves(evaluate()) == []
    (job,) = solves(loop.steps(1))
    assert (job.program, job.pins) == (STEP.hash(), {})
    loop.solved(time_us=1.99)  # it stays
    (job,) = solves(evaluate())
    assert (job.program, job.pins) == (PLAIN.hash(), {0: "[]"})
    same = ev.FoundPlan((("x", 2),), ("[]",), time_us=2.0)
    loop.hand.feed(ev.PlanSolved(loop.client.number, PLAIN.hash(), (same,), 2.0, 1.0))
    why = "; on one worker 166,666, but other programs need its tensors where they are"
    assert loop.decisions()[-1].endswith(why)


def test_plans_of_a_session_do_not_change_one_after_the_other() -> None:
    loop, _ = begun()
    loop.client.define(PLAIN)
    loop.done(-1)
    loop.done(loop.client.seq, LONG_US // 2)
    loop.steps(WINDOW, LONG_US // 2)
    assert loop.decisions()[-1].startswith("changed")
    found: list[ev.Solve] = []
    while not found:
        loop.client.call(PLAIN, [loop.x])
        found = solves(loop.done(loop.client.seq, LONG_US // 100))
    assert loop.client.session.calls - loop.client.session.switched == switches.APART
    assert found[0].pins == {0: "[8@x]"}


def test_tensors_move_under_their_ids_and_the_waiting_call_runs_by_the_new_plan() -> None:
    loop, out = begun()
    waiting = loop.x
    moved = loop.client.session.queue[0]
    for worker in loop.workers:
        (move,) = calls(worker, out)
        assert (move.seq, msg.unpack_ids(move.inputs)) == (-1, [waiting - 1])
        assert move.outputs > 1 << 61
    assert moved is not None
    assert loop.workers[0].done(loop.client, -1) == []
    out = loop.workers[1].done(loop.client, -1)
    for worker in loop.workers:
        (rename,) = worker.hears(out, msg.Rename)
        assert msg.unpack_ids(rename.ids) == [waiting - 1]
        (call,) = calls(worker, out)
        assert (call.seq, msg.unpack_ids(call.inputs)) == (loop.client.seq, [waiting - 1])
    assert loop.layout == "[8@x]"
    assert loop.client.session.nbytes == 32  # half of it on each worker, and nothing else
    assert [w.state.nbytes for w in loop.workers] == [16, 16]


def test_a_move_waits_for_the_calls_before_it() -> None:
    loop = searched()
    first = loop.call()
    assert calls(loop.workers[0], first)
    loop.solved()
    second = loop.call()
    assert calls(loop.workers[0], second) == []
    (move,) = calls(loop.workers[0], loop.done(loop.client.seq - 1))
    assert move.seq == -1


def test_a_fetch_goes_on_while_tensors_move() -> None:
    loop, _ = begun()
    out = loop.client.fetch(7, loop.x - 1)
    assert [m.id for m in loop.workers[0].hears(out)] == [loop.x - 1]


@pytest.mark.parametrize("end", ["failed", "worker", "mesh", "plan", "leave"])
def test_whatever_comes_in_between_leaves_the_old_layouts(end: str) -> None:
    loop, _ = begun()
    old = loop.x - 1
    if end == "failed":
        out = loop.workers[0].failed(loop.client, -1, kind="OutOfMemory") + loop.workers[1].failed(loop.client, -1)
        assert [c.seq for c in calls(loop.workers[0], out)] == [loop.client.seq]  # the loop goes on
        assert "OutOfMemory" in loop.decisions()[-1]
    elif end == "worker":
        loop.workers[1].die()
        assert repr(loop.client.session.tensors[loop.x].layout) == "[]"  # the other one has all of it
    elif end == "mesh":
        loop.client.set_mesh(x=2)
    elif end == "plan":
        loop.client.say(msg.UsePlan(STEP.body(), (("x", 2),), (Chosen(),), {0: 0}))
    else:
        loop.client.leave()
        assert not loop.hand.state.sessions
        assert [w.state.nbytes for w in loop.workers] == [0, 0]
        return
    session = loop.client.session
    assert session.switch is None
    assert session.moving is None
    assert not [i for i in session.tensors if i > 1 << 61], "a copy was left"
    assert old not in session.tensors or repr(session.tensors[old].layout) == "[]"
    loop.workers[0].done(loop.client, -1)  # a late answer means nothing
    loop.hand.machine.invariants()


def test_a_plan_that_is_not_faster_is_left_again_and_stays_left() -> None:
    loop, _ = begun()
    loop.done(-1)
    loop.done(loop.client.seq)
    loop.steps(WATCH * WINDOW, 2 * LONG_US)
    assert not any("changes back" in each for each in loop.decisions())  # something else may be busy just now
    loop.hand.pass_time(WATCH_S)
    loop.prepare(loop.steps(WINDOW, 2 * LONG_US))
    assert any("changes back: 2,000,000 us a call, 1,000,000 before" in each for each in loop.decisions())
    loop.call()
    loop.done(-2)
    loop.done(loop.client.seq)
    assert loop.layout == "[]"
    assert "stays" in loop.decisions()[-1]
    assert solves(loop.steps(3 * switches.RUNS)) == []


def one_worker(time_us: float) -> ev.FoundPlan:
    return ev.FoundPlan((("x", 1),), ("[]",), time_us=time_us, words="one worker")


def tried_in_vain(other_us: float, workers: int = 1) -> Loop:
    """A loop whose best plan was slower than predicted: it was left again. Another one is predicted, for one worker."""
    loop = searched()
    other = msgspec.structs.replace(one_worker(other_us), axes=(("x", workers),))
    loop.prepare(loop.found("[8@x]", 1.0, (("x", 2),), other))
    loop.call()
    loop.done(-1)
    loop.done(loop.client.seq)
    loop.steps(WATCH * WINDOW, 2 * LONG_US)
    loop.hand.pass_time(WATCH_S)
    loop.prepare(loop.steps(WINDOW, 2 * LONG_US))
    loop.call()
    loop.done(-2)
    loop.done(loop.client.seq)
    assert loop.layout == "[]"
    return loop


def test_a_plan_on_another_number_of_workers_is_tried_later_if_the_best_one_was_slower() -> None:
    """It was predicted to be slower, but predictions were wrong once already."""
    loop = tried_in_vain(2.5)
    assert "another plan may be tried" in str(switches.about(loop.client.session)[0]["decision"])
    switched, says = loop.client.session.switched, "changes: 1,000,000 us a call; 1,250,000 expected of one worker"
    while says not in loop.decisions():
        out = loop.steps(1)
        assert solves(out) == []
    assert loop.client.session.calls - switched == switches.APART
    loop.prepare(out)
    loop.call()
    loop.done(-3)
    for _ in range(WINDOW):
        loop.workers[0].done(loop.client, loop.client.seq, LONG_US // 4)
        loop.call()
    assert loop.decisions()[-1].startswith("changed: 250,000 us a call, 1,000,000 before")
    (row,) = switches.about(loop.client.session)
    assert (row["workers"], row["decision"]) == ([1], loop.decisions()[-1])


def test_a_plan_that_was_not_worth_a_change_is_tried_beside_one_on_another_number_of_workers() -> None:
    loop = searched()
    loop.prepare(loop.found("[8@x]", 1.95, (("x", 2),), one_worker(1.0)))
    assert loop.decisions()[-1].endswith("expected of one worker")
    loop.call()
    loop.done(-1)
    loop.workers[0].done(loop.client, loop.client.seq)
    for _ in range(2 * switches.APART):
        loop.call()
        loop.workers[0].done(loop.client, loop.client.seq, LONG_US * 8 // 10)
        if loop.decisions()[-1].startswith("changes: 800,000"):
            break
    assert loop.decisions()[-1] == "changes: 800,000 us a call; 975,000 expected of the best plan"


def test_what_is_told_of_a_plan_is_told_again_when_a_trial_leads_back_to_it() -> None:
    loop = searched()
    best = {"text": "the best", "words": ""}
    loop.prepare(loop.found("[8@x]", 1.0, (("x", 2),), one_worker(1.0), **best))
    loop.call()
    loop.done(-1)
    loop.done(loop.client.seq, LONG_US // 2)
    loop.steps(WINDOW, LONG_US // 2)

    def told() -> tuple[object, ...]:
        (row,) = switches.about(loop.client.session)
        return row["text"], row["predicted_us"], row["coming"], row["measured_us"]

    assert told() == ("the best", 1.0, "", LONG_US // 2)
    out: list[ev.Effect] = []
    while loop.client.session.switch is None:
        out = loop.steps(1, LONG_US // 2)
    loop.prepare(out)
    loop.call()
    loop.done(-2)
    loop.workers[0].done(loop.client, loop.client.seq)
    assert told()[:3] == ("", 1.0, "")
    loop.hand.pass_time(WATCH_S)
    for _ in range((WATCH + 1) * WINDOW):
        loop.call()
        out = loop.workers[0].done(loop.client, loop.client.seq, LONG_US)
        if loop.client.session.switch.stage is not Stage.TRIAL:
            break
    assert told()[:3] == ("", 1.0, "the best")
    loop.prepare(out)
    loop.call()
    loop.workers[0].done(loop.client, -3)
    loop.workers[1].done(loop.client, -3)
    assert "stays" in loop.decisions()[-1]
    assert told() == ("the best", 1.0, "", LONG_US // 2)


@pytest.mark.parametrize(
    ("other_us", "workers"), [(3.1, 1), (100.0, 1), pytest.param(0.6, 2, id="on as many workers as were tried")]
)
def test_a_plan_that_is_expected_to_be_much_slower_is_not_tried(other_us: float, workers: int) -> None:
    loop = tried_in_vain(other_us, workers)
    decided = loop.decisions()
    loop.steps(2 * switches.APART)
    assert loop.decisions() == decided
    assert "may be tried" not in str(switches.about(loop.client.session)[0]["decision"])


def test_other_plans_are_forgotten_when_they_are_for_other_circumstances() -> None:
    """The client has placed a tensor meanwhile."""
    loop = tried_in_vain(2.5)
    loop.x = loop.client.upload(*loop.workers, layout="[8@x]")
    decided = loop.decisions()
    loop.steps(2 * switches.APART)
    assert loop.decisions() == decided


def test_variants_of_a_program_are_timed_together() -> None:
    """Every third step returns something more, as one whose loss is read: the change may begin with any of them."""
    plain = program(donate=True, update=True, scalars="f", length=2)
    other = msgspec.structs.replace(plain, outputs=(*plain.outputs, 1))
    loop = Loop()
    loop.client.define(plain)
    loop.client.define(other)

    def steps(count: int, run_us: int) -> None:
        for k in range(count):
            out = loop.client.call(other if k % 3 == 0 else plain, [loop.x], (0.5,))
            loop.x = loop.client.next_id - (2 if k % 3 == 0 else 1)
            loop.prepare([*out, *loop.done(loop.client.seq, run_us)])

    steps(switches.RUNS, LONG_US)
    entry = loop.client.session.switch.entry
    best = ev.FoundPlan((("x", 2),), ("[]",), {0: Chosen()}, 1.0)
    loop.prepare(loop.hand.feed(ev.PlanSolved(loop.client.number, entry.hash, (best,), 2.0)))
    steps(WINDOW, LONG_US // 2)  # the first one does not begin the change
    assert loop.decisions()[-1].startswith("changes: ")
    steps(1, LONG_US // 2)
    assert loop.decisions()[-1].startswith(
        "changed: 500,000 us a call, 1,000,000 before (tier 1, better ones of 1 and 0 "
    )


def test_a_plan_that_is_faster_is_kept() -> None:
    loop, _ = begun()
    loop.done(-1)
    loop.done(loop.client.seq, LONG_US // 2)
    loop.steps(WINDOW, LONG_US // 2)
    assert loop.decisions()[-1].startswith("changed: 500,000 us a call, 1,000,000 before")
    assert loop.client.session.switch is None
    assert loop.layout == "[8@x]"
    assert solves(loop.steps(3 * switches.RUNS)) == []


def test_what_promises_too_little_is_not_begun() -> None:
    loop = searched()
    loop.solved(time_us=1.99)
    assert "stays" in loop.decisions()[-1]
    assert loop.client.session.switch is None


@pytest.mark.parametrize(
    "bad", [{"layouts": ()}, {"layouts": ("[9@x]",)}, {"layouts": ("[8@z]",)}, {"axes": (("x", 3),)}]
)
def test_an_answer_that_makes_no_sense_is_not_followed(bad: dict[str, Any]) -> None:
    loop = searched()
    loop.solved(**bad)
    assert "stays" in loop.decisions()[-1]
    loop.steps(2)
    assert loop.layout == "[]"


def test_one_worker_may_be_the_best_plan() -> None:
    loop = searched()
    loop.solved("[]", axes=(("x", 1),))
    loop.call()
    out = loop.done(-1)
    assert [c.program for c in calls(loop.workers[0], out)] == [STEP.hash()]  # the client's own program
    assert calls(loop.workers[1], out) == []
    loop.workers[0].done(loop.client, loop.client.seq)
    assert [w.state.nbytes for w in loop.workers] == [32, 0]


def test_copies_that_do_not_fit_are_not_made() -> None:
    loop = searched(memory=64)
    big = loop.client.upload(*loop.workers)
    loop.solved()
    out = loop.call()
    assert big
    assert [c.seq for c in calls(loop.workers[0], out)] == [loop.client.seq]
    assert "do not fit" in loop.decisions()[-1]


def test_tensors_that_the_client_placed_are_pinned_and_programs_that_place_are_left_alone() -> None:
    loop = Loop()
    loop.x = loop.client.upload(*loop.workers, layout="[8@x]")
    (job,) = solves(loop.steps(switches.RUNS + 1))
    assert job.pins == {0: "[8@x]"}
    assert job.fixed
    placing = msgspec.structs.replace(PLAIN, code=(Instruction("shard", (0,), {"layout": "[]"}),))
    other = Loop()
    other.client.define(placing)
    for _ in range(3 * switches.RUNS):
        other.client.call(placing, [other.x])
        assert solves(other.done(other.client.seq)) == []
    assert other.decisions() == ["the client says how it runs"]


def test_uploads_of_one_spec_are_to_have_one_layout() -> None:
    """A plan says by their specs how uploads are laid out, and a program that follows keeps to that."""
    code = tuple([Instruction("add", args, {}) for args in ((0, ~0), (3, 1), (4, 2))])
    two = Program((((8,), "float32"),) * 3, "f", code, (5,), (0,), ((0, 0),))
    loop = Loop()
    loop.client.define(two)
    out: list[ev.Effect] = []
    for _ in range(switches.RUNS):
        fresh = [loop.client.upload(*loop.workers) for _ in range(2)]
        out += loop.client.call(two, [loop.x, *fresh], (0.5,))
        loop.x = loop.client.next_id - 1
        out += loop.done(loop.client.seq)
    (job,) = solves(out)
    assert job.alike == ((1, 2),)


def test_large_tensors_move_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wants = [moves.Want(k, spec, a, b) for k, (spec, a, b) in enumerate(_tensors())]
    monkeypatch.setattr(moves, "MOVE_NBYTES", 40)
    assert [[w.position for w in group] for group in moves._groups(wants)] == [[0, 1], [2], [3]]


def _tensors() -> list[tuple[Any, Any, Any]]:
    two = mesh([1, 2], x=2)
    return [(spec((n,), dtypes.float32), layout(two), split(two, (n,), {0: "x"})) for n in (8, 8, 100, 4)]


def test_a_stage_is_told_to_the_client() -> None:
    loop = searched()
    assert loop.client.session.switch.stage is Stage.SOLVING
    (row,) = switches.about(loop.client.session)
    assert (row["stage"], row["measured_us"], row["workers"]) == ("solving", LONG_US, [1, 2])


def test_another_session_is_not_touched() -> None:
    loop, out = begun()
    other = loop.hand.client(PLAIN)
    y = other.upload(loop.workers[0])
    assert [c.session for c in calls(loop.workers[0], other.call(PLAIN, [y]))] == [other.number]
    assert sent_to(other.peer, out) == []
