"""Every message between client, dispatcher and worker, and how it becomes frames of bytes and a message again.

Law 1: a message is a tagged struct; nothing else is ever decoded.
Law 2: tensor bytes are never inside a struct. They are the second frame ("payload") of Chunk,
       at most CHUNK bytes, and are relayed unread; or they are in shared memory (shared.py).
Law 3: ids belong to a session. A client never says which session it is; the dispatcher knows
       from the connection, and adds it for the worker.
Law 4: bytes that cannot be decoded raise BadMessage, and no other error.

Lists of tensor ids are packed (`pack_ids`): a call with 450 ids costs 30 us that way, and 200 us as
MessagePack integers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gt.chosen import Chosen
from gt.places import Place
from gt.program import Program

# `messages` has every message: those of keeping.py, and what all of them are (struct.py), are found here too.
from gt.transport.keeping import Copied as Copied
from gt.transport.keeping import Copy as Copy
from gt.transport.keeping import Drop as Drop
from gt.transport.keeping import GetKept as GetKept
from gt.transport.keeping import Keep as Keep
from gt.transport.keeping import Kept as Kept
from gt.transport.keeping import Take as Take
from gt.transport.keeping import Thing as Thing
from gt.transport.struct import Failure as Failure
from gt.transport.struct import Struct as Struct

VERSION = 9
CHUNK = 1 << 18  #: Tensor bytes in one message, at most. Larger ones delay other messages, and do not fit caches.
MAX_FRAME = 16 << 20  #: Bytes in one frame; the longest is a program's text.
MAX_FRAMES = 512  #: Frames that may be sent as one.
CHUNKS_IN_FLIGHT = 4  #: Chunks of one transfer sent and not yet acknowledged.
UPLOADS = 64  #: Uploads of one session begun and not yet acknowledged to the end.
WINDOW = 64  #: Calls of one session sent and not yet done.
CHOICES_NBYTES = 4 << 20  #: Bytes of one UsePlan.
KEPT_TENSORS = 1 << 16  #: Tensors that are kept or published under one name.

Scalar = bool | int | float | bytes
#: Anything with bytes in it; payloads are passed along without copying where possible.
Buffer = bytes | bytearray | memoryview


# --- both ways -------------------------------------------------------------------------------


class Chunk(Struct, frozen=True):
    """A piece of a tensor; its bytes are the payload.

    From a client or to a worker it uploads tensor `key`; the other way it answers fetch `key`.
    Pieces of one transfer come in order. `total` is the tensor's size in bytes; an empty tensor
    is one empty chunk. With a `slot` there is no payload: the bytes are in that slot of the client's
    ring (shared.py), as many as a slot holds or the tensor still has.

    A sharded tensor is fetched as one transfer per worker, each of that worker's shard (see Sharded). An upload is
    one transfer of the whole tensor; the dispatcher sends each worker its shard.
    """

    session: int  #: 0 between client and dispatcher
    key: int
    offset: int
    total: int
    shape: tuple[int, ...] = ()  #: with the first chunk (offset 0) only
    dtype: str = ""
    slot: int = -1
    part: int = 0  #: of a fetch of shards: which of them
    #: From a client, with the first chunk: the layout of the tensor ("": the session's default).
    layout: str = ""
    #: To a worker, with the first chunk: for each dimension the positions to keep; () keeps all.
    keep: tuple[tuple[tuple[int, int], ...], ...] = ()


class ChunkAck(Struct, frozen=True):
    """A chunk was taken; one more may be sent. `key` has the same meaning as in the chunk."""

    session: int
    key: int
    upload: bool  #: True: acknowledges an upload, False: a fetch
    part: int = 0  #: as the chunk's


class Share(Struct, frozen=True):
    """A client offers memory for its transfers: its ring (shared.py). It replaces the one before."""

    session: int
    ring: int  #: numbers the rings of a session
    fd: int  #: the file, as the client's process numbers it,
    name: str  #: and as it is named
    pid: int = 0  #: the client's process, as it says; the dispatcher replaces it by what the system says


class Shared(Struct, frozen=True):
    """Whether chunks may now use this ring. False: not yet, or not any more."""

    session: int
    ring: int
    ok: bool


class Define(Struct, frozen=True):
    """A program's text. The receiver names it by hashing it."""

    program: Program
    timed: bool = False  #: cut by a timer: forgotten first, never compiled
    #: 1: compile it at its first call, 0: when it proves hot, -1: never. Programs are shared: if several clients
    #: define one, the largest number counts.
    compile: int = 0
    places: tuple[Place, ...] = ()  #: from a client: the lines that its instructions come from


class Need(Struct, frozen=True):
    """Send the text of this program (again); calls of it wait until then."""

    program: bytes


class Prepare(Struct, frozen=True):
    """Make the code of this program, which will be called soon; and compile it, if it is compiled at its first call."""

    session: int
    program: bytes


class Prepared(Struct, frozen=True):
    """The answer to Prepare: that is done, as far as it can be done before a call."""

    session: int
    program: bytes


class Call(Struct, frozen=True):
    """Run a program. Client to dispatcher, and on to the worker with `session` filled in.

    `frees` are dropped before the call runs; donated inputs are dropped by it. The results get
    the ids outputs, outputs + 1, ...
    """

    session: int
    #: Numbers the calls of a session, 1, 2, 3, ... To a worker also -1, -2, ...: moves, calls of the dispatcher's own.
    seq: int
    program: bytes
    inputs: bytes  #: packed ids
    scalars: tuple[Scalar, ...]
    outputs: int
    frees: bytes
    #: The client knows of failures of calls up to this one: values that were kept when such
    #: a call failed may be used again. Before, a call that uses them fails too.
    acked: int
    #: To a worker only: the dispatcher refuses this call; treat it as failed for this reason.
    refused: Failure | None = None
    root: int = 0  #: of a refused one: the call that failed first
    #: To a worker only: a short call that is not to wait for long ones; see gt/dispatcher/schedule.py.
    beside: bool = False


class Rename(Struct, frozen=True):
    """To a worker: from now on these tensors are what it has under the ids first, first + 1, ... (in a plan's new
    layouts; see gt/dispatcher/moves.py). Fetches that came before get what the tensors were. It cannot fail."""

    session: int
    ids: bytes  #: packed
    first: int


class Spill(Struct, frozen=True):
    """To a worker: move these tensors out of the memory of its device, for others. The answer is Spilled."""

    session: int
    ids: bytes  #: packed


class Spilled(Struct, frozen=True):
    """A worker has moved tensors out, or marked those that are still being uploaded."""

    session: int
    ids: bytes  #: all that it was asked for
    kept: bytes = b""  #: those of them that are still on the device,
    why: str = ""  #: and why; "": they were used meanwhile


class Return(Struct, frozen=True):
    """To a worker: move these tensors back into the memory of its device. The answer is Returned."""

    session: int
    ids: bytes


class Returned(Struct, frozen=True):
    """A worker has moved tensors back. What could not be moved fails the call that uses it."""

    session: int
    ids: bytes


class Free(Struct, frozen=True):
    """Drop these tensors (when there is no call to send along)."""

    session: int
    ids: bytes


class Fetch(Struct, frozen=True):
    """Send tensor `id`; the answer is Chunks (or FetchFailed) with this `request`."""

    session: int
    request: int
    id: int
    ring: int = 0  #: the ring that the slots are in
    #: Lent for the answer, used in turn; one that was acknowledged may be used again. Or one mailbox (shared.py), for
    #: an answer of one chunk that is sent as well.
    slots: tuple[int, ...] = ()
    #: Only the tensor's layout is asked for: the answer is Sharded alone, also for a tensor on one worker.
    layout: bool = False


class Sharded(Struct, frozen=True):
    """The layout of a tensor that is fetched. Its shards follow as transfers, one per entry of `parts`: the shard
    at that position of the mesh. The client has to reduce what is partial."""

    request: int
    mesh: str  #: the mesh's name; "" is the session's own
    axes: tuple[tuple[str, int], ...]
    workers: tuple[int, ...]  #: numbers of the mesh's workers, row-major over its axes
    layout: str  #: as gt.layout prints it
    shape: tuple[int, ...]
    dtype: str
    parts: tuple[int, ...] = ()


class Cancel(Struct, frozen=True):
    """The answer to this fetch is no longer wanted."""

    session: int
    request: int


class FetchFailed(Struct, frozen=True):
    session: int
    request: int
    error: Failure


class CallDone(Struct, frozen=True):
    """Call `seq` ran (to the client: all calls up to `seq` did, or were reported as failed)."""

    session: int
    seq: int
    run_us: int = 0
    tier: int = 1  #: from a worker: the tier that it ran on


class CallFailed(Struct, frozen=True):
    """Call `seq` failed. `root` is the call that failed first: `seq` itself, or an earlier
    failed call whose results this one used."""

    session: int
    seq: int
    root: int
    error: Failure


class GetStats(Struct, frozen=True):
    request: int
    overview: bool = False  #: from a client: figures of all sessions, for `gt top`
    programs: bool = True  #: with a row for each program


class Stats(Struct, frozen=True):
    request: int
    data: dict[str, Any]


class Trace(Struct, frozen=True):
    """Record what happens from now on, for this time. The dispatcher passes it on to all clients and workers, and again
    with 0 when the time is over: then they answer with Spans, which the dispatcher passes to the client that asked."""

    request: int
    duration_us: int


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that a process did, for a time of its monotonic clock."""

    lane: str  #: which of its threads or streams
    name: str
    start_ns: int
    end_ns: int
    session: int = 0  #: of a call,
    seq: int = 0  #: its number,
    program: bytes = b""  #: its program,
    tier: int = 0  #: and on a worker its tier
    steps: bytes = b""  #: on tier 1: its instructions, and when each of them began; see gt.tracing


class TracedProgram(msgspec.Struct, frozen=True, array_like=True):
    """What a trace shows of a program: the names of its ops, and where they come from."""

    ops: tuple[str, ...]
    places: tuple[Place, ...]


class Spans(Struct, frozen=True):
    """What a process did during a trace, in pieces."""

    request: int
    who: str = ""  #: whose; the dispatcher says it to the one who asked
    spans: tuple[Span, ...] = ()
    last: bool = False  #: of this process; or, with no `who`, of the trace
    heard_ns: int = 0  #: with the last: its clock when it heard that the time is over,
    sent_ns: int = 0  #: and when it answered
    offset_ns: int = 0  #: by how much its clock is ahead of the dispatcher's, which fills it in
    left_out: int = 0  #: spans that were too many
    programs: dict[str, TracedProgram] = msgspec.field(default_factory=dict)  #: at the end: those of the calls, by hash
    error: str = ""  #: why there is no trace


# --- client to dispatcher, and back ----------------------------------------------------------


def _hiding_token(message: msgspec.Struct) -> str:
    """The repr of a message without its secrets: debug output prints messages."""
    shown = (
        f"{k}={'***' if k in ('token', 'link', 'secret') else repr(getattr(message, k))}"
        for k in message.__struct_fields__
    )
    return f"{type(message).__name__}({', '.join(shown)})"


class Hello(Struct, frozen=True):
    version: int
    token: str
    name: str  #: shown in logs: program, user, process id
    session: str = ""  #: the name under which the session's tensors can be kept; "": it has none

    __repr__ = _hiding_token


class SetMesh(Struct, frozen=True):
    """Let this session use several workers: those that it has and, if that is not enough, more.

    Results go to the mesh "" by default; other meshes are named in layouts. Tensors on other workers stay
    there until they are used. The answer is MeshSet.
    """

    request: int
    name: str
    axes: tuple[tuple[str, int], ...]
    members: tuple[int, ...] = ()  #: of a mesh with a name: positions among the session's workers; (): the first ones
    split: bool = False  #: large uploads without a layout are sharded over the first axis


class MeshSet(Struct, frozen=True):
    request: int
    workers: tuple[int, ...]  #: their numbers, row-major over the axes
    error: str = ""  #: why nothing was changed


class UsePlan(Struct, frozen=True):
    """Calls of programs with this body run as a plan says, from now on, while the session's mesh has these axes. It
    replaces what was said before for this body; without `ways` it only takes that back. There is no answer: what does
    not fit is not followed, and a call never fails because of it."""

    body: str  #: see Program.body
    axes: tuple[tuple[str, int], ...]  #: of the mesh that the plan was made for
    choices: tuple[Chosen, ...]  #: each once
    ways: dict[int, int]  #: instruction -> position in `choices`


class Welcome(Struct, frozen=True):
    version: int
    session: int
    window: int
    #: Of a session with a name: its workers and meshes are those of the client before; name, axes, workers of each.
    workers: tuple[int, ...] = ()
    meshes: tuple[tuple[str, tuple[tuple[str, int], ...], tuple[int, ...]], ...] = ()


class Refused(Struct, frozen=True):
    """The connection is refused (version, token, too many sessions); nothing more follows."""

    text: str


class Rejected(Struct, frozen=True):
    """A message was not understood or not allowed; it changed nothing."""

    text: str


class Goodbye(Struct, frozen=True):
    """A client or worker is about to disconnect."""


# --- worker to dispatcher, and back ----------------------------------------------------------


class WorkerHello(Struct, frozen=True):
    """A worker has two connections (one per thread); both say hello with the same `link`."""

    version: int
    token: str
    link: str
    control: bool  #: True on the connection for commands, False on the one for results
    engine: str = ""
    device: str = ""
    memory: int = 0  #: bytes it may use
    host: str = ""
    pid: int = 0
    #: Where other workers meet it: one or several host:port, as it knows itself; "": it cannot run calls with others.
    peers: str = ""
    tries: bool = False  #: it tries the addresses of the others, and says which answer (Reached)

    __repr__ = _hiding_token


class WorkerWelcome(Struct, frozen=True):
    version: int
    worker: int


class Alive(Struct, frozen=True):
    """The only message on a third connection of a worker, where keys are needed. By ZeroMQ's signs of life there the
    server knows that it is. On the two others each message cancels the time that a sign is good for: a worker that
    hangs while it sends would be noticed late."""

    link: str

    __repr__ = _hiding_token


class CloseSession(Struct, frozen=True):
    """Forget everything of this session."""

    session: int


class Peers(Struct, frozen=True):
    """The addresses at which the workers of this server meet. They replace those sent before."""

    addresses: dict[int, str]  #: by worker
    secret: str = ""  #: with it workers of different machines prove to each other that they are of this server

    __repr__ = _hiding_token


class Reached(Struct, frozen=True):
    """A worker has tried the addresses of another one."""

    worker: int
    error: str = ""  #: which addresses it tried, and what happened; "": one of them answers


class Forget(Struct, frozen=True):
    """Forget this program's text and code."""

    program: bytes


FromClient = (
    Hello | Define | Call | Free | Chunk | ChunkAck | Share | Fetch | Cancel | SetMesh | UsePlan | Keep | Take | Drop
    | GetKept | GetStats | Trace | Spans | Goodbye
)  # fmt: skip
ToClient = (
    Welcome | Refused | Rejected | CallDone | CallFailed | Need | Chunk | ChunkAck | Shared | Sharded | MeshSet
    | FetchFailed | Kept | Stats | Trace | Spans
)  # fmt: skip
FromWorker = (
    WorkerHello | Alive | CallDone | CallFailed | Need | Prepared | Chunk | ChunkAck | Shared | FetchFailed | Copied
    | Stats | Reached | Spans | Spilled | Returned | Goodbye
)  # fmt: skip
ToWorker = (
    WorkerWelcome | Refused | Define | Prepare | Call | Free | Rename | Copy | Chunk | ChunkAck | Share | Fetch | Cancel
    | GetStats | CloseSession | Forget | Peers | Trace | Spill | Return | Goodbye
)  # fmt: skip
Message = FromClient | ToClient | FromWorker | ToWorker


def pack_ids(ids: Iterable[int]) -> bytes:
    """Ids as bytes: 8 each, little-endian.

    >>> unpack_ids(pack_ids([3, 1, 2]))
    [3, 1, 2]
    """
    return array("q", ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """The ids in a packed list; raises ValueError if its length is not a multiple of 8."""
    ids = array("q")
    ids.frombytes(packed)
    return ids.tolist()


# --- messages to frames and back ---------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class BadMessage(ValueError):
    """Bytes that are not a message. The receiver must not change any state because of them."""


def encode(message: Message, payload: Buffer | None = None) -> list[Any]:
    """The frames of a message: its struct, then the payload if there is one.

    >>> decode(encode(Need(b"7f3a")))
    (Need(program=b'7f3a'), None)
    """
    head = _encode(message)
    return [head] if payload is None else [head, payload]


def encode_all(messages: Iterable[tuple[Message, Buffer | None]]) -> list[list[Any]]:
    """The frames of several messages: one list, or several of at most MAX_FRAMES frames."""
    frames: list[Any] = []
    found = [frames]
    for message, payload in messages:
        if len(frames) > MAX_FRAMES - 2:
            frames = []
            found.append(frames)
        frames.append(_encode(message))
        if payload is not None:
            frames.append(payload)
    return found


def decode(frames: Sequence[Buffer]) -> tuple[Message, Buffer | None]:
    """The one message in these frames, and its payload."""
    found = decode_all(frames)
    if len(found) != 1:
        raise BadMessage(f"got {len(found)} messages, expected one")
    return found[0]


def decode_all(frames: Sequence[Buffer]) -> list[tuple[Message, Buffer | None]]:
    """The messages in these frames, with their payloads. If one is bad, none is returned."""
    if len(frames) == 1:  # most come alone
        message = _decode_one(frames[0])
        if type(message) is not Chunk or message.slot >= 0:
            return [(message, None)]
    elif len(frames) > MAX_FRAMES:
        raise BadMessage(f"{len(frames)} frames in one message; the limit is {MAX_FRAMES}")
    found: list[tuple[Message, Buffer | None]] = []
    rest = iter(frames)
    for head in rest:
        message = _decode_one(head)
        if type(message) is not Chunk or message.slot >= 0:
            found.append((message, None))
            continue
        payload = next(rest, None)
        if payload is None or len(payload) > CHUNK:
            raise BadMessage(f"a Chunk must have a payload of at most {CHUNK} bytes")
        found.append((message, payload))
    return found


def _decode_one(head: Buffer) -> Message:
    if len(head) > MAX_FRAME:
        raise BadMessage(f"a message of {len(head)} bytes; the limit is {MAX_FRAME}")
    try:
        message: Message = _decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as e:
        raise BadMessage(f"not a message: {e}") from None
    return message
