"""torch's functions behind nn.RNN, nn.LSTM and nn.GRU, and behind packed sequences, by those of GT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    settings = {
        "mode": mode, "bias": biases, "num_layers": layers, "bidirectional": both, "dropout": dropout,
        "training": train,
    }  # fmt: skip
    rnn.__dict__.update(_parameters=parameters, _modules={}, _buffers={}, **settings)
    return rnn


def recurrent(mode: str) -> Callable[..., Any]:
    """torch.lstm, torch.gru, torch.rnn_tanh or torch.rnn_relu, on tensors of GT. The batch sizes of a packed sequence
    are ints."""

    def run(x: Any, second: Any, third: Any, fourth: Any, *settings: Any) -> Any:
        packed = is_packed(fourth)  # (data, sizes, state, weights, ...), else (input, state, weights, biases, ...)
        sizes, state, weights = (tuple(second), third, fourth) if packed else ((), second, third)
        biases, layers, dropout, train, both, *first = settings if packed else (fourth, *settings)
        rnn = _layers(mode, weights, biases, layers, dropout, train, both)
        batch_first = bool(first and first[0])
        states = tuple(state) if mode == "LSTM" else (state,)
        y, last = rnn._run(x.transpose(0, 1) if batch_first else x, states, sizes)
        return (y.transpose(0, 1) if batch_first else y, *last)

    return run


def is_packed(fourth: Any) -> bool:
    """Whether the arguments of such a function, of which this is the fourth, are those for a packed sequence."""
    return isinstance(fourth, (list, tuple))


def pack(input: Any, lengths: list[int], batch_first: bool) -> Any:
    """The data of a packed sequence."""
    return pack_padded_sequence(input, lengths, batch_first).data


def pad(data: Any, batch_sizes: list[int], batch_first: bool, padding_value: float, total_length: int) -> Any:
    """A packed sequence as a padded tensor."""
    packed = PackedSequence(data, batch_sizes)  # type: ignore[arg-type]  # ints of the host do as well
    return pad_packed_sequence(packed, batch_first, padding_value, total_length if total_length > 0 else None)[0]
