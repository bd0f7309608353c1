"""The user's side: tensors, recording, autograd, the session. `from gt.client import nn` works too."""

from typing import Any


def __getattr__(name: str) -> Any:
    # nn and optim are built on the client, so they are found here only when asked for.
    if name in ("nn", "optim"):
        import importlib

        return importlib.import_module(f"gt.{name}")
    raise AttributeError(f"module 'gt.client' has no attribute {name!r}")
