"""Training that survives its client: `python examples/reattach.py localhost:12345 [STEPS]`.

Start a server first: `gt serve --workers auto`. Then kill this script (Ctrl-C, kill -9) and start it again: it goes on
with the next step, and the numbers are those of a run that nobody has killed. Nothing is written to a disk: model,
optimizer, scheduler and random numbers stay on the workers, in the session "reattach".
"""

import sys

import gt
from gt import nn

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "localhost:12345"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
gt.connect(ADDRESS, session="reattach")

gt.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = gt.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)


def keep(step):
    """All that the next client needs to go on from here."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    gt.keep("training", {**state, "random": gt.get_rng_state(), "step": step})


first = 0
if "training" in gt.kept():
    state = gt.kept("training")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    gt.set_rng_state(state["random"])
    first = state["step"]
    print(f"continuing after step {first}")

for step in range(first + 1, STEPS + 1):
    x = gt.randn(256, 2)
    y = (x[:, :1] * x[:, 1:]).sin()  # (256, 1)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 10 == 0:
        keep(step)
    if step % (STEPS // 20 or 1) == 0:
        print(f"step {step:5d}  loss {loss.item():.6f}", flush=True)
gt.drop("training")  # the next run begins anew
