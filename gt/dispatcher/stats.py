"""Statistics for a client: the dispatcher's own numbers, its session's, and what the workers say.

Law: a client learns how much there is, never what others do. Of a worker's answer it sees plain numbers
and names, and of its tables per session and per program only its own rows. An overview (overview.py) has rows of all
sessions and programs, with names and counters.
"""

from __future__ import annotations

from typing import Any

from gt.dispatcher import switches
from gt.dispatcher.overview import overview, waits
from gt.dispatcher.session import STATS, Session
from gt.dispatcher.state import Question, State, Worker
from gt.transport.messages import GetStats, Stats

DEADLINE_S = 2.0


def asked(state: State, session: Session, m: GetStats) -> None:
    """A client asks."""
    if session.stats >= STATS:
        state.reject(session, f"more than {STATS} questions for statistics at once")
        return
    state.last_question += 1
    number = state.last_question
    waiting = {w.number: w for w in state.workers.values() if w.usable}
    session.stats += 1
    question = state.questions[number] = Question(session, m.request, state.now_s + DEADLINE_S, waiting, m.overview)
    for worker in waiting.values():
        state.send(worker.control, GetStats(number, programs=m.programs))
    if not waiting:
        _answer(state, number, question)


def answered(state: State, worker: Worker, stats: Stats) -> None:
    """A worker answers."""
    question = state.questions.get(stats.request)
    if question is not None and worker.number in question.waiting:
        del question.waiting[worker.number]
        question.answers[worker.number] = stats.data
        if not question.waiting:
            _answer(state, stats.request, question)


def worker_lost(state: State, worker: Worker) -> None:
    """A worker that is gone answers nothing any more."""
    for number, question in list(state.questions.items()):
        if question.waiting.pop(worker.number, None) is not None and not question.waiting:
            _answer(state, number, question)


def time_passed(state: State) -> None:
    for number, question in list(state.questions.items()):
        if state.now_s >= question.deadline_s:
            _answer(state, number, question)


def _answer(state: State, number: int, question: Question) -> None:
    del state.questions[number]
    session = question.session
    session.stats -= 1
    if question.overview:
        state.send(session.peer, Stats(question.request, overview(state, session, question.answers)))
        return
    workers = {}
    for w in state.workers.values():
        if w.usable:
            about = {
                "engine": w.engine, "device": w.device, "host": w.host, "pid": w.pid, "memory": w.memory,
                "nbytes": w.nbytes, "spilled": w.away, "sessions": len(w.sessions), "calls": w.calls,
                "calls_under_way": w.lane.calls + w.lane.beside, "yours": w.number in session.workers,
                "answered": w.number in question.answers,
            }  # fmt: skip
            workers[str(w.number)] = {**_mine(state, session, question.answers.get(w.number, {})), **about}
    data: dict[str, Any] = {
        "dispatcher": {
            "sessions": len(state.sessions),
            "workers": len(workers),
            "programs": len(state.programs),
            "program_nbytes": state.programs.nbytes,
            "calls": state.calls,
        },
        "session": {
            "number": session.number,
            "name": session.name,
            "worker": next(iter(session.workers), 0),
            "workers": list(session.workers),
            "meshes": {name: {"axes": m.sizes, "workers": list(m.workers)} for name, m in session.meshes.items()},
            "tensors": len(session.tensors),
            "nbytes": session.nbytes,
            "spilled": session.away_nbytes,
            "waits": waits(state, session),
            "calls": session.calls,
            "calls_under_way": session.queued_calls + len(session.sent),
            "run_us": session.total_us,
            "programs": sum(session.number in e.users for e in state.programs),
            "plans": switches.about(session),
        },
        "workers": workers,
    }
    state.send(session.peer, Stats(question.request, data))


def _mine(state: State, session: Session, data: dict[str, Any]) -> dict[str, Any]:
    """What of a worker's answer this session may see."""
    mine: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, bool | int | float | str):
            mine[key] = value
        elif key == "sessions" and isinstance(value, dict):
            own = [row for name, row in value.items() if str(name) == str(session.number)]
            mine["session"] = own[0] if own else {}
        elif key == "programs" and isinstance(value, dict):
            own_programs = [e for e in state.programs if session.number in e.users]
            hashes = {e.hash.hex() for e in own_programs}
            hashes |= {p.hash.hex() for e in own_programs for plan in e.plans.values() for p in plan.locals.values()}
            mine["programs"] = {name: row for name, row in value.items() if name in hashes}
            for e in own_programs:  # what a worker runs of a client's program, by the name that the client knows
                for plan in e.plans.values():
                    for p in plan.locals.values():
                        if p.hash != e.hash and (row := mine["programs"].get(p.hash.hex())) is not None:
                            row["program"] = e.hash.hex()
        elif key == "tiers" and isinstance(value, dict):
            mine["tiers"] = value
    return mine
