"""One network, trained on four workers in several ways, with the same losses: `python examples/sharded.py [STEPS]`.

The loop is the same each time. What differs is how the data and the parameters are sharded over a 2 x 2 mesh of
workers. Here the workers are processes on this machine; on a machine with GPUs each takes one of them.
"""

import sys

import numpy as np

import gt
from gt import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
BATCH = 64

#: Layouts of the batch and of the parameters, by patterns of their names. What is not named is replicated.
WAYS = {
    "replicated": ({}, {}),
    "data-parallel (as DDP)": ({0: ("x", "y")}, {}),
    "parameters sharded too (as FSDP)": ({0: ("x", "y")}, {"*": {0: ("x", "y")}}),
    "tensor-parallel (as Megatron)": ({}, {"0.*": {0: ("x", "y")}, "2.weight": {1: ("x", "y")}}),
    "data over x, weights over y": ({0: "x"}, {"0.*": {0: "y"}, "2.weight": {1: "y"}}),
}


def waves(n, rng):
    """n points in the plane, and the height of a wave there."""
    x = rng.uniform(-3, 3, size=(n, 2)).astype(np.float32)
    return x, (np.sin(x[:, :1] * x[:, 1:]) + 0.1 * x[:, :1]).astype(np.float32)  # (n, 2), (n, 1)


def train(batch_layout, parameter_layouts):
    """The losses, and the first weight after the last step."""
    gt.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 1))
    if parameter_layouts:
        gt.shard_(model, parameter_layouts)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)  # after the layouts: its state takes them
    rng = np.random.default_rng(1)
    losses = []
    for _ in range(STEPS):
        x, y = (gt.from_numpy(a, layout=batch_layout) for a in waves(BATCH, rng))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return [loss.item() for loss in losses], model[0].weight


gt.gpu_workers(4)
print(gt.mesh(x=2, y=2))
for name, layouts in WAYS.items():
    losses, weight = train(*layouts)
    print(f"{name}: loss {losses[0]:.5f} to loss {losses[-1]:.5f}; the first weight has layout {weight.layout}")
gt.visualize_layout(weight)
