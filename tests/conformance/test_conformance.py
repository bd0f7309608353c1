"""A part of the conformance run: the first sample of every name. `make conformance` runs all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conformance.names import EXEMPT, find
from tests.conformance.running import database, run

DATABASE = database()


@pytest.mark.parametrize("name", sorted(n for n in DATABASE if n not in EXEMPT))
def test_a_sample_of_each_name(name: str) -> None:
    result = run(name, DATABASE[name], ("float32", "int64"), limit=1)
    assert not result.failures
    assert not result.missing


def test_most_names_are_gts_own() -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip("counted with the database of torch 2.13")
    found: list[Any] = [find(name) for name in DATABASE if name not in EXEMPT]
    assert None not in found
    assert len(found) >= 600
    assert sum(native for _, native in found) >= 540


def test_a_wrong_result_is_seen() -> None:
    """The comparison itself: a function that is off, or whose gradient is, does not pass."""
    import gt
    from tests.conformance import names

    before = dict(names.SPECIAL)
    try:
        mistakes = [
            lambda x: x.sin() * 1.001,
            lambda x: x.sin().detach(),
            lambda x: x.sin() + (x - x.detach()),
            lambda x: x.double().sin(),
            lambda x: x.sin().unsqueeze(0),
        ]
        for wrong in mistakes:
            names.SPECIAL["sin"] = wrong
            assert run("sin", DATABASE["sin"], ("float32",)).failures
        names.SPECIAL["sin"] = gt.sin
        assert not run("sin", DATABASE["sin"], ("float32",)).failures
    finally:
        names.SPECIAL.clear()
        names.SPECIAL.update(before)


@pytest.mark.parametrize("name", sorted(EXEMPT))
def test_exempt_names_have_a_reason(name: str) -> None:
    assert name in DATABASE or not torch.__version__.startswith("2.13")
    assert len(EXEMPT[name]) > 5
