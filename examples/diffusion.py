"""A diffusion model learns where points are: `python examples/diffusion.py [STEPS] [PICTURE.png]`.

The points are on the letters G and T. Noise is added to them in many small steps; a network learns to tell the noise
from the point and the time, and then leads new noise back to the letters. The picture shows it at five
times. About a minute on two cores.
"""

import math
import struct
import sys
import zlib
from itertools import pairwise

import numpy as np

import gt
from gt import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
FILE = sys.argv[2] if len(sys.argv) > 2 else "diffusion.png"
TIMES, BATCH, WIDTH = 100, 512, 128

betas = gt.linspace(1e-3, 0.12, TIMES)
kept = (1 - betas).cumprod(0)  # (TIMES,): how much of the point is left

# Strokes of the two letters, as lines from here to there.
G = [*pairwise(np.linspace(0.9, 5.4, 12))]
LINES = [((-1.1 + 0.8 * math.cos(a), math.sin(a)), (-1.1 + 0.8 * math.cos(b), math.sin(b))) for a, b in G]
LINES += [((-0.55, -0.75), (-0.55, -0.1)), ((-0.55, -0.1), (-1.0, -0.1))] * 2  # the bar of the G
LINES += [((0.3, 0.95), (1.9, 0.95)), ((1.1, 0.95), (1.1, -1.0))] * 3  # the T, more often: its strokes are longer
strokes = gt.tensor(LINES)  # (L, 2, 2)


def points(n):
    """n points on the letters."""
    line = strokes[gt.randint(0, len(LINES), (n,))]  # (n, 2, 2)
    along = gt.rand(n, 1)
    return line[:, 0] * (1 - along) + line[:, 1] * along + gt.randn(n, 2) * 0.02


class Noise(nn.Module):
    """Which noise was added, from a noisy point and the time."""

    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(TIMES, WIDTH)
        self.first = nn.Linear(2, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x, t):
        h = self.first(x) + self.time(t)
        for layer in self.layers:
            h = h + layer(nn.functional.silu(h))
        return self.last(nn.functional.silu(h))


gt.manual_seed(0)
model = Noise()
optimizer = gt.optim.AdamW(model.parameters(), lr=2e-3)
schedule = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
average = gt.optim.swa_utils.AveragedModel(model, multi_avg_fn=gt.optim.swa_utils.get_ema_multi_avg_fn(0.995))

for step in range(STEPS):
    x, noise, t = points(BATCH), gt.randn(BATCH, 2), gt.randint(0, TIMES, (BATCH,))
    left = kept[t].unsqueeze(1)
    loss = nn.functional.mse_loss(model(x * left.sqrt() + noise * (1 - left).sqrt(), t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    average.update_parameters(model)
    if step % max(1, STEPS // 10) == 0 or step == STEPS - 1:
        print(f"step {step:5}  loss {loss.item():.4f}")


@gt.no_grad()
def sample(n):
    """n points led back from noise, seen at five times."""
    x, seen = gt.randn(n, 2), []
    for t in reversed(range(TIMES)):
        if t in (TIMES - 1, 60, 30, 12):
            seen.append(x.numpy())
        noise = average(x, gt.full((n,), t))
        beta, left = betas[t], kept[t]
        x = (x - noise * beta / (1 - left).sqrt()) / (1 - beta).sqrt()
        if t:
            x = x + gt.randn(n, 2) * beta.sqrt()
    return [*seen, x.numpy()]


def save_picture(file, frames, size=240):
    """A PNG of the points, one square after the other."""
    sheet = np.full((size, size * len(frames)), 255, np.uint8)
    for k, frame in enumerate(frames):
        column, row = ((frame * [1, -1] + 2.3) / 4.6 * size).astype(int).T
        inside = (column > 0) & (column < size - 1) & (row > 0) & (row < size - 1)
        for dx in (0, 1):
            sheet[row[inside], column[inside] + dx + k * size] = 30
        sheet[:, k * size] = 180
    rows = b"".join(b"\0" + line.tobytes() for line in sheet)
    with open(file, "wb") as out:
        out.write(b"\x89PNG\r\n\x1a\n")
        head = struct.pack(">IIBBBBB", sheet.shape[1], sheet.shape[0], 8, 0, 0, 0, 0)
        for name, body in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
            out.write(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)))


frames = sample(2000)
save_picture(FILE, frames)
nearest = np.min([np.linalg.norm(frames[-1] - p, axis=1) for p in points(2000).numpy()], axis=0)
print(f"{FILE}: 2000 points; {100 * (nearest < 0.1).mean():.0f}% of them within 0.1 of the letters")
