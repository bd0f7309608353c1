"""A small network learns to tell three spirals apart: `python examples/mlp.py [STEPS]`.

Nothing needs to run beforehand: the first tensor starts a private server on this machine, and it is gone
when the script ends.
"""

import sys

import gt
from gt import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
BATCH = 64


def spirals(n):
    """n points on three arms, and the arm each is on."""
    arm = gt.randint(0, 3, (n,))
    r = gt.rand(n)
    angle = 4 * r + arm * 2.1 + 0.15 * gt.randn(n)
    return gt.stack([r * angle.sin(), r * angle.cos()], dim=1), arm  # (n, 2), (n,)


def accuracy(model, x, y):
    with gt.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


gt.manual_seed(0)
X, Y = spirals(8192)
X_test, Y_test = spirals(2048)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = gt.optim.AdamW(model.parameters(), lr=3e-3)

print(f"before: accuracy {accuracy(model, X_test, Y_test):.1%}")
for step in range(STEPS):
    i = step * BATCH % len(X)
    loss = nn.functional.cross_entropy(model(X[i : i + BATCH]), Y[i : i + BATCH])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % (STEPS // 10 or 1) == 0:
        print(f"step {step:5d}  loss {loss.item():.4f}")
print(f"after {STEPS} steps: accuracy {accuracy(model, X_test, Y_test):.1%}")

counts = gt.debug.get_client_stats()
print(f"{counts['calls']} calls of {counts['programs_sent']} programs")
