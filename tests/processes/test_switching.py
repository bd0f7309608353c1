"""A plain loop on two real workers, without a word about layouts: its plan is searched for, and changes under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import output_of

pytestmark = pytest.mark.processes

LOOP = """
import sys, numpy as np, gt
from gt import nn
from gt.client.session.connecting import current

gt.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
rng = np.random.default_rng(0)
until = sys.argv[1]
for step in range(2000):
    x = gt.from_numpy(rng.standard_normal((32, 256)).astype(np.float32))
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"{loss.item():.6f}")
        decisions = [row["decision"] for row in current().stats()["session"]["plans"]]
        if step >= 199 and (until == "200" or decisions[0]):
            break
print(gt.explain() if until != "200" else "")
"""


def test_the_plan_of_a_plain_loop_changes_and_losses_stay(tmp_path: Path) -> None:
    settings = {"GT_CACHE_DIR": str(tmp_path), "GT_AUTO_COMPILE": "0"}
    one = output_of(["-c", LOOP, "200"], **settings)
    log = tmp_path / "log"
    two = output_of(
        ["-c", LOOP, "decided"], 120.0, GT_AUTO_SHARD="1", GT_WORKERS="2", GT_PLAN_AFTER="0.1", GT_HARDWARE="h100",
        GT_INSTRUCTION_LOG=str(log), **settings,
    )  # fmt: skip
    same = zip(one.splitlines()[:10], two.splitlines()[:10], strict=True)
    assert all(abs(float(a) - float(b)) < 2e-5 for a, b in same)
    assert "This session has 2 workers" in two
    text = log.read_text()
    assert "Solved" in text
    assert "changes: " in text  # the prices of hardware by name do not depend on this machine
    assert "Rename" in text
