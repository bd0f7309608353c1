"""How many workers a server starts on its machine, and what each of them gets."""

from __future__ import annotations

import os

import pytest

from gt import config
from gt.cli.main import main
from gt.server import workers


@pytest.mark.parametrize(
    ("gpus", "count", "devices"),
    [
        (0, 0, [""]),
        (0, 3, ["", "", ""]),
        (1, 0, [""]),  # the engine takes the GPU if it can use one
        (1, 1, [""]),
        (1, 2, ["cuda:0", "cuda:0"]),
        (2, 0, ["cuda:0", "cuda:1"]),
        (2, 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (4, 2, ["cuda:0", "cuda:1"]),
    ],
)
def test_workers_take_the_gpus_in_turn(
    gpus: int, count: int, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "count_gpus", lambda: gpus)
    assert workers.choose_devices("torch", "", count) == devices
    assert workers.choose_devices("torch", "cpu", count) == ["cpu"] * max(1, count)
    assert workers.choose_devices("numpy", "", count) == [""] * max(1, count)


def test_workers_on_one_cpu_share_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert workers.share_of_threads([""]) == 0, "one worker has them all"
    assert workers.share_of_threads(["", ""]) == 4
    assert workers.share_of_threads(["cpu"] * 12) == 1
    assert workers.share_of_threads(["cuda:0", "cuda:1"]) == 0


def test_settings_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text in {"GT_WORKERS": "3", "GT_AUTO_SHARD": "1", "GT_SIGNALS": "s.yaml"}.items():
        monkeypatch.setenv(variable, text)
    settings = config.load()
    assert (settings.workers, settings.auto_shard, settings.signals) == (3, True, "s.yaml")


def test_a_negative_number_of_workers_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-p", "0", "--workers", "-1"]) == 2
    assert capsys.readouterr() == ("", "gt: --workers -1: expected 0 or more\n")
