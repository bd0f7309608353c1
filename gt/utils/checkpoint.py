"""torch.utils.checkpoint's functions."""

from gt.client.grad.checkpoint import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
