"""Real training code settles into few programs, and computes what torch computes.

Each idiom is ordinary code, run once on torch and once on GT. On GT no program text is sent in the
last third of the loop, there are at most 4 programs besides the one that made the model, and where
nothing is read inside the loop each step is exactly one call.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.programs.pending import use
from gt.client.record import recorder as recording
from gt.client.record import thread
from gt.client.session.session import Session
from tests.client.training import BATCH, FEATURES, STEPS, TARGETS, Kit, compare, numbers
from tests.sim.cluster import Cluster, using

Idiom = Callable[[Kit], Any]
QUIET: list[Idiom] = []  #: Nothing is read inside the loop: one call a step.
READING: list[Idiom] = []


def quiet(idiom: Idiom) -> Idiom:
    QUIET.append(idiom)
    return idiom


def reading(idiom: Idiom) -> Idiom:
    READING.append(idiom)
    return idiom


def named(idioms: list[Idiom]) -> Any:
    return pytest.mark.parametrize("idiom", idioms, ids=lambda f: f.__name__)


# --- nothing is read inside the loop ------------------------------------------------------------------


@quiet
def plain(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model


@quiet
def zero_grad_after_forward(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():
        loss = kit.loss(model, step)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model, loss


@quiet
def zero_grad_after_step(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():
        kit.loss(model, step).backward()
        opt.step()
        model.zero_grad()
    return model


@quiet
def gradients_set_to_zero(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():
        opt.zero_grad(set_to_none=False)
        kit.loss(model, step).backward()
        opt.step()
    return model


@quiet
def momentum_and_decay(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model


@quiet
def kept_losses(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in kit.steps():
        opt.zero_grad()
        loss = kit.loss(model, step)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return model, losses


@quiet
def kept_losses_with_history(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in kit.steps():
        opt.zero_grad()
        losses.append(kit.loss(model, step))
        losses[-1].backward()
        opt.step()
    return losses


@quiet
def running_sum_of_losses(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    total = 0.0
    for step in kit.steps():
        opt.zero_grad()
        loss = kit.loss(model, step)
        loss.backward()
        opt.step()
        total = total + loss.detach()
    return model, total


@quiet
def kept_predictions(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    kept = []
    for step in kit.steps():
        x, y = kit.batch(step)
        out = model(x)
        loss = kit.F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        kept.append(out.argmax(1))
    return kept


@quiet
def deleted_loss(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        loss = kit.loss(model, step)
        loss.backward()
        del loss
        opt.step()
        opt.zero_grad()
    return model


@quiet
def moving_average_of_weights(kit: Kit) -> Any:
    model = kit.model()
    average = [p.detach().clone() for p in model.parameters()]
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        with kit.lib.no_grad():
            for a, p in zip(average, model.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
        opt.step()
    return model, average


@quiet
def clipped_by_norm(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.3)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        with kit.lib.no_grad():
            norms = kit.lib.stack([p.grad.norm() for p in model.parameters()])
            scale = (0.1 / (norms.norm() + 1e-6)).clamp(max=1.0)
            for p in model.parameters():
                p.grad.mul_(scale)
        opt.step()
    return model


@quiet
def clipped_by_value(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.3)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        for p in model.parameters():
            p.grad = p.grad.clamp(-0.02, 0.02)
        opt.step()
    return model


@quiet
def clipped_weights(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.3)
    for step in kit.steps():
        with kit.lib.no_grad():
            for p in model.parameters():
                p.clamp_(-0.3, 0.3)
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model


@quiet
def frozen_parameters(kit: Kit) -> Any:
    model = kit.model()
    for p in model[0].parameters():
        p.requires_grad_(False)
    opt = kit.lib.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model


@quiet
def tied_weights(kit: Kit) -> Any:
    nn = kit.nn
    a = nn.Linear(FEATURES, FEATURES, dtype=kit.lib.float64)
    b = nn.Linear(FEATURES, FEATURES, dtype=kit.lib.float64)
    with kit.lib.no_grad():
        a.weight.copy_(kit.X[:FEATURES])
        for bias in (a.bias, b.bias):
            bias.zero_()
    b.weight = a.weight
    model = nn.Sequential(a, nn.Tanh(), b)
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model


@quiet
def hooks(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    model[0].weight.register_hook(lambda g: g * 0.5)
    model[2].weight.register_hook(lambda g: seen.append(1))
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model, len(seen)


@quiet
def changing_learning_rate(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        for group in opt.param_groups:
            group["lr"] = 0.01 / (1 + step)
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model


@quiet
def warm_up(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=1.0)
    for step in kit.steps():
        opt.param_groups[0]["lr"] = 0.1 * min(1, (step + 1) / 20)
        opt.zero_grad()
        (kit.loss(model, step) * (1 / (step + 1))).backward()
        opt.step()
    return model


@quiet
def groups_with_decay(kit: Kit) -> Any:
    model = kit.model()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    opt = kit.lib.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}], lr=0.01
    )
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model


@quiet
def closure_step(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():

        def closure(step: int = step) -> Any:
            opt.zero_grad()
            loss = kit.loss(model, step)
            loss.backward()
            return loss

        loss = opt.step(closure)
    return model, loss


@quiet
def two_optimizers(kit: Kit) -> Any:
    """One call for each: a step() ends a program."""
    model = kit.model()
    first = kit.lib.optim.SGD(model[0].parameters(), lr=0.1)
    second = kit.lib.optim.AdamW(model[2].parameters(), lr=0.01)
    for step in kit.steps():
        first.zero_grad()
        second.zero_grad()
        kit.loss(model, step).backward()
        first.step()
        second.step()
    return model


@quiet
def accumulation(kit: Kit) -> Any:
    """Four backward passes to a step, written out: one call."""
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        opt.zero_grad()
        for k in range(4):
            (kit.loss(model, 4 * step + k) / 4).backward()
        opt.step()
    return model


@quiet
def penalty_on_weights(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():
        opt.zero_grad()
        loss = kit.loss(model, step) + 1e-3 * sum((p**2).sum() for p in model.parameters())
        loss.backward()
        opt.step()
    return model


@quiet
def gradient_penalty(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():
        x, y = kit.batch(step)
        x = x.clone().requires_grad_()
        opt.zero_grad()
        loss = kit.F.cross_entropy(model(x), y)
        (g,) = (kit.lib.autograd.grad if hasattr(kit.lib, "autograd") else kit.lib.grad)(loss, [x], create_graph=True)
        (loss + 0.1 * (g * g).sum()).backward()
        opt.step()
    return model


# --- something is read inside the loop -----------------------------------------------------------------


@reading
def item_after_step(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in kit.steps():
        opt.zero_grad()
        loss = kit.loss(model, step)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return model, losses


@reading
def item_before_backward(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in kit.steps():
        loss = kit.loss(model, step)
        losses.append(loss.item())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model, losses


@reading
def item_after_backward(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in kit.steps():
        opt.zero_grad()
        loss = kit.loss(model, step)
        loss.backward()
        losses.append(loss.item())
        opt.step()
    return model, losses


@reading
def logging_every_few_steps(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    log = []
    for step in kit.steps():
        opt.zero_grad()
        loss = kit.loss(model, step)
        loss.backward()
        opt.step()
        if step % 5 == 0:
            log.append(loss.item())
    return model, log


@reading
def progress_bar(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    lines = []
    for step in kit.steps():
        opt.zero_grad()
        loss = kit.loss(model, step)
        loss.backward()
        opt.step()
        lines.append(float(f"{loss.item():.4f}") if kit.lib is not gt else float(f"{loss:.4f}"))
    return lines


@reading
def evaluation_between_steps(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    accuracy = []
    for step in kit.steps():
        model.train()
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
        if step % 3 == 2:
            model.eval()
            with kit.lib.no_grad():
                accuracy.append((model(kit.X).argmax(1) == kit.Y).float().mean().item())
    return model, accuracy


@reading
def predictions_in_a_list(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    found: list[Any] = []
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
        with kit.lib.no_grad():
            found = [model(kit.X[i : i + BATCH]) for i in range(0, 4 * BATCH, BATCH)]
        found = [f.numpy() for f in found]
    return model, found


@reading
def accumulation_over_steps(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        (kit.loss(model, step) / 4).backward()
        if (step + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
    return model


@reading
def early_stopping(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.5)
    best, state = float("inf"), None
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
        with kit.lib.no_grad():
            now = kit.F.cross_entropy(model(kit.X), kit.Y).item()
        if now < best:
            best, state = now, copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    return model, best


@reading
def descent_by_hand(kit: Kit) -> Any:
    """No optimizer: the loop's programs end where a value is read."""
    model = kit.model()
    losses = []
    for step in kit.steps():
        loss = kit.loss(model, step)
        loss.backward()
        with kit.lib.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        losses.append(loss.item())
    return model, losses


@reading
def skipped_batches(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():
        loss = kit.loss(model, step)
        if loss > 1.2:
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model


@reading
def an_exception_in_every_seventh_step(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1)
    caught = 0
    for step in kit.steps():
        opt.zero_grad()
        try:
            loss = kit.loss(model, step)
            if step % 7 == 3:
                model(kit.X[:, 1:])
            loss.backward()
            opt.step()
        except RuntimeError:
            caught += 1
    return model, caught


@reading
def gradient_norm_read(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.3)
    norms = []
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        norm = sum((p.grad**2).sum() for p in model.parameters()).sqrt().item()
        if norm > 0.2:
            for p in model.parameters():
                p.grad.mul_(0.2 / norm)
        norms.append(norm)
        opt.step()
    return model, norms


@reading
def batches_from_numpy(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    for _ in kit.steps():
        x, y = rng.normal(size=(BATCH, FEATURES)), rng.integers(0, 3, BATCH)
        opt.zero_grad()
        kit.F.cross_entropy(model(kit.lib.from_numpy(x)), kit.lib.from_numpy(y)).backward()
        opt.step()
    return model


# --- the assertions ------------------------------------------------------------------------------------

#: The first step is another one than the rest, in what it computes or in who shares memory with whom.
FIRST_STEP_DIFFERS = [gradients_set_to_zero, running_sum_of_losses, moving_average_of_weights]


def assert_settled(kit: Kit, programs: int = 4) -> None:
    assert len(kit.texts) == STEPS + 1
    assert kit.texts[-1] - kit.texts[0] <= programs, kit.texts
    assert kit.texts[-1] == kit.texts[2 * STEPS // 3], kit.texts


def assert_one_known_call_a_step(kit: Kit, calls: int = 1, known_from: int = 1) -> None:
    assert set(np.diff(kit.calls)[known_from:].tolist()) == {calls}, np.diff(kit.calls)
    # A step's call is sent when the next step begins, so its text is counted one step later.
    assert kit.texts[-1] == kit.texts[known_from + 1], kit.texts


@named(QUIET)
def test_without_reads_each_step_is_one_known_call(idiom: Idiom, session: Session) -> None:
    kit = compare(idiom, session)
    assert_settled(kit)
    assert_one_known_call_a_step(
        kit, calls=2 if idiom is two_optimizers else 1, known_from=2 if idiom in FIRST_STEP_DIFFERS else 1
    )


@named(READING)
def test_with_reads_programs_stay_few(idiom: Idiom, session: Session) -> None:
    assert_settled(compare(idiom, session))


def test_there_are_enough_idioms() -> None:
    assert len(QUIET) + len(READING) >= 24


# --- random numbers: the same code, one op to a program, says what comes out -----------------------------


def compare_op_by_op(idiom: Idiom, session: Session, monkeypatch: pytest.MonkeyPatch) -> Kit:
    def run(s: Session) -> tuple[Kit, Any]:
        kit = Kit(gt, s)
        gt.manual_seed(11)
        return kit, numbers(idiom(kit))

    kit, got = run(session)
    with monkeypatch.context() as patch, using(Cluster().client()) as other:
        patch.setattr(thread, "CAP", 1)
        slow, want = run(other)
    assert slow.calls[-1] > 10 * kit.calls[-1]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-14)
    return kit


def fresh_random_numbers(kit: Kit) -> Any:
    model = kit.model()
    opt = gt.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        x, y = kit.batch(step)
        noise = gt.randn(BATCH, FEATURES, dtype=gt.float64)
        opt.zero_grad()
        kit.F.cross_entropy(model(x + 0.1 * noise), y).backward()
        opt.step()
    return model, noise


def random_batches(kit: Kit) -> Any:
    model = kit.model()
    opt = gt.optim.AdamW(model.parameters(), lr=0.01)
    for _ in kit.steps():
        rows = gt.randint(0, len(TARGETS), (BATCH,))
        opt.zero_grad()
        kit.F.cross_entropy(model(kit.X[rows]), kit.Y[rows]).backward()
        opt.step()
    return model, rows


def dropout(kit: Kit) -> Any:
    model = gt.nn.Sequential(kit.model(), gt.nn.Dropout(0.3))
    opt = gt.optim.SGD(model.parameters(), lr=0.1)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        opt.step()
    return model


@named([fresh_random_numbers, random_batches, dropout])
def test_random_numbers_are_passed_by_value(idiom: Idiom, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = compare_op_by_op(idiom, session, monkeypatch)
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


def test_a_loop_without_reads_is_one_call_a_step_and_no_text(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send = session.channel.send

    def watch(message: Any, payload: Any = None) -> None:
        sent.append(type(message).__name__)
        send(message, payload)

    monkeypatch.setattr(session.channel, "send", watch)
    kit = Kit(gt, session)
    gt.manual_seed(11)
    steps: list[list[str]] = []
    note = kit._note

    def note_messages() -> None:
        note()
        steps.append(sent.copy())
        sent.clear()

    monkeypatch.setattr(kit, "_note", note_messages)
    everything_that_changes(kit)
    assert [m for m in steps[2] if m != "Call"] == ["Define"]  # the first step's, when the second began
    assert steps[3:] == [["Call"]] * (STEPS - 2)
    monkeypatch.undo()
    compare_op_by_op(everything_that_changes, session, monkeypatch)


# --- shapes that vary ------------------------------------------------------------------------------------


def smaller_last_batch(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    starts = list(range(0, len(TARGETS) - 7, BATCH))
    for step in kit.steps():
        i = starts[step % len(starts)]
        stop = min(i + BATCH, len(TARGETS) - 7)
        opt.zero_grad()
        kit.F.cross_entropy(model(kit.X[i:stop]), kit.Y[i:stop]).backward()
        opt.step()
    return model


def varying_length(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        n = 3 + step * 5 % 8
        opt.zero_grad()
        kit.F.cross_entropy(model(kit.X[:n]), kit.Y[:n]).backward()
        opt.step()
    return model


@pytest.mark.parametrize(("idiom", "shapes"), [(smaller_last_batch, 2), (varying_length, 8)])
def test_varying_shapes_make_a_program_each(idiom: Idiom, shapes: int, session: Session) -> None:
    kit = compare(idiom, session)
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
        results[k] = numbers(item_after_step(Kit(gt, session)))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert session.defined == alone
    for a, b in zip(results[0], results[1], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(results[0][-1], numbers(item_after_step(Kit(gt, session)))[-1])


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

        loader = threading.Thread(target=load)
        loader.start()
        loader.join()
        ((x, y),) = box
        opt.zero_grad()
        kit.F.cross_entropy(model(x), y).backward()
        opt.step()
        defined.append(session.defined)
    assert defined[-1] == defined[2]
    for step in range(STEPS):
        x, y = kit.batch(step)
        ropt.zero_grad()
        kit.F.cross_entropy(reference(x * 2.0 - 1.0), y).backward()
        ropt.step()
    for a, b in zip(numbers(model), numbers(reference), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


# --- @gt.function: the same loop, replayed -----------------------------------------------------------------


def whole_step(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)

    def train(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = kit.F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    step_function = gt.function(train) if kit.lib is gt else train
    losses = []
    for step in kit.steps():
        opt.param_groups[0]["lr"] = 0.01 / (1 + step)
        losses.append(step_function(*kit.batch(step)))
    return model, losses


def whole_step_by_number(kit: Kit) -> Any:
    model = kit.model()
    opt = kit.lib.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(i: Any, scale: Any) -> Any:
        opt.zero_grad()
        loss = kit.F.cross_entropy(model(kit.X[i : i + BATCH]), kit.Y[i : i + BATCH]) * scale
        loss.backward()
        opt.step()

    step_function = gt.function(train) if kit.lib is gt else train
    for step in kit.steps():
        step_function(step % 5 * BATCH, 1.0 / (1 + step))
    return model


@named([whole_step, whole_step_by_number])
def test_functions_replay_the_step(idiom: Idiom, session: Session) -> None:
    kit = compare(idiom, session)
    assert_settled(kit, programs=3)
