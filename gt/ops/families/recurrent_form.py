"""What a use of a recurrent op computes, read off its operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}  #: By op.


@dataclass(frozen=True, slots=True)
class LayerForm:
    """See the file's header."""

    mode: str  #: the op
    layers: int
    directions: int
    bias: bool
    inputs: int  #: the size of x
    hidden: int  #: the size of a gate
    out: int  #: the size of h, which may be projected
    time: int  #: the steps of the longest sequence
    batch: int
    packed: Shape = ()  #: the sequences at each step, if they have different lengths

    @property
    def sizes(self) -> Shape:
        """The sequences at each step."""
        return self.packed or (self.batch,) * self.time

    @property
    def steps(self) -> int:
        """Of all sequences together."""
        return sum(self.packed) if self.packed else self.time * self.batch

    @property
    def states(self) -> int:
        return 2 if self.mode == "lstm" else 1

    @property
    def projected(self) -> bool:
        return self.out != self.hidden

    @property
    def each(self) -> int:
        """The number of weights of a layer in one direction."""
        return 2 + 2 * self.bias + self.projected

    def weights(self) -> list[Shape]:
        """The shapes of all weights."""
        rows = GATES[self.mode] * self.hidden
        found: list[Shape] = []
        for layer in range(self.layers):
            inputs = self.out * self.directions if layer else self.inputs
            mine: list[Shape] = [(rows, inputs), (rows, self.out), *[(rows,)] * (2 * self.bias)]
            found += (mine + [(self.out, self.hidden)] * self.projected) * self.directions
        return found


def form_of(mode: str, x: Any, h: Any, *rest: Any, bidirectional: bool, bias: bool, sizes: Any) -> LayerForm:
    """The form of a use of an op, from its operands or their specs."""
    directions = 2 if bidirectional else 1
    hidden = rest[0].shape[2] if mode == "lstm" else h.shape[2]
    time, batch = (len(sizes), sizes[0]) if sizes else x.shape[:2]
    size = x.shape[-1], hidden, h.shape[2]
    return LayerForm(mode, h.shape[0] // directions, directions, bias, *size, time, batch, tuple(sizes))
