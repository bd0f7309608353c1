"""The names of torch.cuda.amp, the same as in gt.amp."""

from gt.amp import GradScaler, autocast, custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
