"""The functions of torch.utils.checkpoint."""

from gt.client.grad.checkpoint import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
