"""How long `import gt` and the first tensor take, in fresh interpreters.

Rivals: importing numpy, ml_dtypes, zmq and msgspec, which is what GT's client stands on; and, for the first
tensor, importing torch. `python benchmarks/startup.py [--quick] [--json FILE]`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from measuring import Report, arguments, in_turn

_TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"

IMPORT = "import gt"
BASE = "import numpy, ml_dtypes, zmq, msgspec"
FIRST = "import gt; gt.ones(2).numpy()"
TORCH = "import torch; torch.ones(2).numpy()"


def fresh(code: str, engine: str = "torch") -> Callable[[], float]:
    """Seconds that this code takes in a new interpreter, whose own start is not counted."""
    import os

    def run() -> float:
        env = {**os.environ, "GT_ENGINE": engine}
        done = subprocess.run([sys.executable, "-c", _TIMED.format(code)], env=env, capture_output=True, text=True, check=True)
        return float(done.stdout)

    return run


def main() -> None:
    args = arguments(__doc__).parse_args()
    report = Report("startup")
    base, light = fresh(BASE), fresh(IMPORT)
    in_turn(2, base, light)  # the files are in memory, their bytecode is written
    base_s, gt_s = in_turn(3 if args.quick else 15, base, light)
    report.compare("import", "import gt, over what it stands on", gt_s * 1e3, base_s * 1e3, "ms", target=2.0, digits=0)
    first, numpy, rival = fresh(FIRST), fresh(FIRST, "numpy"), fresh(TORCH)
    in_turn(1, first, numpy, rival)
    first_s, numpy_s, torch_s = in_turn(1 if args.quick else 5, first, numpy, rival)
    what = "import and first tensor, over torch's"
    report.compare("first_tensor", what, first_s * 1e3, torch_s * 1e3, "ms", digits=0)
    report.compare("first_tensor_numpy", f"{what} (numpy engine)", numpy_s * 1e3, torch_s * 1e3, "ms", digits=0)
    report.finish(args.json)


if __name__ == "__main__":
    main()
