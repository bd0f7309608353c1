"""Recurrent layers, attention and transformers beside torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, ShapeError
from tests.beside_torch import Build, agree, arrays, compare_modules, nn_twins, same
from tests.client.functions.linalg.drawing import draws

x, _ = draws(2)


# --- recurrent ---------------------------------------------------------------------------------------

RECURRENT: dict[str, tuple[Build, tuple[Any, ...]]] = {
    "rnn": (lambda nn: nn.RNN(3, 4), (x(5, 2, 3),)),
    "rnn with relu": (lambda nn: nn.RNN(3, 4, 2, "relu", bias=False), (x(5, 2, 3), x(2, 2, 4))),
    "rnn both ways": (lambda nn: nn.RNN(3, 4, 2, bidirectional=True), (x(5, 2, 3), x(4, 2, 4))),
    "lstm": (lambda nn: nn.LSTM(3, 4), (x(5, 2, 3),)),
    "lstm of two layers": (lambda nn: nn.LSTM(3, 4, 2, batch_first=True), (x(2, 5, 3), (x(2, 2, 4), x(2, 2, 4)))),
    "lstm both ways": (lambda nn: nn.LSTM(3, 4, 2, bidirectional=True, bias=False), (x(5, 2, 3),)),
    "lstm with a projection": (
        lambda nn: nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True), (x(5, 2, 3), (x(4, 2, 2), x(4, 2, 4)))
    ),
    "lstm of one sequence": (lambda nn: nn.LSTM(3, 4, batch_first=True), (x(5, 3), (x(1, 4), x(1, 4)))),
    "lstm with dropout, not training": (lambda nn: nn.LSTM(3, 4, 2, dropout=0.5).eval(), (x(5, 2, 3),)),
    "gru": (lambda nn: nn.GRU(3, 4), (x(5, 2, 3),)),
    "gru of two layers both ways": (
        lambda nn: nn.GRU(3, 4, num_layers=2, batch_first=True, bidirectional=True), (x(2, 5, 3), x(4, 2, 4))
    ),
    "gru of one sequence": (lambda nn: nn.GRU(3, 4, bias=False), (x(5, 3),)),
    "rnn cell": (lambda nn: nn.RNNCell(3, 4), (x(2, 3), x(2, 4))),
    "rnn cell with relu": (lambda nn: nn.RNNCell(3, 4, bias=False, nonlinearity="relu"), (x(2, 3),)),
    "lstm cell": (lambda nn: nn.LSTMCell(3, 4), (x(2, 3), (x(2, 4), x(2, 4)))),
    "lstm cell of one": (lambda nn: nn.LSTMCell(3, 4, bias=False), (x(3),)),
    "gru cell": (lambda nn: nn.GRUCell(3, 4), (x(2, 3), x(2, 4))),
    "gru cell of one": (lambda nn: nn.GRUCell(3, 4), (x(3), x(4))),
}  # fmt: skip


@pytest.mark.parametrize(("build", "args"), RECURRENT.values(), ids=RECURRENT)
def test_recurrent_layers_are_torchs(build: Any, args: Any) -> None:
    compare_modules(build, args)


@pytest.mark.parametrize("sorted_", [True, False])
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_packed_sequences(name: str, sorted_: bool) -> None:
    """Sequences of different lengths, padded, packed, run in both directions, and padded again."""
    lengths = [5, 3, 3, 1] if sorted_ else [3, 5, 1, 3]
    data, first = x(5, 4, 3), x(4, 4, 6)
    theirs, ours = nn_twins(lambda nn: getattr(nn, name)(3, 6, 2, bidirectional=True))
    results = []
    for lib, module in ((torch, theirs), (gt, ours)):
        rnn = lib.nn.utils.rnn
        t, h = (lib.from_numpy(a.copy()).requires_grad_() for a in (data, first))
        packed = rnn.pack_padded_sequence(t, lengths, enforce_sorted=sorted_)
        y, last = module(packed, (h, h * 0.5) if name == "LSTM" else h)
        padded, sizes = rnn.pad_packed_sequence(y, padding_value=-1.0, total_length=6)
        (padded * padded).sum().backward()
        results.append(arrays([packed.data, packed.batch_sizes, padded, sizes, last, t.grad, h.grad]))
    same(results[1], results[0], rtol=1e-6, atol=1e-9)


def test_sequences_are_padded_and_packed() -> None:
    parts = [x(4, 2), x(2, 2), x(1, 2)]
    for side in ("left", "right"):
        agree(lambda lib, s=side: lib.nn.utils.rnn.pad_sequence([lib.tensor(p) for p in parts], True, 7.0, s), rtol=0)
    packed = gt.nn.utils.rnn.pack_sequence([gt.from_numpy(p) for p in parts])
    for got, want in zip(gt.nn.utils.rnn.unpack_sequence(packed), parts, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    with pytest.raises(ArgumentError, match="lengths must be sorted, longest first; or pass"):
        gt.nn.utils.rnn.pack_padded_sequence(gt.ones(3, 2, 1), [1, 3])
    with pytest.raises(ArgumentError, match=r"lengths must be between 1 and 3, got \[4, 3\]"):
        gt.nn.utils.rnn.pack_padded_sequence(gt.ones(3, 2, 1), [4, 3])


@pytest.mark.parametrize("width", [1, 200], ids=["small", "large"])
def test_batches_of_other_lengths_are_few_programs(width: int) -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(n, width)).astype(np.float32) for n in (2, 3, 4, 5, 5, 5)]
    tensors = [gt.from_numpy(a) for a in data]
    w = gt.zeros(width, requires_grad=True)
    optimizer = gt.optim.SGD([w], lr=0.1)
    for k in range(60):
        if k == 40:
            before = gt.debug.get_client_stats()["programs_sent"]
        chosen = [*rng.permutation(5)[:3], 5]  # the longest is among them
        batch = gt.nn.utils.rnn.pad_sequence([tensors[i] for i in chosen], batch_first=True, padding_value=1.0)
        want = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(data[i]) for i in chosen], True, 1.0)
        (batch @ w).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_array_equal(batch.numpy(), want.numpy())
    assert gt.debug.get_client_stats()["programs_sent"] == before


def test_recurrent_layers_refuse_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"expected \(time, batch, 3\) or \(time, 3\), got shape"):
        gt.nn.LSTM(3, 4)(gt.ones(5, 2, 4))
    with pytest.raises(ShapeError, match=r"the initial state must be \(1, 2, 4\), got \(1, 3, 4\)"):
        gt.nn.GRU(3, 4)(gt.ones(5, 2, 3), gt.ones(1, 3, 4))
    with pytest.raises(ShapeError, match=r"GRUCell: the state must have shape \(2, 4\), got \(2, 5\)"):
        gt.nn.GRUCell(3, 4)(gt.ones(2, 3), gt.ones(2, 5))
    with pytest.raises(ArgumentError, match="nonlinearity must be 'tanh' or 'relu', got 'gelu'"):
        gt.nn.RNN(3, 4, nonlinearity="gelu")
    with pytest.raises(ArgumentError, match="proj_size requires an LSTM"):
        gt.nn.LSTM(3, 4, proj_size=4)
    assert [n for n, _ in gt.nn.GRU(3, 4).named_parameters()] == [n for n, _ in torch.nn.GRU(3, 4).named_parameters()]
    assert [len(w) for w in gt.nn.LSTM(3, 4, 2, proj_size=2).all_weights] == [5, 5]


# --- attention ---------------------------------------------------------------------------------------

CAUSAL = np.triu(np.ones((5, 5), bool), 1)
PADDING = np.array([[False] * 5, [False, False, False, True, True]])
Q, K, V = x(5, 2, 8), x(6, 2, 8), x(6, 2, 8)

ATTENTION: dict[str, tuple[Build, tuple[Any, ...], dict[str, Any]]] = {
    "other keys": (lambda nn: nn.MultiheadAttention(8, 2), (Q, K, V), {}),
    "no weights": (lambda nn: nn.MultiheadAttention(8, 2, bias=False), (Q, K, V), {"need_weights": False}),
    "weights of heads": (lambda nn: nn.MultiheadAttention(8, 2), (Q, K, V), {"average_attn_weights": False}),
    "batch first": (lambda nn: nn.MultiheadAttention(8, 4, batch_first=True), (x(2, 5, 8), x(2, 6, 8), x(2, 6, 8)), {}),
    "other sizes": (lambda nn: nn.MultiheadAttention(8, 2, kdim=3, vdim=4), (Q, x(6, 2, 3), x(6, 2, 4)), {}),
    "more keys": (lambda nn: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True), (Q, K, V), {}),
    "a causal mask": (lambda nn: nn.MultiheadAttention(8, 2), (Q, Q, Q), {"attn_mask": CAUSAL}),
    "a causal mask, by its hint": (
        lambda nn: nn.MultiheadAttention(8, 2), (Q, Q, Q),
        {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    ),
    "both masks": (
        lambda nn: nn.MultiheadAttention(8, 2, add_zero_attn=True), (Q, Q, Q),
        {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
    ),
    "a mask for each head": (
        lambda nn: nn.MultiheadAttention(8, 2), (Q, K, V), {"attn_mask": x(4, 5, 6) < -0.5}
    ),
    "no batch": (lambda nn: nn.MultiheadAttention(8, 2, batch_first=True), (x(5, 8), x(6, 8), x(6, 8)), {}),
    "no batch, padded": (
        lambda nn: nn.MultiheadAttention(8, 2), (x(5, 8), x(5, 8), x(5, 8)), {"key_padding_mask": PADDING[1]}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "args", "kwargs"), ATTENTION.values(), ids=ATTENTION)
def test_attention_is_torchs(build: Any, args: Any, kwargs: Any) -> None:
    compare_modules(build, args, kwargs)


def test_attention_to_oneself() -> None:
    """One tensor three times is one product, and the same result."""
    for first in (False, True):
        theirs, ours = nn_twins(lambda nn, first=first: nn.MultiheadAttention(8, 2, batch_first=first))
        want = theirs(*[torch.from_numpy(Q)] * 3)
        got = ours(*[gt.from_numpy(Q)] * 3)
        same(got, want, rtol=1e-6, atol=1e-9)
    with pytest.raises(ArgumentError, match="embed_dim must be a multiple of 3, got 8"):
        gt.nn.MultiheadAttention(8, 3)
    layer = gt.nn.MultiheadAttention(64, 4)
    bound = np.sqrt(6 / (64 + 3 * 64))
    assert 0.9 * bound < np.abs(layer.in_proj_weight.detach().numpy()).max() <= bound
    assert not layer.in_proj_bias.detach().numpy().any()


# --- transformers ------------------------------------------------------------------------------------

HIDDEN = np.where(CAUSAL, -np.inf, 0.0)
S, T = x(5, 2, 8), x(5, 2, 8)


def _encoder(nn: Any, **settings: Any) -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, **settings)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)


TRANSFORMERS: dict[str, tuple[Build, tuple[Any, ...], dict[str, Any]]] = {
    "encoder layer": (lambda nn: nn.TransformerEncoderLayer(8, 2, 16, 0.0), (S,), {}),
    "encoder layer, norm first": (
        lambda nn: nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", norm_first=True, batch_first=True, bias=False),
        (S,), {},
    ),
    "encoder layer with masks": (
        lambda nn: nn.TransformerEncoderLayer(8, 2, 16, 0.0, nn.SiLU(), layer_norm_eps=1e-3), (S,),
        {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
    ),
    "encoder layer, causal": (
        lambda nn: nn.TransformerEncoderLayer(8, 2, 16, 0.0), (S,), {"src_mask": CAUSAL, "is_causal": True}
    ),
    "decoder layer": (lambda nn: nn.TransformerDecoderLayer(8, 2, 16, 0.0), (T, S), {}),
    "decoder layer, norm first": (
        lambda nn: nn.TransformerDecoderLayer(8, 2, 16, 0.0, norm_first=True), (T, S),
        {"tgt_mask": CAUSAL, "memory_key_padding_mask": PADDING},
    ),
    "encoder": (_encoder, (S,), {"mask": CAUSAL}),
    "decoder": (
        lambda nn: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2), (T, S), {"tgt_mask": CAUSAL}
    ),
    "transformer": (lambda nn: nn.Transformer(8, 2, 1, 1, 16, 0.0, norm_first=True), (S, T), {}),
    "transformer with a mask": (
        lambda nn: nn.Transformer(8, 2, 1, 2, 16, 0.0, norm_first=True), (S, T), {"tgt_mask": CAUSAL}
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(("build", "args", "kwargs"), TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_transformers_are_torchs(build: Any, args: Any, kwargs: Any) -> None:
    compare_modules(build, args, kwargs)


def test_the_mask_of_the_future() -> None:
    np.testing.assert_array_equal(gt.nn.Transformer.generate_square_subsequent_mask(5).numpy(), HIDDEN)


def test_transformers_refuse_what_does_not_fit() -> None:
    small = gt.nn.Transformer(8, 2, 1, 1, 16)
    with pytest.raises(ShapeError, match="batch sizes of src and tgt differ: 2 and 3"):
        small(gt.ones(4, 2, 8), gt.ones(4, 3, 8))
    with pytest.raises(ShapeError, match=r"src \(4, 2, 8\) and tgt \(4, 2, 9\) must both be"):
        small(gt.ones(4, 2, 8), gt.ones(4, 2, 9))
    with pytest.raises(ArgumentError, match="'relu', 'gelu' or a function, got 'silu'"):
        gt.nn.TransformerEncoderLayer(8, 2, activation="silu")
