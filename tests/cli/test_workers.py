"""How many workers a command starts on its machine, which GPU each of them takes, and what else it gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gt import config, gpus
from gt.cli.main import main
from gt.errors import StartError
from gt.server import workers

UUIDS = [f"GPU-{k}{k}{k}{k}" for k in range(4)]


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with four GPUs; the folder for its locks."""
    smi = tmp_path / "nvidia-smi"
    lines = "\n".join(f'echo "GPU {k}: NVIDIA H200 (UUID: {uuid})"' for k, uuid in enumerate(UUIDS))
    smi.write_text(f"#!/bin/sh\n{lines}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_LOCALID", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(name, raising=False)
    locks = tmp_path / "locks"
    locks.mkdir()
    return locks


def taken(locks: Path, slot: int = -1) -> gpus.Claim:
    claim = gpus.take(slot, str(locks))
    assert claim is not None
    return claim


@pytest.mark.parametrize(("count", "asked"), [(4, "auto"), (2, "2"), (0, "0"), (12, "12")])
def test_how_many_workers(four: Path, count: int, asked: str) -> None:
    assert workers.how_many(asked, "torch", "", "-n") == count
    on_cpu = 1 if asked == "auto" else count
    assert workers.how_many(asked, "torch", "cpu", "-n") == on_cpu
    assert workers.how_many(asked, "numpy", "", "-n") == on_cpu


def test_without_gpus_there_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "of_machine", list)
    assert workers.how_many("auto", "torch", "", "-n") == 1
    assert gpus.take() is None


@pytest.mark.parametrize("asked", ["-1", "two", "", "1.5", "١"])
def test_a_wrong_number_is_one_line(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StartError, match="expected a number or auto"):
        workers.how_many(asked, "numpy", "", "-n")
    assert main(["serve", "-p", "0", f"--workers={asked}"]) == 2
    assert capsys.readouterr() == ("", f"gt: --workers {asked}: expected a number or auto\n")


def test_workers_take_different_gpus(four: Path) -> None:
    claims = [taken(four) for _ in range(4)]
    assert [c.gpu.device for c in claims] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert not any(c.shared for c in claims)
    assert str(claims[2].gpu) == "cuda:2 (NVIDIA H200, GPU-2222)"
    fifth = taken(four, slot=6)
    assert (fifth.gpu.device, fifth.shared) == ("cuda:2", True), "none is free: its slot decides"
    claims[1].give_back()
    again = taken(four)
    assert (again.gpu.device, again.shared) == ("cuda:1", False)
    for claim in (*claims, fifth, again):
        claim.give_back()


def test_the_same_gpu_has_other_numbers_in_other_processes(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = taken(four)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    second = taken(four)
    assert (second.gpu.device, second.gpu.uuid, second.shared) == ("cuda:1", UUIDS[3], False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{UUIDS[3]},{UUIDS[1]}")
    third = taken(four)
    assert (third.gpu.device, third.gpu.uuid) == ("cuda:1", UUIDS[1])
    for claim in (first, second, third):
        claim.give_back()


def test_a_lock_that_is_no_file_of_ours_is_not_followed(four: Path, tmp_path: Path) -> None:
    claim = taken(four)
    claim.give_back()
    (lock,) = four.iterdir()
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    other = taken(four)
    assert other.gpu.device == "cuda:1"
    assert not (tmp_path / "elsewhere").exists()
    other.give_back()


def test_slurm_gives_each_task_its_gpu(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """srun --ntasks-per-node=4 --gpus-per-node=4: all tasks see all GPUs."""
    claims = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    for task in (2, 0, 3, 1):
        monkeypatch.setenv("SLURM_LOCALID", str(task))
        claims.append(taken(four))
        assert claims[-1].gpu.device == f"cuda:{task}"
    for claim in claims:
        claim.give_back()


def test_slurm_without_cuda_visible_devices(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1,2")
    monkeypatch.setenv("SLURM_STEP_GPUS", "1,2")
    claims = [taken(four), taken(four), taken(four)]
    assert [(c.gpu.device, c.shared) for c in claims] == [("cuda:1", False), ("cuda:2", False), ("cuda:1", True)]
    monkeypatch.setenv("SLURM_STEP_GPUS", "5")  # the numbers of the machine, where a job sees only its own GPUs
    assert [gpu.number for gpu in gpus.visible()] == [0, 1, 2, 3]
    for claim in claims:
        claim.give_back()


def test_workers_on_one_cpu_share_its_threads(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert workers.share_of_threads("numpy", "", 1) == 0, "one worker has them all"
    assert workers.share_of_threads("numpy", "", 2) == 4
    assert workers.share_of_threads("torch", "cpu", 12) == 1
    assert workers.share_of_threads("torch", "", 2) == 0, "on GPUs"


def test_settings_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text in {"GT_WORKERS": "3", "GT_AUTO_SHARD": "1", "GT_SIGNALS": "s.yaml"}.items():
        monkeypatch.setenv(variable, text)
    settings = config.load()
    assert (settings.workers, settings.auto_shard, settings.signals) == (3, True, "s.yaml")
