"""Training runs as a client sends them, to be replayed on shards.

`record` trains a model of tests/training for a few steps with a client whose dispatcher and worker are in this
process, in float64, and keeps what it sent: uploads and calls. `replay` runs the calls on a mesh: each is planned for
the layouts that its inputs have by then, all workers' programs run in numpy, and every output is compared with the
unsharded one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import gt
from gt import config, dtypes
from gt.dispatcher.planner.plan import Planned, plan_program
from gt.layout import Layout, Mesh
from gt.ops import TABLE, check
from gt.ops.check import Checked
from gt.transport.messages import Call, Chunk, Define, unpack_ids
from tests.sessions import session_on
from tests.sharding.planned import run_planned, unsharded
from tests.sharding.simulate import Value, close, place, read
from tests.sim.cluster import Cluster
from tests.training.recipes import RECIPES, train


@dataclass(frozen=True)
class Upload:
    id: int
    array: np.ndarray


@dataclass(frozen=True)
class Called:
    checked: Checked
    inputs: tuple[int, ...]
    scalars: tuple[Any, ...]
    outputs: range


@dataclass
class Recording:
    """What a client sent, in order."""

    events: list[Upload | Called] = field(default_factory=list)
    texts: dict[bytes, Checked] = field(default_factory=dict)
    buffers: dict[int, bytearray] = field(default_factory=dict)

    def see(self, event: Any, actions: Any) -> None:
        message, payload = getattr(event, "message", None), getattr(event, "payload", None)
        if isinstance(message, Define):
            self.texts[message.program.hash()] = check(message.program)
        elif isinstance(message, Chunk) and message.session == 0 and event.peer.startswith(b"c"):
            self.chunk(message, bytes(payload or b""))
        elif isinstance(message, Call):
            checked = self.texts[message.program]
            ids = tuple(unpack_ids(message.inputs))
            made = range(message.outputs, message.outputs + len(checked.program.outputs))
            self.events.append(Called(checked, ids, tuple(message.scalars), made))

    def chunk(self, message: Chunk, payload: bytes) -> None:
        assert message.slot < 0, "the client shares memory"
        if message.offset == 0:
            self.buffers[message.key] = bytearray()
            self.shape, self.dtype = tuple(message.shape), dtypes.BY_NAME[message.dtype].numpy
        buffer = self.buffers[message.key]
        buffer += payload
        if len(buffer) == message.total:
            self.events.append(Upload(message.key, np.frombuffer(bytes(buffer), self.dtype).reshape(self.shape)))

    @property
    def calls(self) -> list[Called]:
        return [e for e in self.events if isinstance(e, Called)]


@cache
def record(name: str, steps: int = 2) -> Recording:
    """A model of tests/training, trained in float64."""
    made = Recording()
    cluster = Cluster(engine="numpy", settings=config.load())
    cluster.watch = made.see
    with session_on(cluster):
        gt.manual_seed(0)
        model = RECIPES[name].model(gt).double()

        def to(a: np.ndarray) -> Any:
            a = np.concatenate([a, a[:3]])  # a batch that no mesh divides, too large to go by value
            return gt.from_numpy(a.astype(np.float64) if a.dtype == np.float32 else a)

        train(gt, name, model, to, steps)
    return made


def is_update(call: Called) -> bool:
    """Whether it is a whole training step."""
    return any(TABLE[ins.op].inplace for ins in call.checked.program.code)


#: (array, whether it is data of a batch) -> its layout; None: where the plan left it.
Policy = Callable[[np.ndarray, bool], Layout | None]


@dataclass
class Replayed:
    plans: list[Planned]  #: of the training steps, in order
    keys: list[tuple[Any, ...]]  #: what each of them was planned for


def replay(recording: Recording, m: Mesh, policy: Policy) -> Replayed:
    """All calls on a mesh. Raises if an output is not the unsharded one."""
    draws = np.random.default_rng(0)
    whole: dict[int, np.ndarray] = {}
    placed: dict[int, Value] = {}
    done = Replayed([], [])
    for event in recording.events:
        if isinstance(event, Upload):
            whole[event.id] = event.array
            one = policy(event.array, True)
            placed[event.id] = place(event.array, one or gt.layout.layout(m), draws)
            continue
        checked, program = event.checked, event.checked.program
        arrays = [whole[i] for i in event.inputs]
        step = is_update(event)
        if step and not done.plans:  # the first step: parameters are put where the policy wants them
            for _, i in program.updates:
                one = policy(arrays[i], False)
                if one is not None:
                    placed[event.inputs[i]] = place(arrays[i], one, draws)
        values = [placed[i] for i in event.inputs]
        layouts = tuple(v.layout for v in values)
        planned = plan_program(checked, layouts, m, {})
        if step:
            done.plans.append(planned)
            done.keys.append((program.hash(), layouts))
        made = run_planned(planned, checked, values, event.scalars)
        for i, value, want in zip(event.outputs, made, unsharded(checked, arrays, event.scalars), strict=True):
            have = read(value)
            assert close(have, want, value.spec.dtype), f"output {i} {value.spec!r} {value.layout!r} differs"
            whole[i], placed[i] = want, value
        for o, i in program.updates:
            assert made[o].layout is layouts[i]
    return done
