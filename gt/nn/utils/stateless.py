"""The names of torch.nn.utils.stateless."""

from gt.client.grad.transforms import functional_call

__all__ = ["functional_call"]
