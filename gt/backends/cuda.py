"""The flags of torch.backends.cuda. `matmul.allow_tf32` decides whether float32 products may use TF32. The others, such
as the choice of attention kernel, have no effect."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gt.client.programs.tree import current_precision
from gt.client.session.connecting import choose_precision
from gt.errors import ArgumentError


class _Matmul:
    """Precision of matrix products, as set by `gt.set_float32_matmul_precision`."""

    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True

    @property
    def allow_tf32(self) -> bool:
        return current_precision().product != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        choose_precision(product="high" if allow else "highest")

    @property
    def fp32_precision(self) -> str:
        return "tf32" if self.allow_tf32 else "ieee"

    @fp32_precision.setter
    def fp32_precision(self, word: str) -> None:
        if word not in ("tf32", "ieee", "none"):
            raise ArgumentError(f"fp32_precision must be 'tf32', 'ieee' or 'none', got {word!r}")
        self.allow_tf32 = word == "tf32"


matmul = _Matmul()


def is_built() -> bool:
    """Whether GT supports CUDA: always."""
    return True


def enable_flash_sdp(enabled: bool) -> None:
    """Does nothing: the worker chooses the attention kernel."""


def flash_sdp_enabled() -> bool:
    """Whether a worker may use this attention kernel: always."""
    return True


enable_mem_efficient_sdp = enable_math_sdp = enable_cudnn_sdp = enable_flash_sdp
mem_efficient_sdp_enabled = math_sdp_enabled = cudnn_sdp_enabled = flash_sdp_enabled


def sdp_kernel(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
    """A context manager without effect: the worker chooses the attention kernel."""
    return nullcontext()
