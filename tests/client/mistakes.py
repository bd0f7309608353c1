"""Calls that are refused: one clear sentence, at the user's line, and everything else is left as it was."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

import gt
from gt.client.session.session import Session

#: By name: the call, its error and a part of its message.
Mistakes = dict[str, tuple[Callable[..., Any], type[Exception], str]]


def refused(mistakes: Mistakes, given: Callable[[], Any] | None = None) -> Any:
    """A test for each of these calls. `given` makes the argument of the call."""

    @pytest.mark.parametrize(("mistake", "kind", "message"), mistakes.values(), ids=mistakes)
    def test(mistake: Callable[..., Any], kind: type[Exception], message: str, session: Session) -> None:
        arguments = [] if given is None else [given()]
        before = gt.ones(2) * 3.0  # pending: the mistake must leave it alone
        with pytest.raises(kind, match=message) as raised:
            mistake(*arguments)
        assert "\n" not in str(raised.value)
        frames = [f.filename for f in traceback.extract_tb(raised.value.__traceback__)]
        assert frames[1] == mistake.__code__.co_filename  # this test, then the user's line, then GT's own
        assert before.tolist() == [3.0, 3.0]

    return test
