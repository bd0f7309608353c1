"""Which engines run an op, and how; read off its record."""

from __future__ import annotations

from gt.ops.record import Op

#: Engine -> the kernels of a record that it takes, the first that is there.
ENGINES: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "numpy": ("numpy", "array"),
    "jax": ("jax", "jax_lib", "array"),
}

#: Ops that numpy and jax have no kernel for, and why: they borrow torch's, if the worker has it. There are no others.
EXCEPTIONS: dict[str, str] = dict.fromkeys(
    ("torch_probe", "torch_op", "torch_op_dx", "torch_call"), "it runs a function of torch's"
)


def runs(op: Op, engine: str) -> str:
    """How an engine runs an op: by a "kernel", "composed" of other ops, or "borrowed" from torch."""
    if any(k in op.kernels for k in ENGINES[engine]):
        return "kernel"
    if op.compose is not None:
        return "composed"
    return "kernel" if engine == "torch" else "borrowed"  # torch's own function of that name; others borrow it


def shown(op: Op) -> str:
    """The engines that run it; in brackets where it is composed there, in square ones where torch's kernel is lent."""
    marks = {"kernel": "{}", "composed": "({})", "borrowed": "[{}]"}
    return " ".join(marks[runs(op, e)].format(e) for e in ENGINES)
