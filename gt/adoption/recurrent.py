"""torch's functions behind nn.RNN, nn.LSTM and nn.GRU, and behind packed sequences, by those of GT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor import Tensor
from gt.nn.recurrent import RNNBase
from gt.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def _layers(mode: str, weights: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool) -> RNNBase:
    """GT's module on these weights, which are listed layer by layer, direction by direction."""
    rnn: RNNBase = object.__new__(RNNBase)
    each = len(weights) // (layers * (2 if both else 1))
    kinds = [k for k in _KINDS if biases or not k.startswith("bias")][:each]
    ends = [f"_l{layer}{way}" for layer in range(layers) for way in ("", "_reverse")[: 2 if both else 1]]
    parameters = dict(zip([kind + end for end in ends for kind in kinds], weights, strict=True))
    settings = {"mode": mode, "num_layers": layers, "bidirectional": both, "dropout": dropout, "training": train}
    rnn.__dict__.update(_parameters=parameters, _modules={}, _buffers={}, **settings)
    return rnn


def recurrent(mode: str) -> Callable[..., Any]:
    """torch.lstm, torch.gru, torch.rnn_tanh or torch.rnn_relu."""

    def run(x: Any, second: Any, third: Any, fourth: Any, *settings: Any) -> Any:
        packed = isinstance(second, Tensor) and isinstance(fourth, (list, tuple))  # (data, sizes, state, weights, ...)
        sizes, state, weights = (second, third, fourth) if packed else (None, second, third)
        biases, layers, dropout, train, both, *first = settings if packed else (fourth, *settings)
        rnn = _layers(mode, weights, biases, layers, dropout, train, both)
        batch_first = bool(first and first[0])
        states = tuple(state) if mode == "LSTM" else (state,)
        y, last = rnn._run(
            x.transpose(0, 1) if batch_first else x, states, None if sizes is None else tuple(sizes.tolist())
        )
        return (y.transpose(0, 1) if batch_first else y, *last)

    return run


def pack(input: Any, lengths: Any, batch_first: bool) -> Any:
    """torch._pack_padded_sequence: the data and the batch sizes."""
    packed = pack_padded_sequence(input, lengths, batch_first)
    return packed.data, packed.batch_sizes


def pad(data: Any, batch_sizes: Any, batch_first: bool, padding_value: float, total_length: int) -> Any:
    """torch._pad_packed_sequence: the padded tensor and the lengths."""
    packed = PackedSequence(data, batch_sizes)
    return pad_packed_sequence(packed, batch_first, padding_value, total_length if total_length > 0 else None)
