"""For all tests: nothing is compiled in the background, unless a test wants it."""

from __future__ import annotations

import os

os.environ.setdefault("GT_AUTO_COMPILE", "0")
