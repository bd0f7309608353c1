"""The number of threads of a program: found by measuring, given up where it is slower, and never worse for long."""

from __future__ import annotations

from collections.abc import Callable

from gt.awake import Load
from gt.worker.run.threads import Pace, Threads, ladder

#: Seconds of a call with so many threads.
Machine = Callable[[int], float]


class World:
    """A program that is called again and again, on a machine whose load may change. Time is what calls take."""

    def __init__(self, most: int) -> None:
        self.pace, self.most, self.now_s = Pace(), most, 0.0

    def run(self, machine: Machine, calls: int, free: int | None = None) -> list[int]:
        """The numbers of threads of so many calls."""
        used = []
        for _ in range(calls):
            n = self.pace.choose(ladder(self.most), self.most if free is None else free, self.now_s)
            self.now_s += machine(n)
            self.pace.note(n, machine(n), self.now_s)
            used.append(n)
        return used


def small(n: int) -> float:
    return 0.002 + 0.001 * (n > 1)


def large(n: int) -> float:
    return 0.04 / n


def crowded(n: int) -> float:
    """Two cores with a busy process each."""
    return 0.012 if n == 1 else 0.3


def test_a_small_program_ends_with_one_thread_a_large_one_with_all() -> None:
    assert World(2).run(small, 50)[6:] == [1] * 44
    assert World(2).run(large, 50)[8:] == [2] * 42
    assert set(World(16).run(large, 50)[12:]) == {16}


def test_something_in_between_may_be_best() -> None:
    assert set(World(16).run(lambda n: {16: 0.01, 4: 0.004, 1: 0.012}[n], 60)[12:]) == {4}


def test_of_a_long_program_fewer_threads_are_not_tried() -> None:
    assert set(World(16).run(lambda n: 3.0 / n, 20)) == {16}


def test_one_call_is_enough_to_see_that_fewer_threads_are_much_slower() -> None:
    assert World(4).run(lambda n: 0.03 / n, 50).count(1) == 1


def test_a_machine_that_becomes_busy_costs_one_slow_call() -> None:
    world = World(2)
    assert set(world.run(lambda n: 0.02 / n, 20)[8:]) == {2}
    used = world.run(crowded, 1000, free=2)  # even if it is not told
    assert used[0] == 2
    assert used.count(2) < 12
    taken_s = sum(map(crowded, used))
    assert taken_s < 1.3 * 1000 * crowded(1)


def test_a_slow_call_now_and_then_does_not_cost_the_threads() -> None:
    """Another user runs something for a moment, ten times a second."""
    world, used = World(2), []

    def disturbed(n: int) -> float:
        return 0.01 / n if n == 1 or len(used) % 20 else 0.016

    for _ in range(2000):
        used += world.run(disturbed, 1)
    assert used[8:].count(1) <= 3  # it is measured again, of course
    assert sum(t > 1 for t in used) > 1990


def test_a_moment_of_contention_is_forgotten_soon() -> None:
    world = World(2)
    world.run(large, 50)
    assert 1 in world.run(lambda n: 0.04, 10)  # two are not faster now
    assert set(world.run(large, 100)[-60:]) == {2}


def test_who_needs_fewer_threads_for_a_moment_does_not_go_down_to_one() -> None:
    world = World(16)
    assert set(world.run(lambda n: 0.016 / n, 100)[-50:]) == {16}
    assert set(world.run(lambda n: {16: 0.005, 4: 0.004, 1: 0.016}[n], 20)[-15:]) == {4}
    assert set(world.run(lambda n: 0.016 / n, 300)[-50:]) == {16}


def test_it_is_not_tried_where_no_core_is_free() -> None:
    world = World(2)
    world.run(lambda n: 0.02 / n, 20)
    assert set(world.run(crowded, 100, free=1)) == {1}


def test_threads_come_back_with_the_cores() -> None:
    world = World(2)
    world.run(crowded, 100, free=1)
    assert set(world.run(lambda n: 0.02 / n, 200)[-100:]) == {2}
    world.run(crowded, 200)
    assert set(world.run(lambda n: 0.02 / n, 10_000)[-1000:]) == {2}


def test_what_was_measured_is_measured_again_ever_more_rarely() -> None:
    used = World(2).run(small, 100_000)  # 200 s
    assert 2 * 3 <= used.count(2) <= 4 * 3


def test_threads_are_set_only_when_they_change() -> None:
    said: list[int] = []
    load = Load(2)
    load.look = lambda: 1  # type: ignore[method-assign]  # no other core is free
    threads = Threads(2, said.append, load)
    pace = Pace()
    for _ in range(5):
        threads.begin(pace)
        threads.end(pace)
    assert said == [1]
