"""How long `import gt` and the first tensor take, in fresh interpreters.

Rivals: importing numpy, ml_dtypes, zmq and msgspec, which is what GT's client stands on; and, for the first
tensor, importing torch. `python benchmarks/startup.py [--quick] [--json FILE]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

from measuring import Report, arguments, in_turn

_TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"

IMPORT = "import gt"
BASE = "import numpy, ml_dtypes, zmq, msgspec"
FIRST = "import gt; gt.ones(2).numpy()"
TORCH = "import torch; torch.ones(2).numpy()"


def fresh(code: str, cache: str, engine: str = "torch") -> Callable[[], float]:
    """Seconds that this code takes in a new interpreter, whose own start is not counted.

    Bytecode is kept in a folder of the benchmark's own: also where Python is told to write none, all sides
    are read from it, and none is compiled anew each time.
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPYCACHEPREFIX": cache, "GT_ENGINE": engine}
    command = [sys.executable, "-c", _TIMED.format(code)]

    def run() -> float:
        return float(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)

    return run


def main() -> None:
    args = arguments(__doc__).parse_args()
    report = Report("startup")
    with tempfile.TemporaryDirectory(prefix="gt-") as cache:
        base, light, first, rival = (fresh(code, cache) for code in (BASE, IMPORT, FIRST, TORCH))
        numpy = fresh(FIRST, cache, "numpy")
        in_turn(1, base, light, first, rival)  # fills the cache
        base_s, gt_s = in_turn(3 if args.quick else 15, base, light)
        first_s, numpy_s, torch_s = in_turn(1 if args.quick else 3, first, numpy, rival)
    report.compare("import", "import gt, over what it stands on", gt_s * 1e3, base_s * 1e3, "ms", target=2.0, digits=0)
    what = "import and first tensor, over torch's"
    report.compare("first_tensor", what, first_s * 1e3, torch_s * 1e3, "ms", digits=0)
    report.compare("first_tensor_numpy", f"{what} (numpy engine)", numpy_s * 1e3, torch_s * 1e3, "ms", digits=0)
    report.finish(args.json)


if __name__ == "__main__":
    main()
