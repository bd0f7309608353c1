"""torch.cuda.amp's names; gt.amp has the same ones."""

from gt.amp import GradScaler, autocast

__all__ = ["GradScaler", "autocast"]
