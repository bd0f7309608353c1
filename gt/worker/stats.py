"""What a worker tells of itself: numbers for `gt top`, gt.debug.get_worker_stats() and the calibration of plans."""

from __future__ import annotations

from typing import Any, Protocol

from gt.awake import usable_cpus
from gt.config import Config
from gt.worker.calls import Calls
from gt.worker.fetches import Fetches
from gt.worker.run.collectives import Groups
from gt.worker.run.engine import Engine
from gt.worker.run.programs import Programs
from gt.worker.session import WorkerSession
from gt.worker.spilling import Spilling
from gt.worker.uploads import Uploads


class Core(Protocol):
    """What this file uses of the worker: see core.py."""

    config: Config
    engine: Engine
    fetches: Fetches
    programs: Programs
    sessions: dict[int, WorkerSession]
    spilling: Spilling
    uploads: Uploads

    @property
    def queued(self) -> int: ...


def stats_of(core: Core, calls: Calls, groups: Groups, programs: bool = True) -> dict[str, Any]:
    """The caller has the lock of the stores."""
    engine, spilling = core.engine, core.spilling
    sessions = {
        str(s.number): {
            "nbytes": s.store.nbytes,
            "spilled": s.store.away_nbytes if s.out else 0,
            "tensors": len(s.store.entries) - (0 in s.store.entries),
            "cpu_us": s.cpu_ns // 1000,
            "recent": [(seq, *(ns // 1000 for ns in times)) for seq, *times in [*s.recent]],  # calls run meanwhile
        }
        for s in core.sessions.values()
    }
    return {
        "engine": engine.name,
        "device": engine.device,
        "calls": calls.count,
        "beside": calls.beside,
        "run_us": calls.run_us,
        "cpus": usable_cpus(),
        "threads": core.config.threads or engine.threads,
        "queued": core.queued,
        "tensors": sum(row["tensors"] for row in sessions.values()),
        "groups": len(groups),
        "groups_on_devices": groups.on_devices,
        "sent_to_peers": groups.sent_nbytes,
        "uploaded": core.uploads.nbytes,
        "fetched": core.fetches.sent_nbytes,
        "spilled_memory": spilling.outside.nbytes(on_disk=False),
        "spilled_disk": spilling.outside.nbytes(on_disk=True),
        "moved_out": spilling.moved_out,
        "moved_in": spilling.moved_in,
        **calls.tiers.stats(),
        "sessions": sessions,
        "programs": {k.hash.hex(): k.stats() for k in core.programs} if programs else {},
        "programs_nbytes": core.programs.nbytes,
        **engine.usage(),  # bytes; "memory" is what the device has, which the dispatcher adds
    }
