"""What a user who has read the guide types: a script for each line, and what it prints."""

from __future__ import annotations

from typing import NamedTuple


class Script(NamedTuple):
    """A script and its output."""

    text: str
    output: str


START = "import numpy as np\nimport gt\nfrom gt.client import nn\n"

SCRIPTS = {
    "nn.mse_loss": Script(START + "print(nn.mse_loss(gt.tensor([1.0, 2.0]), gt.tensor([1.0, 4.0])).item())", "2.0\n"),
    "nn.binary_cross_entropy": Script(
        START + "p = gt.tensor([0.5, 0.5], requires_grad=True)\n"
        "nn.binary_cross_entropy(p, gt.tensor([1.0, 0.0])).backward()\nprint(p.grad)",
        "tensor([-1.,  1.])\n",
    ),
    "nn.cross_entropy_loss": Script(
        START + "print(f'{nn.cross_entropy_loss(gt.zeros(3, 4), gt.tensor([0, 1, 3])).item():.4f}')", "1.3863\n"
    ),
    "nn.relu nn.sigmoid nn.tanh": Script(
        START + "x = gt.tensor([-1.0, 0.0])\nprint(nn.relu(x), nn.sigmoid(x)[1], nn.tanh(x)[1])",
        "tensor([0., 0.]) tensor(0.5000) tensor(0.)\n",
    ),
    "from_numpy with requires_grad": Script(
        START + "a = gt.from_numpy(np.ones((2, 2), dtype=np.float32), requires_grad=True)\n"
        "(a * 3).sum().backward()\nprint(a.grad)",
        "tensor([[3., 3.],\n        [3., 3.]])\n",
    ),
    "tensor of ints with requires_grad": Script(
        START + "x = gt.tensor([1, 2, 3], requires_grad=True)\n(x * x).sum().backward()\nprint(x.grad)",
        "tensor([2., 4., 6.])\n",
    ),
    "array of ints with requires_grad": Script(
        START + "try:\n    gt.from_numpy(np.arange(3), requires_grad=True)\nexcept gt.GTError as e:\n    print(e)",
        "only floating-point tensors can require grad, not int64; create it with dtype=gt.float32\n",
    ),
    "self._parameters = a + b": Script(
        START + "class MLP(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc1 = nn.Linear(2, 8)\n"
        "        self.fc2 = nn.Linear(8, 1)\n"
        "        self._parameters = self.fc1.parameters() + self.fc2.parameters()\n"
        "    def forward(self, x):\n"
        "        return self.fc2(nn.relu(self.fc1(x)))\n"
        "gt.manual_seed(0)\n"
        "model, x, y = MLP(), gt.randn(16, 2), gt.ones(16, 1)\n"
        "optimizer = gt.optim.SGD(model.parameters(), lr=0.1)\n"
        "losses = []\n"
        "for _ in range(20):\n"
        "    loss = nn.mse_loss(model(x), y)\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    losses.append(loss.item())\n"
        "print(len(list(model.parameters())), list(model.state_dict())[0], losses[-1] < 0.5 * losses[0])",
        "4 fc1.weight True\n",
    ),
    "self._parameters of one's own": Script(
        START + "class Scale(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = nn.Linear(1, 1)\n"
        "        self._parameters = self.inner.parameters() + [nn.Parameter(gt.ones(2))]\n"
        "print([name for name, _ in Scale().named_parameters()])",
        "['parameter_2', 'inner.weight', 'inner.bias']\n",
    ),
    "x.grad.data.numpy": Script(
        START + "x = gt.ones(2, 3, requires_grad=True)\n(x @ x.T).sum().backward()\nprint(x.grad.data.numpy())",
        "[[4. 4. 4.]\n [4. 4. 4.]]\n",
    ),
    "import gt.debug": Script(
        "import gt.debug\nimport gt\nx = gt.ones(2, requires_grad=True)\n"
        "y = (x * 2).exp()\nprint(gt.debug.tape(y).split('  ')[0], y.sum().item() > 0)\n"
        "print(gt.debug.get_worker_stats()['session']['worker'])",
        "exp -> f32[2] True\n1\n",
    ),
    "from gt.client.nn import Linear": Script(
        "from gt.client.nn import Linear, Module\nfrom gt.client.nn.functional import relu\nimport gt\n"
        "print(Linear is gt.nn.Linear, isinstance(Linear(1, 1), gt.nn.Module), relu is gt.nn.functional.relu)",
        "True True True\n",
    ),
    "gt.connect": Script(
        "import sys, gt\nfrom gt import config\ngt.connect(config.load().server)\nprint(gt.arange(4) @ gt.arange(4))",
        "tensor(14)\n",
    ),
}
