"""The names of torch.cuda.amp, the same as in gt.amp."""

from gt.amp import GradScaler, autocast

__all__ = ["GradScaler", "autocast"]
