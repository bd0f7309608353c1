"""What GT does during a training loop, in numbers: `python examples/show_stats.py [STEPS]`.

The client counts calls and programs; the workers report what ran, how often, on which tier, and how long.
"""

import sys

import gt
import gt.debug
from gt import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200

gt.manual_seed(0)
X, Y = gt.randn(512, 32), gt.randn(512, 1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = gt.optim.SGD(model.parameters(), lr=0.05)
for _ in range(STEPS):
    loss = nn.mse_loss(model(X), Y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"after {STEPS} steps: loss {loss.item():.4f}\n")

print("client")
for name, count in gt.debug.get_client_stats().items():
    print(f"  {name:<15} {count:8,}")

stats = gt.debug.get_worker_stats()
session = stats["session"]
print(f"\nsession {session['name']}: {session['tensors']} tensors, {session['nbytes'] / 1024:,.0f} KiB")
for number, worker in stats["workers"].items():
    print(f"\nworker {number}: {worker['engine']} on {worker['device']}, {worker['calls']} calls, ", end="")
    print(f"{worker['run_us'] / 1000:,.0f} ms of work, {worker['nbytes'] / 1024:,.0f} KiB")
    print("  program   instructions   calls   us per call   tier")
    hottest = sorted(worker["programs"].items(), key=lambda entry: -entry[1]["run_us"])
    for name, program in hottest[:5]:
        each = program["run_us"] / max(1, program["hits"])
        print(f"  {name[:8]} {program['instructions']:13} {program['hits']:7} {each:13,.0f} {program['tier']:6}")
