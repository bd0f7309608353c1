"""Random small programs for the laws of the solver: forks, diamonds, moves, reductions, products, loop-carried values.

A graph is known by its seed. Sizes are small enough to run in numpy and large enough for a reduce-scatter; `machine`
makes hardware on which they are worth splitting: kernels and links are slow, and differ from draw to draw.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gt.layout import Layout, Mesh, mesh
from gt.ops import check
from gt.ops.check import Checked
from gt.program import Instruction, Program
from gt.solver.hardware import Hardware, Link
from gt.solver.options import splits_of
from gt.solver.problem import Problem
from gt.solver.regions import alone

#: The meshes, and how many instructions a graph has on each at most, so that all assignments can be looked at.
MESHES: list[tuple[Mesh, int]] = [(mesh(x=2), 5), (mesh(x=3), 5), (mesh(x=4), 5), (mesh(x=2, y=2), 4)]
SIZES = (1, 3, 4, 6, 8, 12, 24, 64)
UNARY = ("relu", "tanh", "neg", "sigmoid", "square")
BINARY = ("add", "sub", "mul", "maximum")
MOST_INPUTS = 4

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A program with the numbers that it reads."""

    seed: int
    checked: Checked
    scalars: tuple[float, ...]
    mesh: Mesh
    hardware: Hardware
    pins: Mapping[int, Layout]  #: layouts that some inputs must have

    def __repr__(self) -> str:
        return f"graph {self.seed} on {self.mesh!r}, pins {self.pins}\n{self.checked.program.text()}"

    def arrays(self) -> list[np.ndarray]:
        """Its inputs, by its seed."""
        draws = np.random.default_rng(self.seed)
        return [draws.normal(size=shape) for shape, _ in self.checked.program.inputs]

    def on(self, **changes: Any) -> Graph:
        """The same on other hardware."""
        return replace(self, hardware=replace(self.hardware, **changes))

    def problem(self, merge_followers: bool = True) -> Problem:
        """The problem that it poses."""
        return Problem(
            self.checked, self.mesh, self.hardware, alone(self.checked), self.pins, merge_followers=merge_followers
        )


def graph(seed: int, overlap: bool = True) -> Graph:
    """The graph of a seed: on one mesh after the other. Half of them have pins, and half of them a value that many
    instructions read."""
    m, most = MESHES[seed % len(MESHES)]
    rng = random.Random(seed)
    length = most - rng.choice((0, 0, 0, 1, 2))
    made = _Writer(rng).graph(seed, length, m, machine(rng, overlap))
    return replace(made, pins=pins_for(made, rng, rng.choice((0, 0, 1, 2))))


def machine(rng: random.Random, overlap: bool = True) -> Hardware:
    """Hardware on which small tensors are worth splitting."""
    launch_us = rng.choice((0.05, 0.2, 1.0))  # never longer than a latency: so a bucket is never a loss
    return Hardware(
        name="small",
        workers_per_node=rng.choice((2, 4)),
        flops={8: rng.choice((1e9, 1e10))},
        memory_bandwidth=rng.choice((1e9, 1e10)),
        launch_us=launch_us,
        inside=Link(launch_us * rng.choice((1.0, 2.0, 5.0)), rng.choice((1e9, 1e10))),
        between=Link(launch_us * rng.choice((5.0, 8.0)), rng.choice((5e8, 2e9))),
        memory_nbytes=10**12,
        overlap=rng.choice((0.0, 0.25, 1.0)) if overlap else 0.0,
        factors=rng.choice(({}, {"all_gather": 2.5, "all_to_all": 0.7})),
    )


def pins_for(found: Graph, rng: random.Random, count: int) -> dict[int, Layout]:
    """Layouts for some of the inputs."""
    specs = found.checked.specs[: len(found.checked.program.inputs)]
    chosen = rng.sample(range(len(specs)), min(count, len(specs)))
    return {j: rng.choice(splits_of(specs[j], found.mesh)) for j in chosen}


class _Writer:
    """Writes one program: each instruction reads what is there, or a new input."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.inputs: list[Shape] = []
        #: Shapes by name: ("input", k) or ("value", instruction).
        self.shapes: dict[tuple[str, int], Shape] = {}
        self.code: list[tuple[str, list[Any], dict[str, Any]]] = []  #: arguments: names, or numbers
        self.read: set[tuple[str, int]] = set()
        self.hub: tuple[str, int] | None = None  #: what many read

    def graph(self, seed: int, length: int, m: Mesh, hardware: Hardware) -> Graph:
        self.new_input(tuple(self.rng.choice(SIZES[1:]) for _ in range(self.rng.choice((2, 2, 3)))))
        hub_at = self.rng.choice((-1, 0, 1))
        while len(self.code) < length:
            if self.hub is None and hub_at == len(self.code):
                self.hub = [*self.shapes][-1]
            self.one_more()
        updates = self.updates(length)
        return self.written(seed, updates, m, hardware)

    def new_input(self, shape: Shape) -> tuple[str, int]:
        name = ("input", len(self.inputs))
        self.inputs.append(shape)
        self.shapes[name] = shape
        return name

    def operand(self) -> tuple[str, int]:
        """Something that is there: what nobody has read yet twice as often, so that graphs are deep."""
        if self.hub is not None and self.rng.random() < 0.6:
            return self.hub
        names = [*self.shapes, *[name for name in self.shapes if name not in self.read]]
        return self.rng.choice(names)

    def fitting(self, shape: Shape) -> tuple[str, int]:
        """Something of a shape: what is there, or a new input."""
        names = [name for name, mine in self.shapes.items() if mine == shape]
        if names and (self.rng.random() < 0.7 or len(self.inputs) >= MOST_INPUTS):
            return self.rng.choice(names)
        return self.new_input(shape) if len(self.inputs) < MOST_INPUTS else self.operand()

    def add(self, op: str, args: Sequence[Any], attrs: dict[str, Any], shape: Shape) -> None:
        self.read |= {a for a in args if isinstance(a, tuple)}
        self.shapes["value", len(self.code)] = shape
        self.code.append((op, list(args), attrs))

    def one_more(self) -> None:
        rng = self.rng
        x = self.operand()
        shape = self.shapes[x]
        kind = rng.choices(
            ("unary", "number", "binary", "matmul", "permute", "reshape", "reduce", "softmax", "full"),
            (2, 1, 5, 5, 2, 2, 2, 2, 0.5),
        )[0]
        if kind == "unary":
            self.add(rng.choice(UNARY), [x], {}, shape)
        elif kind == "number":
            self.add(rng.choice(("mul", "add")), [x, 0.5], {}, shape)
        elif kind == "binary":
            other = self.other_for(shape)
            self.add(rng.choice(BINARY), rng.sample([x, other], 2), {}, np.broadcast_shapes(shape, self.shapes[other]))
        elif kind == "matmul" and len(shape) >= 2:
            n = rng.choice(SIZES[1:])
            w = self.product_with(shape, n)
            if w is not None:
                self.add("matmul", [x, w], {}, (*shape[:-1], self.shapes[w][-1]))
        elif kind == "permute" and len(shape) >= 2:
            dims = rng.sample(range(len(shape)), len(shape))
            if dims != sorted(dims):
                self.add("permute", [x], {"dims": tuple(dims)}, tuple(shape[d] for d in dims))
        elif kind == "reshape":
            new = self.reshaped(shape)
            if new != shape:
                self.add("reshape", [x], {"shape": new}, new)
        elif kind == "reduce" and shape:
            dims = tuple(sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape)))))
            keep = rng.random() < 0.5
            left = tuple(1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims)
            self.add(rng.choice(("sum", "mean", "amax")), [x], {"dims": dims, "keepdim": keep}, left)
        elif kind == "softmax" and shape:
            self.add("softmax", [x], {"dim": rng.randrange(len(shape))}, shape)
        elif kind == "full" and len(self.code) < 2:
            self.add("full", [1.5], {"shape": shape, "dtype": "float64"}, shape)

    def other_for(self, shape: Shape) -> tuple[str, int]:
        """A second operand of an elementwise op: of the same shape, or one that is broadcast."""
        rng = self.rng
        fit = [name for name, mine in self.shapes.items() if mine and broadcasts(shape, mine)]
        if fit and rng.random() < 0.8:
            return rng.choice(fit)
        wanted = shape if rng.random() < 0.7 or not shape else shape[-1:]
        found = self.fitting(wanted)
        return found if broadcasts(shape, self.shapes[found]) else rng.choice(fit)

    def product_with(self, shape: Shape, n: int) -> tuple[str, int] | None:
        """A second operand of a product."""
        k = shape[-1]
        fit = [name for name, mine in self.shapes.items() if len(mine) == 2 and mine[0] == k]
        if fit and self.rng.random() < 0.5:
            return self.rng.choice(fit)
        return self.new_input((k, n)) if len(self.inputs) < MOST_INPUTS else None

    def reshaped(self, shape: Shape) -> Shape:
        """Two dimensions in one, or one in two."""
        rng = self.rng
        if len(shape) >= 2 and rng.random() < 0.5:
            d = rng.randrange(len(shape) - 1)
            return (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
        if not shape or len(shape) > 3:
            return shape
        d = rng.randrange(len(shape))
        parts = [p for p in range(2, shape[d]) if shape[d] % p == 0]
        if not parts:
            return shape
        p = rng.choice(parts)
        return (*shape[:d], p, shape[d] // p, *shape[d + 1 :])

    def updates(self, length: int) -> dict[tuple[str, int], int]:
        """Which values replace which inputs."""
        found: dict[tuple[str, int], int] = {}
        for j, shape in enumerate(self.inputs):
            fit = [
                (kind, k) for (kind, k), mine in self.shapes.items()
                if kind == "value" and mine == shape and (kind, k) not in found and self.code[k][0] != "full"
            ]  # fmt: skip
            if fit and self.rng.random() < 0.6:
                found[fit[-1]] = j
        return found

    def written(self, seed: int, updates: dict[tuple[str, int], int], m: Mesh, hardware: Hardware) -> Graph:
        used = sorted({a[1] for _, args, _ in self.code for a in args if isinstance(a, tuple) and a[0] == "input"})
        numbers = {("input", k): i for i, k in enumerate(used)}
        for i in range(len(self.code)):
            numbers["value", i] = len(used) + i
        scalars: list[float] = []
        code = []
        for op, args, attrs in self.code:
            refs = []
            for a in args:
                if isinstance(a, tuple):
                    refs.append(numbers[a])
                else:
                    scalars.append(a)
                    refs.append(~(len(scalars) - 1))
            code.append(Instruction(op, tuple(refs), attrs))
        updates = {name: j for name, j in updates.items() if j in used}
        ends = [name for name in self.shapes if name[0] == "value" and name not in self.read]
        outputs = list(dict.fromkeys([*updates, *ends]))
        replaced = tuple((outputs.index(name), used.index(j)) for name, j in updates.items())
        program = Program(
            tuple((self.inputs[k], "float64") for k in used), "f" * len(scalars), tuple(code),
            tuple(numbers[name] for name in outputs), tuple(j for _, j in replaced), replaced,
        )  # fmt: skip
        return Graph(seed, check(program), tuple(scalars), m, hardware, {})


def broadcasts(a: Shape, b: Shape) -> bool:
    """Whether two shapes broadcast, to something that is not much larger than either."""
    try:
        made = np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return math.prod(made) <= 8 * max(math.prod(a), math.prod(b))
