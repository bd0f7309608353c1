"""A small GPT learns to write, letter by letter: `python examples/gpt.py [STEPS] [TEXT_FILE]`.

Without a file it reads GT's own documentation. Causal attention, learned positions, tied embeddings, weight decay on
matrices only, clipped gradients, a cosine schedule: the usual recipe, in plain code. About a minute on two cores.
"""

import math
import sys
from pathlib import Path

import gt
from gt import nn
from gt.nn import functional as F

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 400
ROOT = Path(__file__).parent.parent
FILES = [Path(sys.argv[2])] if len(sys.argv) > 2 else [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 32, 96, 4, 2

text = "\n".join(file.read_text() for file in FILES)
letters = sorted(set(text))
number = {c: i for i, c in enumerate(letters)}
data = gt.tensor([number[c] for c in text])  # (N,)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)  # (B, T, C) each
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in (q, k, v))  # (B, heads, T, C / heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(letters), WIDTH)
        self.positions = nn.Parameter(gt.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(letters), bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight  # tied: a letter reads as it is written

    def forward(self, i):
        x = self.tokens(i) + self.positions[: i.shape[1]]  # (B, T, C)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # (B, T, letters)


gt.manual_seed(0)
model = GPT()
matrices = [p for p in model.parameters() if p.ndim >= 2]
others = [p for p in model.parameters() if p.ndim < 2]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = gt.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
schedule = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=3e-4)

print(f"{len(text)} letters, {len(letters)} different; {sum(p.numel() for p in model.parameters())} parameters")
for step in range(STEPS):
    start = gt.randint(0, len(text) - CONTEXT - 1, (BATCH, 1))
    window = data[start + gt.arange(CONTEXT + 1)]  # (B, T + 1)
    logits = model(window[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, len(letters)), window[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % max(1, STEPS // 10) == 0 or step == STEPS - 1:
        print(f"step {step:4}  loss {loss.item():.4f}  lr {schedule.get_last_lr()[0]:.1e}")
print(f"(guessing without reading: {math.log(len(letters)):.4f})\n")

model.eval()
with gt.no_grad():
    line = gt.tensor([[number.get(c, 0) for c in "The "]])
    for _ in range(min(STEPS, 200)):
        p = (model(line[:, -CONTEXT:])[:, -1] / 0.8).softmax(-1)
        line = gt.cat([line, gt.multinomial(p, 1)], dim=1)
print("".join(letters[i] for i in line[0].tolist()))
