"""A server that is a script: a channel that answers each message by a rule. So a client is tested by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from gt import dtypes, layout
from gt.transport import messages as msg

Said = list[Any]  #: messages with their payloads
Rule = Callable[[Any], Said]
Array = np.ndarray[Any, Any]


class Script:
    """A channel to a server that does as the rules say."""

    local = True

    def __init__(self) -> None:
        self.sent: list[tuple[Any, bytes | None]] = []
        self.answers: deque[tuple[Any, bytes | None] | None] = deque()
        self.rules: dict[type, Rule] = {
            msg.Hello: lambda m: [(msg.Welcome(m.version, 1, 64), None)],
            msg.Call: lambda m: [(msg.CallDone(0, m.seq), None)],
            msg.SetMesh: lambda m: [
                (msg.MeshSet(m.request, tuple(range(1, 1 + int(np.prod([n for _, n in m.axes]))))), None)
            ],
            msg.Chunk: lambda m: [(msg.ChunkAck(0, m.key, True), None)],
        }

    def send(self, message: Any, payload: Any = None) -> None:
        self.sent.append((message, None if payload is None else bytes(payload)))
        rule = self.rules.get(type(message))
        if rule is not None:
            self.answers.extend(rule(message))

    def send_all(self, messages: list[Any]) -> None:
        for message, payload in messages:
            self.send(message, payload)

    def receive(self, timeout_s: float = 0.0) -> Any:
        return self.answers.popleft() if self.answers else None  # None among them: the rest comes later

    def wait(self, timeout_s: float) -> None:
        assert self.answers, "the client waits for something that the script does not say"

    def leave(self) -> None:
        pass

    def close(self) -> None:
        pass

    def of(self, kind: type) -> list[Any]:
        return [m for m, _ in self.sent if isinstance(m, kind)]


def pins(script: Script) -> list[str]:
    """The layouts of all `shard` instructions that were sent."""
    return [ins.attrs["layout"] for d in script.of(msg.Define) for ins in d.program.code if ins.op == "shard"]


def in_parts(m: msg.Fetch, text: str, axes: dict[str, int], value: Array, parts: list[int]) -> Said:
    """The answer to a fetch of a tensor in this layout: the shards at these positions, their chunks in turn."""
    mesh = layout.mesh(range(1, 1 + int(np.prod(list(axes.values())))), **axes)
    held = layout.shards(layout.parse(text, mesh), value.shape)
    told = () if m.layout else tuple(parts)
    name = value.dtype.name
    said: Said = [(msg.Sharded(m.request, "", mesh.axes, mesh.workers, text, value.shape, name, told), None)]
    queues = []
    for i, k in enumerate(told):
        index = np.ix_(*([p for a, b in runs for p in range(a, b)] for runs in held[mesh.workers[k]]))
        data = np.ascontiguousarray(value[index] if value.ndim else value).tobytes()
        pieces = range(0, max(len(data), 1), msg.CHUNK)
        queues.append([(msg.Chunk(0, m.request, at, len(data), part=i), data[at : at + msg.CHUNK]) for at in pieces])
    while any(queues):
        said += [queue.pop(0) for queue in queues if queue]
    return said


def serve(script: Script, text: str, axes: dict[str, int], value: Array, parts: list[int]) -> None:
    """Every fetch is answered with this value in this layout."""
    script.rules[msg.Fetch] = lambda m: in_parts(m, text, axes, value, parts)


class Store(Script):
    """A server that keeps what is uploaded, on a mesh with these axes, and gives it back in parts."""

    def __init__(self, **axes: int) -> None:
        super().__init__()
        self.axes = axes
        self.uploads: dict[int, tuple[msg.Chunk, bytearray]] = {}
        self.rules[msg.Fetch] = self._fetch

    def send(self, message: Any, payload: Any = None) -> None:
        if isinstance(message, msg.Chunk):
            _, data = self.uploads.setdefault(message.key, (message, bytearray()))
            data += bytes(payload)
        super().send(message, payload)

    def layout(self, key: int) -> str:
        """The layout that an upload asks for."""
        return self.uploads[key][0].layout

    def _fetch(self, m: msg.Fetch) -> Said:
        first, data = self.uploads[m.id]
        value = np.frombuffer(bytes(data), dtypes.BY_NAME[first.dtype].numpy).reshape(first.shape)
        if not self.axes:
            return [(msg.Chunk(0, m.request, 0, value.nbytes), value.tobytes())]
        count = int(np.prod(list(self.axes.values())))
        parts = range(count) if first.layout not in ("", "[]") else range(1)
        return in_parts(m, first.layout or "[]", self.axes, value, list(parts))
