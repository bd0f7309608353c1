"""The names of torch.func: transforms that return the gradient of a function as a function."""

from gt.client.grad.transforms import functional_call, grad, grad_and_value, hessian, jacrev, jvp, value_and_grad, vjp

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacrev", "jvp", "value_and_grad", "vjp"]
