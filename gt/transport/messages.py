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
from gt.program import Program

VERSION = 5
CHUNK = 1 << 18  #: Tensor bytes in one message, at most. Larger ones delay other messages, and do not fit caches.
MAX_FRAME = 16 << 20  #: Bytes in one frame; the longest is a program's text.
MAX_FRAMES = 512  #: Frames that may be sent as one.
CHUNKS_IN_FLIGHT = 4  #: Chunks of one transfer sent and not yet acknowledged.
UPLOADS = 64  #: Uploads of one session begun and not yet acknowledged to the end.
WINDOW = 64  #: Calls of one session sent and not yet done.
CHOICES_NBYTES = 4 << 20  #: Bytes of one UsePlan.

Scalar = bool | int | float | bytes
#: Anything with bytes in it; payloads are passed along without copying where possible.
Buffer = bytes | bytearray | memoryview


class Struct(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base class of all messages."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why a call or a fetch failed."""

    kind: str  #: a name in errors.BY_NAME
    text: str
    program: bytes = b""  #: the program that failed, and which of its instructions (-1: none)
    instruction: int = -1


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
    pid: int = 0  #: the client's process; the dispatcher overwrites it with what the system says


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


class Need(Struct, frozen=True):
    """Send the text of this program (again); calls of it wait until then."""

    program: bytes


class Call(Struct, frozen=True):
    """Run a program. Client to dispatcher, and on to the worker with `session` filled in.

    `frees` are dropped before the call runs; donated inputs are dropped by it. The results get
    the ids outputs, outputs + 1, ...
    """

    session: int
    seq: int  #: numbers the calls of a session, 1, 2, 3, ...
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


class CallFailed(Struct, frozen=True):
    """Call `seq` failed. `root` is the call that failed first: `seq` itself, or an earlier
    failed call whose results this one used."""

    session: int
    seq: int
    root: int
    error: Failure


class GetStats(Struct, frozen=True):
    request: int


class Stats(Struct, frozen=True):
    request: int
    data: dict[str, Any]


# --- client to dispatcher, and back ----------------------------------------------------------


def _hiding_token(message: msgspec.Struct) -> str:
    """The repr of a message without its secrets: debug output prints messages."""
    shown = (f"{k}={'***' if k in ('token', 'link') else repr(getattr(message, k))}" for k in message.__struct_fields__)
    return f"{type(message).__name__}({', '.join(shown)})"


class Hello(Struct, frozen=True):
    version: int
    token: str
    name: str  #: shown in logs: program, user, process id

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
    peers: str = ""  #: host:port where other workers meet it; "": it cannot run calls with others

    __repr__ = _hiding_token


class WorkerWelcome(Struct, frozen=True):
    version: int
    worker: int


class CloseSession(Struct, frozen=True):
    """Forget everything of this session."""

    session: int


class Peers(Struct, frozen=True):
    """The addresses at which the workers of this server meet. They replace those sent before."""

    addresses: dict[int, str]  #: by worker


class Forget(Struct, frozen=True):
    """Forget this program's text and code."""

    program: bytes


FromClient = (
    Hello | Define | Call | Free | Chunk | ChunkAck | Share | Fetch | Cancel | SetMesh | UsePlan | GetStats | Goodbye
)
ToClient = (
    Welcome | Refused | Rejected | CallDone | CallFailed | Need | Chunk | ChunkAck | Shared | Sharded | MeshSet
    | FetchFailed | Stats
)  # fmt: skip
FromWorker = WorkerHello | CallDone | CallFailed | Need | Chunk | ChunkAck | Shared | FetchFailed | Stats | Goodbye
ToWorker = (
    WorkerWelcome | Refused | Define | Call | Free | Chunk | ChunkAck | Share | Fetch | Cancel | GetStats
    | CloseSession | Forget | Peers | Goodbye
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

    >>> decode(encode(GetStats(7)))
    (GetStats(request=7), None)
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
    found: list[tuple[Message, Buffer | None]] = []
    if len(frames) > MAX_FRAMES:
        raise BadMessage(f"{len(frames)} frames in one message; the limit is {MAX_FRAMES}")
    rest = iter(frames)
    for head in rest:
        if len(head) > MAX_FRAME:
            raise BadMessage(f"a message of {len(head)} bytes; the limit is {MAX_FRAME}")
        try:
            message: Message = _decode(head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as e:
            raise BadMessage(f"not a message: {e}") from None
        if type(message) is not Chunk or message.slot >= 0:
            found.append((message, None))
            continue
        payload = next(rest, None)
        if payload is None or len(payload) > CHUNK:
            raise BadMessage(f"a Chunk must have a payload of at most {CHUNK} bytes")
        found.append((message, payload))
    return found
