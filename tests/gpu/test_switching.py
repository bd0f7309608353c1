"""A GPT's plain loop on two workers of one GPU: its plan changes under it, and it goes on."""

from __future__ import annotations

import pytest
import torch

from tests.processes.running import output_of

from .test_sharded import two_workers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

#: Trains until a plan was changed or kept, at least 60 steps; alone: 60 steps on one worker.
LOOP = """
import sys, numpy as np, gt
from gt.client.session.connecting import current
from tests.solver.models import LanguageModel

alone = sys.argv[1] == "alone"
if alone:
    gt.mesh(x=1)
gt.manual_seed(0)
model = LanguageModel(256, 256, 4, 4, 64, tied=False)
optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
rng = np.random.default_rng(0)
for step in range(3000):
    tokens = gt.from_numpy(rng.integers(0, 256, (16, 65)))
    scores = model(tokens[:, :-1])
    loss = gt.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    gt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 9:
        print(f"{loss.item():.6f}")
        if step >= 59 and (alone or current().stats()["session"]["plans"][0]["decision"]):
            break
print(gt.explain())
"""


def test_the_plan_of_a_gpt_changes_and_losses_stay() -> None:
    with two_workers("one", "other") as pair:
        settings = {"GT_SERVER": pair.address, "GT_AUTO_COMPILE": "0"}
        alone = output_of(["-c", LOOP, "alone"], **settings).splitlines()
        auto = {"GT_AUTO_SHARD": "1", "GT_PLAN_AFTER": "0.5", "GT_HARDWARE": "h100"}
        changed = output_of(["-c", LOOP, "auto"], 120.0, **settings, **auto)
    same = zip(alone[:6], changed.splitlines()[:6], strict=True)
    assert all(float(a) == pytest.approx(float(b), rel=1e-3) for a, b in same), (alone[:6], changed[:200])
    assert "This session has 2 workers" in changed, changed
    assert "changed" in changed, changed
