"""What a server is doing, for everybody who may join it: `gt top`.

Law: names and counters. Of a session its name, of a program its hash, its size and the base names and numbers of its
lines; never a value, an id of a tensor, or a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gt.dispatcher.session import Session
from gt.dispatcher.state import State, Worker
from gt.places import show

PROGRAMS = 200  #: The hottest ones that are told.
NUMBERS = (
    "calls", "beside", "run_us", "queued", "tensors", "sent_to_peers", "uploaded", "fetched", "total_instructions",
    "hot_instructions", "unique_sequences", "hot_sequences", "compile_us", "compiling",
)  # fmt: skip


def overview(state: State, asker: Session, answers: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Workers, sessions and programs; what workers say of themselves is in `answers`."""
    workers = {str(w.number): _worker(w, answers.get(w.number, {})) for w in state.workers.values() if w.usable}
    sessions = {
        str(s.number): {**_session(state, s), "waits": waits(state, s)}
        for s in state.sessions.values() if s is not asker
    }  # fmt: skip
    return {
        "now_s": state.now_s,
        "calls": state.calls,
        "workers": workers,
        "sessions": sessions,
        "programs": _programs(state, answers),
    }


def _worker(worker: Worker, said: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "engine": worker.engine, "device": worker.device, "host": worker.host, "memory": worker.memory,
        "nbytes": worker.nbytes - worker.away, "spilled": worker.away, "sessions": len(worker.sessions),
        "under_way": worker.lane.calls + worker.lane.beside,
        "answered": bool(said), "tiers": {},
    }  # fmt: skip
    row.update({key: said[key] for key in NUMBERS if isinstance(said.get(key), int)})
    tiers = said.get("tiers")
    if isinstance(tiers, dict):
        row["tiers"] = {str(t): each["run_us"] for t, each in tiers.items()}
    return row


def _session(state: State, session: Session) -> dict[str, Any]:
    return {
        "name": _name(state, session),
        "workers": list(session.workers),
        "tensors": len(session.tensors),
        "nbytes": session.nbytes - session.away_nbytes,
        "spilled": session.away_nbytes,
        "queue": session.queued_calls + len(session.sent),
        "calls": session.calls,
        "run_us": session.total_us,
    }


def _name(state: State, session: Session) -> str:
    """Of a named session also whether a client uses it, or else how long it stays."""
    shelf = session.holds
    if shelf is None:
        return f"{session.name} (gone; its work goes on)" if session.peer is None else session.name
    if shelf.client is not None:
        return f"{session.name} of session {shelf.client.number}"
    return f"{session.name} {max(0.0, shelf.until_s - state.now_s) / 60:.0f} min left"


def waits(state: State, session: Session) -> str:
    """What a session waits for in a queue, and its place there; empty: for nothing."""
    moving = state.relocation
    if moving is not None and moving.session is session:
        return f"moves to worker {moving.there.number}"
    queues = {"memory": state.memory_queue, "a mesh": state.wishes}
    for what, queue in queues.items():
        if session.number in queue:
            return f"for {what}, place {1 + list(queue).index(session.number)} of {len(queue)}"
    return ""


def _programs(state: State, answers: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The hottest programs, as clients know them: what workers run of one is added up."""
    rows: dict[str, dict[str, Any]] = {}
    ran = [said.get("programs", {}) for said in answers.values()]
    for entry in state.programs:
        names = {entry.hash.hex(), *(p.hash.hex() for plan in entry.plans.values() for p in plan.locals.values())}
        found = [table[name] for table in ran for name in names if name in table]
        if found:
            rows[entry.hash.hex()[:8]] = {
                "lines": show(entry.places),
                "instructions": len(entry.program.code),
                "calls": max(row["hits"] for row in found),
                "run_us": sum(row["run_us"] for row in found),
                "tier": max(row["tier"] for row in found),
                "workers": len(found),
                "sessions": sorted(n for n in entry.users if n in state.sessions),
            }
    hottest = sorted(rows, key=lambda name: -rows[name]["run_us"])[:PROGRAMS]
    return {name: rows[name] for name in hottest}
