"""What people do around a model with torch: losses on structure, science, adapters, hooks, files, metrics, devices.

See test_ports.py.
"""

from __future__ import annotations

import copy
import io
import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.client.compat.porting import filled, normal, whole

# --- structure -------------------------------------------------------------------------------------------


def contrastive(lib: Any) -> Any:
    """SimCLR's masks without the diagonal, and CLIP's two-sided cross-entropy."""
    nn, F = lib.nn, lib.nn.functional
    net = filled(lib, nn.Linear(6, 4))
    features = F.normalize(net(normal(lib, 8, 6)), dim=1)
    labels = lib.cat([lib.arange(4) for _ in range(2)], dim=0)
    labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
    similarity, diagonal = lib.matmul(features, features.T), lib.eye(8, dtype=lib.bool)
    labels, similarity = (x[~diagonal].view(8, -1) for x in (labels, similarity))
    positives = similarity[labels.bool()].view(8, -1)
    negatives = similarity[~labels.bool()].view(8, -1)
    loss = F.cross_entropy(lib.cat([positives, negatives], dim=1) / 0.07, lib.zeros(8, dtype=lib.long))
    scale = nn.Parameter(lib.ones([]) * np.log(1 / 0.07))
    logits = scale.exp() * features @ F.normalize(normal(lib, 8, 4, seed=1), p=2, dim=-1).t()
    clip = (F.cross_entropy(logits, lib.arange(8)) + F.cross_entropy(logits.t(), lib.arange(8))) / 2
    (loss + clip).backward()
    return loss, clip, scale.grad, net.weight.grad


def graphs(lib: Any) -> Any:
    """Message passing by index_add and scatter, attention over edges, pooling per graph."""
    nn, F, edges, x = lib.nn, lib.nn.functional, whole(lib, 10, 2, 30), normal(lib, 10, 5)
    lin, a = filled(lib, nn.Linear(5, 3)), filled(lib, nn.Linear(6, 1), 1)
    row, col = edges
    degree = lib.zeros(10).scatter_add_(0, col, lib.ones(col.size(0)))
    scale = degree.pow(-0.5)
    scale[scale == float("inf")] = 0
    h = lin(x)
    out = lib.zeros_like(h)
    out.index_add_(0, col, h[row] * (scale[row] * scale[col]).unsqueeze(-1))
    e = F.leaky_relu(a(lib.cat([h[row], h[col]], -1)), 0.2).squeeze(-1)
    top = lib.full((10,), float("-inf")).scatter_reduce(0, col, e, reduce="amax")
    w = (e - top[col]).exp()
    out = out + lib.zeros_like(h).index_add(0, col, h[row] * (w / lib.zeros(10).index_add(0, col, w)[col])[:, None])
    train = lib.zeros(10, dtype=lib.bool)
    train[:6] = True
    F.nll_loss(F.log_softmax(out, dim=1)[train], whole(lib, 3, 10)[train]).backward()
    adjacency = lib.zeros(10, 10)
    adjacency[edges[0], edges[1]] = 1
    adjacency.fill_diagonal_(1)
    batch = lib.tensor([0] * 4 + [1] * 6)
    pooled = lib.zeros(2, 5).index_add(0, batch, x) / lib.bincount(batch).unsqueeze(1)
    return out, lin.weight.grad, a.weight.grad, adjacency, pooled, lib.unique(edges, return_counts=True)


def clusters(lib: Any) -> Any:
    """k-means until it settles, which is read in each round."""
    x = lib.cat([normal(lib, 20, 2, seed=k) + 4 * k for k in range(3)])
    centres = x[lib.tensor([0, 25, 50])].clone()
    rounds = 0
    while rounds < 10:
        rounds += 1
        nearest, old = lib.cdist(x, centres).argmin(dim=1), centres.clone()
        for k in range(3):
            centres[k] = lib.index_select(x, 0, lib.nonzero(nearest == k).squeeze()).mean(dim=0)
        shift = ((centres - old) ** 2).sum(dim=1).sqrt().sum()
        if shift < 1e-4:
            break
    inertia = ((x - centres[nearest]) ** 2).sum()
    text = f"{rounds} {inertia:.2f} {lib.bincount(nearest).tolist()}"
    return text, centres, lib.norm(x - x[0], dim=1).topk(5, largest=False)


def process(lib: Any) -> Any:
    """A Gaussian process trained by its evidence; the posterior."""
    x = lib.linspace(0, 1, 12).unsqueeze(-1).double()
    y = lib.sin(6 * x).squeeze() + 0.1 * normal(lib, 12).double()
    scale, noise = (lib.tensor(v, dtype=lib.float64, requires_grad=True) for v in (-1.0, -2.0))
    opt, out = lib.optim.Adam([scale, noise], lr=0.1), []
    for _ in range(5):
        opt.zero_grad()
        k = lib.exp(-0.5 * (x - x.T) ** 2 / scale.exp() ** 2) + noise.exp() ** 2 * lib.eye(12, dtype=lib.double)
        chol = lib.linalg.cholesky(k)
        alpha = lib.cholesky_solve(y.unsqueeze(-1), chol)
        loss = 0.5 * y @ alpha.squeeze() + chol.diagonal().log().sum()
        loss.backward()
        opt.step()
        out.append(loss.item())
    cross = lib.exp(-0.5 * lib.cdist(x, x[:3] + 0.01) ** 2 / scale.exp().detach() ** 2)
    v = lib.linalg.solve_triangular(chol.detach(), cross, upper=False)
    return out, cross.T @ alpha.detach(), 1 - (v**2).sum(0), lib.slogdet(k)[1], scale.grad


def physics(lib: Any) -> Any:
    """A net that solves a differential equation: second derivatives inside the loss; LBFGS; a Hessian."""
    nn, grad = lib.nn, lib.autograd.grad
    net = filled(lib, nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))
    x, t = (normal(lib, 8, 1, seed=k).requires_grad_(True) for k in range(2))
    opt, out = lib.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"), []

    def closure() -> Any:
        opt.zero_grad()
        u = net(lib.cat([x, t], dim=1))
        u_t = grad(u, t, grad_outputs=lib.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_x = grad(u.sum(), x, create_graph=True)[0]
        (u_xx,) = grad(u_x, x, lib.ones_like(u_x), create_graph=True)
        loss = (u_t + u * u_x - 0.01 * u_xx).pow(2).mean() + ((u - lib.sin(lib.pi * x)) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(2):
        out.append(opt.step(closure).item())
    functional = lib.autograd.functional
    point = lib.tensor([0.5, -0.3])
    hessian = functional.hessian(lambda p: (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2, point)
    jacobian = functional.jacobian(lambda p, q: (p * q.sum(), q**2), (point, lib.ones(3)))
    return out, hessian, jacobian, functional.hvp(lambda p: p.prod(), point, point)


# --- how training is organised ---------------------------------------------------------------------------


def adapters(lib: Any) -> Any:
    """LoRA: layers replaced by name, frozen weights, groups, accumulation, merging."""
    nn, F = lib.nn, lib.nn.functional

    class LoRA(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, base: Any, r: int = 2) -> None:
            super().__init__()
            self.base = base
            self.lora_A = nn.Parameter(base.weight.new_zeros((r, base.in_features)))
            self.lora_B = nn.Parameter(lib.zeros(base.out_features, r))
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
            for p in self.base.parameters():
                p.requires_grad = False

        def forward(self, x: Any) -> Any:
            return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * 2

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, LoRA(child))
    filled(lib, model)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [{"params": [p for n, p in named if k in n], "lr": lr} for k, lr in (("_A", 0.01), ("_B", 0.02))]
    opt, out = lib.optim.AdamW(groups, weight_decay=0.0), []
    for i in range(4):
        loss = F.cross_entropy(model(normal(lib, 8, 6, seed=i)), whole(lib, 3, 8)) / 2
        loss.backward()
        if (i + 1) % 2 == 0:
            opt.step()
            opt.zero_grad()
        out.append(loss.item())
    model[0].base.weight.data += (model[0].lora_B @ model[0].lora_A) * 2
    return [n for n, _ in named], out, {k: v for k, v in model.state_dict().items() if "lora_" in k}, model, str(opt)


def watching(lib: Any) -> Any:
    """Hooks that collect activations and gradients, and a class activation map."""
    nn = lib.nn
    model = filled(lib, nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)))
    seen: dict[str, Any] = {}

    def note(name: str) -> Any:
        return lambda module, inputs, output: seen.__setitem__(name, output)

    handles = [m.register_forward_hook(note(n)) for n, m in model.named_modules() if n]
    handles.append(model[3].register_full_backward_hook(lambda m, gi, go: seen.update(gi=gi[0], go=go[0])))
    x = normal(lib, 1, 1, 4, 4).requires_grad_()
    out = model(x)
    seen["1"].register_hook(lambda g: seen.update(slope=g))
    out[0, out.argmax(1).item()].backward()
    cam = lib.relu((seen["slope"].mean(dim=[2, 3], keepdim=True) * seen["1"]).sum(1)).detach()
    for h in handles:
        h.remove()
    return seen, (cam - cam.min()) / (cam.max() - cam.min() + 1e-8), x.grad


def functions(lib: Any) -> Any:
    """Gradients of one's own: a straight-through estimator, gradient reversal, a quantizer's codebook."""

    class Sign(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return lib.sign(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * (x.abs() <= 1).float()

    class Reverse(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, alpha: float) -> Any:
            ctx.alpha = alpha
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.neg() * ctx.alpha, None

    x = normal(lib, 4, 3).requires_grad_()
    Sign.apply(x).mul(normal(lib, 4, 3, seed=1)).sum().backward()
    Reverse.apply(x, 0.3).pow(2).sum().backward()
    book = filled(lib, lib.nn.Embedding(8, 3))
    d = (x**2).sum(1, keepdim=True) + (book.weight**2).sum(1) - 2 * lib.matmul(x, book.weight.t())
    nearest = lib.argmin(d, dim=1)
    z = book(nearest)
    straight = x + (z - x).detach()
    (straight.sum() + ((z.detach() - x) ** 2).mean() + 0.25 * ((z - x.detach()) ** 2).mean()).backward()
    hot = lib.zeros(4, 8).scatter_(1, nearest.unsqueeze(1), 1)
    return x.grad, book.weight.grad, straight, lib.exp(-lib.sum(hot.mean(0) * lib.log(hot.mean(0) + 1e-10)))


def resumed(lib: Any) -> Any:
    """A run that is saved in the middle, whole, and goes on from the file."""
    nn, F = lib.nn, lib.nn.functional

    def make() -> Any:
        model = filled(lib, nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2)))
        opt = lib.optim.AdamW(model.parameters(), lr=1e-2)
        return model, opt, lib.optim.lr_scheduler.StepLR(opt, 2, 0.5)

    def train(model: Any, opt: Any, sched: Any, steps: range) -> Any:
        for i in steps:
            opt.zero_grad()
            loss = F.mse_loss(model(normal(lib, 8, 4, seed=i)), normal(lib, 8, 2, seed=i + 99))
            loss.backward()
            opt.step()
            sched.step()
        return loss.item()

    run, file = make(), io.BytesIO()
    first = train(*run, range(3))
    model, opt, sched = run
    states = {"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}
    lib.save({"epoch": 3, **states, "best": first}, file)
    on = train(*run, range(3, 6))
    file.seek(0)
    back, other = lib.load(file, map_location="cpu"), make()
    for part, name in zip(other, ("model", "opt", "sched"), strict=True):
        part.load_state_dict(back[name])
    assert train(*other, range(3, 6)) == pytest.approx(on, rel=1e-5)
    return on, back["epoch"], back["best"], model, other[2].get_last_lr()


def counting(lib: Any) -> Any:
    """Metrics: a confusion matrix, top-k accuracy, a curve, calibration, counts."""
    logits, y = normal(lib, 30, 5), whole(lib, 5, 30)
    p = logits.argmax(1)
    table, again = lib.bincount(5 * y + p, minlength=25).reshape(5, 5), lib.zeros(5, 5, dtype=lib.int64)
    for t, q in zip(y.view(-1), p.view(-1), strict=True):
        again[t.long(), q.long()] += 1
    _, top = logits.topk(3, 1, True, True)
    right = top.t().eq(y.view(1, -1).expand_as(top.t()))
    accuracy = [right[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / 30) for k in (1, 3)]
    positive = (y == 0)[lib.argsort(logits[:, 0], descending=True)]
    tpr, fpr = lib.cumsum(positive, 0) / positive.sum(), lib.cumsum(~positive, 0) / (~positive).sum()
    sure, error = logits.softmax(1).max(1)[0], lib.zeros(1)
    edges = lib.linspace(0, 1, 6)
    for low, high in itertools.pairwise(edges):
        inside = sure.gt(low.item()) * sure.le(high.item())
        if inside.float().mean().item() > 0:
            error += lib.abs(sure[inside].mean() - p[inside].eq(y[inside]).float().mean()) * inside.float().mean()
    each = {int(k): (p[y == k] == k).float().mean().item() for k in y.unique()}
    text = f"acc {(p == y).float().mean():.3f} ece {error.item():.4f} {table.diag().tolist()}"
    return table, again, accuracy, lib.trapz(tpr, fpr), error, each, text, lib.unique(p, return_counts=True)


def numbers(lib: Any) -> Any:
    """numpy's numbers on either side of a tensor that has a history, and Python's functions of tensors."""
    x = normal(lib, 3).requires_grad_()
    n, d = np.float64(2), x.detach()
    mixed = np.sqrt(2) * x, np.float32(2) * x, n - x, n / x, n**d, np.int64(3) - d.long(), x * n, np.log(2) * x.mean()
    losses = [lib.tensor(float(k)) for k in (3, 1, 2)]
    mean, text = sum(losses) / len(losses), f"{losses[0]:.1e} {d[0]:>8.3f}"
    plain = max(losses), sorted(losses), mean, math.sqrt(losses[0]), text
    keyed = {x: 1}
    return mixed, n < d, n == d, plain, keyed[x], lib.tensor(1) == None, np.asarray(d).tolist(), [10, 20][lib.tensor(1)]  # noqa: E711


def surroundings(lib: Any) -> Any:
    """What scripts say about devices, seeds and switches before they begin."""
    nn = lib.nn
    lib.manual_seed(0)
    lib.cuda.manual_seed_all(0)
    lib.backends.cudnn.deterministic, lib.backends.cudnn.benchmark = True, False
    lib.backends.cuda.matmul.allow_tf32 = True
    lib.use_deterministic_algorithms(False)
    device = lib.device("cuda:0" if lib.cuda.is_available() else "mps" if lib.backends.mps.is_available() else "cpu")
    x = lib.FloatTensor([1, 2]).to(device)
    with lib.device("cpu"), lib.autograd.set_detect_anomaly(True), lib.set_grad_enabled(True):
        y = lib.ones(2, device=x.device, requires_grad=True) * 2
    kinds = isinstance(x, lib.Tensor), isinstance(x.dtype, lib.dtype), isinstance(x.shape, lib.Size), lib.is_tensor(x)
    g = lib.manual_seed(1)
    first = lib.rand(2, generator=g)
    lib.manual_seed(1)
    twin = copy.copy(x)
    twin += 1
    names = str(device), repr(device), x.device.type, x.is_cuda, x.get_device(), x.device == device, x.is_sparse
    old = lib.Tensor([1, 2]), lib.Tensor(2, 3).shape == (2, 3), lib.LongTensor([3]), lib.tensor([lib.pi, lib.inf])
    by = lib.utils.checkpoint.checkpoint(nn.ReLU(), y, use_reentrant=False)
    lib.backends.cuda.matmul.allow_tf32 = False
    return kinds, lib.equal(first, lib.rand(2)), x, names, old, by, lib.tensor(2) in [lib.tensor(1), lib.tensor(2)]
