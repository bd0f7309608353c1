"""torch.backends.cuda's flags. `matmul.allow_tf32` counts: whether products of float32 may use TF32. The others, as
for which kernel attention uses, change nothing here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gt.client.programs.tree import current_precision
from gt.client.session.connecting import choose_precision
from gt.errors import ArgumentError


class _Matmul:
    """How products are computed. `gt.set_float32_matmul_precision` says the same in other words."""

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
            raise ArgumentError(f"fp32_precision: 'tf32', 'ieee' or 'none', not {word!r}")
        self.allow_tf32 = word == "tf32"


matmul = _Matmul()


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
