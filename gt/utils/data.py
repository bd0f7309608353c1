"""torch.utils.data is not here: it needs no GPU and no cluster, so torch's own serves, as does any other loader."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    """`from gt.utils.data import DataLoader` says what to write instead."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise ImportError(
        f"gt.utils.data has no {name}: use torch.utils.data.{name}, with torch tensors or numpy arrays in the dataset; "
        "gt.as_tensor(batch) takes what it gives"
    )
