"""Real training code settles into few programs, and computes what torch computes.

Each loop is ordinary code, run once on torch and once on GT. On GT no program text is sent in the last third of the
loop, there are at most 4 programs besides the one that made the model, and where nothing is read inside the loop each
step is exactly one call. The loops are in the loops_*.py beside this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.programs.pending import use
from gt.client.record import recorder as recording
from gt.client.session.session import Session
from tests.beside_torch import Story, arrays, each, same, stories
from tests.client.conftest import run_threads
from tests.client.record import loops_with_reads, loops_without_reads
from tests.client.record.loops_with_reads import item_after_step
from tests.client.record.loops_without_reads import (
    gradients_set_to_zero,
    moving_average_of_weights,
    running_sum_of_losses,
    two_optimizers,
)
from tests.client.record.training_loops import BATCH, FEATURES, STEPS, TARGETS, Kit, compare, loop
from tests.sim.cluster import Cluster, using

#: The first step is another one than the rest, in what it computes or in who shares memory with whom.
FIRST_STEP_DIFFERS = [gradients_set_to_zero, running_sum_of_losses, moving_average_of_weights]

#: Has several optimizers: what belongs together is known after two steps.
LEARNED = [two_optimizers]


def assert_settled(kit: Kit, programs: int = 4) -> None:
    assert len(kit.texts) == STEPS + 1
    assert kit.texts[-1] - kit.texts[0] <= programs, kit.texts
    assert kit.texts[-1] == kit.texts[2 * STEPS // 3], kit.texts


def assert_one_known_call_a_step(kit: Kit, known_from: int = 1) -> None:
    assert set(np.diff(kit.calls)[known_from:].tolist()) == {1}, np.diff(kit.calls)
    # A step's call is sent when the next step begins, so its text is counted one step later.
    assert kit.texts[-1] == kit.texts[known_from + 1], kit.texts


@each(stories(loops_without_reads))
def test_without_reads_each_step_is_one_known_call(story: Story, session: Session) -> None:
    kit = compare(story, session)
    assert_settled(kit)
    assert_one_known_call_a_step(kit, 2 if story in FIRST_STEP_DIFFERS else 3 if story in LEARNED else 1)


@each(stories(loops_with_reads))
def test_with_reads_programs_stay_few(story: Story, session: Session) -> None:
    assert_settled(compare(story, session))


def test_there_are_enough_loops() -> None:
    assert len(stories(loops_without_reads)) + len(stories(loops_with_reads)) >= 24


# --- random numbers: the same code, one op to a program, says what comes out -----------------------------


def compare_op_by_op(story: Story, session: Session, monkeypatch: pytest.MonkeyPatch) -> Kit:
    def run(s: Session) -> tuple[Kit, Any]:
        kit = Kit(gt, s)
        gt.manual_seed(11)
        return kit, arrays(story(kit))

    kit, got = run(session)
    with monkeypatch.context() as patch, using(Cluster().client()) as other:
        patch.setattr(recording, "LONGEST", 1)
        slow, want = run(other)
    assert slow.calls[-1] > 10 * kit.calls[-1]
    same(got, want, rtol=1e-12, atol=1e-14)
    return kit


@loop("AdamW", lr=0.01)
def fresh_random_numbers(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    x, y = kit.batch(step)
    noise = gt.randn(BATCH, FEATURES, dtype=gt.float64)
    kit.train_on(model, opt, x + 0.1 * noise, y)
    return noise


@loop("AdamW", lr=0.01)
def random_batches(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    rows = gt.randint(0, len(TARGETS), (BATCH,))
    kit.train_on(model, opt, kit.X[rows], kit.Y[rows])
    return rows


def dropout(kit: Kit) -> Any:
    model = gt.nn.Sequential(kit.model(), gt.nn.Dropout(0.3))
    opt = gt.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():
        kit.train(model, opt, step)
    return model


@each([fresh_random_numbers, random_batches, dropout])
def test_random_numbers_are_passed_by_value(story: Story, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = compare_op_by_op(story, session, monkeypatch)
    assert_settled(kit, programs=1)
    assert_one_known_call_a_step(kit)


def everything_that_changes(kit: Kit) -> Any:
    """Learning rate, step count, noise, dropout, a moving mini-batch, weights by number: all by value."""
    model = gt.nn.Sequential(kit.model(), gt.nn.Dropout(0.1))
    opt = gt.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        i = step * 5 % (len(TARGETS) - BATCH)
        opt.param_groups[0]["lr"] = 0.01 * 0.9**step
        x = kit.X[i : i + BATCH] + 0.1 * gt.randn(BATCH, FEATURES, dtype=gt.float64)
        loss = kit.F.cross_entropy(model(x), kit.Y[i : i + BATCH]) * (1.0 + step)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model, loss


def test_a_loop_without_reads_is_one_call_a_step_and_no_text(
    session: Session, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit(gt, session)
    gt.manual_seed(11)
    steps: list[list[str]] = []
    note = kit._note

    def note_messages() -> None:
        note()
        steps.append([type(m).__name__ for m in sent])
        sent.clear()

    monkeypatch.setattr(kit, "_note", note_messages)
    everything_that_changes(kit)
    assert [m for m in steps[2] if m != "Call"] == ["Define"]  # the first step's, when the second began
    assert steps[3:] == [["Call"]] * (STEPS - 2)
    monkeypatch.undo()
    compare_op_by_op(everything_that_changes, session, monkeypatch)


# --- shapes that vary ------------------------------------------------------------------------------------


@loop("AdamW", lr=0.01)
def smaller_last_batch(kit: Kit, model: Any, opt: Any, step: int) -> None:
    starts = list(range(0, len(TARGETS) - 7, BATCH))
    i = starts[step % len(starts)]
    stop = min(i + BATCH, len(TARGETS) - 7)
    kit.train_on(model, opt, kit.X[i:stop], kit.Y[i:stop])


@loop("AdamW", lr=0.01)
def varying_length(kit: Kit, model: Any, opt: Any, step: int) -> None:
    n = 3 + step * 5 % 8
    kit.train_on(model, opt, kit.X[:n], kit.Y[:n])


@pytest.mark.parametrize(("story", "shapes"), [(smaller_last_batch, 2), (varying_length, 8)])
def test_varying_shapes_make_a_program_each(story: Story, shapes: int, session: Session) -> None:
    kit = compare(story, session)
    assert_settled(kit, programs=shapes)
    assert set(np.diff(kit.calls)[1:].tolist()) == {1}


# --- threads ---------------------------------------------------------------------------------------------


def test_two_threads_train_at_once(session: Session) -> None:
    """Two models in two threads; each thread has programs of its own, which are the same two."""
    want = compare(item_after_step, session)
    alone = want.texts[-1]
    results: dict[int, Any] = {}

    def work(k: int) -> None:
        use(recording.new_recorder(session))
        results[k] = arrays(item_after_step(Kit(gt, session)))

    run_threads(lambda: work(0), lambda: work(1))
    assert session.defined == alone
    same(results[0], results[1], rtol=0)
    same(results[0], arrays(item_after_step(Kit(gt, session))), rtol=1e-7)


def test_loader_thread_hands_batches_over(session: Session) -> None:
    """A thread prepares each batch, the main thread trains on it."""
    kit = Kit(gt, session)
    model, reference = kit.model(), kit.model()
    opt, ropt = (gt.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference))
    defined = []
    for step in range(STEPS):
        box: list[Any] = []

        def load(step: int = step, box: list[Any] = box) -> None:
            use(recording.new_recorder(session))
            x, y = kit.batch(step)
            box.append((x * 2.0 - 1.0, y))

        run_threads(load)
        ((x, y),) = box
        kit.train_on(model, opt, x, y)
        defined.append(session.defined)
    assert defined[-1] == defined[2]
    for step in range(STEPS):
        x, y = kit.batch(step)
        kit.train_on(reference, ropt, x * 2.0 - 1.0, y)
    same(model, reference, rtol=1e-12)


# --- @gt.function: the same loop, replayed -----------------------------------------------------------------


def whole_step(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)

    def train(x: Any, y: Any) -> Any:
        return kit.train_on(model, opt, x, y).detach()

    step_function = gt.function(train) if kit.lib is gt else train
    losses = []
    for step in kit.steps():
        opt.param_groups[0]["lr"] = 0.01 / (1 + step)
        losses.append(step_function(*kit.batch(step)))
    return model, losses


def whole_step_by_number(kit: Kit) -> Any:
    model, opt = kit.start("SGD", lr=0.1, momentum=0.9)

    def train(i: Any, scale: Any) -> Any:
        opt.zero_grad()
        loss = kit.F.cross_entropy(model(kit.X[i : i + BATCH]), kit.Y[i : i + BATCH]) * scale
        loss.backward()
        opt.step()

    step_function = gt.function(train) if kit.lib is gt else train
    for step in kit.steps():
        step_function(step % 5 * BATCH, 1.0 / (1 + step))
    return model


@each([whole_step, whole_step_by_number])
def test_functions_replay_the_step(story: Story, session: Session) -> None:
    kit = compare(story, session)
    assert_settled(kit, programs=3)
