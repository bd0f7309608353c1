"""Same model, same weights, same data: 50 steps give torch's losses, on every engine. And weights go both ways."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import gt
from tests.beside_torch import twins
from tests.sessions import session_fixture
from tests.training.recipes import RECIPES, train

ENGINES = ["torch", "numpy"] + (["jax"] if importlib.util.find_spec("jax") else [])
CASES = [(engine, name) for engine in ENGINES for name in RECIPES if engine == "torch" or name in ("mlp", "cnn", "gpt")]


engine = session_fixture("torch")


@pytest.mark.parametrize(("engine", "name"), CASES, indirect=["engine"])
def test_losses_are_as_in_torch(engine: str, name: str) -> None:
    theirs, ours = twins(RECIPES[name].model)
    want = train(torch, name, theirs)
    have = train(gt, name, ours)
    np.testing.assert_allclose(have, want, rtol=1e-4)
    for k, t in theirs.named_buffers():  # the running means of batch norm
        np.testing.assert_allclose(ours.get_buffer(k).numpy(), t.numpy(), rtol=1e-4, atol=1e-5, err_msg=k)
    assert np.mean(want[-5:]) < 0.95 * np.mean(want[:5]), "it learns, so that there is something to compare"


@pytest.mark.parametrize("engine", ["torch"], indirect=True)
@pytest.mark.parametrize("name", ["gpt", "cnn"])
def test_weights_go_both_ways(engine: str, name: str, tmp_path: Path) -> None:
    """A torch state_dict gives the same outputs here; what is saved here loads in torch."""
    theirs, ours = twins(RECIPES[name].model)
    batch = next(RECIPES[name].batches(2))[0]
    ours.eval(), theirs.eval()
    want = theirs(torch.from_numpy(batch)).detach().numpy()
    np.testing.assert_allclose(ours(gt.from_numpy(batch)).detach().numpy(), want, rtol=1e-4, atol=1e-5)

    ours.train()
    train(gt, name, ours, steps=3)
    gt.save(ours.state_dict(), tmp_path / "model.safetensors")
    theirs.load_state_dict(load_file(tmp_path / "model.safetensors"))
    ours.eval()
    want = theirs(torch.from_numpy(batch)).detach().numpy()
    np.testing.assert_allclose(ours(gt.from_numpy(batch)).detach().numpy(), want, rtol=1e-4, atol=1e-5)
