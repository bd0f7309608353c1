"""The names of torch.utils.data.sampler."""

from typing import Any

from gt.utils import data


def __getattr__(name: str) -> Any:
    return getattr(data, name)
