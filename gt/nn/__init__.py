"""Modules, losses and their functions, named and shaped as in torch.nn."""

from gt.client.tensor import Parameter
from gt.nn import functional
from gt.nn.layers import (
    GELU,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)  # fmt: skip
from gt.nn.losses import BCELoss, BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from gt.nn.module import Module, ModuleList, Sequential

__all__ = [
    "GELU", "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "Identity",
    "L1Loss", "LayerNorm", "Linear", "LogSoftmax", "MSELoss", "Module", "ModuleList", "NLLLoss", "Parameter", "ReLU",
    "Sequential", "SiLU", "Sigmoid", "Softmax", "Tanh", "functional",
]  # fmt: skip
