"""A placeholder for torch.utils.data: loading needs no GPU and no cluster, so use torch's own, or any other loader."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    """`from gt.utils.data import DataLoader` fails with a message that says what to use instead."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise ImportError(
        f"gt.utils.data has no {name}: use torch.utils.data.{name}, with torch tensors or numpy arrays in the dataset; "
        "gt.as_tensor(batch) converts its batches"
    )
