"""A plain transformer learns to sort digits: `python examples/transformer.py [STEPS]`.

A sequence is eight digits, a separator, and the same digits in order. The model reads it from left to
right and says at each place what comes next; only the sorted half can be known. Attention is written by
hand, with matmul and softmax. The step is a @gt.function: from its second call on its Python does not run,
one known program is called.

It takes half a minute on two cores. Where others use them too, GT_THREADS=1 is faster: torch's threads wait for each
other after every op.
"""

import math
import sys

import gt
from gt import nn
from gt.nn import functional as F

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 400
N, BATCH = 8, 64  # digits in a sequence, sequences in a batch
DIGITS, SEPARATOR = 10, 10
WIDTH, HEADS, LAYERS = 64, 4, 2


def batch():
    """Inputs and what comes next at each place of them."""
    digits = gt.randint(0, DIGITS, (BATCH, N))  # (B, N)
    # Sorting by counting: the k-th smallest is the number of d that at most k of the digits do not exceed.
    upto = (digits.unsqueeze(2) <= gt.arange(DIGITS)).sum(1)  # (B, DIGITS): how many are d or less
    ordered = (upto.unsqueeze(1) <= gt.arange(N).unsqueeze(1)).sum(2)  # (B, N)
    line = gt.cat([digits, gt.full((BATCH, 1), SEPARATOR), ordered], dim=1)  # (B, 2N + 1)
    return line[:, :-1], line[:, 1:]  # (B, 2N) each


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            self.qkv(x).view(B, T, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        )  # (B, heads, T, C/heads)
        scores = q @ k.transpose(-2, -1) / math.sqrt(C // HEADS)  # (B, heads, T, T)
        future = gt.ones(T, T).triu(1).bool()
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(DIGITS + 1, WIDTH)
        self.place = nn.Embedding(2 * N, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, DIGITS + 1)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(gt.arange(tokens.shape[1]))  # (B, T, C)
        return self.head(self.norm(self.blocks(x)))  # (B, T, DIGITS + 1)


gt.manual_seed(0)
model = Transformer()
optimizer = gt.optim.AdamW(model.parameters(), lr=2e-3)


@gt.function
def train_step():
    tokens, targets = batch()
    logits = model(tokens)[:, N:]  # the sorted half alone
    loss = F.cross_entropy(logits.reshape(-1, DIGITS + 1), targets[:, N:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@gt.no_grad()
def sort(digits):
    """Ask the model, one digit after the other."""
    line = gt.cat([digits, gt.full((len(digits), 1), SEPARATOR)], dim=1)
    for _ in range(N):
        line = gt.cat([line, model(line)[:, -1:].argmax(-1)], dim=1)
    return line[:, N + 1 :]


print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
for step in range(STEPS):
    optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, (step + 1) / 50) * (1 - 0.9 * step / STEPS)
    loss = train_step()
    if step % (STEPS // 10 or 1) == 0 or step == STEPS - 1:
        print(f"step {step:4d}  loss {loss.item():.4f}")

digits = gt.randint(0, DIGITS, (200, N))
answers, wanted = sort(digits).numpy(), digits.numpy()
wanted.sort(axis=1)
print(f"{digits[0].tolist()} -> {answers[0].tolist()}")
print(f"sorted without a mistake: {(answers == wanted).all(axis=1).mean():.1%} of 200 new sequences")
