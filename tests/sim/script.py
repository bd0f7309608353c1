"""A client of the simulation: a session, its variables, and threads that do random things with them.

Each action is one statement that a user could write. It is done on GT's tensors and told to the oracle.
Whatever interrupts an action (an error, Ctrl-C) leaves the variables as they were. While one thread waits inside
an action, the others leave alone what it reads or writes, as threads must: what they would get is anyone's guess.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import gt
from gt.client.mesh.sharded_files import read_folder
from gt.client.record import recorder as recording
from gt.client.session.placing import set_mesh
from gt.client.session.session import Session
from gt.errors import ArgumentError, GTError
from gt.ops import TABLE

from .keeping import Keeping
from .oracle import Node, Oracle

SMALL, LARGE = 6, 40  #: Elements of a tensor: such as travel with a call, and such as are uploaded.
HUGE = 20_000  #: More than a worker with a memory limit has.
VARIABLES = 7
BALLAST = 4  #: Tensors of a client that together need most of a worker's memory, where memory is short.
TOLD = "an earlier call failed"


class SimSession(Session):
    """A session that tells the oracle what it sends and raises."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.oracle = Oracle()
        self.claims: list[tuple[Thread, Cell, bool]] = []  #: Who is using which memory, and whether to write.
        super().__init__(*args, **kwargs)

    def send_call(self, p: Any, variant: Any, live: set[int]) -> None:
        super().send_call(p, variant, live)
        first = self.next_id - len(variant.outputs)
        self.oracle.sent(self.seq, p, variant.outputs, first)

    def raise_failures(self) -> None:
        self.process()
        root = self.failures[0].root if self.failures else 0
        try:
            super().raise_failures()
        except GTError as e:
            e.add_note(TOLD)
            self.oracle.raised(root, self.seq)
            raise


def told(error: GTError) -> bool:
    """Whether this is the failure of an earlier call, not what was asked for now."""
    return TOLD in getattr(error, "__notes__", ())


class Cell:
    """What variables that share memory share."""

    def __init__(self, node: Node) -> None:
        self.node = node


class Variable:
    def __init__(self, tensor: Any, cell: Cell, base: Variable | None = None, part: slice = slice(None)) -> None:
        self.tensor = tensor
        self.cell = cell
        self.base = base  #: Of a view: what it is a view of, which part, and what that was when it was taken.
        self.part = part
        self.seen = base.cell.node if base is not None else None

    @property
    def memory(self) -> Cell:
        """The cell at the bottom: of what it is a view of, if it is one."""
        return self.base.memory if self.base is not None else self.cell


def _value(tensor: Any) -> Any:
    return tensor._v or tensor._read()


class NothingFits(Exception):
    """No variable is there for an action; something is created instead."""


class Thread:
    """One thread of a client. `act` does its next action."""

    def __init__(
        self, session: SimSession, variables: list[Variable], rng: random.Random, actions: int, sharded: bool = False
    ) -> None:
        self.session = session
        self.actions = {**ACTIONS, **(SHARDED if sharded else {})}
        self.switching = sharded and session.config.plan_after_s > 0  #: Plans change under its loops.
        if self.switching:
            self.actions |= {"loop": 40, "pin": 3, "place": 1, "mesh": 3}
        self.begun = False
        self.doing = ""  #: The name of its latest action.
        self.oracle = session.oracle
        self.variables = variables
        self.rng = rng
        self.left = actions
        self.recorder = recording.new_recorder(session)
        self.busy = False  #: Inside an action; it may be waiting.
        self.fails = rng.random() < 0.6
        self.ballast: list[Variable] = []
        self.heavy = 0  #: Elements of each tensor of the ballast; 0: there is none.
        self.limited = bool(session.config.fake_memory or session.config.worker_memory)
        self.keeping: Keeping | None = None  #: In a world where sessions have names.

    def act(self) -> None:
        self.left -= 1
        name = self.rng.choices(list(self.actions), list(self.actions.values()))[0]
        if self.switching and not self.begun:
            name, self.begun = "mesh", True
        try:
            if self.keeping is not None and self.rng.random() < 0.15:
                self.doing = "keep"
                self.keep()
            else:
                self.doing = name
                getattr(self, name)()
        except NothingFits:
            self.create()
        finally:
            self.session.claims = [c for c in self.session.claims if c[0] is not self]

    # --- variables ---

    def pick(self, size: int = 0, write: bool = False) -> Variable:
        """A variable to read in this action, or to write to."""
        taken = [cell for thread, cell, writes in self.session.claims if thread is not self and (write or writes)]
        found = [v for v in self.variables if (not size or v.tensor.shape == (size,)) and v.memory not in taken]
        if not found:
            raise NothingFits
        var = found[int(self.rng.random() * len(found))]
        self.session.claims.append((self, var.memory, write))
        return var

    def add(self, tensor: Any, node: Node, base: Variable | None = None, part: slice = slice(None)) -> None:
        self.oracle.recorded(_value(tensor), node)
        variable = Variable(tensor, Cell(node), base, part)
        if len(self.variables) < VARIABLES:
            self.variables.append(variable)
        else:
            self.variables[int(self.rng.random() * VARIABLES)] = variable

    def recorded(self, tensor: Any, node: Node) -> tuple[Any, Node]:
        """A value in the middle of an action. The program may end behind it: the rest is in another call then."""
        return tensor, self.oracle.recorded(_value(tensor), node)

    def read(self, var: Variable) -> Node:
        """What the variable must be now. Reading a view whose base has changed takes it again."""
        value = _value(var.tensor)
        node = self.oracle.node_of(value)
        if var.base is not None:
            base = self.read(var.base)
            if node is None:
                assert base is not var.seen, "a view was taken again though its base is the same"
                part = var.part
                node = var.cell.node = self.oracle.recorded(value, Node(lambda b: b[part], (base,)))
                var.seen = base
            assert base is var.seen, "a view shows what its base was before"
        assert node is var.cell.node, "a variable has a value that nobody gave it"
        return node

    def write(self, var: Variable, node: Node) -> None:
        """The variable was overwritten in place."""
        node.replaces = var.cell.node
        self.oracle.recorded(_value(var.tensor), node)
        var.cell.node = node
        base, part = var.base, var.part
        if base is not None:
            old = base.cell.node

            def put(b: Any, v: Any) -> Any:
                b = b.copy()
                b[part] = v
                return b

            self.write(base, Node(put, (old, node)))
            var.seen = base.cell.node

    # --- actions ---

    def host(self, data: Any) -> tuple[Any, Node]:
        """Data from this process: what is small travels with a call, the rest is uploaded."""
        tensor = gt.from_numpy(data)
        node = Node(lambda: data, ())
        value = _value(tensor)
        if value.owner is None:
            node.data = data
        return tensor, self.oracle.recorded(value, node)

    def create(self) -> None:
        self.add(*self.host(np.asarray([self.rng.uniform(-2, 2) for _ in range(SMALL)])))

    def upload(self) -> None:
        self.add(*self.host(self.rng.uniform(-2, 2) + np.arange(LARGE) / LARGE))

    def compute(self) -> None:
        a = self.pick()
        x = self.read(a)
        do, plain = UNARY[int(self.rng.random() * len(UNARY))]
        self.add(do(a.tensor), Node(plain, (x,)))

    def scale(self) -> None:
        a = self.pick()
        s = self.rng.uniform(-1, 1)
        x = self.read(a)
        self.add(a.tensor * s, Node(lambda d: d * s, (x,)))

    def combine(self) -> None:
        a = self.pick()
        b = self.pick(a.tensor.shape[0])
        x, y = self.read(a), self.read(b)
        do, plain, summed = BINARY[int(self.rng.random() * len(BINARY))]
        other = b.tensor
        if summed:
            other, y = self.recorded(other.sum(), Node(np.sum, (y,)))
        self.add(do(a.tensor, other), Node(plain, (x, y)))
        if self.rng.random() < 0.2 and a in self.variables:
            self.variables.remove(a)  # a = a + b

    def chain(self) -> None:
        """Several steps whose values in between are dropped."""
        for _ in range(3):
            self.scale()
            self.variables.pop()

    def update(self) -> None:
        a = self.pick(write=True)
        b = self.pick(a.tensor.shape[0])
        x, y = self.read(a), self.read(b)
        kind = self.rng.random()
        if kind < 0.4:
            a.tensor.add_(b.tensor)
            self.write(a, Node(lambda d, e: d + e, (x, y)))
        elif kind < 0.8:
            s = self.rng.uniform(-1, 1)
            a.tensor.mul_(s)
            self.write(a, Node(lambda d: d * s, (x,)))
        else:
            a.tensor.copy_(b.tensor)
            self.write(a, Node(lambda d, e: e, (x, y)))

    def step(self) -> None:
        """A step of an optimizer: an update that an engine may write over its input."""
        a = self.pick(write=True)
        b = self.pick(a.tensor.shape[0])
        x, y = self.read(a), self.read(b)
        lr = self.rng.uniform(0, 0.1)
        a.tensor._write(TABLE["sgd"](a.tensor, b.tensor, lr, 0.5))
        self.write(a, Node(lambda d, e: d - lr * (e + 0.5 * d), (x, y)))

    def index(self) -> None:
        """Elements by number; sometimes a number is too large."""
        a = self.pick()
        n = a.tensor.shape[0]
        numbers = np.asarray([self.rng.randrange(n) for _ in range(n)])
        bad = self.fails and self.rng.random() < 0.4
        if bad:
            numbers[self.rng.randrange(n)] = n
        x = self.read(a)
        where, i = self.host(numbers)
        made = Node(lambda d, i: d[i], (x, i), "IndexOutOfRange" if bad else "")
        picked, node = self.recorded(gt.gather(a.tensor, 0, where), made)
        if self.rng.random() >= 0.7:
            self.add(picked, node)
        else:
            b = self.pick(n, write=True)
            y = self.read(b)
            if self.rng.random() < 0.5:
                b.tensor.add_(picked)
                self.write(b, Node(lambda d, e: d + e, (y, node)))
            else:
                b.tensor._write(TABLE["sgd"](b.tensor, picked, 0.1, 0.0))
                self.write(b, Node(lambda d, e: d - 0.1 * e, (y, node)))

    def relapse(self) -> None:
        """A step that fails on one of two twins, which then share memory; later one that succeeds."""
        a = self.pick(SMALL, write=True)
        if a.base is not None or not self.fails:
            raise NothingFits
        twin = Variable(copy.deepcopy(a.tensor), Cell(self.read(a)))
        self.variables.append(twin)
        for where in (SMALL, 0):
            numbers, i = self.host(np.full(SMALL, where))
            x = self.read(a)
            made = Node(lambda d, i: d[i], (x, i), "IndexOutOfRange" if where else "")
            picked, y = self.recorded(gt.gather(a.tensor, 0, numbers), made)
            a.tensor._write(TABLE["sgd"](a.tensor, picked, 0.1, 0.0))
            self.write(a, Node(lambda d, e: d - 0.1 * e, (x, y)))
            del picked
            try:
                self.end()
                self.fetch_one(twin)
            except GTError as e:
                if not told(e):
                    raise

    def hog(self) -> None:
        """More memory than there is, where there is a limit."""
        a = self.pick(write=True)
        if not self.limited or not self.fails:
            raise NothingFits
        x = self.read(a)
        zeros, huge = self.recorded(gt.zeros(HUGE, dtype=gt.float64), Node(None, (), "OutOfMemory"))
        total, nothing = self.recorded(zeros.sum(), Node(None, (huge,), "OutOfMemory"))
        a.tensor.add_(total)
        self.write(a, Node(None, (x, nothing)))

    def view(self) -> None:
        a = self.pick(SMALL)
        start = self.rng.randrange(SMALL - 1)
        part = slice(start, start + 2)
        x = self.read(a)
        self.add(a.tensor[start : start + 2], Node(lambda d: d[part], (x,)), a, part)

    def share(self) -> None:
        """Another variable on the same memory, or on a copy that shares the value."""
        a = self.pick()
        if a.base is not None or len(self.variables) > VARIABLES:
            raise NothingFits
        node = self.read(a)
        if self.rng.random() < 0.5:
            self.variables.append(Variable(a.tensor.detach(), a.cell))
        else:
            self.variables.append(Variable(copy.deepcopy(a.tensor), Cell(node)))

    def drop(self) -> None:
        if self.variables:
            self.variables.pop(int(self.rng.random() * len(self.variables)))

    def end(self) -> None:
        """What the end of a training step does."""
        recording.recorder().mark()

    def fetch(self) -> None:
        a = self.pick()
        if a.base is None:
            self.session.claims.pop()  # it is fetched as it is now: another thread may write to it meanwhile
        self.fetch_one(a)

    def fetch_one(self, var: Variable) -> None:
        node = self.read(var)
        try:
            got = var.tensor.numpy()  # another thread may write to it meanwhile; this is what it was
        except GTError as e:
            if told(e):
                raise
            self.oracle.check_error([node], e)
            if var in self.variables and self.rng.random() < 0.8:
                self.variables.remove(var)
        else:
            self.oracle.check(node, got)

    def carry(self) -> None:
        """Work with tensors that fill most of a worker's memory: others' have to leave it."""
        if not self.heavy:
            raise NothingFits
        if len(self.ballast) < BALLAST:
            n, v = self.heavy, self.rng.uniform(1, 2)
            tensor = gt.arange(n, dtype=gt.float64) / n + v
            node = Node(lambda: np.arange(n) / n + v, ())
            self.oracle.recorded(_value(tensor), node)
            self.ballast.append(Variable(tensor, Cell(node)))
            self.end()
            return
        a = self.rng.choice(self.ballast)
        if any(cell is a.memory and thread is not self for thread, cell, _ in self.session.claims):
            raise NothingFits
        self.session.claims.append((self, a.memory, True))
        x = self.read(a)
        if self.rng.random() < 0.6:
            a.tensor._write(TABLE["sgd"](a.tensor, a.tensor, 0.125, 0.0))
            self.write(a, Node(lambda d: d - 0.125 * d, (x,)))
            self.end()
        else:
            self.weigh(a)

    def weigh(self, var: Variable) -> None:
        """Look at a tensor of the ballast."""
        total = Variable(var.tensor.sum(), Cell(Node(np.sum, (self.read(var),))))
        self.oracle.recorded(_value(total.tensor), total.cell.node)
        self.fetch_one(total)

    def ask(self) -> None:
        assert "workers" in self.session.stats()

    def keep(self) -> None:
        """Something with what is kept, or published."""
        assert self.keeping is not None
        if not self.keeping.act():
            raise NothingFits

    # --- on several workers ---

    def mesh(self) -> None:
        """Live on other workers, or on the same ones as another grid."""
        axes = self.rng.choice([{"x": 1}, {"x": 2}, {"x": 2}, {"x": 3}, {"x": 3}, {"x": 2, "y": 2}, {"y": 1, "x": 2}])
        while True:
            try:
                set_mesh(self.session, "", axes, split=self.rng.random() < (0.9 if self.switching else 0.5))
            except KeyboardInterrupt:
                continue  # else nobody here would know what was set
            except ArgumentError:
                pass  # there are not so many workers
            return

    def loop(self) -> None:
        """The same step again and again, as in training: its plan may change under it."""
        a = self.pick(write=True)
        b = self.pick(a.tensor.shape[0])
        for _ in range(self.rng.randrange(3, 12)):
            x, y = self.read(a), self.read(b)
            a.tensor._write(TABLE["sgd"](a.tensor, b.tensor, 0.125, 0.0))
            self.write(a, Node(lambda d, e: d - 0.125 * e, (x, y)))
            self.end()

    def lookup(self) -> None:
        """The same step again and again, with indices of which nobody knows whether they are in range, but the device:
        steps are sent before it is known whether the one before has failed."""
        a = self.pick(SMALL, write=True)
        zero, z = self.host(np.zeros(SMALL, np.int64))
        given = []
        for numbers in ([self.rng.randrange(SMALL) for _ in range(SMALL)], [SMALL] * SMALL):
            where, i = self.host(np.asarray(numbers))
            given.append((where, i, "" if numbers[0] < SMALL else "IndexOutOfRange"))
        self.end()
        for _ in range(self.rng.randrange(4, 20)):
            where, i, bad = given[self.fails and self.rng.random() < 0.15]
            x = self.read(a)
            added, s = self.recorded(where + zero, Node(np.add, (i, z)))
            picked, y = self.recorded(gt.gather(a.tensor, 0, added), Node(lambda d, e: d[e], (x, s), bad))
            a.tensor._write(TABLE["sgd"](a.tensor, picked, 0.125, 0.0))
            self.write(a, Node(lambda d, e: d - 0.125 * e, (x, y)))
            del added, picked
            self.end()

    def pin(self) -> None:
        """Give a value a layout."""
        a = self.pick()
        if "" not in self.session.meshes.by_name:
            raise NothingFits
        node = self.read(a)
        n = a.tensor.shape[0]
        made = gt.shard(a.tensor, {0: "x"}) if self.rng.random() < 0.7 else gt.shard(a.tensor, "[]")
        assert made.shape == (n,)
        self.add(made, Node(lambda d: d, (node,)))

    def place(self) -> None:
        """Say how a variable shall lie from now on."""
        a = self.pick(write=True)
        if "" not in self.session.meshes.by_name:
            raise NothingFits
        node, before = self.read(a), _value(a.tensor)
        try:
            gt.shard_(a.tensor, {0: "x"} if self.rng.random() < 0.7 else "[]")
        finally:  # an earlier failure may be told when it is done
            if _value(a.tensor) is not before:
                self.write(a, Node(lambda d: d, (node,)))

    def save(self) -> None:
        """Save some variables as a sharded checkpoint; what is in it must be what they were."""
        some = list(dict.fromkeys(self.pick() for _ in range(self.rng.randrange(1, 4))))
        nodes = [self.read(a) for a in some]
        with TemporaryDirectory() as folder:
            try:
                gt.save({str(k): a.tensor for k, a in enumerate(some)}, folder, sharded=True)
            except GTError as e:
                if told(e):
                    raise
                self.oracle.check_error(nodes, e)
                return
            saved = read_folder(Path(folder))[0]
            for k, node in enumerate(nodes):
                self.oracle.check(node, saved[str(k)]())


ACTIONS = {
    "create": 8, "upload": 6, "compute": 10, "scale": 10, "combine": 14, "chain": 4, "update": 16, "step": 12,
    "index": 10, "hog": 3, "relapse": 2, "view": 5, "share": 8, "drop": 10, "end": 8, "fetch": 16, "ask": 1,
    "lookup": 4,
}  # fmt: skip

SPILLING = {"carry": 100}
SHARDED = {"mesh": 4, "pin": 8, "place": 4, "save": 3, "loop": 8}

Function = Callable[..., Any]
UNARY: list[tuple[Function, Function]] = [(gt.tanh, np.tanh), (gt.neg, np.negative), (gt.abs, np.abs)]
BINARY: list[tuple[Function, Function, bool]] = [  # the last: with the sum of the second
    (gt.add, np.add, False),
    (gt.sub, np.subtract, False),
    (gt.maximum, np.maximum, False),
    (gt.add, np.add, True),
]
