"""On paper: recording without a server, workers or memory.

Inside of `with gt.on_paper():` the thread records in a session whose connection is a stand-in. It answers what a
server would answer at once (a call is done, a mesh is set) and computes nothing. Tensors have shapes and dtypes but no
data, so a model of any size is built, and its training step is recorded, on any machine.

Law 1: nothing leaks. The thread's earlier recorder is back when the block ends, however it ends. A tensor of one side
       is refused on the other.
Law 2: no bytes are kept. What is uploaded is forgotten; there is no ring, no thread and no timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from gt import config
from gt.client.programs.pending import DeadIds, RemoteId, Value, in_use, use
from gt.client.programs.tree import users_line
from gt.client.record.contexts import policy
from gt.client.record.recorder import new_recorder
from gt.client.session.session import Session
from gt.client.session.transfers import Download
from gt.errors import FunctionError, PaperError, ServerError
from gt.layout import Layout
from gt.program import Spec
from gt.transport import messages as msg

__all__ = ["on_paper"]


class PaperChannel:
    """The stand-in for a connection: every call is done, every mesh has its workers."""

    local = False

    def __init__(self) -> None:
        self._answers: deque[msg.Message] = deque()

    def send(self, message: msg.Message, payload: msg.Buffer | None = None) -> None:
        if isinstance(message, msg.Call):
            self._answers.append(msg.CallDone(0, message.seq))
        elif isinstance(message, msg.Hello):
            self._answers.append(msg.Welcome(msg.VERSION, 1, msg.WINDOW))
        elif isinstance(message, msg.SetMesh):
            count = int(np.prod([n for _, n in message.axes]))
            workers = [k + 1 for k in message.members] or range(1, count + 1)
            self._answers.append(msg.MeshSet(message.request, tuple(workers)))
        elif isinstance(message, msg.GetStats):
            self._answers.append(msg.Stats(message.request, {"workers": {}, "session": {"nbytes": 0}}))

    def send_all(self, messages: list[tuple[msg.Message, msg.Buffer | None]]) -> None:
        for message, payload in messages:
            self.send(message, payload)

    def receive(self, timeout_s: float = 0.0) -> tuple[msg.Message, msg.Buffer | None] | None:
        return (self._answers.popleft(), None) if self._answers else None

    def wait(self, timeout_s: float) -> NoReturn:
        """A session sleeps here until a message comes. On paper none comes later."""
        raise ServerError("on paper (gt.on_paper) there is no server to wait for")

    def leave(self) -> None:
        """See Channel."""

    def close(self) -> None:
        self._answers.clear()


class PaperSession(Session):
    """A session without data: see the file's header."""

    on_paper = True
    ELSEWHERE = (
        "this tensor was made on paper (in a gt.on_paper() block): it has a shape and no data, and can be used in that "
        "block only; make it again outside"
    )

    def upload(self, array: np.ndarray[Any, Any], spec: Spec, layout: str = "") -> Value:
        with self.lock:
            self.check_usable()
            v = Value(None, -1, spec)
            v.handle = RemoteId(self.next_id, self.dead)
            self.next_id += 1
            return v

    def download(self, v: Value) -> Download:
        self.settle_value(v)  # as everywhere, a read ends the program
        self._refuse("the value of a tensor", "take this line out of the step, or move it outside of the block")

    def layout_of(self, v: Value) -> Layout:
        self.settle_value(v)
        self._refuse("the layout of a tensor", "take this line out of the step, or move it outside of the block")

    def foreign(self, dead: DeadIds) -> ServerError:
        if dead.elsewhere == self.ELSEWHERE:
            return super().foreign(dead)
        return ServerError(
            "this tensor was made outside of the gt.on_paper() block, where it has data; make the model, the optimizer "
            "and the batch inside of the block"
        )

    def _refuse(self, what: str, cure: str) -> NoReturn:
        file, line = users_line()
        raise PaperError(f"{file}:{line}: {what} cannot be read on paper (gt.on_paper), where nothing runs; {cure}")


@contextmanager
def on_paper() -> Iterator[None]:
    """Record without a server, workers or memory: tensors have shapes and dtypes, but no data.

    Build a model and record a training step of any size, to plan it. Reading a value there is an error. Tensors made
    in the block cannot be used outside, nor others in the block. Other threads are not affected.

    >>> import gt
    >>> with gt.on_paper():
    ...     w = gt.zeros(1_000_000, 1_000_000, requires_grad=True)
    ...     (w @ w).sum().backward()
    ...     w.grad.shape
    (1000000, 1000000)
    """
    before = in_use()
    if before is not None and before.session.on_paper and not before.session.closed:
        yield  # a block in a block is part of it
        return
    if before is not None and before.trace is not None:
        raise FunctionError(f"{before.trace.name}: gt.on_paper() cannot begin inside of a @gt.function")
    session = PaperSession(PaperChannel(), config.load())
    rec = new_recorder(session)
    if before is not None:
        rec.grad = before.grad
    use(rec)
    try:
        yield
    finally:
        session.close()
        use(before)
        if before is not None:
            before.policy = before.anomaly or policy() or before.pin  # it may have been changed in the block
