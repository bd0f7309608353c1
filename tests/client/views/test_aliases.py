"""Tensors that share memory: the same code on torch and on GT leaves the same numbers in every tensor.

The stories are in the aliasing_*.py beside this file. Each is given a tensor or a layer, writes to it and to what
shares memory with it, and returns what else is to be compared. Which functions return a view is tested in
tests/client/functions/test_shapes.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from gt.client.views import aliases as views
from tests.beside_torch import Story, agree, each, stories
from tests.client.views import aliasing_history, aliasing_layers, aliasing_tensors
from tests.client.views.aliasing import base, linear
from tests.sessions import session_on

TENSORS, LAYERS, HISTORY = (stories(m) for m in (aliasing_tensors, aliasing_layers, aliasing_history))
STORIES = [*TENSORS, *LAYERS, *HISTORY]


def check(story: Story) -> None:
    def told(lib: Any) -> Any:
        given = linear(lib) if story in LAYERS else base(lib, requires_grad=story in HISTORY)
        return story(lib, given), given, getattr(given, "grad", None)

    agree(told, rtol=1e-12, atol=1e-14)


@each(STORIES)
def test_aliasing_is_as_in_torch(story: Story, session: Session) -> None:
    check(story)


@each(STORIES)
def test_aliasing_does_not_depend_on_where_programs_end(
    story: Story, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with every op a program of its own."""
    monkeypatch.setattr("gt.client.record.recorder.LONGEST", 1)
    check(story)


@each(STORIES[::3])
def test_aliasing_on_the_torch_engine(story: Story) -> None:
    """There a worker writes into memory that it was given."""
    with session_on("torch"):
        check(story)


def test_there_are_enough_stories() -> None:
    assert len(STORIES) >= 100


# --- threads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["reads", "writes"])
def test_another_thread_while_a_view_is_taken(other: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that read have one value; what is written is seen by the next reader."""
    x = gt.arange(6).float()
    part = x[1:4]
    x.add_(10)
    taken, found = views.apply, []

    def apply(kind: Any, args: Any) -> Any:
        monkeypatch.setattr(views, "apply", taken)
        if other == "reads":
            found.append(views.read(part))
        made = taken(kind, args)
        if other == "writes":
            x.add_(10)  # before this thread has noted what it took
        return made

    monkeypatch.setattr(views, "apply", apply)
    mine = views.read(part)
    assert all(mine is each for each in found)
    np.testing.assert_array_equal(part.numpy(), [11, 12, 13] if other == "reads" else [21, 22, 23])
