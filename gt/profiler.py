"""The names of torch.profiler. Nothing is recorded here: workers measure by themselves, all the time.

`profile` works as a context; its tables come from gt.debug.get_worker_stats(), by program.
"""

from __future__ import annotations

from contextlib import ContextDecorator, nullcontext
from enum import Enum
from typing import Any, Self

from gt.client.debug import get_worker_stats

__all__ = ["ProfilerActivity", "profile", "record_function", "schedule", "tensorboard_trace_handler"]


class ProfilerActivity(Enum):
    """What to profile; accepted without effect."""

    CPU = 0
    CUDA = 1
    XPU = 2


class record_function(nullcontext[Any], ContextDecorator):
    """A named range; it has no effect."""

    def __init__(self, name: str, args: str | None = None) -> None:
        super().__init__(self)
        self.name = name


class profile(ContextDecorator):
    """A context around what is to be profiled."""

    def __init__(self, **options: Any) -> None:
        self._ready = options.get("on_trace_ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ready is not None:
            self._ready(self)

    start = __enter__
    stop = __exit__

    def step(self) -> None:
        """Does nothing."""

    def key_averages(self, *args: Any, **kwargs: Any) -> profile:
        """The profile itself: see `table`."""
        return self

    def table(self, **options: Any) -> str:
        """The programs that took the most time on the workers since the session began."""
        rows = ["program    calls     us total  tier"]
        for worker in get_worker_stats()["workers"].values():
            for name, p in sorted(worker.get("programs", {}).items(), key=lambda each: -each[1]["run_us"])[:20]:
                rows.append(f"{name[:8]} {p['hits']:7} {p['run_us']:12} {p['tier']:5}")
        return "\n".join(rows)

    def export_chrome_trace(self, path: str) -> None:
        """Not available."""
        raise NotImplementedError("profiler: GT writes no Chrome traces here; use the command gt trace, or table()")


def schedule(*args: Any, **kwargs: Any) -> Any:
    """Accepted without effect."""
    return lambda step: None


def tensorboard_trace_handler(*args: Any, **kwargs: Any) -> Any:
    """Accepted without effect: there is no trace to write."""
    return lambda profile: None
