"""`@gt.function`: a known call is replayed without running its Python again.

The first call with arguments of some form runs the Python and watches (trace.py): which tensors it
reads, which it writes, where its numbers come from. That gives one program and a recipe to call it: the
inputs are read anew from the same tensors, numbers given as arguments, optimizer settings, step
counts and seeds are read anew too, and the tensors that were written get the new values.

What cannot be replayed is run as plain Python every time, which is correct and only slower: a function
that returns tensors with a history. Reading a value inside is an error.

Here is also which programs are compiled at once, or never: the user's choice. Without one a worker compiles what proves
hot. The choice travels with a program's text (messages.Define) and is not part of its hash: the same program does the
same.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gt.client.programs.numbers import Finder, Number
from gt.client.programs.pending import HIGHEST, LOWEST, RemoteId, Value, alone
from gt.client.programs.tree import Node, current_precision
from gt.client.record.recorder import Recorder, recorder
from gt.client.replay.trace import FunctionTrace
from gt.client.tensor import Tensor, own
from gt.client.views import aliases as views
from gt.errors import ArgumentError
from gt.program import Spec

__all__ = ["compile", "function"]

LIMIT = 64  #: Recipes of one function; the least recently used ones are forgotten.


@dataclass
class Recipe:
    """How to call what a trace recorded."""

    trace: FunctionTrace
    leaves: list[tuple[Finder, bool]]  #: whether each has a gradient when the function is called
    end: Node
    inputs: list[Finder]
    scalars: list[Any]
    sources: dict[int, Number]
    live: tuple[int, ...]
    specs: dict[int, Spec]
    updates: tuple[tuple[int, int], ...]
    written: list[tuple[Finder, int]]
    #: Of the leaves found (None: cleared), and whether it is another tensor: who holds the old one keeps its value.
    gradients: list[tuple[Finder, int | None, bool]]
    result: Callable[[dict[int, Value], list[Any]], Any]
    compile: int  #: see messages.Define

    def fits(self, args: list[Any]) -> bool:
        if not all(LOWEST <= a <= HIGHEST for a in args if type(a) is int):
            return False  # no call can carry it: the Python raises the error, at its line
        return all(had == (find(args).grad is not None) for find, had in self.leaves) and all(
            now(args) == was for now, was in self.trace.guards
        )

    def replay(self, rec: Recorder, args: list[Any]) -> Any:
        session = rec.session
        with session.lock:
            rec.settle()
            session.make_room()
            for do, _ in self.trace.effects:
                do()
            self.trace.seeds[:] = [session.next_seed() for _ in self.trace.seeds]
            scalars = list(self.scalars)
            for k, number in self.sources.items():
                scalars[k] = number.now(args)
            inputs = [source(args) for source in self.inputs]
            for k in range(len(inputs)):
                session.settle_value(inputs[k])
            outputs = {num: Value(None, -1, self.specs[num]) for num in self.live}
            for find, num in self.written:
                views.rebind(find(args), outputs[num])
            for find, grad, other in self.gradients:
                leaf = find(args)
                if grad is None:
                    leaf.grad = None
                elif other or leaf.grad is None:
                    leaf.grad = Tensor(outputs[grad])
                else:
                    views.rebind(leaf.grad, outputs[grad])
            dead = frozenset(alone(inputs))
            variant = session.tree.variant(self.end, self.live, dead, self.updates)
            ids = [inputs[k].handle.id for k in variant.inputs]
            for k in variant.dead:
                if k in variant.inputs:
                    inputs[k].handle.id = 0  # the call itself drops it
            undo = [each for _, each in self.trace.effects]
            first = session.call(variant, ids, tuple([scalars[k] for k in variant.scalars]), undo, self.compile)
            for i, num in enumerate(variant.outputs):
                if num in outputs:
                    outputs[num].handle = RemoteId(first + i, session.dead)
                else:
                    session.dead.append(first + i)
        session.raise_failures()
        return self.result(outputs, args)


class TracedFunction:
    """A Python function whose known calls are replayed."""

    def __init__(self, f: Callable[..., Any], compile: bool | None = None) -> None:
        functools.update_wrapper(self, f)
        self._f = f
        self.compile = compile  #: See `function`.
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
        if any(_foreign(x) for x in leaves):
            if not UPLOAD or any(isinstance(x, np.ndarray) for x in leaves):
                return self._run(args, kwargs)  # its content may differ at the next call
            args, kwargs = _map((args, kwargs), lambda x: UPLOAD[0](x) if _foreign(x) else x)
            leaves.clear()
            shape = _flatten((args, kwargs), leaves)
        key = (id(rec.session), rec.grad, rec.policy, rec.pin, current_precision(), shape, _sharing(leaves))
        recipes = self._recipes.setdefault(key, [])
        self._recipes.move_to_end(key)
        if len(self._recipes) > LIMIT:
            self._recipes.popitem(last=False)
        for recipe in recipes:
            if recipe is None:
                return self._run(args, kwargs)  # known not to be replayable
            if recipe.fits(leaves):
                self.replays += 1
                return recipe.replay(rec, leaves)
        return self._trace(rec, args, kwargs, leaves, recipes)

    def _run(self, args: Any, kwargs: Any) -> Any:
        """Run the Python without a trace."""
        choice = CHOICES[self.compile]
        begins(choice)
        result = self._f(*args, **kwargs)
        ends(choice)
        return result

    def _trace(self, rec: Recorder, args: Any, kwargs: Any, leaves: list[Any], recipes: list[Recipe | None]) -> Any:
        """Run the Python, trace it, and add a recipe for the next call if there is one."""
        rec.settle()
        rec.pending.compile = CHOICES[self.compile]
        trace = FunctionTrace(rec, getattr(self._f, "__name__", "function"), leaves)
        numbered = iter(range(len(leaves)))
        targs, tkwargs = _map((args, kwargs), lambda x: _wrap(trace, x, next(numbered)))
        with rec.session.lock:  # the timer may be settling the program just now
            p, rec.trace = rec.pending, trace
        try:
            result = self._f(*targs, **tkwargs)
            out_leaves: list[Any] = []
            _flatten(result, out_leaves)
            whole = rec.pending is p  # else something ended the program in the middle
            if not whole or not trace.replayable or (recipe := _recipe(trace, result, out_leaves)) is None:
                recipes[:] = [None]
            elif trace.clear and recipe.end.depth:
                del recipes[: max(0, len(recipes) - LIMIT + 1)]
                recipes.append(recipe)
        finally:
            rec.trace = None
            trace.end()
            rec.settle()
        return _map(result, lambda x: x.value if isinstance(x, Number) else x)


#: Makes an adopted tensor of one of torch's; gt/adoption puts it here when a model is first adopted.
UPLOAD: list[Callable[[Any], Any]] = []


def _foreign(x: Any) -> bool:
    """Whether it is data of the host, an array or a torch tensor, whose content a trace would freeze."""
    return isinstance(x, np.ndarray) or (hasattr(type(x), "__torch_function__") and not isinstance(x, Tensor))


def _wrap(trace: FunctionTrace, x: Any, place: int) -> Any:
    if _is_number(x):
        return Number(trace.guards, _plain(x), lambda args: _plain(args[place]))
    return x


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def _plain(x: Any) -> Any:
    return x.item() if isinstance(x, np.generic) else x


def _sharing(leaves: list[Any]) -> tuple[int, ...]:
    """Which of the tensors share memory: for each, the place of the first it shares with."""
    first: dict[int, int] = {}
    return tuple(
        [
            first.setdefault(id(x if x._x is None else views.root_cell(x)), i)
            for i, x in enumerate(leaves)
            if isinstance(x, Tensor)
        ]
    )


def _recipe(trace: FunctionTrace, result: Any, out_leaves: list[Any]) -> Recipe | None:
    p = trace.rec.pending
    end = p.end or p.node
    if any(isinstance(x, Tensor) and not x.is_leaf for x in out_leaves):
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

    written: list[tuple[Finder, int]] = []
    for t, find in trace.written.values():
        num = number_of(t)
        if num is None:
            return None  # it was given a value from outside
        written.append((find, num))
    leaves = [(find, before is not None) for _, find, _, before in trace.leaves.values()]
    gradients: list[tuple[Finder, int | None, bool]] = []
    for leaf, find, had, before in trace.leaves.values():
        g = leaf.grad
        num = None if g is None else number_of(g)
        if num is not None or (g is None and before is not None):
            gradients.append((find, num, g is not had))
        elif g is not None and (g._v or g._read()) is not before:
            return None
    makers: list[Maker] = []
    for i, x in enumerate(out_leaves):
        maker = _maker(trace, x, number_of(x) if isinstance(x, Tensor) else None, out_leaves[:i])
        if maker is None:
            return None
        makers.append(maker)
    updates = tuple(sorted((v.num, v.replaces) for v in p.values if v.num in live and v.replaces is not None))

    def rebuild(outputs: dict[int, Value], args: list[Any]) -> Any:
        made: list[Any] = []

        def next_leaf(wrap: Any) -> Any:
            made.append(makers[len(made)](outputs, args, made))
            return made[-1] if wrap is None else wrap(made[-1])

        return _map(form, next_leaf)

    form = _map(result, lambda x: getattr(type(x), "_wrap", None))  # an adopted tensor is one again
    inputs = [trace.owners[id(v)] for v in p.inputs]
    return Recipe(
        trace, leaves, end, inputs, list(p.scalars), dict(p.sources), tuple(sorted(live)), specs, updates, written,
        gradients, rebuild, p.compile,
    )  # fmt: skip


#: Makes one leaf of a function's result out of the outputs, the arguments and the leaves before it.
Maker = Callable[[dict[int, Value], list[Any], list[Any]], Any]


def _maker(trace: FunctionTrace, x: Any, num: int | None, before: list[Any]) -> Maker | None:
    """How a replay makes this leaf of the result; None: it cannot."""
    if isinstance(x, Number):
        return lambda outputs, args, made: x.now(args)
    if not isinstance(x, Tensor):
        return lambda outputs, args, made: x
    for have in (before, trace.arguments):
        for i, other in enumerate(have):
            if other is x:
                return functools.partial(_from, have is before, i)
    key = id(x if x._x is None else x._x.cell)
    if key in trace.written:
        t, find = trace.written[key]
        return lambda outputs, args, made: find(args) if t is x else find(args).detach()
    if num is not None:
        return None if x._fn is not None else (lambda outputs, args, made: Tensor(outputs[num]))
    if any(isinstance(a, Tensor) and (a._v or a._read()) is (x._v or x._read()) for a in trace.arguments):
        return None  # an argument's memory under another name
    return lambda outputs, args, made: x


def _from(made_before: bool, i: int, outputs: dict[int, Value], args: list[Any], made: list[Any]) -> Any:
    return made[i] if made_before else args[i]


class _Same:
    """What cannot be hashed, as part of a key: only itself is equal to it."""

    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x

    def __hash__(self) -> int:
        return id(self.x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.x is self.x


def _flatten(x: Any, leaves: list[Any]) -> Any:
    """The form of an argument, as part of a key; its leaves are appended to the list."""
    if isinstance(x, (tuple, list)):
        return (type(x).__name__, *[_flatten(i, leaves) for i in x])
    if isinstance(x, dict):
        return ("dict", *[(k, _flatten(v, leaves)) for k, v in x.items()])
    kind = type(x).__name__
    x = own(x)
    leaves.append(x)
    if isinstance(x, Tensor):
        return (x._spec, x.requires_grad, kind)
    if _is_number(x) or isinstance(x, Number):
        return type(x).__name__
    try:
        hash(x)
    except TypeError:
        return _Same(x)
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


def function(f: Callable[..., Any] | None = None, *, compile: bool | None = None) -> Any:
    """Replay known calls of this function without running its Python again.

    Tensors that it uses without being given them are read, and written, anew at each call; do not pass one of
    those as an argument too. `compile`: True has the worker compile what was traced at its first call (in the
    background, as ever), False never; without it the worker compiles what proves hot.

    >>> import gt
    >>> @gt.function
    ... def double(x):
    ...     return x * 2
    >>> double(gt.ones(2))
    tensor([2., 2.])
    """
    return TracedFunction(f, compile) if f is not None else functools.partial(TracedFunction, compile=compile)


# --- compiling ---------------------------------------------------------------------------------------

CHOICES = {True: 1, None: 0, False: -1}  #: As messages.Define has them.


def compile(model: Any = None, *, disable: bool = False, **options: Any) -> Any:
    """Have workers compile what this module or function computes at its first call, instead of when it is called often.

    GT compiles whole programs, mostly whole training steps: those in which a call of it begins or ends are marked.
    They compile in the background, and nothing waits for it. A module is returned itself, a function is wrapped.
    Other options of torch.compile are accepted and ignored.

    >>> import gt
    >>> model = gt.compile(gt.nn.Linear(2, 3))
    >>> model(gt.ones(1, 2)).shape
    (1, 3)
    """
    if model is None:
        return lambda f: compile(f, disable=disable)
    if not callable(model):
        raise ArgumentError(f"compile: expected a module or a function, got {type(model).__name__}")
    if disable:
        return model
    if isinstance(model, TracedFunction):
        model.compile = True
        return model
    if hasattr(model, "register_forward_pre_hook"):
        model.register_forward_pre_hook(_module_begins)
        model.register_forward_hook(_module_ends)
        return model

    @functools.wraps(model)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        begins(1)
        result = model(*args, **kwargs)
        ends(1)
        return result

    return compiled


def begins(choice: int) -> None:
    """A function or module with this choice records its first op next."""
    if choice:
        rec = recorder()
        if rec.pending.end is not None:
            rec.settle()  # as the next op would
        rec.pending.compile = choice


def ends(choice: int) -> None:
    """A function or module with this choice has recorded its last op."""
    p = recorder().pending
    if choice and (p.end is not None or p.node.depth):
        p.compile = choice


def _module_begins(module: Any, args: Any) -> None:
    begins(1)


def _module_ends(module: Any, args: Any, out: Any) -> None:
    ends(1)
