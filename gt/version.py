"""The version of GT, and of the torch whose API it has."""

from __future__ import annotations

__all__ = ["__version__", "cuda", "debug", "git_version", "hip", "torch"]

__version__ = "0.1.0"
torch = "2.13.0"  #: The torch whose names and semantics GT follows.
debug = False
cuda: str | None = None  #: CUDA is the workers' affair; gt.cuda.is_available() says whether they have it.
hip: str | None = None
git_version = "unknown"
