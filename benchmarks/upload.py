"""What one client feels of another's upload: op-and-fetch, idle and during 1 GiB uploads to the same server.

`python benchmarks/upload.py [--tcp] [--quick] [--json FILE]`. All of it on one machine, over a Unix socket, where
large tensors go through shared memory; with --tcp over a port, where their bytes go through the dispatcher.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

from measuring import Report, arguments, quantile

import gt

GIB = 1 << 30

#: The other client: for each line uploads as many bytes as it says, and answers when they are on the worker.
UPLOADER = """
import sys, numpy, gt
gt.connect(sys.argv[1])
for line in sys.stdin:
    gt.from_numpy(numpy.ones(int(line), dtype=numpy.uint8))[0].item()
    print("done", flush=True)
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "GT_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def op_and_fetch(x: Any) -> float:
    begin = time.perf_counter()
    (x + 1.0).numpy()
    return time.perf_counter() - begin


def during(upload: subprocess.Popen[str], nbytes: int, x: Any) -> list[float]:
    """Samples taken from the beginning of an upload of this size to its end."""
    assert upload.stdin is not None
    assert upload.stdout is not None
    upload.stdin.write(f"{nbytes}\n")
    upload.stdin.flush()
    samples = []
    while not select.select([upload.stdout], [], [], 0)[0]:
        samples.append(op_and_fetch(x))
    if upload.stdout.readline() != "done\n":
        raise SystemExit("the uploading client failed")
    return samples


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tcp", action="store_true", help="over a port instead of a Unix socket")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gt-") as directory:
        measure(args, ["-p", "0"] if args.tcp else ["--address", f"ipc://{directory}/s"])


def measure(args: Any, where: list[str]) -> None:
    nbytes = GIB // 8 if args.quick else GIB
    server = start("-m", "gt.server", *where, "--workers", "1", "--engine", "torch")
    upload = None
    try:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("gt: serving on ").partition(",")[0]
        gt.connect(address)
        x = gt.ones(4)
        for _ in range(200):
            op_and_fetch(x)
        upload = start("-c", UPLOADER, address)
        during(upload, 1 << 20, x)
        idle: list[float] = []
        busy: list[float] = []
        took: list[float] = []
        for _ in range(1 if args.quick else 3):
            idle += [op_and_fetch(x) for _ in range(300 if args.quick else 1000)]
            begin = time.perf_counter()
            busy += during(upload, nbytes, x)
            took.append(time.perf_counter() - begin)
        report = Report("upload over tcp" if args.tcp else "upload", ("uploading", "idle"))
        for key, q, what, target in (("median", 0.5, "median", None), ("p99", 0.99, "p99", 5.0)):
            now, before = quantile(busy, q) * 1e6, quantile(idle, q) * 1e6
            what = f"{what} of op-and-fetch, during another's upload"
            report.compare(f"{key}_during_upload", what, now, before, "us", target, digits=0)
        report.figure("samples", "samples during uploads", len(busy), "")
        report.figure("upload_gib_per_s", "the upload meanwhile", nbytes / GIB / quantile(took, 0.5), "GiB/s", digits=2)
        report.finish(args.json)
    finally:
        gt.disconnect()
        for process in (upload, server):
            if process is not None:
                process.terminate()
                process.communicate()


if __name__ == "__main__":
    main()
