"""Files of torch.save: read without running anything in them, and written so that torch reads them."""

from __future__ import annotations

import argparse
import collections
import io
import os
import pickle
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError


def checkpoint() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    whole = torch.arange(20.0)
    return {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": float("inf"),
        "args": argparse.Namespace(lr=0.1, sizes=[1, 2], mask=torch.tensor([True, False])),
        "view": whole[3:9:2], "turned": torch.arange(6).reshape(2, 3).t(), "none": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)), "half": torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
        "complex": torch.ones(2, dtype=torch.complex64), "scalar": torch.tensor(3.0), "dtype": torch.float16,
        "size": torch.Size([1, 2]), "array": np.arange(3), "number": np.float32(2.5), "set": {1, 2},
        "lists": collections.defaultdict(list, {"a": [1]}), "tuple": (1, (2, None)), "bytes": b"abc", "big": 10**30,
    }  # fmt: skip


def assert_same(theirs: Any, ours: Any, at: str = "") -> None:
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, gt.Tensor), at
        assert (str(theirs.dtype), tuple(theirs.shape)) == (f"torch.{ours.dtype.name}", tuple(ours.shape)), at
        assert theirs.requires_grad == ours.requires_grad, at
        assert torch.equal(theirs.detach().cfloat(), ours.detach().torch().cfloat()), at
    elif isinstance(theirs, dict):
        assert list(theirs) == list(ours), at
        for key in theirs:
            assert_same(theirs[key], ours[key], f"{at}.{key}")
    elif isinstance(theirs, argparse.Namespace):
        assert isinstance(ours, argparse.Namespace)
        assert_same(vars(theirs), vars(ours), at)
    elif isinstance(theirs, np.ndarray):
        assert (theirs == ours).all(), at
    elif isinstance(theirs, torch.dtype):
        assert str(theirs) == f"torch.{ours.name}"
    elif isinstance(theirs, (list, tuple)):
        assert len(theirs) == len(ours), at
        for i, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            assert_same(a, b, f"{at}.{i}")
    else:
        assert theirs == ours, at


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_of_torch_is_loaded(zipped: bool, tmp_path: Path) -> None:
    saved, path = checkpoint(), tmp_path / "checkpoint.pt"
    torch.save(saved, path, _use_new_zipfile_serialization=zipped)
    assert_same(saved, gt.load(path))
    found = gt.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=False)
    assert_same(saved, found)
    assert isinstance(found["parameter"], gt.nn.Parameter)
    assert found["model"]._metadata["1"] == {"version": 2}
    model = gt.nn.Sequential(gt.nn.Conv2d(3, 4, 3), gt.nn.BatchNorm2d(4))
    model.load_state_dict(found["model"])
    optimizer = gt.optim.AdamW(model.parameters())
    optimizer.load_state_dict(found["optimizer"])
    assert optimizer.state_dict()["state"][0]["step"] == 1


def test_torch_reads_what_gt_saves(tmp_path: Path) -> None:
    saved = checkpoint()
    for name in ("a.pt", "b.pth"):
        gt.save(gt.load(_file(saved)), tmp_path / name)
        assert_same(torch.load(tmp_path / name, weights_only=False), gt.load(tmp_path / name))
    plain = {"w": gt.arange(6).reshape(2, 3).t(), "f8": gt.ones(2).to(gt.float8_e4m3fn), "u": gt.ones(2).to(gt.uint16)}
    with open(tmp_path / "c.ckpt", "wb") as file:
        gt.save({**plain, "p": gt.nn.Parameter(gt.ones(2)), "n": [1, "x", None]}, file)
    for how in ({}, {"mmap": True}):
        found = torch.load(tmp_path / "c.ckpt", weights_only=True, **how)
        assert found["w"].tolist() == [[0, 3], [1, 4], [2, 5]]
        assert (found["f8"].dtype, found["u"].dtype) == (torch.float8_e4m3fn, torch.uint16)
        assert isinstance(found["p"], torch.nn.Parameter)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "b.pth", "c.ckpt"]


def _file(obj: Any) -> io.BytesIO:
    made = io.BytesIO()
    torch.save(obj, made)
    made.seek(0)
    return made


def test_names_of_one_tensor_share_memory() -> None:
    w = torch.arange(3.0)
    found = gt.load(_file({"a": w, "b": w, "c": w.view(3)}))
    found["a"].add_(1)
    assert found["b"].tolist() == found["c"].tolist() == [1, 2, 3]


class Runs:
    def __reduce__(self) -> Any:
        return os.makedirs, ("made-by-a-file",)


class Settings:
    def __init__(self, width: int) -> None:
        self.width = width


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for how in ({}, {"weights_only": False}):
        with pytest.raises(ArgumentError, match=r"contains os\.makedirs, which is not a tensor .* never executed"):
            gt.load(_file({"a": Runs()}), **how)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArgumentError, match="Settings"):
        gt.load(_file({"a": Settings(3)}))
    with gt.serialization.safe_globals([Settings]):
        assert gt.load(_file({"a": Settings(3)}))["a"].width == 3
    with pytest.raises(ArgumentError, match="Settings"):
        gt.load(_file({"a": Settings(3)}))


@pytest.mark.parametrize(
    ("offset", "size", "stride"), [(7, (2,), (1,)), (0, (4, 4), (4, 1)), (-1, (1,), (1,)), (0, (2,), (-1,))]
)
def test_tensors_outside_of_their_data_raise(offset: int, size: Any, stride: Any) -> None:
    whole = zipfile.ZipFile(_file(torch.arange(8.0)))
    text = whole.read("archive/data.pkl")
    start = text.index(b"Q") + 1  # the data, then offset, size and stride
    end = text.index(b"\x89", start)
    made = pickle.dumps((offset, size, stride), 2)[2:-1]
    inner = made[: made.rindex(b"\x87")]  # the three, without the tuple around them
    bad = io.BytesIO()
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("archive/data.pkl", text[:start] + inner + text[end:])
        archive.writestr("archive/data/0", whole.read("archive/data/0"))
    bad.seek(0)
    with pytest.raises(ArgumentError, match=r"outside the file|not a valid file"):
        gt.load(bad)


def test_what_is_broken_or_cannot_be_saved_says_so(tmp_path: Path) -> None:
    data = _file(checkpoint()).getvalue()
    for broken in (data[:3000], b"PK\x03\x04" + b"x" * 100, b"\x80\x02\x8a\x0a" + b"y" * 20):
        with pytest.raises(ArgumentError, match="load:"):
            gt.load(io.BytesIO(broken))
    with pytest.raises(ArgumentError, match=r"a SGD; save its state_dict\(\)"):
        gt.save({"opt": gt.optim.SGD([gt.ones(1)])}, tmp_path / "x.pt")
    with pytest.raises(ArgumentError, match="cannot be saved"):
        gt.save({"f": lambda: 0}, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


def test_namespaces_in_safetensors(tmp_path: Path) -> None:
    gt.save({"args": argparse.Namespace(lr=0.1, w=gt.ones(2))}, tmp_path / "x.safetensors")
    found = gt.load(tmp_path / "x.safetensors")["args"]
    assert (found.lr, found.w.tolist()) == (0.1, [1, 1])


class Net(gt.nn.Module):
    made = 0

    def __init__(self, n: int) -> None:
        super().__init__()
        Net.made += 1
        self.first, self.norm, self.rnn = gt.nn.Linear(n, 4), gt.nn.BatchNorm1d(4), gt.nn.GRU(4, 3)
        self.tied, self.act, self.sizes = gt.nn.Linear(n, 4), gt.nn.functional.relu, {"n": n}
        self.tied.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.rnn(self.act(self.norm(self.first(x))))[0]


def test_whole_modules(tmp_path: Path) -> None:
    model, x = Net(3), gt.randn(5, 3)
    model(x)
    right, made = model.eval()(x), Net.made
    gt.save({"model": model, "epoch": 3}, tmp_path / "net.pt")
    with pytest.raises(ArgumentError, match=r"contains a module, .*Net; pass weights_only=False"):
        gt.load(tmp_path / "net.pt")
    found = gt.load(tmp_path / "net.pt", weights_only=False)["model"]
    assert type(found) is Net
    assert Net.made == made  # its __init__ was not called
    assert found(x).tolist() == right.tolist()
    assert found.tied.weight is found.first.weight
    assert (found.training, found.sizes, found.act) == (False, {"n": 3}, gt.nn.functional.relu)
    assert [n for n, _ in found.named_parameters()] == [n for n, _ in model.named_parameters()]


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "gt.nn.layers.Nonsense", "tests.nowhere.Net"])
def test_other_names_are_refused_with_modules_too(name: str) -> None:
    module, _, last = name.rpartition(".")
    text = b"\x80\x02c" + f"{module}\n{last}\n".encode() + b"."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", text)
        archive.writestr("archive/version", "3\n")
    file.seek(0)
    with pytest.raises(ArgumentError, match=f"contains {name}, which is not"):
        gt.load(file, weights_only=False)


def test_nothing_is_imported_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy, asked = ModuleType("lazy"), []
    lazy.__getattr__ = asked.append  # type: ignore[method-assign]  # as modules that import what they are asked for
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    test_other_names_are_refused_with_modules_too("lazy.thing")
    assert asked == []


@pytest.mark.parametrize("name", ["gt.nn.functional.activations\nrelu", f"{__name__}\nNet"])
def test_what_a_file_names_is_not_called(name: str) -> None:
    text = b"\x80\x02c" + name.encode() + b"\nK\x03\x85R."  # name(3)
    file, made = io.BytesIO(), Net.made
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", text)
        archive.writestr("archive/version", "3\n")
    file.seek(0)
    with pytest.raises(ArgumentError, match="files are never executed"):
        gt.load(file, weights_only=False)
    assert Net.made == made
