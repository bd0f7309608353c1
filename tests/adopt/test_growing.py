"""Sequences that get longer by one token: values as torch's, and the same program for each length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gt
from gt.adoption.growing import LEAST
from gt.adoption.tensor import Growing

pytestmark = pytest.mark.processes


def sent() -> int:
    return int(gt.debug.get_client_stats()["programs_sent"])


@torch.no_grad()
def generated(model: Any, ids: Any, steps: int) -> tuple[Any, list[int]]:
    """Greedy decoding that reads each token, as a loop with an end-of-sequence token does; programs after each."""
    counts = []
    for _ in range(steps):
        token = model(ids[:, -1:])[:, -1].argmax(-1)
        ids = torch.cat([ids, token[:, None]], dim=-1)
        assert ids.shape == (ids.size(0), ids.size(1))
        if bool((ids[:, -1] == -1).all()):
            break
        counts.append(sent())
    return ids, counts


def test_tokens_are_torchs_and_programs_few() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Embedding(40, 16), torch.nn.Tanh(), torch.nn.Linear(16, 40))
    start = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected, _ = generated(plain, start, LEAST + 20)
    found, counts = generated(gt.adopt(plain), start, LEAST + 20)
    assert type(found) is Growing
    assert found.tolist() == expected.tolist()
    assert len(found) == 2
    assert counts[-1] - counts[2] <= 3  # where the room doubles


@torch.no_grad()
def test_a_sequence_is_a_tensor_of_its_own() -> None:
    def story(ids: Any, token: Any) -> list[Any]:
        first = torch.cat([ids, token], dim=-1)
        one, other = torch.cat([first, token], -1), torch.cat([first, token + 1], -1)
        again = torch.cat([one, token + 2], 1)
        again[:, 0] = 7  # it is a copy
        last = torch.cat((again, token), dim=1)
        parts = [
            last[:, -1],
            last[:, -2:],
            last[..., 2:],
            last[0],
            last[:, 1:3],
            last[:, :-1],
            last[:, -1:] + 1,
            last == 7,
        ]
        return [x.tolist() for x in (first, one, other, again, last, *parts, last.clone(), torch.cat([last, last], -1))]

    ids, token = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5], [6]])
    assert story(gt.adopt(ids.clone()), gt.adopt(token.clone())) == story(ids, token)
    assert story(ids, gt.adopt(token.clone())) == story(ids, token)


def test_other_tensors_are_put_together_as_ever() -> None:
    a, b = gt.adopt(torch.ones(2, 3)), gt.adopt(torch.ones(2, 1))
    words = gt.adopt(torch.tensor([[1, 2]]))
    assert type(torch.cat([words, words[:, :1]], -1)) is not Growing  # gradients are recorded
    with torch.no_grad():
        assert type(torch.cat([a, b], -1)) is not Growing
        assert type(torch.cat([words, words[:, :1], words], -1)) is not Growing
        assert type(torch.cat([words, words], 0)) is not Growing
        assert torch.cat([words, words[:, :1]], dim=-1, out=None).tolist() == [[1, 2, 1]]
