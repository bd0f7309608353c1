"""The functions of gt.nn.functional that torch has at its top level too, under the names that they have there."""

from gt.nn.functional import *
from gt.nn.functional import adaptive_max_pool1d_with_indices as adaptive_max_pool1d
from gt.nn.functional import affine_grid as affine_grid_generator
from gt.nn.functional.resize import grid_sampler

grid_sampler_2d = grid_sampler_3d = grid_sampler

__all__ = [
    "adaptive_avg_pool1d", "adaptive_max_pool1d", "affine_grid_generator", "alpha_dropout", "avg_pool1d", "bilinear",
    "channel_shuffle", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "cosine_similarity", "dropout", "feature_alpha_dropout", "grid_sampler", "grid_sampler_2d",
    "grid_sampler_3d", "group_norm", "layer_norm", "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool3d",
    "native_channel_shuffle", "pairwise_distance", "pixel_shuffle", "pixel_unshuffle", "rms_norm",
]  # fmt: skip
