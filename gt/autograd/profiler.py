"""The names of torch.autograd.profiler, the same as in gt.profiler."""

from gt.profiler import profile, record_function

__all__ = ["profile", "record_function"]
