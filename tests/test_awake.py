"""How busy the machine is, and who stays awake: only after an exchange, for a moment, and where cores are free."""

from __future__ import annotations

import pytest

from gt import awake as awakes
from gt.awake import AWAKE_S, FREE, Awake, Load
from tests.sessions import raising


def test_load_counts_what_is_idle_and_what_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(4)
    reads = iter([(1.0, 0.5, 1.0), (2.0, 1.5, 2.0), (3.0, 4.5, 2.0), (4.0, 7.5, 2.0), (5.0, 10.5, 2.0)])
    load._last = (0.0, 0.0, 0.0)
    load._read = lambda: next(reads)  # type: ignore[method-assign]
    monkeypatch.setattr("gt.awake.LOOK_S", -1e9)
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    # Half a core idle and one ours; the same again; then nobody computes: only when that has been so for a while.
    assert [load.look() for _ in range(5)] == [2, 2, 2, 2, 3]


def test_a_machine_that_does_not_tell_its_load_has_free_cores() -> None:
    load = Load(4)
    load._read = raising(OSError("no /proc"))  # type: ignore[method-assign]
    load._last = (-1.0, 0.0, 0.0)
    assert load.look() == 4


class Clock:
    """A time that passes when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def on(cores: int, free: int, monkeypatch: pytest.MonkeyPatch) -> Awake:
    """On a machine like that, as it allows."""
    monkeypatch.setattr(awakes, "usable_cpus", lambda: float(cores))
    made = Awake(-1)
    if made._load is not None:
        monkeypatch.setattr(made._load, "look", lambda: free)
    return made


def test_only_after_an_exchange_and_only_for_a_moment(clock: Clock) -> None:
    awake = Awake(2000)
    assert awake.left_s() == 0.0
    awake.exchanged()
    assert awake.left_s() == pytest.approx(0.002)
    clock.now_s += 0.0015
    assert awake.left_s() == pytest.approx(0.0005)
    awake.exchanged()
    assert awake.left_s() == pytest.approx(0.002)
    clock.now_s += 0.0021
    assert awake.left_s() == 0.0
    clock.now_s -= 0.0021  # it is over, and is not asked again
    assert awake.left_s() == 0.0


def test_as_the_machine_allows(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, free, wanted in ((2, 2, False), (3, 3, False), (4, FREE, True), (16, FREE - 1, False), (16, 16, True)):
        awake = on(cores, free, monkeypatch)
        awake.exchanged()
        assert awake.left_s() == pytest.approx(AWAKE_S if wanted else 0.0), (cores, free)


def test_a_machine_that_does_not_tell_its_load_keeps_nobody_awake(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Load, "_read", raising(OSError("no /proc")))
    awake = on(16, 16, monkeypatch)
    awake.exchanged()
    assert awake.left_s() == 0.0


def test_never(clock: Clock) -> None:
    awake = Awake(0)
    awake.exchanged()
    assert awake.left_s() == 0.0
