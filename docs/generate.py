"""Write docs/api.md: what is public, and the table of ops, as the package itself has it.

`python docs/generate.py` writes the page; `--check` only says whether it is up to date. Whether a function has a
gradient is tried out, with a sample of torch's operator database.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402  # the package of this folder first

import gt  # noqa: E402
from gt.client.compat.arguments import bare  # noqa: E402
from gt.ops.engines import runs  # noqa: E402
from gt.ops.record import TABLE, Op  # noqa: E402
from tests.conformance.names import SPECIAL  # noqa: E402
from tests.conformance.running import database  # noqa: E402
from tests.sim.cluster import Cluster, using  # noqa: E402

PAGE = ROOT / "docs" / "api.md"

HEAD = """# What there is

This page is made by `python docs/generate.py` from the package itself. Names and arguments are torch's;
[torch-differences.md](torch-differences.md) says what is not. Marks:

- **G**: gradients flow through it.
- **M**: a method of tensors as well, `x.name(...)`.
- **I**: has an in-place form, the method `x.name_(...)` or the function `name_(x, ...)`.

Arguments called `device`, `layout`, `memory_format` and `pin_memory` are accepted and ignored where torch has them.

Names that are not here: an op of the table at the end may be called by its plain form (`gt.NAME(x, ...)`). Whatever
else torch has under that name (`gt.NAME`, `gt.linalg.NAME`, `gt.fft.NAME`, `gt.special.NAME`, `gt.nn.functional.NAME`,
`x.NAME()`) is looked up in torch, on the worker, and run there; see `gt.torch_op` and `gt/client/compat/fallback.py`.
"""

#: Calls for functions that the database has no sample of and that take no plain tensors.
CALLS: dict[str, tuple[Any, ...]] = {
    "conv_tbc": (torch.ones(5, 2, 3), torch.ones(3, 3, 4), torch.ones(4)),
    "einsum": ("ij,jk->ik", torch.ones(3, 3), torch.ones(3, 3)),
    "nn.functional.affine_grid": (torch.ones(1, 2, 3), [1, 1, 4, 4]),
    "nn.functional.fold": (torch.ones(1, 8, 9), (4, 4), (2, 2)),
    "orgqr": (torch.ones(3, 3), torch.ones(3)),
    "unsafe_split_with_sizes": (torch.ones(3), [1, 2]),
}

#: Files whose functions have to do with no op, and may change more than they return.
APART = {
    "gt.client.compat.autocast",
    "gt.client.compat.devices",
    "gt.client.compat.switches",
    "gt.client.functions.save",
    "gt.client.mesh.sharding",
    "gt.client.record.traced",
    "gt.client.session.connecting",
}

#: Title, module and torch's name of it in the database.
NAMESPACES = [
    ("gt.linalg", gt.linalg, "linalg."),
    ("gt.fft", gt.fft, "fft."),
    ("gt.special", gt.special, "special."),
    ("gt.nn.functional", gt.nn.functional, "nn.functional."),
]


# --- reading the package --------------------------------------------------------------------------------


def public(module: ModuleType) -> dict[str, Any]:
    """The names of a module that are for users, without modules."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    return {n: v for n in names if not isinstance(v := getattr(module, n, None), ModuleType | None)}


def sentence(x: Any) -> str:
    """The first sentence of a docstring, fit for a table."""
    text = " ".join((inspect.getdoc(x) or "").split(">>>")[0].split("\n\n")[0].split())
    first = re.match(r".*?\.(?= [A-Z`]|$)", text)
    return (first[0] if first else text.rstrip(":") + ".").replace("|", "\\|")


def signature(f: Any, method: bool = False) -> str:
    """The arguments, with their defaults and without their types."""
    try:
        given = list(inspect.signature(f).parameters.values())[method:]
    except (TypeError, ValueError):
        return "(...)"
    shown = []
    for p in given:
        default = p.default if p.default is p.empty else _Text(p.default)
        shown.append(p.replace(annotation=p.empty, default=default))
    return str(inspect.Signature(shown)).replace("|", "\\|")


class _Text:
    """A default as it is written."""

    def __init__(self, value: Any) -> None:
        text = value.__name__ if inspect.isfunction(value) or inspect.isclass(value) else repr(value)
        self.text = "..." if " at 0x" in text else text

    def __repr__(self) -> str:
        return self.text


def table(head: str, rows: list[tuple[str, ...]]) -> str:
    columns = head.split("|")
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def title(module: str) -> str:
    """A module's first sentence is the heading of what it holds."""
    doc = (sys.modules[module].__doc__ or module).split("\n\n")[0].replace("\n", " ")
    return re.sub(r" \(\w+\.py\)", "", re.split(r"[.:](?: |$)", doc)[0])


# --- gradients ------------------------------------------------------------------------------------------


class Gradients:
    """Which functions gradients flow through."""

    def __init__(self) -> None:
        self.database = database()
        self.names: dict[Any, list[str]] = {}  #: torch's names of each function
        for prefix, module in (("", gt), *((p, m) for _, m, p in NAMESPACES)):
            for name, f in public(module).items():
                self.names.setdefault(bare(f), []).append(prefix + name)

    def flow(self, f: Any) -> bool:
        if bare(f).__module__ in APART:
            return False
        for call, args, kwargs in self._calls(f):
            try:
                out = call(*args, **kwargs)
            except Exception:
                continue  # not a form that this function takes
            return any(getattr(x, "requires_grad", False) is True for x in flat(out))
        return False

    def _calls(self, f: Any) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
        for name in self.names.get(bare(f), ()):
            if name in CALLS:
                yield f, [leaves(x) for x in CALLS[name]], {}
            for info in self.database.get(name, []):
                dtype = next((d for d in (torch.float32, torch.complex64) if d in info.supported_dtypes("cpu")), None)
                for sample in () if dtype is None else info.sample_inputs("cpu", dtype):
                    args = [leaves(x) for x in (sample.input, *sample.args)]
                    yield SPECIAL.get(name, f), args, {k: leaves(v) for k, v in sample.kwargs.items()}
        for shape in ((3, 3), (3,), (2, 4, 6), (1, 4, 8, 8), (1, 4, 8, 8, 8)):
            x = leaves(torch.full(shape, 0.5))
            for args in ([x], [x, x], [x, x, x], [[x, x]], [x, 2], [x, 1, 1], [x, 0, 1], [x, 0, 0.5], [2, x]):
                yield f, args, {}


def flat(x: Any) -> list[Any]:
    return [z for y in x for z in flat(y)] if isinstance(x, (tuple, list)) else [x]


def leaves(x: Any) -> Any:
    """An argument for torch as one for GT; floating tensors require gradients."""
    if isinstance(x, torch.Tensor):
        made = gt.tensor(x.detach().resolve_conj().resolve_neg().numpy())
        return made.requires_grad_() if made.dtype.is_differentiable else made
    if isinstance(x, (tuple, list)):
        return type(x)(leaves(y) for y in x) if type(x) in (tuple, list) else tuple(x)
    return x


# --- the sections ---------------------------------------------------------------------------------------


def function_rows(names: dict[str, Any], gradients: Gradients | None, methods: bool) -> list[tuple[str, ...]]:
    """One row for each function: those that are the same under several names share one."""
    same: dict[Any, list[str]] = {}
    for name, f in names.items():
        if name.endswith("_") and name[:-1] in names:
            continue  # marked there
        same.setdefault(bare(f), []).append(name)
    rows = []
    for f, known in same.items():
        first = f.__name__ if getattr(f, "__name__", "") in known else known[0]
        others = [n for n in sorted(known) if n != first]
        marks = "G" if gradients is not None and gradients.flow(names[first]) else ""
        if methods:
            marks += "M" * (bare(vars(gt.Tensor).get(first)) is f)
        marks += "I" * (first + "_" in names or (methods and hasattr(gt.Tensor, first + "_")))
        also = f"; also {', '.join(f'`{n}`' for n in others)}" if others else ""
        rows.append((f"`{first}{signature(f)}`{also}", marks, sentence(f)))
    return sorted(rows, key=lambda row: row[0].lower())


def by_family(names: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Functions by the file that has them, in the order of its title."""
    families: dict[str, dict[str, Any]] = {}
    for name, f in names.items():
        families.setdefault(bare(f).__module__, {})[name] = f
    return sorted(((title(module), found) for module, found in families.items()), key=lambda x: x[0].lower())


def functions() -> Iterator[str]:
    gradients = Gradients()
    head = "function|marks|what it does"
    yield "## gt\n"
    for family, found in by_family({n: f for n, f in public(gt).items() if inspect.isfunction(f)}):
        yield f"### {family}\n"
        yield table(head, function_rows(found, gradients, methods=True))
    yield from toplevel()
    for heading, module, _ in NAMESPACES:
        found = {n: f for n, f in public(module).items() if inspect.isfunction(f)}
        yield f"## {heading}\n"
        if len(found) < 60:
            yield table(head, function_rows(found, gradients, methods=False))
            continue
        for family, part in by_family(found):
            yield f"### {heading}: {family[0].lower()}{family[1:]}\n"
            yield table(head, function_rows(part, gradients, methods=False))


def dtypes() -> Iterator[str]:
    named: dict[Any, list[str]] = {}
    for name, value in public(gt).items():
        if isinstance(value, gt.DType):
            named.setdefault(value, []).append(name)
    yield "## Dtypes\n"
    texts = []
    for value, names in named.items():
        others = [n for n in names if n != value.name]
        texts.append(f"`gt.{value.name}`" + (f" ({', '.join(f'`{n}`' for n in others)})" if others else ""))
    yield ", ".join(texts) + ".\n"


def toplevel() -> Iterator[str]:
    """The classes of gt itself, and the modules in it."""
    found = [(n, v) for n, v in public(gt).items() if inspect.isclass(v)]
    yield "### Classes\n"
    inside = (gt.DType, gt.GTError, gt.Tensor)  # made by functions, not by users
    rows = [(f"`{n}{'' if v in inside else signature(v)}`", sentence(v)) for n, v in sorted(found)]
    yield table("class|what it is", rows)


def tensor() -> Iterator[str]:
    """What only a tensor has."""
    yield "## Tensor\n\nBeside the functions marked M and I above.\n"
    known = public(gt)
    properties, methods = [], []
    for name in sorted(n for n in dir(gt.Tensor) if not n.startswith("_")):
        value = inspect.getattr_static(gt.Tensor, name)
        if name in known and inspect.isfunction(value) and bare(known[name]) is bare(value):
            continue
        if name.endswith("_") and inspect.isfunction(getattr(gt, name[:-1], None)) and "in place" in sentence(value):
            continue
        if isinstance(value, property):
            properties.append((f"`{name}`", sentence(value)))
        elif callable(value):
            methods.append((f"`{name}{signature(bare(value), method=True)}`", sentence(value)))
        else:
            properties.append((f"`{name}`", ""))
    yield table("attribute|what it is", properties)
    yield table("method|what it does", methods)


def classes(heading: str, module: ModuleType, rest: str = "") -> Iterator[str]:
    """Classes, and what functions stand beside them."""
    yield f"## {heading}\n{rest}"
    found = public(module)
    made = sorted((n, v) for n, v in found.items() if inspect.isclass(v))
    if made:
        yield table("class|what it is", [(f"`{n}{signature(v)}`", sentence(v)) for n, v in made])
    plain = {n: f for n, f in found.items() if inspect.isfunction(f)}
    if plain:
        rows = [(name, what) for name, _, what in function_rows(plain, None, methods=False)]
        yield table("function|what it does", rows)


def submodules(heading: str, module: ModuleType) -> Iterator[str]:
    """A module, then those inside it that are public."""
    yield from classes(heading, module)
    for name in sorted(vars(module)):
        inner = getattr(module, name)
        public_name = name in getattr(module, "__all__", ()) and not name.startswith("_")
        if isinstance(inner, ModuleType) and public_name and inner is not gt.nn.functional:
            yield from submodules(f"{heading}.{name}", inner)


def ops() -> Iterator[str]:
    yield (
        f"## The {len(TABLE)} ops\n\nWhat programs are made of; [ops.md](ops.md) says what a record is. Gradient:"
        " *yes*, *parts* (the op has the gradient of the ops it is composed of) or *no*. Engines: a *kernel* of its"
        " own, *composed* of other ops, or *borrowed* from torch. Kind: a *view* shares memory with its first operand,"
        " an op that is *in place* can overwrite operands.\n"
    )
    families: dict[str, list[Op]] = {}
    for op in TABLE.values():
        families.setdefault(_home(op), []).append(op)
    for module in sorted(families):
        yield f"### {module.rpartition('.')[2]}.py: {_lower(title(module))}\n"
        rows = []
        for op in sorted(families[module], key=lambda op: op.name):
            gradient = "yes" if op.vjp is not None else "parts" if op.compose is not None else "no"
            kind = ["view"] * (op.put is not None) + ["in place"] * bool(op.inplace)
            rows.append((f"`{op.name}`", gradient, *_engines(op), ", ".join(kind), op.doc.replace("|", "\\|")))
        yield table("op|gradient|torch|numpy|jax|kind|what it does", rows)


def _home(op: Op) -> str:
    """The file of a record: that of its test inputs."""
    return str(op.samples.__module__)


def _engines(op: Op) -> tuple[str, str, str]:
    torch_, numpy, jax = (runs(op, e) for e in ("torch", "numpy", "jax"))
    return torch_, numpy, jax


def _lower(text: str) -> str:
    return text if text[1:2].isupper() or not text[0].isalpha() else text[0].lower() + text[1:]


def page() -> str:
    """The whole page."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings(), using(Cluster(engine="torch").client()) as session:
        warnings.simplefilter("ignore")
        parts = [HEAD, *dtypes(), *functions(), *tensor()]
    session.close()
    torch.set_num_threads(threads)
    parts += [*classes("gt.autograd", gt.autograd), *classes("gt.func", gt.func), *classes("gt.amp", gt.amp)]
    parts += [*classes("gt.cuda", gt.cuda), *classes("gt.random", gt.random)]
    parts += [*classes("gt.signal.windows", gt.signal.windows)]
    parts += [*submodules("gt.nn", gt.nn), *submodules("gt.optim", gt.optim)]
    parts += [*classes("gt.debug", gt.debug), *ops()]
    return "\n".join(parts)


def main(argv: list[str]) -> int:
    made = page()
    if "--check" in argv:
        fresh = PAGE.exists() and PAGE.read_text() == made
        print("docs/api.md is up to date" if fresh else "docs/api.md is old; run: python docs/generate.py")
        return not fresh
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
