"""What engines have in common that do each thing at once: no device of their own works behind the host's back, and
programs are neither captured nor compiled by GT. numpy is one; jax compiles by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from gt.errors import WorkerError
from gt.ops.record import Op
from gt.program import Precision


class HostEngine:
    """The parts of `gt.worker.engines.Engine` that such an engine has no use for."""

    deferred = False
    compiles_with: tuple[str, str] | None = None

    def many(self, op: Op, attrs: dict[str, Any]) -> Callable[..., Any] | None:
        return None

    def set_precision(self, precision: Precision) -> None:
        pass  # always the most exact

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, Any]:
        return np.empty(nbytes, np.uint8)

    def use(self, session: int) -> None:
        pass

    def leave(self, session: int) -> None:
        pass

    def usage(self) -> dict[str, int]:
        return {}

    def raised(self, flag: Any) -> bool:
        return False

    def release(self) -> None:
        pass

    # Only engines with graphs are asked for these.

    def graph(self, checked: Any, trusted: bool) -> NoReturn:
        raise WorkerError("this engine has no graphs")

    def load_library(self, folder: str, graph: Any) -> NoReturn:
        raise WorkerError("this engine has no libraries")

    def load_part(self, folder: str, graph: Any) -> NoReturn:
        raise WorkerError("this engine has no libraries")

    def new_capture(self, graph: Any, f: Any, plain: Any, tier: int) -> NoReturn:
        raise WorkerError("this engine has no graphs")

    # Only engines whose work is done later are asked for these.

    def start_fetch(self, array: Any) -> NoReturn:
        raise WorkerError("this engine fetches at once")

    def end_fetch(self, coming: tuple[Any, Any]) -> NoReturn:
        raise WorkerError("this engine fetches at once")

    def send_flag(self, flag: Any) -> NoReturn:
        raise WorkerError("this engine checks indices at once and has no flags")

    def select(self, flag: Any, old: Any, new: Any, into: bool = False) -> NoReturn:
        raise WorkerError("this engine checks indices at once and has no flags")
