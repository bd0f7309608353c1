"""Every public function and method, called with what it cannot take: one clear sentence, at the user's line.

A good call is a sample of torch's operator database. Each of its arguments in turn is replaced by junk: no tensor, a
tensor of another shape or dtype, a dimension that is not there, a name that nobody knows. What comes of it is a result,
or an error of GT's (or a TypeError of Python's about the call itself); never a failed worker, never Python's own words
about the inside of GT.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.errors import GTError, IndexOutOfRange, LinAlgError, WorkerError
from gt.nn import functional
from tests.conformance.running import _twin, database
from tests.sessions import session_on


class Junk:
    """Something that no function knows."""

    def __repr__(self) -> str:
        return "<junk>"


JUNK = (None, "text", Junk(), [Junk()])

#: Python's words about the inside of a function.
INSIDE = re.compile(
    r"has no attribute|not supported between|object is not|unsupported operand|has no len|must be real number|"
    r"cannot unpack|not subscriptable|unhashable|index out of range|invalid literal|could not convert|"
    r"not enough values|cannot be interpreted|NoneType|<[\w.]+ object|argument must be|bad operand|"
    r"positional argument|'_v'"
)

#: Python's words about the call itself.
ABOUT_THE_CALL = re.compile(r"[a-z]\w*\(\) (missing|takes|got an unexpected|got multiple)")

#: They start, end or change things for the whole process, or call what they are given.
NOT_CALLED = {
    "checkpoint", "checkpoint_sequential", "connect", "disconnect", "function", "load", "manual_seed", "save", "seed",
    "set_default_dtype", "set_grad_enabled", "set_printoptions", "set_rng_state", "torch_op",
}  # fmt: skip
#: What these hold is set and read, and has to do with no tensor.
SWITCHES = ("gt.client.compat.devices", "gt.client.compat.switches")
#: They may well be asked about anything, or pass on what they are given.
TAKE_ANYTHING = {
    "compile", "dropout", "enable_grad", "inference_mode", "is_autocast_enabled", "is_conj", "is_neg", "is_nonzero",
    "is_tensor", "no_grad", "resolve_conj", "resolve_neg",
}  # fmt: skip

NAMESPACES: dict[str, ModuleType] = {
    "": gt, "nn.functional.": functional, "linalg.": gt.linalg, "fft.": gt.fft, "special.": gt.special,
}  # fmt: skip


def functions() -> dict[str, Callable[..., Any]]:
    """The public functions, by torch's names."""
    found: dict[str, Callable[..., Any]] = {}
    for prefix, module in NAMESPACES.items():
        names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        found.update({prefix + n: f for n in names if inspect.isfunction(f := getattr(module, n))})
    return {n: f for n, f in found.items() if n not in NOT_CALLED and f.__module__ not in SWITCHES}


def methods() -> dict[str, Callable[..., Any]]:
    """Sorted, as the order in which they were put there is another one in every process."""
    return {n: f for n, f in sorted(vars(gt.Tensor).items()) if not n.startswith("_") and inspect.isfunction(f)}


FUNCTIONS, METHODS = functions(), methods()
Call = tuple[list[Any], dict[str, Any]]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with warnings.catch_warnings(), session_on("torch") as session:
        warnings.simplefilter("ignore")
        yield session


@functools.cache
def samples() -> dict[str, list[Any]]:
    return database()


def good_call(name: str, f: Callable[..., Any]) -> Call:
    """The first sample of the database that GT takes; a matrix, where it has none."""
    for info in samples().get(name, []):
        for dtype in (torch.float32, torch.int64, torch.bool):
            if dtype in info.supported_dtypes("cpu"):
                for sample in info.sample_inputs("cpu", dtype):
                    args = [_twin(x, []) for x in (sample.input, *sample.args)]
                    kwargs = {k: _twin(v, []) for k, v in sample.kwargs.items()}
                    try:
                        f(*args, **kwargs)
                    except Exception:  # another form of the name takes it
                        continue
                    return args, kwargs
    return [gt.ones(3, 3)], {}


def bad_values(x: Any, tensors: bool) -> Iterator[Any]:
    """What may stand wrongly in the place of an argument; with tensors that do not fit, if those are wanted."""
    if hasattr(x, "_v"):
        yield from JUNK
        if not tensors:
            return
        yield from (gt.ones(7, 5, 3), gt.ones(2, 0, 3, 4, 5), gt.ones(()))
        yield from (gt.ones(*x.shape, dtype=dtype) for dtype in (gt.bool, gt.complex64))
    elif isinstance(x, (int, float)) and not isinstance(x, bool):
        yield from ("text", Junk(), 99, -99)
    elif isinstance(x, (list, tuple)):
        yield from ("text", Junk(), [Junk()], [None], [99], [])
    elif isinstance(x, str):
        yield from ("text", Junk(), 7)


def bad_calls(f: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], own: int) -> Iterator[tuple[str, Call]]:
    """The call with one thing wrong; the first `own` arguments stay as they are."""
    for i, x in enumerate(args[own:], own):
        for bad in bad_values(x, not own):
            yield f"argument {i} = {shown(bad)}", ([*args[:i], bad, *args[i + 1 :]], kwargs)
    for k, x in kwargs.items():
        for bad in bad_values(x, not own):
            yield f"{k} = {shown(bad)}", (args, {**kwargs, k: bad})
    for i, p in enumerate(inspect.signature(f).parameters.values()):
        given = i < len(args) or p.name in kwargs or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        if not given and p.name not in ("device", "layout", "memory_format", "pin_memory"):
            for bad in ("text", Junk(), *((99, -99) if p.name.startswith("dim") else ())):
                yield f"{p.name} = {shown(bad)}", (args, {**kwargs, p.name: bad})
    yield "an unknown name", (args, {**kwargs, "no_such_argument": 1})


def shown(x: Any) -> str:
    return f"a tensor of {x.shape}" if hasattr(x, "_v") else repr(x)


def fetch(out: Any) -> None:
    if hasattr(out, "_fetch"):
        out._fetch()
    elif isinstance(out, (tuple, list)):
        for x in out:
            fetch(x)


def complaint(f: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], must_fail: bool) -> str | None:
    """What is wrong with how a call fails; None if nothing is."""
    try:
        fetch(f(*args, **kwargs))
    except (IndexOutOfRange, LinAlgError):
        return None  # only the values tell
    except WorkerError as e:
        return f"reached the worker: {e}"
    except (GTError, TypeError) as e:
        text = str(e)
        about_the_call = type(e) is TypeError and ABOUT_THE_CALL.match(text)
        clear = "\n" not in text and len(text) < 300 and not INSIDE.search(text)
        return None if clear or about_the_call else f"{type(e).__name__}: {text[:300]}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "no error" if must_fail else None


def complaints(name: str, f: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], own: int = 0) -> list[str]:
    """Of all bad calls; a method's `own` argument stays as it is, and what fits is the function's affair."""
    found = []
    for title, (a, k) in bad_calls(f, args, kwargs, own):
        junk = bool(args) and hasattr(args[0], "_v") and any(a[0] is j for j in JUNK)
        must_fail = title == "an unknown name" or (junk and name.rpartition(".")[2] not in TAKE_ANYTHING)
        said = complaint(f, a, k, must_fail)
        if said is not None:
            found.append(f"{name} with {title}: {said}")
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_say_what_is_wrong(name: str, session: Session) -> None:
    f = FUNCTIONS[name]
    assert complaints(name, f, *good_call(name, f)) == []


@pytest.mark.parametrize("name", METHODS)
def test_methods_say_what_is_wrong(name: str, session: Session) -> None:
    f = METHODS[name]
    plain = name.removesuffix("_")
    args, kwargs = good_call(plain, f)
    if not args or not hasattr(args[0], "_v"):
        args = [gt.ones(3, 3), *args]
    assert complaints(name, f, args, kwargs, own=1) == []


def test_a_sentence_names_the_argument(session: Session) -> None:
    x = gt.ones(2, 3)
    said: dict[str, Callable[[], Any]] = {
        "sum: input must be a tensor, got None": lambda: gt.sum(None),
        "index_add: index must be a tensor, got 'text'": lambda: x.index_add(0, "text", x),
        "bilinear: weight must be a tensor, got a Junk": lambda: functional.bilinear(x, x, Junk()),
        "huber_loss: delta must be a number, got 'text'": lambda: functional.huber_loss(x, x, delta="text"),
        "cdist: p must be a number, got 'text'": lambda: gt.cdist(x, x, p="text"),
        "block_diag: tensors must contain only tensors, got None": lambda: gt.block_diag(x, None),
        "exp: expected a tensor, got 3": lambda: gt.exp(3),
        "from_numpy: expected a NumPy array, got a tensor of shape (64, 64)": lambda: gt.from_numpy(gt.ones(64, 64)),
        "add: expected a tensor or a number, got None": lambda: x + None,
    }
    for text, call in said.items():
        with pytest.raises(TypeError) as e:
            call()
        assert str(e.value) == text
        assert e.traceback[0].path.name == "test_arguments.py"
    assert (x + 1).sum().item() == 12  # the session is as it was


def test_a_bug_inside_stays_what_it_is() -> None:
    """An error that no argument explains is not dressed up as the user's."""
    from gt.client.compat.arguments import explained

    def broken(input: Any) -> Any:
        return input.shape.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        explained(broken)(gt.ones(2))
