"""The parts of a problem (problem.py): choices, the values that they make, and who reads those."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gt.chosen import Chosen
from gt.dispatcher.planner.ways import Use
from gt.layout import Layout
from gt.program import Spec
from gt.solver.options import Cost


@dataclass(slots=True)
class NodeOption:
    """One option of a node."""

    cost: Cost
    wants: tuple[Layout, ...]  #: of each of the node's operands
    gives: tuple[Layout, ...]  #: of each of the node's values
    chosen: tuple[Chosen | None, ...]  #: of each of its instructions
    extra_nbytes: float = 0.0  #: of its leader: see `Option`


@dataclass(slots=True)
class ChoiceNode:
    """One choice. An input has no instructions."""

    instructions: list[int]  #: the first one of each class, the leader first
    input: int = -1  #: the first input of its class, if it is one
    count: int = 1  #: how many times it is in the program
    options: list[NodeOption] = field(default_factory=list)
    operands: list[tuple[int, int]] = field(default_factory=list)  #: (instruction, position) that it reads from outside
    values: list[int] = field(default_factory=list)  #: that others read, or that are outputs
    time_us: np.ndarray = field(default_factory=lambda: np.zeros(0))  #: of each option, once


@dataclass(slots=True)
class ChosenValue:
    """A value whose layout is chosen, of a class of equal ones."""

    spec: Spec
    node: int  #: that makes it, -1 if it is made of numbers alone
    recipe: tuple[Use, ...] = ()  #: how it is made, then: the uses that lead to it, in order
    layouts: list[Layout] = field(default_factory=list)  #: in which it can be made
    layout_of: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  #: of each option of its node
    targets: list[Layout] = field(default_factory=list)  #: in which it can be wanted
    price_us: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  #: [layout, target]: the conversion
    is_view: bool = False  #: it takes no memory of its own


@dataclass(slots=True)
class Edge:
    """A reader of a value."""

    value: int
    node: int
    operand: int  #: of the node; -1: an input is replaced by the value
    phase: int
    instances: frozenset[int]  #: the numbers of the values that are read
    target_of: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  #: of each option of the reading node


@dataclass(slots=True)
class Sharing:
    """Readers of values that share conversions: Law 1 of problem.py."""

    value: int
    phase: int
    instances: frozenset[int]  #: the numbers of the values that all of these readers read, and no others: Law 3
    edges: list[int]
    is_reduced_late: bool  #: read by the optimizer only: its reduction overlaps with the backward pass

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.instances)
