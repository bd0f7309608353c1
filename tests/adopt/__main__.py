"""Public models by torch and adopted, as a table: `python -m tests.adopt [part of a name ...]`; `make adopt` installs
them.

Models are tiny and randomly initialized; nothing is downloaded. Each runs in a process of its own, with a time limit,
and all share one server. `--out FILE` writes a line of JSON per model; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("GT_AUTO_COMPILE", "0")

import torch

from .compare import WATCH, NotBuilt, compare
from .packages import PACKAGES, Case, import_torchvision
from .tiny import architectures, search

Row = dict[str, Any]
Build = Callable[[], Case]


def cases(wanted: list[str]) -> Iterator[tuple[str, Build]]:
    """The cases whose names contain one of the wanted parts."""

    def meant(label: str) -> bool:
        return not wanted or any(part.lower() in label.lower() for part in wanted)

    found: list[tuple[str, Build]] = []
    for package, of in PACKAGES.items():
        try:
            found += [(f"{package} {name}", lambda case=case: case) for name, case in of().items()]
        except ImportError as e:
            print(f"{package}: not installed: {e}")
    import_torchvision()
    import transformers  # noqa: F401  # once, and not in each process

    found += [(f"transformers {name}", lambda name=name: search(name)) for name in architectures()]
    return ((label, build) for label, build in found if meant(label))


def one(build: Build) -> Row:
    """Compare one model; in a process of its own."""
    try:
        try:
            make, batch = build()
        except NotBuilt:
            raise
        except Exception as e:
            raise NotBuilt(f"torch: {type(e).__name__}: {e}") from e
        outcome = compare(make, batch, steps=4)
        found = "float32"
        if not outcome.equal and not outcome.missing:
            # Many layers and a tiny batch enlarge differences of rounding.
            for still in (False, True):
                again = compare(make, batch, steps=4, double=True, still=still)
                if again.equal:
                    outcome, found = again, "float64 in evaluation" if still else "float64"
                    break
    except NotBuilt as e:
        return {"status": "not built", "reason": str(e)[:300]}
    except Exception as e:
        text = str(e).strip().splitlines()
        if os.environ.get("ADOPT_VERBOSE"):
            traceback.print_exc()
        return {"status": "no", "reason": f"{type(e).__name__}: {' '.join(text)[:300]}"}
    calls, programs = outcome.steps[-1]
    row = {"status": "yes" if outcome.equal else "no", "calls": calls, "programs": programs, "in": found}
    return {**row, "reason": "" if outcome.equal else outcome.reason}


def forked(build: Build, limit_s: int) -> Row:
    """The same in a child process, which is killed after a time."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            if not os.environ.get("ADOPT_VERBOSE"):
                os.dup2(nothing.fileno(), 2)
        signal.alarm(limit_s)
        WATCH.append(lambda: os.write(writing, b" "))
        try:
            row = one(build)
        except BaseException as e:
            row = {"status": "no", "reason": f"{type(e).__name__}: {e}"}
        os.write(writing, json.dumps(row).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text.strip():
        found: Row = json.loads(text)
        return found
    why = f"more than {limit_s} s" if os.WTERMSIG(status) == signal.SIGALRM else "it crashed"
    return {"status": "no", "reason": why} if text else {"status": "not built", "reason": f"torch: {why}"}


def serve() -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "gt.cli.main", "serve", "-p", str(port), "--workers", "1"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), f"127.0.0.1:{port}"


def main() -> int:
    """Compare them; returns 1 if fewer than 98 of 100 are equal."""
    parser = argparse.ArgumentParser(prog="python -m tests.adopt")
    parser.add_argument("wanted", nargs="*")
    parser.add_argument("--limit", type=int, default=120, help="seconds for one model")
    parser.add_argument("--out", help="a file of results; what it has already is not run again")
    parser.add_argument("--exact", action="store_true", help="the names are whole names")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done: dict[str, Row] = {}
    if given.out and os.path.exists(given.out):
        with open(given.out) as file:
            done = {row["name"]: row for row in map(json.loads, file)}
    server, address = serve()
    os.environ["GT_SERVER"] = address
    counts: Counter[str] = Counter()
    try:
        print(f"{'model':52} {'equal':9} {'calls':>5} {'programs':>8}  reason")
        for label, build in cases(given.wanted):
            if given.exact and label not in given.wanted:
                continue
            row = done.get(label)
            if row is None:
                start = time.monotonic()
                row = {"name": label, **forked(build, given.limit)}
                row["seconds"] = round(time.monotonic() - start, 1)
                if given.out:
                    with open(given.out, "a") as file:
                        file.write(json.dumps(row) + "\n")
            counts[row["status"]] += 1
            print(
                f"{label:52} {row['status']:9} {row.get('calls', ''):>5} {row.get('programs', ''):>8}  {row['reason']}",
                flush=True,
            )
    finally:
        server.terminate()
        server.wait()
    total = counts["yes"] + counts["no"]
    print(f"{counts['yes']} of {total} equal; torch built no tiny model of {counts['not built']} others")
    return 0 if total and counts["yes"] >= 0.98 * total else 1


if __name__ == "__main__":
    sys.exit(main())
