"""Small values that the host knows: what was read once is not fetched again, and a part of it is not computed remotely.

Law 1: a value never changes, so its data, once here, is true for as long as the value lives.
Law 2: the host computes only what has one right answer: views, comparisons, integers. Of anything that is rounded, or
       that picks one of equal elements, there is one computation, the worker's.
Law 3: reading a pending value ends its program, whether a worker or the host computes it. Else programs would become as
       different as the paths that loops take between their reads. An index does not count as a read: its op is
       removed from the program, which continues with the number.

`x[i, j] > 50` in a loop records a slice and a comparison at each pass. `steps_to` finds that both can be computed here,
from `x`, which is fetched once; the pending program then has nothing that is alive, and is dropped. A value that was
computed here has no id at the server. If an op needs it later, it is recorded as data of that op's program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gt import dtypes
from gt.client.programs.pending import WHOLE_NBYTES, Pending, Value, roll_back
from gt.client.programs.tree import Kind, Node
from gt.program import SCALARS, Spec, as_tuple

OFTEN_NBYTES = 1 << 16  #: The same if what is read was made of it, and something before: masks of one tensor, say.
FAR = 32  #: Ops that are looked at, at most, to find how a value is made.

Array = np.ndarray[Any, Any]


class HostSteps(NamedTuple):
    """How to compute a pending value here."""

    nodes: list[Node]  #: In order.
    missing: list[Value]  #: What has to be fetched first.


def steps_to(p: Pending, v: Value, fetching: bool) -> HostSteps | None:
    """How to compute a pending value here; None if the worker has to do it. `fetching`: else it is read from there."""
    nodes: list[Node] = []
    missing: list[Value] = []
    wanted = {v.num}
    inputs: list[Value] | None = None
    node = p.end or p.node
    for _ in range(FAR):
        parent = node.parent
        if parent is None or not wanted:
            break
        made = {n for n in wanted if n >= parent.n_values}
        if made:
            if not _exact(node):
                return None
            wanted -= made
            nodes.append(node)
            for ref in node.refs:
                if ref is None:
                    continue
                if ref >= 0:
                    if p.values[ref].host is None:
                        wanted.add(ref)
                    continue
                inputs = list(p.inputs) if inputs is None else inputs
                leaf = inputs[~ref]
                if leaf.host is None and leaf not in missing:
                    if leaf.spec.nbytes > (OFTEN_NBYTES if leaf.asked else WHOLE_NBYTES):
                        leaf.asked = leaf.asked or fetching
                        return None
                    missing.append(leaf)
        node = parent
    # With two things to fetch, fetching the result itself is one wait less.
    return None if wanted or len(missing) > 1 else HostSteps(nodes[::-1], missing)


def compute(p: Pending, steps: HostSteps) -> None:
    """Compute pending values here, and take them out of their program: nothing else is to be recorded in it."""
    inputs = list(p.inputs)
    for node in steps.nodes:
        parent = node.parent
        assert node.kind is not None
        assert parent is not None
        number, operands = parent.n_scalars, []
        for ref, name in zip(node.refs, node.key[1:], strict=True):
            if ref is not None:
                operands.append((p.values[ref] if ref >= 0 else inputs[~ref]).host)
            elif len(name) > 1:  # a number that an earlier op has passed
                operands.append(p.scalars[int(name[1:])])
            else:
                operands.append(p.scalars[number])
                number += 1
        for k, data in enumerate(run(node.kind, node.operands, node.specs, operands)):
            value = p.values[parent.n_values + k]
            if value.spec.nbytes <= WHOLE_NBYTES:
                value.host, value.owner = data, None
                value.replaces = None  # that was an input of this program; the next one may take it as data


def run(kind: Kind, specs: Sequence[Spec], results: Sequence[Spec], operands: Sequence[Any]) -> list[Array]:
    """The results of an op that is exact, on arrays and numbers."""
    op = kind.op
    if op.promote:
        common = dtypes.promote(specs).numpy
        operands = [np.asarray(x).astype(common) for x in operands]
    kernel = op.kernels.get("numpy") or op.kernels["array"]
    with np.errstate(all="ignore"):
        made = kernel(np, *operands, **kind.attrs)
    # Copies: a view would keep the memory of the whole alive, and could be written to.
    return [np.array(x, spec.dtype.numpy).reshape(spec.shape) for x, spec in zip(as_tuple(made), results, strict=True)]


def take_back(p: Pending) -> None:
    """Remove what was computed here from the end of a program, as if it had not been recorded."""
    while p.end is None and (parent := p.node.parent) is not None:
        if any(v.owner is not None for v in p.values[parent.n_values :]):
            break
        p.node = parent
        roll_back(p)


def small_view(base: Spec, view: Spec, kind: Kind | None, args: Sequence[Any]) -> bool:
    """Whether a view, taken with these numbers, can be computed here of the whole of its base."""
    if kind is None or base.nbytes > WHOLE_NBYTES or kind.op.indices is not None or not _known(kind):
        return False
    if view.dtype is not base.dtype:
        return False  # autocast may have changed the base's dtype before the view was taken
    return all(type(a) is int for a in args)


def view(kind: Kind, base: Spec, data: Array, args: Sequence[Any]) -> list[Array]:
    """The results of a view of a value whose data is known."""
    specs = [base, *(SCALARS["i"] for _ in args)]
    return run(kind, specs, as_tuple(kind.op.infer(*specs, **kind.attrs)), (data, *args))


def _known(kind: Kind) -> bool:
    return "numpy" in kind.op.kernels or "array" in kind.op.kernels


def _exact(node: Node) -> bool:
    """Law 2."""
    assert node.kind is not None
    op = node.kind.op
    if not _known(node.kind) or op.indices is not None or any(s.nbytes > WHOLE_NBYTES for s in node.specs):
        return False
    if op.ranges is not None:
        return False  # which of equal elements an index names differs between engines
    if op.put is not None:
        return True
    if any(s.dtype.is_differentiable for s in node.specs):
        return False
    floats = any(s.dtype.is_differentiable for s, ref in zip(node.operands, node.refs, strict=True) if ref is not None)
    return not floats or all(s.dtype is dtypes.bool_ for s in node.specs)
