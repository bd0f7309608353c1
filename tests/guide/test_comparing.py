"""`gt.testing.assert_close` passes and fails where torch's does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.sim.cluster import Cluster, using

NAN, INF = float("nan"), float("inf")

#: Pairs of data with options; each is compared as tensors of both libraries.
PAIRS: list[tuple[Any, Any, dict[str, Any]]] = [
    ([1.0, 2.0], [1.0, 2.0], {}),
    ([1.0, 2.0], [1.0, 2.000001], {}),
    ([1.0, 2.0], [1.0, 2.0001], {}),
    ([1.0, 2.0], [1.0, 2.0001], {"rtol": 1e-3, "atol": 0.0}),
    ([1, 2], [1, 3], {}),
    ([1, 2], [1, 2], {}),
    ([True, False], [True, True], {}),
    ([NAN], [NAN], {}),
    ([NAN, 1.0], [NAN, 1.0], {"equal_nan": True}),
    ([INF], [INF], {}),
    ([INF], [-INF], {}),
    ([1.0], [[1.0]], {}),
    ([1.0], [1], {}),
    ([1.0], [1], {"check_dtype": False}),
    ([1 + 2j], [1 + 2j], {}),
    ([], [], {}),
]


def passes(lib: Any, a: Any, b: Any, options: dict[str, Any]) -> bool:
    try:
        lib.testing.assert_close(a, b, **options)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(("a", "b", "options"), PAIRS)
def test_as_torch(a: Any, b: Any, options: dict[str, Any]) -> None:
    with using(Cluster().client()):
        ours = passes(gt, gt.tensor(a), gt.tensor(b), options)
        nested = passes(gt, {"x": [gt.tensor(a)]}, {"x": [gt.tensor(b)]}, options)
    assert ours == nested == passes(torch, torch.tensor(a), torch.tensor(b), options)


def test_messages() -> None:
    with (
        using(Cluster().client()),
        pytest.raises(AssertionError, match=r"^\['w'\]\[1\]: the shapes differ: \(2,\) and"),
    ):
        gt.testing.assert_close({"w": [1.0, gt.ones(2)]}, {"w": [1.0, np.ones(3, np.float32)]})
    with pytest.raises(gt.GTError, match="give both rtol and atol"):
        gt.testing.assert_close(1.0, 1.0, rtol=0.1)
    with pytest.raises(AssertionError, match=r"^no$"):
        gt.testing.assert_close("a", "b", msg="no")


def test_random_tensors() -> None:
    with using(Cluster().client()):
        for dtype in (gt.float32, gt.int64, gt.uint8, gt.bool, gt.complex64):
            made = gt.testing.make_tensor(4, 5, dtype=dtype)
            assert (made.shape, made.dtype) == ((4, 5), dtype)
        assert gt.testing.make_tensor((50,), dtype=gt.int64, low=0, high=2, exclude_zero=True).tolist() == [1] * 50
