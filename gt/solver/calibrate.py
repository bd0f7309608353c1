"""The hardware of the workers of a server, as it was measured. `python -m gt.solver.calibrate --server ADDRESS`.

Law 1: measuring is done by a process of its own, as an ordinary client with a session of its own. It changes nothing of
       other sessions.
Law 2: it is done once for each set of workers. What was measured is in the cache folder, one file for each set; a file
       that cannot be read, or is of another version, is measured again.
Law 3: predictions are compared with steps (`note_step`). The file keeps by how much they differ, on one worker and on
       several, and a prediction that is off by more than half says that it is time to measure again.

probes.py has the programs. Every number of workers that a plan may use is measured by itself, from one to all: they
share cores, memory and links.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import gt
from gt import config
from gt.client.session.session import Session
from gt.command_line import Parser
from gt.errors import ArgumentError, GTError, ServerError
from gt.solver.hardware import Curve, Hardware, Link, is_off, read_off, rising
from gt.solver.probes import FULL, KINDS, LARGE_NBYTES, QUICK, Effort, Probes
from gt.solver.rehearsal import learned, rehearse
from gt.solver.solve import candidate_meshes

FORMAT = 12  #: of the files; other ones are not read.
LIMIT_S = 120.0  #: The longest that measuring may take.
BUDGET_S = 10.0  #: After so long only what is needed is measured: collectives between all workers.
AGAIN_S = 3600.0  #: The time after which bad predictions have a file measured again.
CACHED_NBYTES = 1 << 21  #: So many bytes are read and written in a core's own cache.
DTYPES = {2: gt.bfloat16, 4: gt.float32, 8: gt.float64}  #: By their bytes: those whose products are measured.


class MeasuredWorker(msgspec.Struct, frozen=True, order=True):
    """What a worker is, as far as measurements depend on it."""

    host: str
    engine: str
    device: str
    memory: int


class Measured(msgspec.Struct):
    """The content of a file."""

    format: int
    version: str  #: of GT
    workers: tuple[MeasuredWorker, ...]
    hardware: Hardware
    measured_s: float  #: when; seconds since 1970
    took_s: float
    alone: int = 0  #: Steps on one worker that predictions were compared with,
    several: int = 0  #: and steps on several.


# -- what users call -------------------------------------------------------------------------------------------------


def hardware_for(
    where: Session | str, workers: int, again: bool = False, token: str | None = None, quick: bool = False
) -> Hardware:
    """The hardware of so many workers of a server: read from a file, or measured now, by a process of its own.

    `where` is a session, or the address of a server. `again`: measure in any case. `quick`: less exactly, for tests.
    """
    address = where if isinstance(where, str) else where.address
    shown = address.partition("#")[0]  # what follows is a key
    if not address:
        raise ArgumentError("hardware='measured': this session has no server that another process could join")
    if token is None and isinstance(where, Session):
        token = where.config.token
    command = [sys.executable, "-m", "gt.solver.calibrate", "--workers", str(workers), "--json"]
    command += ["--again"] * again + ["--quick"] * quick
    # Not among the arguments, which other users could see.
    changes = {"server": address, "auto_shard": 0, "signals": "", **({} if token is None else {"token": token})}
    try:
        done = subprocess.run(
            command, env=config.environment(**changes), stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise ServerError(f"hardware='measured': {shown} was not measured within {LIMIT_S:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ServerError(f"hardware='measured': {lines[-1] if lines else 'measuring failed'}")
    return msgspec.json.decode(done.stdout, type=Hardware)


def note_step(hardware: Hardware, predicted_us: float, measured_us: float, workers: int) -> bool:
    """A step on so many workers took `measured_us` where `predicted_us` was predicted with this hardware. The file of
    the hardware keeps that, and later predictions are corrected: those for one worker, or those for several, which wait
    for each other, and on a busy machine for a long time. Returns whether to measure again: the prediction is off by
    more than half, and the last measurement is not of this hour."""
    found = _read(_folder() / f"{hardware.name}.json")
    if found is None or predicted_us <= 0 or measured_us <= 0:
        return False
    ratio = measured_us / (predicted_us / hardware.busy(workers).correction)  # to what was predicted without
    if workers == 1:
        found.alone += 1
    else:
        found.several += 1
    weight = max(1 / (found.alone if workers == 1 else found.several), 0.2)  # the latest steps count most
    factor = found.hardware.busy(workers).correction ** (1 - weight) * ratio**weight
    found.hardware = corrected(found.hardware, factor, workers)
    _write(found)
    return is_off(predicted_us, measured_us) and time.time() - found.measured_s > AGAIN_S


def kept(name: str) -> Hardware | None:
    """The hardware that was measured under this name, if its file is there."""
    found = _read(_folder() / f"{name}.json") if re.fullmatch(r"[\w-]+", name) else None
    return found.hardware if found is not None else None


def corrected(hardware: Hardware, factor: float, workers: int) -> Hardware:
    """The same hardware, with predictions that are so many times as long: those for one worker, if `workers` is 1, or
    those for several."""
    among = {
        n: dataclasses.replace(each, correction=factor) if (n == 1) == (workers == 1) else each
        for n, each in hardware.among.items()
    }
    own = factor if workers > 1 or not among else hardware.correction  # without others it is that of one worker
    return dataclasses.replace(hardware, correction=own, among=among)


# -- files -----------------------------------------------------------------------------------------------------------


def _folder() -> Path:
    return config.cache_folder(config.load().cache_dir) / "hardware"


def name_of(workers: Sequence[MeasuredWorker]) -> str:
    """The name of a set of workers: "2-torch-cpu-1f0c39a2"."""
    digest = hashlib.sha256(msgspec.json.encode([gt.__version__, FORMAT, sorted(workers)])).hexdigest()[:8]
    kinds = "-".join(dict.fromkeys(f"{w.engine}-{w.device.split(':')[0]}" for w in workers))
    return f"{len(workers)}-{''.join(c if c.isalnum() else '-' for c in kinds)[:60]}-{digest}"


def _read(path: Path) -> Measured | None:
    """A file that was written here; None if there is none, or it is of no use."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return None
    good = found.format == FORMAT and found.version == gt.__version__ and is_sound(found.hardware)
    return found if good else None


def _write(found: Measured) -> None:
    """Write a file as a whole. Where that is not possible, it is measured again the next time."""
    folder = _folder()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=folder, prefix=".", suffix=".json")
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(found), indent=1))
            os.replace(name, folder / f"{found.hardware.name}.json")
        except OSError:
            os.unlink(name)
            raise


def is_sound(hardware: Hardware) -> bool:
    """Whether all numbers are such as can be measured: a file may have been changed by hand."""
    curves = [hardware.memory, *hardware.collectives.values(), *hardware.ops.values()]
    curves += [hardware.new_memory] if hardware.new_memory else []
    rates = [*hardware.flops.values(), hardware.memory_bandwidth, hardware.inside.bandwidth, hardware.between.bandwidth]
    return (
        all(
            0 < x < math.inf
            for x in (
                *rates,
                hardware.memory_nbytes,
                hardware.correction,
                *[us for c in hardware.ops.values() for _, us in c],
            )
        )
        and all(0 <= x < math.inf for x in (hardware.launch_us, hardware.call_us))
        and 0 <= hardware.blocking <= 1
        and all(curve and list(curve) == sorted(set(curve)) for curve in curves)
        and all(0 <= us < math.inf and nbytes >= 0 for curve in curves for nbytes, us in curve)
        and all(map(is_sound, hardware.among.values()))
    )


# -- measuring -------------------------------------------------------------------------------------------------------


def workers_of(session: Session) -> list[MeasuredWorker]:
    """The workers of a server, in the order of their numbers."""
    stats = session.stats()["workers"]
    rows = [stats[number] for number in sorted(stats, key=int)]
    return [MeasuredWorker(w["host"], w["engine"], w["device"], w["memory"]) for w in rows]


def measure(workers: Sequence[MeasuredWorker], effort: Effort = FULL, budget_s: float = BUDGET_S) -> Hardware:
    """Measure so many workers: the current session takes them, one number after the other."""
    probes, until_s = Probes(effort), time.monotonic() + budget_s
    counts = [len(workers)]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    found: dict[int, Hardware] = {}
    with gt.no_grad():
        for count in sorted(counts):
            found[count] = _measure(probes, workers, count, found, until_s)
    return dataclasses.replace(found.pop(len(workers)), among=found)


def _measure(
    probes: Probes, workers: Sequence[MeasuredWorker], count: int, known: Mapping[int, Hardware], until_s: float
) -> Hardware:  # fmt: skip
    """The hardware if so many workers are busy. It is known already of fewer."""
    one = known.get(1)
    probes.arrange(x=count)
    effort = probes.effort
    per_node = min([sum(w.host == each.host for w in workers) for each in workers])
    most = min(count, max(sum(w.host == each.host for w in workers) for each in workers))
    flops: dict[int, float] = {}
    if one is None:
        memory = rising([(float(nbytes), probes.kernel_us(nbytes)) for nbytes in effort.traffic])
        for size, dtype in DTYPES.items():
            work = 2.0 * effort.width**3
            took = probes.matmul_us(dtype, effort.width, effort.width) - read_off(memory, 3.0 * size * effort.width**2)
            flops[size] = work / max(took, 0.01) * 1e6
    else:  # at worst as slow as if those that share a host took turns
        busy, loading = (min(max(ratio, 1.0), most) for ratio in probes.slowdowns())
        loading = max(busy, loading)
        memory = tuple([(n, us * (busy if n <= CACHED_NBYTES else loading)) for n, us in one.memory])
        flops = {size: rate / busy for size, rate in one.flops.items()}
    made = Hardware(
        name=name_of(workers), workers_per_node=per_node, flops=flops, memory=memory,
        memory_bandwidth=memory[-1][0] / memory[-1][1] * 1e6, launch_us=memory[0][1], call_us=probes.call_us(),
        inside=Link(0.0, math.inf), between=Link(0.0, math.inf), memory_nbytes=_memory(workers), ops={},
    )  # fmt: skip
    if effort is FULL:
        extra = probes.new_memory_us(made)
        made = dataclasses.replace(made, new_memory=((LARGE_NBYTES - 1.0, 0.0), (LARGE_NBYTES + 0.0, extra)))
    if one is None:
        made = dataclasses.replace(made, ops=probes.op_times(made), inside=Link(1.0, 1e9), between=Link(1.0, 1e9))
        return learned(made, rehearse(probes, made, 1), None) if effort is FULL and probes.on_cpus else made
    curves: dict[str, Curve] = {}
    for mesh in candidate_meshes(count, made, fewer=False):
        probes.arrange(**mesh.sizes)
        for axis, p in mesh.axes:
            stride = math.prod(n for a, n in mesh.axes[list(mesh.sizes).index(axis) + 1 :])
            for kind in KINDS:
                key = f"{kind} {p} {stride}"
                if key not in curves and (p == count or time.monotonic() < until_s):
                    points = [probes.collective_us(kind, axis, n, made) for n in effort.sizes]
                    curves[key] = rising([point for point in points if not math.isnan(point[1])], steepest=1.5)
                elif key not in curves and p in known:  # as between so many alone, and slower as kernels are
                    slower = known[p].flops[4] / made.flops[4]
                    alone = known[p].collectives.get(f"{kind} {p} 1", ())
                    curves[key] = tuple([(n, us * slower) for n, us in alone])
    link, factors = fit_links(curves, count)
    ops = {name: tuple([(x * busy, us * busy) for x, us in curve]) for name, curve in one.ops.items()}
    made = dataclasses.replace(made, collectives={k: c for k, c in curves.items() if c}, ops=ops, inside=link,
                               between=link, factors=factors)  # fmt: skip
    blocking = probes.blocking()
    made = dataclasses.replace(made, blocking=blocking, overlap=1 - blocking)
    return learned(made, rehearse(probes, made, count), one) if effort is FULL and probes.on_cpus else made


def fit_link(curve: Sequence[tuple[float, float]]) -> Link:
    """The latency and the bandwidth with which times are closest to measured ones, by their ratios.

    >>> link = fit_link([(1e3, 101.0), (1e5, 200.0), (1e6, 1100.0), (1e7, 10100.0)])
    >>> round(link.latency_us), round(link.bandwidth / 1e6)
    (100, 1000)
    """
    # Least squares of (latency + nbytes * slope) / us - 1.
    aa = sum(1 / us**2 for _, us in curve)
    ab = sum(n / us**2 for n, us in curve)
    bb = sum(n * n / us**2 for n, us in curve)
    a, b = sum(1 / us for _, us in curve), sum(n / us for n, us in curve)
    det = aa * bb - ab * ab
    slope = (aa * b - ab * a) / det if det > 1e-9 * aa * bb else 0.0
    latency = (a - slope * ab) / aa
    if latency < 0:
        latency, slope = 0.0, b / bb
    return Link(latency, 1e6 / slope if slope > 0 else 1e12)


def fit_links(curves: dict[str, Any], count: int) -> tuple[Link, dict[str, float]]:
    """For groups that were not measured: a link, and how many times as long each kind takes."""
    links = {kind: fit_link(curves[f"{kind} {count} 1"]) for kind in KINDS if curves.get(f"{kind} {count} 1")}
    if "all_reduce" not in links:
        return Link(1.0, 1e9), {}
    share = (count - 1) / count
    bandwidth = 2 * share * links["all_reduce"].bandwidth  # a worker receives that much
    bytes_of = {"all_reduce": 2 * share, "all_gather": share, "all_to_all": 1.0}
    factors = {kind: bandwidth / (bytes_of[kind] * link.bandwidth) for kind, link in links.items()}
    return Link(links["all_reduce"].latency_us, bandwidth), factors


def _memory(workers: Sequence[MeasuredWorker]) -> int:
    """The memory of a worker. Workers on the CPU of one host share it."""
    return min(
        w.memory // (sum(w.host == each.host for each in workers) if w.device == "cpu" else 1) for w in workers
    ) or 1 << 30  # fmt: skip


# -- the process -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the workers of a server, or read what was measured, and print it."""
    parser = Parser(prog="python -m gt.solver.calibrate", description="Measure the workers of a server.")
    parser.add_argument(
        "--server", default="", metavar="ADDRESS", help="host:port or ipc:///path; by default GT_SERVER"
    )
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="how many of them; by default all")
    parser.add_argument("--again", action="store_true", help="measure even if there is a file")
    parser.add_argument("--quick", action="store_true", help="measure less exactly")
    parser.add_argument("--json", action="store_true", help="print the hardware as JSON")
    args = parser.parse_args(arguments)
    try:
        found = _find(args.server or config.load().server, args.workers, args.again, QUICK if args.quick else FULL)
    except GTError as error:
        print(f"gt: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    if args.json:
        sys.stdout.buffer.write(msgspec.json.encode(found.hardware) + b"\n")
    else:
        print(shown(found))
    return 0


def _find(address: str, count: int, again: bool, effort: Effort) -> Measured:
    session = gt.connect(address, mesh={"x": 1})  # one worker, also where GT_AUTO_SHARD takes all
    try:
        all_workers = workers_of(session)
        if not 0 <= count <= len(all_workers):
            raise ArgumentError(f"{count} workers are to be measured; this server has {len(all_workers)}")
        workers = all_workers[: count or None]
        found = None if again else _read(_folder() / f"{name_of(workers)}.json")
        if found is None:
            began = time.monotonic()
            hardware = measure(workers, effort)
            took_s = time.monotonic() - began
            # The steps of the rehearsal count as one of each kind.
            found = Measured(FORMAT, gt.__version__, tuple(workers), hardware, time.time(), took_s, 1, 1)
            _write(found)
        return found
    finally:
        gt.disconnect()


def shown(found: Measured) -> str:
    """What was measured, for people."""
    h = found.hardware
    several = f" on several workers, {h.busy(1).correction:.2f} on one" if h.among else ""
    seen = f"steps take {h.correction:.2f} of what is predicted{several}"
    lines = [f"{h.name}: measured in {found.took_s:.1f} s; {seen}"]
    for count, each in sorted([*h.among.items(), (len(found.workers), h)]):
        rates = ", ".join(f"{each.flops[n] / 1e9:.0f}" for n in sorted(each.flops))
        lines.append(f"{count} busy: {rates} GFLOP/s with 2, 4, 8 bytes; a kernel at least {each.launch_us:.1f} us, "
                     f"a call {each.call_us:.0f} us; collectives block {each.blocking:.0%}")  # fmt: skip
        lines.append("  memory " + _shown_curve(each.memory))
        lines += [f"  {key} " + _shown_curve(curve) for key, curve in each.collectives.items()]
    return "\n".join(lines)


def _shown_curve(curve: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{nbytes / 1e6:.3g} MB {us:.0f} us" for nbytes, us in curve)


if __name__ == "__main__":
    sys.exit(main())
