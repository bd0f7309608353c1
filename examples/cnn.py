"""A convolutional network tells drawn shapes apart: `python examples/cnn.py [STEPS]`.

Squares, discs, crosses and stripes of any place and size are drawn on the workers, with noise; nothing is downloaded.
Batch norm, pooling, train() and eval(), as everywhere. About half a minute on two cores.
"""

import sys

import gt
from gt import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
SIZE, BATCH = 24, 64
NAMES = ("square", "disc", "cross", "stripes")


def draw(n):
    """n noisy pictures (n, 1, SIZE, SIZE), and what is on each."""
    kind = gt.randint(0, len(NAMES), (n,))
    x, y = gt.rand(n, 1, 1) * 8 + 8, gt.rand(n, 1, 1) * 8 + 8  # the middle
    r = gt.rand(n, 1, 1) * 4 + 3
    across, down = gt.arange(SIZE).view(1, 1, -1) - x, gt.arange(SIZE).view(1, -1, 1) - y
    within = (across.abs() < r) & (down.abs() < r)
    shapes = gt.stack(
        [
            within,
            across**2 + down**2 < r**2,
            within & ((across.abs() < 1.5) | (down.abs() < 1.5)),
            within & (down.floor() % 4 < 2),
        ],
        dim=1,
    ).float()  # (n, kinds, SIZE, SIZE)
    picture = shapes[gt.arange(n), kind].unsqueeze(1)
    return picture + gt.randn(n, 1, SIZE, SIZE) * 0.3, kind


def block(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)
    )


gt.manual_seed(0)
model = nn.Sequential(
    block(1, 16), block(16, 32), block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(NAMES))
)
optimizer = gt.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
loss_of = nn.CrossEntropyLoss()


@gt.no_grad()
def accuracy(n=512):
    model.eval()
    pictures, kind = draw(n)
    right = (model(pictures).argmax(1) == kind).float().mean().item()
    model.train()
    return 100 * right


print(f"accuracy {accuracy():.1f}% before")
for step in range(STEPS):
    pictures, kind = draw(BATCH)
    loss = loss_of(model(pictures), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % max(1, STEPS // 10) == 0 or step == STEPS - 1:
        print(f"step {step:4}  loss {loss.item():.4f}")
print(f"accuracy {accuracy():.1f}% after")

pictures, kind = draw(4)
guess = model.eval()(pictures).argmax(1).tolist()
for picture, drawn, said in zip(pictures.squeeze(1).tolist(), kind.tolist(), guess, strict=True):
    print(f"\na {NAMES[drawn]}, called a {NAMES[said]}")
    for row in picture[::2]:
        print("  " + "".join(" .:#"[min(3, max(0, int(v * 4)))] * 2 for v in row[::2]))
