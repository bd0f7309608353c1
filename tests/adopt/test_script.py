"""`gt run`: a script for torch runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.processes

SCRIPT = """
import sys
import torch
from torch import nn, optim
from torch.distributions import Normal
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

class Points(Dataset):
    def __init__(self):
        self.x = torch.randn(64, 4)
        self.y = (self.x.sum(1) > 0).long()
        self.noise = Normal(torch.zeros(4), torch.ones(4))
    def __len__(self):
        return 64
    def __getitem__(self, i):
        assert type(self.x) is torch.Tensor  # made and collated on the host
        assert type(self.noise.sample()) is torch.Tensor
        return self.x[i], self.y[i]

if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Linear(16, 2)).to(device)
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    first = None
    for epoch in range(3):
        for x, y in DataLoader(Points(), batch_size=16, shuffle=True, num_workers=int(sys.argv[1])):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            first = loss.item() if first is None else first
    print("learns", loss.item() < first, type(loss).__module__)
    print("density", round(Normal(0.0, 1.0).log_prob(torch.tensor(0.0)).item(), 4))
    before = nn.init.constant_

    def constant_(tensor, val):  # as transformers has it, so that loaded tensors are left alone
        return before(tensor, val=val)

    nn.init.constant_ = constant_
    print("constant", nn.init.constant_(torch.ones(2), 7.0).tolist())
    print("slope", torch.func.grad(lambda a: (a * a).sum())(torch.ones(2)).tolist())
"""


OLD = """
import io
import numpy as np
import torch
from torch import nn
from torch.autograd import Variable

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.Tensor(3, 2))
        nn.init.ones_(self.kernel)
    def forward(self, x, graph):
        return torch.mm(graph, x @ self.kernel)

w = Variable(torch.zeros(3, 1), requires_grad=True)
x = torch.FloatTensor(np.eye(3, dtype=np.float32))
(x.mm(w) - 1).pow(2).sum().backward()
w.data -= 0.5 * w.grad.data
print("variable", w.view(-1).tolist())
graph = torch.sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], torch.ones(3), (3, 3))
layer = Layer()
layer(x, graph.to_sparse()).sum().backward()
print("graph", layer.kernel.grad.tolist())
file = io.BytesIO()
torch.save(layer, file)
for loaded in (nn.Sequential(layer)[0], torch.load(io.BytesIO(file.getvalue()), weights_only=False)):
    print("saved", isinstance(loaded.kernel, nn.Parameter), loaded(x, graph).sum().item())
there = torch.accelerator
print("devices", there.is_available(), there.current_accelerator(), torch.cuda.is_bf16_supported())
"""


def test_old_spellings_and_small_graphs(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text(OLD)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "gt.run", str(path)],
        capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "variable [1.0, 1.0, 1.0]",
        "graph [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]",
        "saved True 6.0",
        "saved True 6.0",
        "devices False None False",
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_runs_as_it_is(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "gt.run", str(path), str(workers)],
        capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["learns True gt.adoption.tensor", "density -0.9189"]
    assert "slope [2.0, 2.0]" in done.stdout
    assert "constant [7.0, 7.0]" in done.stdout


def test_scripts_in_the_manner_of_torchs_examples() -> None:
    here = Path(__file__).parent
    given = [str(here / "practice.py"), "--workers", "1"]
    quiet = [sys.executable, "-W", "ignore"]
    plain = subprocess.run([*quiet, *given], capture_output=True, text=True, timeout=240)
    done = subprocess.run(
        [*quiet, "-m", "gt.run", *given], capture_output=True, text=True, timeout=240, cwd=here.parents[1]
    )
    assert (plain.returncode, plain.stderr) == (0, "type torch\n"), plain.stderr
    assert (done.returncode, done.stderr) == (0, "type gt.adoption.tensor\n"), done.stderr
    assert len(plain.stdout.splitlines()) == 10
    for theirs, ours in zip(plain.stdout.splitlines(), done.stdout.splitlines(), strict=True):
        name, mine = theirs.rstrip("0123456789. -"), ours.removeprefix(theirs.rstrip("0123456789. -"))
        expected = [float(x) for x in theirs.removeprefix(name).split()]
        assert [float(x) for x in mine.split()] == pytest.approx(expected, abs=2e-3), (theirs, ours)


def test_what_is_wrong_is_said() -> None:
    run = [sys.executable, "-m", "gt.run"]
    done = subprocess.run([*run, "no-such-file.py"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "gt run: no such file: no-such-file.py\n")
    asked = subprocess.run([*run, "--help"], capture_output=True, text=True, timeout=120)
    assert asked.stdout.startswith("usage: gt run")
