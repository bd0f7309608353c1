"""Recurrent layers: RNN, LSTM and GRU, and one step of each as a cell.

All layers over a whole sequence are one op (gt/ops/families/recurrent.py); with dropout between them, one op each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.compat.checks import one_of
from gt.client.functions import creation
from gt.client.functions.shapes import cat, chunk
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.utils.rnn import PackedSequence
from gt.ops import TABLE

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell", "RNNCellBase"]

State = tuple[Any, ...]  #: (h,) or (h, c)

#: The number of gates of each mode.
_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


# --- one step: the input times its weight, the state, and the weights of the state --------------------------


def _rnn(function: Callable[[Any], Any]) -> Callable[..., State]:
    def step(x: Any, state: State, weight: Any, bias: Any) -> State:
        return (function(x + F.linear(state[0], weight, bias)),)

    return step


def _lstm(x: Any, state: State, weight: Any, bias: Any) -> State:
    h, c = state
    i, f, g, o = chunk(x + F.linear(h, weight, bias), 4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h, c


def _gru(x: Any, state: State, weight: Any, bias: Any) -> State:
    (h,) = state
    xr, xz, xn = chunk(x, 3, -1)
    hr, hz, hn = chunk(F.linear(h, weight, bias), 3, -1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return (n + z * (h - n),)


_STEPS: dict[str, Callable[..., State]] = {
    "RNN_TANH": _rnn(F.tanh), "RNN_RELU": _rnn(F.relu), "LSTM": _lstm, "GRU": _gru
}  # fmt: skip


# --- whole sequences ---------------------------------------------------------------------------------


class RNNBase(Module):
    """The base of RNN, LSTM and GRU."""

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if mode not in _GATES:
            raise ArgumentError(f"{name}: mode must be one of {', '.join(_GATES)}, got {mode!r}")
        if not isinstance(hidden_size, int) or hidden_size <= 0 or num_layers <= 0:
            raise ArgumentError(f"{name}: hidden_size and num_layers must be > 0, got {hidden_size} and {num_layers}")
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"{name}: dropout must be a probability between 0 and 1, got {dropout}")
        if proj_size and (mode != "LSTM" or not 0 < proj_size < hidden_size):
            raise ArgumentError(f"{name}: proj_size requires an LSTM and must be below hidden_size, got {proj_size}")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        out, rows = proj_size or hidden_size, _GATES[mode] * hidden_size
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else out * (2 if bidirectional else 1)
            for end in self._ends(layer):
                sizes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs), "weight_hh": (rows, out)}
                sizes.update({"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {})
                sizes.update({"weight_hr": (proj_size, hidden_size)} if proj_size else {})
                for kind, size in sizes.items():
                    self.register_parameter(kind + end, Parameter(creation.empty(*size, dtype=dtype)))
        self.reset_parameters()

    def _ends(self, layer: int) -> list[str]:
        """The suffixes of the names of a layer's parameters, one per direction."""
        return [f"_l{layer}", f"_l{layer}_reverse"][: 2 if self.bidirectional else 1]

    @property
    def all_weights(self) -> list[list[Parameter | None]]:
        """The parameters of each layer and direction."""
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return [
            [self._parameters[k + end] for k in kinds if k + end in self._parameters]
            for layer in range(self.num_layers)
            for end in self._ends(layer)
        ]

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Does nothing: workers choose the memory layout of parameters."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        packed = isinstance(input, PackedSequence)
        x = input.data if packed else input
        if x.ndim not in ((2,) if packed else (2, 3)) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: expected (time, batch, {self.input_size}) or (time, {self.input_size}), got "
                f"shape {tuple(x.shape)}"
            )
        alone = not packed and x.ndim == 2
        if alone:
            x = x.unsqueeze(1)
        elif self.batch_first and not packed:
            x = x.transpose(0, 1)
        sizes = tuple(input.batch_sizes.tolist()) if packed else ()
        batch = sizes[0] if packed else x.shape[1]
        state = self._first_state(hx, batch, x, alone)
        if packed and hx is not None and input.sorted_indices is not None:
            state = tuple(s.index_select(1, input.sorted_indices) for s in state)
        y: Any
        y, last = self._run(x, state, sizes)
        if packed:
            if input.unsorted_indices is not None:
                last = tuple(s.index_select(1, input.unsorted_indices) for s in last)
            y = PackedSequence(y, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
        elif alone:
            y, last = y.squeeze(1), tuple(s.squeeze(1) for s in last)
        elif self.batch_first:
            y = y.transpose(0, 1)
        return y, last if self.mode == "LSTM" else last[0]

    def _first_state(self, hx: Any, batch: int, x: Tensor, alone: bool) -> State:
        """The initial state, (layers * directions, batch, size) each."""
        n = self.num_layers * (2 if self.bidirectional else 1)
        shapes = [(n, batch, self.proj_size or self.hidden_size)]
        shapes += [(n, batch, self.hidden_size)] if self.mode == "LSTM" else []
        if hx is None:
            return tuple(creation.zeros(s, dtype=x.dtype) for s in shapes)
        given = tuple(hx) if self.mode == "LSTM" else (hx,)
        wanted = [(s[0], s[2]) for s in shapes] if alone else shapes
        if [tuple(h.shape) for h in given] != wanted:
            shown = " and ".join(str(tuple(h.shape)) for h in given)
            raise ShapeError(
                f"{type(self).__name__}: the initial state must be {' and '.join(map(str, wanted))}, got {shown}"
            )  # fmt: skip
        return tuple(h.unsqueeze(1) for h in given) if alone else given

    def _run(self, x: Tensor, state: State, sizes: tuple[int, ...]) -> tuple[Tensor, State]:
        """All layers over (time, batch, size), or over packed steps (steps, size) with the batch size of each step."""
        op, attrs = TABLE[self.mode.lower()], {"bidirectional": self.bidirectional, "bias": self.bias, "sizes": sizes}
        if not (self.dropout and self.training) or self.num_layers == 1:
            y, *last = op(x, *state, *(w for each in self.all_weights for w in each), **attrs)
            return y, tuple(last)
        directions, lasts = 2 if self.bidirectional else 1, []
        for layer in range(self.num_layers):
            if layer:
                x = F.dropout(x, self.dropout)
            mine = slice(layer * directions, (layer + 1) * directions)
            x, *last = op(x, *(s[mine] for s in state), *(w for each in self.all_weights[mine] for w in each), **attrs)
            lasts.append(last)
        return x, tuple(cat(list(s)) for s in zip(*lasts, strict=True))

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False
        }  # fmt: skip
        parts += [f"{k}={getattr(self, k)}" for k, usual in defaults.items() if getattr(self, k) != usual]
        return ", ".join(parts)


class RNN(RNNBase):
    """An Elman RNN: h = tanh(x @ w_ih.T + b_ih + h @ w_hh.T + b_hh), or relu, over a sequence."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        one_of("RNN", "nonlinearity", nonlinearity, "tanh", "relu")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, dtype=dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory over a sequence: gates i, f, g and o; states h and c."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
            dtype=dtype,
        )  # fmt: skip


class GRU(RNNBase):
    """Gated recurrent units over a sequence: gates r, z and n."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype=dtype
        )  # fmt: skip


# --- single steps ------------------------------------------------------------------------------------


class RNNCellBase(Module):
    """The base of the cells."""

    bias_ih: Any
    bias_hh: Any

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(creation.empty(rows, input_size, dtype=dtype))
        self.weight_hh = Parameter(creation.empty(rows, hidden_size, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(creation.empty(rows, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _step(self, mode: str, input: Tensor, hx: Any) -> State:
        name = type(self).__name__
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: expected (batch, {self.input_size}), got shape {tuple(input.shape)}")
        wanted = (*input.shape[:-1], self.hidden_size)
        n = 2 if mode == "LSTM" else 1
        state = (creation.zeros(wanted, dtype=input.dtype),) * n if hx is None else tuple(hx) if n == 2 else (hx,)
        if any(tuple(s.shape) != wanted for s in state):
            raise ShapeError(f"{name}: the state must have shape {wanted}, got {tuple(state[0].shape)}")
        projected = F.linear(input, self.weight_ih, self.bias_ih)
        return _STEPS[mode](projected, state, self.weight_hh, self.bias_hh)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias is True else f", bias={self.bias}")


class RNNCell(RNNCellBase):
    """One step of an RNN."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 1, dtype=dtype)
        one_of("RNNCell", "nonlinearity", nonlinearity, "tanh", "relu")
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Any = None) -> Tensor:
        return self._step(f"RNN_{self.nonlinearity.upper()}", input, hx)[0]

    def extra_repr(self) -> str:
        how = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}"
        return super().extra_repr() + how


class LSTMCell(RNNCellBase):
    """One step of an LSTM."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, dtype=dtype)

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:
        h, c = self._step("LSTM", input, hx)
        return h, c


class GRUCell(RNNCellBase):
    """One step of a GRU."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, dtype=dtype)

    def forward(self, input: Tensor, hx: Any = None) -> Tensor:
        return self._step("GRU", input, hx)[0]
