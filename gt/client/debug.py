"""Looking inside: the autograd graph, the pending program, what the workers are doing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.grad import backward
from gt.client.record.recorder import recorder
from gt.client.tensor import GradNode, Later, Leaf, Tensor
from gt.places import show

__all__ = ["get_client_stats", "get_worker_stats", "print_tape", "tape"]


def print_tape(tensor: Tensor | None = None) -> None:
    """Print the history of a tensor, or, without one, the program that is being recorded."""
    print(tape(tensor))


def tape(tensor: Tensor | None = None) -> str:
    """What `print_tape` prints."""
    return _pending() if tensor is None else _history(tensor)


def _history(tensor: Tensor) -> str:
    fn = tensor.grad_fn
    if fn is None:
        return "no history"
    lines = []
    for node in reversed(backward.order_of([backward.whole(fn)])):
        if isinstance(node, Leaf):
            lines.append("leaf" + ("" if node.grad is None else f"  grad {node.grad._spec!r}"))
            continue
        file, line = node.where
        if isinstance(node, GradNode):
            what, specs = repr(node.node.kind), node.node.specs
        else:
            what, specs = node.function.__name__, node.results
        lines.append(f"{what} -> {', '.join(map(repr, specs))}  {_kept(node)}  {file}:{line}")
    return "\n".join(lines)


def _kept(node: Any) -> str:
    if node.saved is None:
        return "released"
    if isinstance(node, GradNode):
        saved = node.saved
        return "computed again" if isinstance(saved, Later) else f"keeps {sum(v is not None for v in saved)}"
    return f"keeps {len(node.context._saved)}"


def _pending() -> str:
    p = recorder().pending
    end = p.end or p.node
    lines = [f"pending program: {end.depth} instructions, {len(p.inputs)} inputs, {len(p.scalars)} scalars"]
    number = 0
    for node in end.path():
        names = []
        for ref in node.refs:
            names.append("number" if ref is None else f"%{ref}" if ref >= 0 else f"in{~ref}")
        specs = ", ".join(map(repr, node.specs))
        lines.append(f"  %{number} = {node.kind!r} {' '.join(names)} : {specs}  {node.where[0]}:{node.where[1]}")
        number += len(node.specs)
    return "\n".join(lines)


def get_worker_stats() -> dict[str, Any]:
    """Statistics of the dispatcher, its workers and this session. What is pending is sent first and waited for.

    `["totals"]` adds up what the workers of the server did: calls, instructions, bytes moved, time by tier, time of
    compiling, memory. An instruction or a sequence (a program) is hot if it ran on a tier above 1. `["workers"]` has
    the same for each worker, and for each program of this session its calls, tiers and the lines that it comes from.
    """
    rec = recorder()
    session = rec.session
    if not rec.tracing:
        rec.settle()
    session.wait(lambda: session.done >= session.seq)
    stats = session.stats()
    lines = {name.hex(): show(v.places) for name, v in list(session.variants.items())}
    for worker in stats["workers"].values():
        for name, row in worker.get("programs", {}).items():
            row["lines"] = lines.get(row.get("program", name), "")
    stats["totals"] = totals(stats["workers"].values())
    return stats


#: What is added up over workers.
TOTALS = (
    "total_instructions", "hot_instructions", "unique_sequences", "hot_sequences", "calls", "run_us", "compile_us",
    "uploaded", "fetched", "sent_to_peers", "nbytes",
)  # fmt: skip


def totals(workers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The sums over workers. `bytes_moved` is all that was uploaded, fetched and sent to other workers."""
    found: dict[str, Any] = dict.fromkeys(TOTALS, 0)
    tiers: dict[str, int] = {}
    for worker in workers:
        for key in TOTALS:
            found[key] += worker.get(key, 0)
        for tier, each in worker.get("tiers", {}).items():
            tiers[tier] = tiers.get(tier, 0) + each["run_us"]
    found["bytes_moved"] = found["uploaded"] + found["fetched"] + found["sent_to_peers"]
    return {**found, "run_us_by_tier": tiers}


def get_client_stats() -> dict[str, int]:
    """Counts of this session: calls and program texts sent, nodes of the tree, programs known."""
    session = recorder().session
    return {
        "calls": session.seq,
        "done": session.done,
        "programs_sent": session.defined,
        "programs_known": len(session.variants),
        "tree_nodes": session.tree.nodes,
    }
