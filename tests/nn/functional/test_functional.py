"""nn.functional's norms, attention, losses and dropouts beside torch's: values, gradients, second gradients, errors.

The samples of torch's own database run in tests/conformance; here is what they leave out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from tests.beside_torch import as_in_torch, compare
from tests.sessions import session_fixture

rng = np.random.default_rng(4)


def draw(*shape: int) -> np.ndarray:
    return rng.normal(size=shape)


def compare_functional(f: Callable[..., Any], given: tuple[Any, ...], second: bool = True) -> None:
    """f(functional, *leaves): values, gradients and second gradients are torch's."""
    compare(lambda lib, *leaves: f(lib.nn.functional, *leaves), *given, second=second, atol=1e-9)


engine = session_fixture("numpy", "torch")


# --- norms -------------------------------------------------------------------------------------------------

NORMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "layer_norm": (lambda F, x, w, b: F.layer_norm(x, (4,), w, b), (draw(3, 4), draw(4), draw(4))),
    "layer_norm, two dims": (lambda F, x: F.layer_norm(x, (3, 4), eps=0.1), (draw(2, 3, 4),)),
    "layer_norm, bias alone": (lambda F, x, b: F.layer_norm(x, (4,), None, b), (draw(3, 4), draw(4))),
    "rms_norm": (lambda F, x, w: F.rms_norm(x, (4,), w), (draw(3, 4), draw(4))),
    "group_norm": (lambda F, x, w, b: F.group_norm(x, 2, w, b), (draw(2, 4, 3), draw(4), draw(4))),
    "batch_norm": (
        lambda F, x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (draw(4, 3, 2), draw(3), draw(3)),
    ),
    "instance_norm": (lambda F, x, w: F.instance_norm(x, weight=w), (draw(2, 3, 4), draw(3))),
    "local_response_norm": (lambda F, x: F.local_response_norm(x, 3), (draw(2, 5, 3),)),
    "normalize": (lambda F, x: F.normalize(x, p=3.0, dim=0), (draw(3, 4),)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str, engine: str) -> None:
    f, arrays = NORMS[name]
    compare_functional(f, arrays, second=name != "layer_norm, bias alone")  # torch breaks on that one


STATISTICS = draw(4, 3, 2), draw(3), np.abs(draw(3)) + 1


@pytest.mark.parametrize("f", ["batch_norm", "instance_norm"])
@pytest.mark.parametrize("momentum", [0.1, 1.0, "tensor"])
@as_in_torch(draw(3), atol=1e-9)
def test_running_statistics_move(lib: Any, weight: Any, f: str, momentum: Any, engine: str) -> Any:
    given, rm, rv = (lib.tensor(a) for a in STATISTICS)
    alias = rm.view(3)
    m = 0.25 if momentum == "tensor" else momentum
    if lib is gt and momentum == "tensor":
        m = gt.tensor(0.25, dtype=gt.float64)
    for _ in range(2):
        y = getattr(lib.nn.functional, f)(given, rm, rv, weight, None, True, m)
    still = getattr(lib.nn.functional, f)(given, rm, rv, weight, None, False)
    still.sum().backward()
    return y, rm, rv, alias, still


def test_narrow_types_are_computed_in_float32(engine: str) -> None:
    for kind in ("float16", "bfloat16"):
        x = (draw(4, 64) * 3 + 100).astype(np.float32)  # their squares overflow float16, their sum loses bits
        ours = gt.nn.functional.layer_norm(gt.tensor(x).to(getattr(gt, kind)), (64,))
        theirs = torch.nn.functional.layer_norm(torch.from_numpy(x).to(getattr(torch, kind)), (64,))
        assert ours.dtype.name == kind
        np.testing.assert_allclose(ours.float().numpy(), theirs.float().numpy(), atol=2e-2)


# --- attention ---------------------------------------------------------------------------------------------


def _attend(**kwargs: Any) -> Callable[..., Any]:
    return lambda F, q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *m, **kwargs)


HOLES = rng.random((3, 5)) < 0.6
HOLES[1] = False
ATTENTION: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "plain": (_attend(), (draw(2, 2, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 4))),
    "causal": (_attend(is_causal=True), (draw(2, 2, 3, 4), draw(2, 2, 3, 4), draw(2, 2, 3, 4))),
    "scale": (_attend(scale=0.3), (draw(2, 3, 4), draw(2, 5, 4), draw(2, 5, 4))),
    "other value size": (_attend(), (draw(2, 2, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 6))),
    "one head": (_attend(), (draw(3, 4), draw(5, 4), draw(5, 4))),
    "five dims": (_attend(is_causal=True), (draw(2, 1, 2, 3, 4), draw(2, 2, 2, 5, 4), draw(2, 2, 2, 5, 4))),
    "bool mask": (_attend(), (draw(2, 2, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 4), HOLES)),
    "float mask": (_attend(), (draw(2, 2, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 4), draw(2, 1, 3, 5))),
    "gqa": (_attend(enable_gqa=True), (draw(2, 4, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 4))),
}


@pytest.mark.parametrize(("f", "arrays"), ATTENTION.values(), ids=ATTENTION)
def test_attention(f: Any, arrays: Any, engine: str) -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the one with second derivatives
        compare_functional(f, arrays)


def test_attention_drops_weights(engine: str) -> None:
    q, k = gt.randn(2, 2, 3, 4), gt.randn(2, 2, 5, 4)
    v = gt.ones(2, 2, 5, 4)
    gt.manual_seed(1)
    out = gt.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert not np.allclose(out.numpy(), 1.0)
    assert float(gt.nn.functional.scaled_dot_product_attention(q, k, v).mean()) == pytest.approx(1.0, abs=1e-5)


def _heads(n: int = 3, **kwargs: Any) -> Callable[..., Any]:
    def f(lib: Any, q: Any, k: Any, v: Any, w: Any, b: Any, ow: Any, ob: Any, bk: Any = None, bv: Any = None) -> Any:
        made = {name: (g(lib) if callable(g) else g) for name, g in kwargs.items()}
        zero = made.pop("zero", False)
        out = lib.nn.functional.multi_head_attention_forward(
            q, k, v, 4, 2, w, b, bk, bv, zero, 0.0, ow, ob, True, **made
        )
        return tuple(t for t in out if t is not None)

    return f


_MHA = (draw(3, 2, 4), draw(5, 2, 4), draw(5, 2, 4), draw(12, 4), draw(12), draw(4, 4), draw(4))
_PADDED = np.array([[False] * 5, [False] * 3 + [True] * 2])


def _tensor(array: np.ndarray) -> Callable[[Any], Any]:
    return lambda lib: lib.tensor(array)


HEADS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "weights": (_heads(), _MHA),
    "weights of each head": (_heads(average_attn_weights=False), _MHA),
    "no weights": (_heads(need_weights=False), _MHA),
    "masked": (_heads(attn_mask=_tensor(np.triu(np.ones((3, 5), bool), 2))), _MHA),
    "padded": (_heads(key_padding_mask=_tensor(_PADDED), need_weights=False), _MHA),
    "both masks": (
        _heads(key_padding_mask=_tensor(_PADDED), attn_mask=_tensor(np.triu(np.ones((3, 5), bool), 2))),
        _MHA,
    ),
    "a mask for each head": (_heads(attn_mask=_tensor(draw(4, 3, 5)), need_weights=False), _MHA),
    "bias and zeros": (_heads(zero=True, key_padding_mask=_tensor(_PADDED)), (*_MHA, draw(1, 1, 4), draw(1, 1, 4))),
    "no batch": (_heads(), (draw(3, 4), draw(5, 4), draw(5, 4), *_MHA[3:])),
    "causal": (
        _heads(attn_mask=_tensor(np.triu(np.ones((3, 3), bool), 1)), is_causal=True, need_weights=False),
        (draw(3, 2, 4), draw(3, 2, 4), draw(3, 2, 4), *_MHA[3:]),
    ),
}


@pytest.mark.parametrize(("f", "arrays"), HEADS.values(), ids=HEADS)
def test_multi_head_attention(f: Any, arrays: Any, session: Session) -> None:
    compare(f, *arrays, atol=1e-9)


# --- losses ------------------------------------------------------------------------------------------------

CLASSES = np.array([0, -1, 2, 1])
INDICES = rng.integers(0, 3, (2, 4))
LOSSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cross_entropy": (lambda F, x, t: F.cross_entropy(x, t, ignore_index=-1), (draw(4, 3), CLASSES)),
    "cross_entropy, smooth": (
        lambda F, x, t: F.cross_entropy(x, t, ignore_index=-1, label_smoothing=0.2),
        (draw(4, 3), CLASSES),
    ),
    "cross_entropy, weighted and smooth": (
        lambda F, x, t, w: F.cross_entropy(x, t, w.detach(), ignore_index=-1, label_smoothing=0.2),
        (draw(4, 3), CLASSES, np.array([0.5, 2.0, 1.0])),
    ),
    "cross_entropy, probabilities": (
        lambda F, x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        (draw(4, 3, 2), np.abs(draw(4, 3, 2))),
    ),
    "cross_entropy, old reduction": (lambda F, x, t: F.cross_entropy(x, t, None, False, -1), (draw(4, 3), CLASSES)),
    "mse_loss": (lambda F, x, t: F.mse_loss(x, t), (draw(3, 4), draw(3, 4))),
    "mse_loss, weighted": (lambda F, x, t: F.mse_loss(x, t, weight=x.detach().abs()), (draw(3, 4), draw(3, 4))),
    "bce with logits": (
        lambda F, x, t, p: F.binary_cross_entropy_with_logits(x, t.sigmoid(), pos_weight=p.detach().abs()),
        (draw(3, 4) * 3, draw(3, 4), draw(4)),
    ),
    "cross_entropy of large scores": (
        lambda F, x, t: F.cross_entropy(x * 30, t, ignore_index=-1, reduction="sum"),
        (draw(4, 3), CLASSES),
    ),
    "cross_entropy of images": (lambda F, x, t: F.cross_entropy(x, t), (draw(2, 3, 4), INDICES)),
    "cross_entropy of one sample": (lambda F, x, t: F.cross_entropy(x, t), (draw(3), INDICES[0, :1].reshape(()))),
    "nll": (lambda F, x, t: F.nll_loss(x.log_softmax(1), t, ignore_index=-1), (draw(4, 3), CLASSES)),
    "bce": (lambda F, x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()), (draw(3, 4), draw(3, 4))),
    "bce of certainties": (
        lambda F, x, t: F.binary_cross_entropy((x > 0) * 1.0 + x * 0, t.detach().sigmoid(), reduction="none"),
        (draw(3, 4), draw(3, 4)),
    ),
    "bce with large logits": (
        lambda F, x, t: F.binary_cross_entropy_with_logits(x * 40, t.detach().sigmoid(), weight=t.detach()),
        (draw(3, 4), draw(3, 4)),
    ),
    "triplet": (
        lambda F, a, p, n: F.triplet_margin_with_distance_loss(
            a, p, n, distance_function=lambda x, y: ((x - y) ** 2).sum(-1), swap=True, margin=2.0
        ),
        (draw(3, 4), draw(3, 4), draw(3, 4)),
    ),
    "cosine_similarity": (lambda F, a, b: F.cosine_similarity(a, b, dim=-1), (draw(3, 4), draw(2, 1, 4))),
    "softmax": (lambda F, x: F.softmax(x, dim=None), (draw(3, 4, 2),)),
    "log_softmax": (lambda F, x: F.log_softmax(x, dim=-1, dtype=x.dtype), (draw(3, 4),)),
}


@pytest.mark.filterwarnings("ignore")  # torch dislikes some of these forms
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, engine: str) -> None:
    f, arrays = LOSSES[name]
    compare_functional(f, arrays, second=name != "bce of certainties")


def test_a_loss_of_no_targets_is_nan(engine: str) -> None:
    loss = gt.nn.functional.cross_entropy(gt.zeros(0, 3), gt.zeros(0, dtype=gt.int64))
    assert math.isnan(loss.item())
    assert math.isnan(gt.nn.functional.cross_entropy(gt.zeros(2, 3), gt.full((2,), -100, dtype=gt.int64)).item())


def test_a_bad_target_is_found(engine: str) -> None:
    with pytest.raises(IndexOutOfRange, match="cross_entropy: index 3 is out of range"):
        gt.nn.functional.cross_entropy(gt.zeros(2, 3), gt.tensor([0, 3])).item()
    with pytest.raises(IndexOutOfRange):
        gt.nn.functional.multi_margin_loss(gt.zeros(2, 3), gt.tensor([0, 3])).item()


# --- dropouts ----------------------------------------------------------------------------------------------


def test_dropouts_of_channels(engine: str) -> None:
    gt.manual_seed(3)
    F = gt.nn.functional
    for f, shape in [(F.dropout1d, (20, 30, 4)), (F.dropout2d, (20, 30, 2, 2)), (F.dropout3d, (30, 2, 2, 2))]:
        y = f(gt.ones(*shape), 0.25).numpy()
        y = y.reshape(*y.shape[: 1 if f is F.dropout3d else 2], -1)
        assert (y == y[..., :1]).all(), "a channel lives or dies as a whole"
        np.testing.assert_allclose(np.unique(y), [0, 4 / 3], rtol=1e-6)
    x = gt.randn(200, 200)
    y = F.alpha_dropout(x, 0.3, training=True)
    assert abs(y.mean().item()) < 0.05
    assert abs(y.std().item() - 1) < 0.05
    assert F.alpha_dropout(x) is x
    z = gt.ones(8, 8)
    assert F.dropout(z, 1.0, inplace=True) is z
    assert not z.numpy().any()


def test_gumbel_softmax_chooses(engine: str) -> None:
    gt.manual_seed(5)
    logits = gt.tensor([0.0, math.log(3.0)]).expand(4000, 2).clone().requires_grad_()
    soft = gt.nn.functional.gumbel_softmax(logits, tau=0.5)
    np.testing.assert_allclose(soft.detach().sum(-1).numpy(), 1.0, rtol=1e-5)
    hard = gt.nn.functional.gumbel_softmax(logits, hard=True)
    assert abs(hard.detach()[:, 1].mean().item() - 0.75) < 0.03
    np.testing.assert_allclose(np.unique(hard.detach().numpy().round(5)), [0.0, 1.0])
    (hard[:, 1].sum()).backward()
    assert logits.grad.abs().sum().item() > 0


# --- errors ------------------------------------------------------------------------------------------------

ERRORS: list[tuple[type[Exception], str, Callable[[Any], Any]]] = [
    (ShapeError, r"expected an input whose last sizes are \(4,\), got", lambda F: F.layer_norm(gt.ones(2, 3), (4,))),
    (
        ShapeError,
        r"group_norm: 3 channels cannot be divided into 2 groups",
        lambda F: F.group_norm(gt.ones(2, 3, 4), 2),
    ),
    (
        ShapeError,
        r"batch_norm: expected more than one value per channel when training",
        lambda F: F.batch_norm(gt.ones(1, 3), None, None, training=True),
    ),
    (
        ShapeError,
        r"batch_norm: weight must have shape \(3,\) for an input \(2, 3\), got \(4,\)",
        lambda F: F.batch_norm(gt.ones(2, 3), None, None, gt.ones(4), training=True),
    ),
    (ArgumentError, "running_mean and running_var are required if", lambda F: F.batch_norm(gt.ones(2, 3), None, None)),
    (DTypeError, "layer_norm: expected a floating-point dtype", lambda F: F.layer_norm(gt.ones(2, 3).long(), (3,))),
    (
        ShapeError,
        "query and key must have one size, got 4 and 5",
        lambda F: F.scaled_dot_product_attention(gt.ones(1, 1, 2, 4), gt.ones(1, 1, 2, 5), gt.ones(1, 1, 2, 5)),
    ),
    (
        ArgumentError,
        "attn_mask or is_causal",
        lambda F: F.scaled_dot_product_attention(*[gt.ones(2, 3)] * 3, gt.ones(2, 2), is_causal=True),
    ),
    (
        ShapeError,
        r"cross_entropy: scores \(2, 3\) need targets of shape \(2,\), got \(3,\)",
        lambda F: F.cross_entropy(gt.ones(2, 3), gt.zeros(3, dtype=gt.int64)),
    ),
    (
        ShapeError,
        r"weight must have shape \(3,\), one per class, got",
        lambda F: F.nll_loss(gt.ones(2, 3), gt.zeros(2, dtype=gt.int64), gt.ones(2)),
    ),
    (
        ArgumentError,
        "reduction must be one of 'mean', 'sum', 'none'",
        lambda F: F.l1_loss(gt.ones(2), gt.ones(2), reduction="all"),
    ),
    (ArgumentError, r"p must be a probability between 0 and 1, got 1.5", lambda F: F.dropout2d(gt.ones(2, 3, 4), 1.5)),
    (ShapeError, "must have the same shape", lambda F: F.binary_cross_entropy(gt.ones(2), gt.ones(3))),
    (ShapeError, "must have the same shape", lambda F: F.binary_cross_entropy_with_logits(gt.ones(2), gt.ones(3))),
]


@pytest.mark.parametrize(("error", "text", "f"), ERRORS)
def test_errors_are_raised_where_they_are_made(error: Any, text: str, f: Any, session: Session) -> None:
    with pytest.raises(error, match=text):
        f(gt.nn.functional)


def test_autocast_reaches_ops_of_many_operands(session: Session) -> None:
    x, w, b = gt.ones(2, 4), gt.ones(4, 4), gt.ones(4)
    mask = gt.zeros(2, 2)
    with gt.autocast(dtype=gt.bfloat16):
        q = gt.nn.functional.linear(x, w, b)
        assert q.dtype is gt.bfloat16
        assert gt.nn.functional.scaled_dot_product_attention(q, q, q, mask).dtype is gt.bfloat16
        assert gt.nn.functional.layer_norm(q, (4,), b, b).dtype is gt.float32
        assert gt.nn.functional.cross_entropy(q, gt.tensor([0, 1])).dtype is gt.float32
