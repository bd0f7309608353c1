"""torch.backends.cuda's flags, for products and for which kernel attention uses; they change nothing here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

matmul = SimpleNamespace(
    allow_tf32=False,
    allow_fp16_reduced_precision_reduction=True,
    allow_bf16_reduced_precision_reduction=True,
    fp32_precision="none",
)


def is_built() -> bool:
    """Whether workers may compute on CUDA."""
    return True


def enable_flash_sdp(enabled: bool) -> None:
    """Does nothing."""


def flash_sdp_enabled() -> bool:
    """Whether a worker may use that kernel: always."""
    return True


enable_mem_efficient_sdp = enable_math_sdp = enable_cudnn_sdp = enable_flash_sdp
mem_efficient_sdp_enabled = math_sdp_enabled = cudnn_sdp_enabled = flash_sdp_enabled


def sdp_kernel(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
    """Which kernel attention uses, for a while: nothing changes."""
    return nullcontext()
