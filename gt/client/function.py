"""`@gt.function`: a known call is replayed without running its Python again.

The first call with arguments of some form runs the Python and watches (a Trace): which tensors it
reads, which it writes, where its numbers come from. That gives one program and a recipe to call it: the
inputs are read anew from the same tensors, numbers given as arguments, optimizer settings, step
counts and seeds are read anew too, and the tensors that were written get the new values.

What cannot be replayed is run as plain Python every time, which is correct and only slower: a function
that returns tensors with a history. Reading a value inside is an error.
"""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gt.client import views
from gt.client.autograd import Leaf
from gt.client.recorder import Handle, Recorder, Value, alone, recorder
from gt.client.tensor import Tensor
from gt.client.tree import Node, users_line
from gt.errors import FunctionError
from gt.program import Spec

LIMIT = 64  #: Recipes of one function; those longest unused are forgotten.


class Number:
    """A Python number that a replay will read anew. Arithmetic on it gives such numbers again; any other
    look at it (a comparison, int(), a size) fixes it: a replay then needs it to be the same."""

    __slots__ = ("_letter", "now", "trace", "value")

    def __init__(self, trace: Trace, value: Any, now: Callable[[list[Any]], Any]) -> None:
        self.trace = trace
        self.value = value
        self.now = now  #: the number for a call with these arguments
        self._letter = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"

    def fixed(self) -> Any:
        self.trace.guards.append((self.now, self.value))
        return self.value

    def _with(self, f: Callable[[Any, Any], Any], other: Any, swap: bool = False) -> Any:
        if not isinstance(other, (Number, int, float)):
            return NotImplemented
        if swap:
            f = functools.partial(_swapped, f)
        mine = self.now
        if isinstance(other, Number):
            its = other.now
            return Number(self.trace, f(self.value, other.value), lambda args: f(mine(args), its(args)))
        return Number(self.trace, f(self.value, other), lambda args: f(mine(args), other))

    def __add__(self, o: Any) -> Any:
        return self._with(operator.add, o)

    __radd__ = __add__

    def __sub__(self, o: Any) -> Any:
        return self._with(operator.sub, o)

    def __rsub__(self, o: Any) -> Any:
        return self._with(operator.sub, o, swap=True)

    def __mul__(self, o: Any) -> Any:
        return self._with(operator.mul, o)

    __rmul__ = __mul__

    def __truediv__(self, o: Any) -> Any:
        return self._with(operator.truediv, o)

    def __rtruediv__(self, o: Any) -> Any:
        return self._with(operator.truediv, o, swap=True)

    def __floordiv__(self, o: Any) -> Any:
        return self._with(operator.floordiv, o)

    def __mod__(self, o: Any) -> Any:
        return self._with(operator.mod, o)

    def __pow__(self, o: Any) -> Any:
        return self._with(operator.pow, o)

    def __rpow__(self, o: Any) -> Any:
        return self._with(operator.pow, o, swap=True)

    def __neg__(self) -> Any:
        mine = self.now
        return Number(self.trace, -self.value, lambda args: -mine(args))

    def _compare(self, f: Callable[[Any, Any], bool], o: Any) -> bool:
        if not isinstance(o, (Number, int, float)):
            return NotImplemented  # type: ignore[no-any-return]  # what Python expects here
        # Only the outcome is fixed, not the number: `if i < 0` holds for many i.
        its = o.now if isinstance(o, Number) else lambda args: o
        result, mine = f(self.value, o.value if isinstance(o, Number) else o), self.now
        self.trace.guards.append((lambda args: f(mine(args), its(args)), result))
        return result

    def __lt__(self, o: Any) -> bool:
        return self._compare(operator.lt, o)

    def __le__(self, o: Any) -> bool:
        return self._compare(operator.le, o)

    def __gt__(self, o: Any) -> bool:
        return self._compare(operator.gt, o)

    def __ge__(self, o: Any) -> bool:
        return self._compare(operator.ge, o)

    def __eq__(self, o: object) -> bool:
        return self._compare(operator.eq, o)

    def __ne__(self, o: object) -> bool:
        return self._compare(operator.ne, o)

    def __hash__(self) -> int:
        return hash(self.fixed())

    def __bool__(self) -> bool:
        return bool(self.fixed())

    def __int__(self) -> int:
        return int(self.fixed())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.fixed())

    def __repr__(self) -> str:
        return repr(self.fixed())


def _swapped(f: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    return f(b, a)


@dataclass
class Trace:
    """What is seen while a function's Python runs."""

    rec: Recorder
    name: str
    arguments: dict[int, int]  #: id() of an argument tensor -> its place
    owners: dict[int, Callable[[list[Any]], Value]] = field(default_factory=dict)  #: id() of an input value
    kept: list[Any] = field(default_factory=list)  #: keeps what `owners` and `leaves` name by id
    grads: dict[int, Leaf] = field(default_factory=dict)  #: id() of a gradient tensor there was -> its leaf
    leaves: dict[int, tuple[Leaf, bool]] = field(default_factory=dict)  #: leaf, had a gradient before
    written: dict[int, Tensor] = field(default_factory=dict)
    guards: list[tuple[Callable[[list[Any]], Any], Any]] = field(default_factory=list)
    effects: list[Callable[[], None]] = field(default_factory=list)

    def learn(self, t: Any) -> None:
        """An operand from outside: remember where a replay finds it."""
        value = t._v or t._read()
        if id(value) in self.owners:
            return
        self.kept.append((value, t))
        place = self.arguments.get(id(t))
        leaf = self.grads.get(id(t))
        if type(t._fn) is Leaf:
            self.touch(t._fn)
        if place is not None:
            self.owners[id(value)] = lambda args: args[place]._v or args[place]._read()
        elif leaf is not None:
            self.owners[id(value)] = lambda args: leaf.grad._v or leaf.grad._read()  # type: ignore[union-attr]
        else:
            self.owners[id(value)] = lambda args: t._v or t._read()

    def touch(self, leaf: Leaf) -> None:
        """A leaf whose gradient is read or written here."""
        if id(leaf) not in self.leaves:
            self.leaves[id(leaf)] = (leaf, leaf.grad is not None)
            if leaf.grad is not None:
                self.grads[id(leaf.grad)] = leaf
                self.kept.append(leaf.grad)

    def wrote(self, t: Tensor) -> None:
        if id(t) not in self.grads:
            self.written[id(t)] = t

    def seed(self) -> Number:
        draw = self.rec.session.next_seed
        return Number(self, draw(), lambda args: draw())

    def live(self, read: Callable[[], Any]) -> Number:
        """A number that a replay reads again: an optimizer's setting, a step count."""
        return Number(self, read(), lambda args: read())

    def effect(self, do: Callable[[], None]) -> None:
        """Something a replay does first: counting a step."""
        self.effects.append(do)

    def mode(self, module: Any) -> None:
        """Whether a module trains is part of what was traced."""
        self.guards.append((lambda args: module.training, module.training))

    def refuse_sync(self) -> None:
        file, line = users_line()
        raise FunctionError(
            f"{self.name}: {file}:{line} reads a value inside a @gt.function, which cannot be replayed; "
            "return the tensor and read it outside"
        )


@dataclass
class Recipe:
    """How to call what a trace recorded."""

    trace: Trace
    end: Node
    inputs: list[Callable[[list[Any]], Value]]
    scalars: list[Any]
    sources: dict[int, Number]
    live: tuple[int, ...]
    specs: dict[int, Spec]
    updates: tuple[tuple[int, int], ...]
    written: list[tuple[Tensor, int]]
    gradients: list[tuple[Leaf, int | None]]  #: None: cleared
    result: Callable[[dict[int, Value]], Any]

    def fits(self, args: list[Any]) -> bool:
        trace = self.trace
        return all(had == (leaf.grad is not None) for leaf, had in trace.leaves.values()) and all(
            now(args) == was for now, was in trace.guards
        )

    def replay(self, rec: Recorder, args: list[Any]) -> Any:
        session = rec.session
        with session.lock:
            rec.settle()
            session.make_room()
            for effect in self.trace.effects:
                effect()
            scalars = list(self.scalars)
            for k, number in self.sources.items():
                scalars[k] = number.now(args)
            inputs = [source(args) for source in self.inputs]
            for value in inputs:
                session.bring_out(value)
            del value
            outputs = {num: Value(None, -1, self.specs[num]) for num in self.live}
            for t, num in self.written:
                views.rebind(t, outputs[num])
            for leaf, grad in self.gradients:
                if grad is None:
                    leaf.grad = None
                elif leaf.grad is None:
                    leaf.grad = Tensor(outputs[grad])
                else:
                    views.rebind(leaf.grad, outputs[grad])
            dead = frozenset(alone(inputs))
            variant = session.tree.variant(self.end, self.live, dead, self.updates)
            ids = [inputs[k].handle.id for k in variant.inputs]  # type: ignore[union-attr]
            for k in variant.dead:
                if k in variant.inputs:
                    inputs[k].handle.id = 0  # type: ignore[union-attr]  # the call itself drops it
            first = session.call(variant, ids, tuple([scalars[k] for k in variant.scalars]))
            for i, num in enumerate(variant.outputs):
                if num in outputs:
                    outputs[num].handle = Handle(first + i, session)
                else:
                    session.dead.append(first + i)
        session.raise_failures()
        return self.result(outputs)


class Function:
    """A Python function whose known calls are replayed."""

    def __init__(self, f: Callable[..., Any]) -> None:
        functools.update_wrapper(self, f)
        self._f = f
        self._recipes: OrderedDict[Any, list[Recipe | None]] = OrderedDict()
        self.replays = 0  #: Calls that did not run the Python.

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rec = recorder()
        if rec.trace is not None:
            return self._f(*args, **kwargs)  # inside another function: part of its program
        leaves: list[Any] = []
        shape = _flatten((args, kwargs), leaves)
        key = (id(rec.session), rec.grad, shape)
        recipes = self._recipes.setdefault(key, [])
        self._recipes.move_to_end(key)
        if len(self._recipes) > LIMIT:
            self._recipes.popitem(last=False)
        for recipe in recipes:
            if recipe is None:
                return self._f(*args, **kwargs)  # known not to be replayable
            if recipe.fits(leaves):
                self.replays += 1
                return recipe.replay(rec, leaves)
        result, recipe = self._trace(rec, args, kwargs, leaves)
        if len(recipes) >= LIMIT:
            recipes.pop(0)
        if recipe is None:
            recipes.clear()
        recipes.append(recipe)
        return result

    def _trace(self, rec: Recorder, args: Any, kwargs: Any, leaves: list[Any]) -> tuple[Any, Recipe | None]:
        rec.settle()
        places = {id(x): i for i, x in enumerate(leaves) if isinstance(x, Tensor)}
        trace = Trace(rec, getattr(self._f, "__name__", "function"), places)
        numbered = iter(range(len(leaves)))
        targs, tkwargs = _map((args, kwargs), lambda x: _wrap(trace, x, next(numbered)))
        p = rec.pending
        rec.trace = trace
        try:
            result = self._f(*targs, **tkwargs)
            out_leaves: list[Any] = []
            _flatten(result, out_leaves)
            whole = rec.pending is p  # else something ended the program in the middle
            recipe = _recipe(trace, result, out_leaves) if whole else None
        finally:
            rec.trace = None
            rec.settle()
        session_result = _map(result, lambda x: x.value if isinstance(x, Number) else x)
        return session_result, recipe


def _wrap(trace: Trace, x: Any, place: int) -> Any:
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return Number(trace, x, lambda args: args[place])
    return x


def _recipe(trace: Trace, result: Any, out_leaves: list[Any]) -> Recipe | None:
    p = trace.rec.pending
    end = p.end or p.node
    if end.depth == 0 or any(isinstance(x, Tensor) and not x.is_leaf for x in out_leaves):
        return None
    live: set[int] = set()
    specs: dict[int, Spec] = {}

    def number_of(t: Tensor) -> int | None:
        v = t._v or t._read()
        if v.owner is not p:
            return None
        live.add(v.num)
        specs[v.num] = v.spec
        return v.num

    written = []
    for t in trace.written.values():
        value = t._v or t._read()
        if value.owner is p:
            written.append((t, number_of(t)))
        elif id(value) not in trace.owners:
            return None  # written with something from outside that was never read here
    gradients: list[tuple[Leaf, int | None]] = []
    for leaf, had in trace.leaves.values():
        if leaf.grad is None:
            if had:
                gradients.append((leaf, None))
        else:
            num = number_of(leaf.grad)
            if num is not None:
                gradients.append((leaf, num))
            elif not had:
                return None
    makers: list[Callable[[dict[int, Value]], Any]] = []
    for x in out_leaves:
        num = number_of(x) if isinstance(x, Tensor) else None
        if num is None or any(x is t for t in trace.written.values()):
            makers.append(functools.partial(_constant, x.value if isinstance(x, Number) else x))
        else:
            makers.append(functools.partial(_output, num))
    updates = tuple(
        sorted((v.num, v.replaces) for v in p.values if v.num in live and v.replaces is not None)
    )

    def rebuild(outputs: dict[int, Value]) -> Any:
        parts = iter(makers)
        return _map(result_shape, lambda _: next(parts)(outputs))

    result_shape = _map(result, lambda _: None)
    inputs = [trace.owners[id(v)] for v in p.inputs]
    return Recipe(
        trace, end, inputs, list(p.scalars), dict(p.sources), tuple(sorted(live)), specs, updates,
        [(t, n) for t, n in written if n is not None], gradients, rebuild,
    )  # fmt: skip


def _constant(x: Any, outputs: dict[int, Value]) -> Any:
    return x


def _output(num: int, outputs: dict[int, Value]) -> Any:
    return Tensor(outputs[num])


def _flatten(x: Any, leaves: list[Any]) -> Any:
    """The form of an argument, as part of a key; its leaves are appended to the list."""
    if isinstance(x, (tuple, list)):
        return (type(x).__name__, *[_flatten(i, leaves) for i in x])
    if isinstance(x, dict):
        return ("dict", *[(k, _flatten(v, leaves)) for k, v in x.items()])
    leaves.append(x)
    if isinstance(x, Tensor):
        return (x._spec, x.requires_grad, type(x).__name__)
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return type(x).__name__
    try:
        hash(x)
    except TypeError:
        return id(x)
    return x


def _map(x: Any, f: Callable[[Any], Any]) -> Any:
    """The same structure with f of every leaf, in the order of `_flatten`."""
    if isinstance(x, tuple):
        items = [_map(i, f) for i in x]
        return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
    if isinstance(x, list):
        return [_map(i, f) for i in x]
    if isinstance(x, dict):
        return {k: _map(v, f) for k, v in x.items()}
    return f(x)


def function(f: Callable[..., Any] | None = None) -> Any:
    """Replay known calls of this function without running its Python again.

    >>> import gt
    >>> @gt.function
    ... def double(x):
    ...     return x * 2
    >>> double(gt.ones(2))
    tensor([2., 2.])
    """
    return Function(f) if f is not None else Function
