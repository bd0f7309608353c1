"""`python -m tests.conformance [NAME ...]`: the table of names, samples passed / applicable / exempt."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from tests.conformance.names import EXEMPT, find
from tests.conformance.running import DTYPES, Result, database, run

_DATABASE: dict[str, list[Any]] = {}


def _run(job: tuple[str, tuple[str, ...], int, bool]) -> Result:
    name, dtypes, limit, gradients = job
    if not _DATABASE:
        torch.set_num_threads(1)
        _DATABASE.update(database())
    return run(name, _DATABASE[name], dtypes, limit, gradients)


def main() -> int:
    """Run what was asked for, print the table, fail if a sample does."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("names", nargs="*", help="names of torch's database; all, if none is given")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--limit", type=int, default=0, help="samples for each dtype and variant; all, if 0")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--list", metavar="PREFIX", help="print the names that begin so, with what GT has, and stop")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("-v", action="store_true", help="print every failure, not the first three of a name")
    options = parser.parse_args()
    names = database()
    if options.list is not None:
        for name in sorted(names):
            if name.startswith(options.list):
                found = find(name)
                print(
                    name, "exempt" if name in EXEMPT else "MISSING" if not found else ["fallback", "native"][found[1]]
                )
        return 0
    unknown = [n for n in options.names if n not in names]
    if unknown:
        print(f"not in the database: {', '.join(unknown)}", file=sys.stderr)
        return 2
    chosen = sorted(options.names or names)
    jobs = [(n, tuple(options.dtypes.split(",")), options.limit, not options.no_gradients) for n in chosen]
    began = time.monotonic()
    results: list[Result] = []
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            for r in pool.map(_run, jobs, chunksize=4):
                results.append(r)
                _show(r, options.v)
    else:
        for job in jobs:
            results.append(_run(job))
            _show(results[-1], options.v)
    _summary(results, time.monotonic() - began)
    if options.json:
        with open(options.json, "w") as file:
            json.dump([vars(r) for r in results], file, indent=1)
    return 0 if all(r.ok or r.name in EXEMPT for r in results) else 1


def _show(r: Result, every: bool) -> None:
    kind = "exempt" if r.name in EXEMPT else "MISSING" if r.missing else "native" if r.native else "fallback"
    reasons = ", ".join(f"{n} {reason}" for reason, n in r.exempt.items())
    mark = "" if r.ok or r.name in EXEMPT else "  <--"
    print(f"{r.name:45} {kind:9} {r.passed:5} / {r.applicable:<5} {reasons}{mark}", flush=True)
    for line in r.failures if every else r.failures[:3]:
        print("     ", line, flush=True)


def _summary(results: list[Result], seconds: float) -> None:
    good = [r for r in results if r.ok and r.name not in EXEMPT]
    native = sum(r.native for r in good)
    exempt = sum(r.name in EXEMPT for r in results)
    missing = sum(r.missing for r in results)
    samples = sum(r.passed for r in results)
    applicable = sum(r.applicable for r in results)
    print(
        f"{len(results)} names: {len(good)} pass in full ({native} natively), {exempt} exempt, {missing} missing, "
        f"{len(results) - len(good) - exempt - missing} fail; {samples} of {applicable} samples, {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
