"""Models as people write them for torch: of text, of pictures, of decisions. See test_ports.py."""

from __future__ import annotations

import copy
import math
import random
from collections import deque
from typing import Any

import numpy as np

from tests.client.compat.porting import filled, normal, whole

# --- text ------------------------------------------------------------------------------------------------


def gpt(lib: Any) -> Any:
    """nanoGPT: tied weights, groups with and without decay, micro-batches, clipping, top-k sampling."""
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, d: int, heads: int) -> None:
            super().__init__()
            self.ln_1, self.ln_2, self.heads = nn.LayerNorm(d), nn.LayerNorm(d), heads
            self.c_attn, self.c_proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
            self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
            self.register_buffer("bias", lib.tril(lib.ones(8, 8)).view(1, 1, 8, 8))

        def forward(self, x: Any) -> Any:
            b, t, c = x.size()
            q, k, v = (
                y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                for y in self.c_attn(self.ln_1(x)).split(c, dim=2)
            )
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = F.softmax(att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")), dim=-1)
            y = (att @ v).transpose(1, 2).contiguous().view(b, t, c)
            x = x + self.c_proj(y)
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.transformer = nn.ModuleDict(
                {"wte": nn.Embedding(20, 8), "wpe": nn.Embedding(8, 8), "h": nn.ModuleList([Block(8, 2)])}
            )
            self.lm_head = nn.Linear(8, 20, bias=False)
            self.transformer.wte.weight = self.lm_head.weight
            self.apply(self._init_weights)

        def _init_weights(self, module: Any) -> None:
            if isinstance(module, (nn.Linear, nn.Embedding)):
                lib.nn.init.normal_(module.weight, mean=0.0, std=0.02)

        def forward(self, idx: Any, targets: Any = None) -> Any:
            pos = lib.arange(0, idx.size(1), dtype=lib.long, device=idx.device)
            x = self.transformer.wte(idx) + self.transformer.wpe(pos)
            for block in self.transformer.h:
                x = block(x)
            if targets is None:
                return self.lm_head(x[:, [-1], :]), None
            logits = self.lm_head(x)
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

        @lib.no_grad()
        def generate(self, idx: Any, n: int, top_k: int) -> Any:
            for _ in range(n):
                logits, _ = self(idx[:, -8:])
                logits = logits[:, -1, :] / 0.8
                v, _ = lib.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
                idx = lib.cat((idx, F.softmax(logits, dim=-1).argmax(-1, keepdim=True)), dim=1)
            return idx

    model, data, rng = filled(lib, GPT()), whole(lib, 20, 100), np.random.default_rng(1)
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    opt = lib.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    lines = [f"{sum(p.numel() for p in model.parameters()):,} parameters"]
    for it in range(4):
        for group in opt.param_groups:
            group["lr"] = 1e-2 * (it + 1) / 4
        for _ in range(2):
            ix = lib.from_numpy(rng.integers(0, len(data) - 9, (3,)))
            x, y = (lib.stack([data[i + k : i + k + 8] for i in ix]) for k in (0, 1))
            loss = model(x, y)[1] / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        lines.append(f"iter {it}: loss {loss.item():.3f}")
    return lines, model.generate(lib.zeros((1, 1), dtype=lib.long), 10, 5), model


def translation(lib: Any) -> Any:
    """LSTMs with attention over a packed batch, teacher forcing."""
    nn, F, chance = lib.nn, lib.nn.functional, random.Random(0)
    emb = nn.Embedding(12, 6, padding_idx=0)
    enc, dec = nn.LSTM(6, 8, num_layers=2, batch_first=True), nn.LSTM(14, 8, 2, batch_first=True)
    attn, head = nn.Linear(16, 1), nn.Linear(8, 12)
    all_of_it = filled(lib, nn.ModuleList([emb, enc, dec, attn, head]))
    src, lengths, trg = whole(lib, 11, 4, 7) + 1, lib.tensor([7, 3, 5, 6]), whole(lib, 12, 4, 4, seed=3)
    for i, n in enumerate(lengths):
        src[i, n:] = 0
    opt, losses = lib.optim.SGD(all_of_it.parameters(), lr=0.5), []
    for _ in range(3):
        packed = nn.utils.rnn.pack_padded_sequence(emb(src), lengths, batch_first=True, enforce_sorted=False)
        out, state = enc(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        mask = lib.arange(out.size(1))[None, :] < lengths[:, None]
        outputs, token = lib.zeros(4, 4, 12), trg[:, 0]
        for t in range(1, 4):
            query = state[0][-1].unsqueeze(1).expand(-1, out.size(1), -1)
            energy = attn(lib.cat((query, out), dim=2)).squeeze(2).masked_fill(~mask, -1e9)
            context = lib.bmm(F.softmax(energy, dim=1).unsqueeze(1), out)
            o, state = dec(lib.cat((emb(token).unsqueeze(1), context), 2), state)
            outputs[:, t] = head(o.squeeze(1))
            token = trg[:, t] if chance.random() < 0.5 else outputs[:, t].argmax(1)
        loss = F.cross_entropy(outputs[:, 1:].reshape(-1, 12), trg[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        losses.append((loss.item(), nn.utils.clip_grad_norm_(all_of_it.parameters(), 1)))
        opt.step()
    return losses, all_of_it


def sentences(lib: Any) -> Any:
    """A transformer encoder with sinusoids, a class token, padding masks and warm-up."""
    nn = lib.nn
    position = lib.arange(20).unsqueeze(1)
    rates = lib.exp(lib.arange(0, 8, 2) * (-math.log(10000.0) / 8))
    pe = lib.zeros(20, 8)
    pe[:, 0::2], pe[:, 1::2] = lib.sin(position * rates), lib.cos(position * rates)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", batch_first=True, norm_first=True)
    enc = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    model = filled(
        lib, nn.ModuleDict({"embed": nn.Embedding(20, 8, padding_idx=0), "enc": enc, "head": nn.Linear(8, 3)})
    )
    cls = nn.Parameter(lib.zeros(1, 1, 8))
    tokens, y = whole(lib, 19, 5, 9) + 1, whole(lib, 3, 5)
    tokens[2, 5:] = 0
    tokens[4, 3:] = 0
    opt = lib.optim.SGD([*model.parameters(), cls], lr=0.1)
    sched = lib.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) ** -0.5, (s + 1) * 4**-1.5))
    losses = []
    for _ in range(4):
        x = model["embed"](tokens) * math.sqrt(8) + pe[: tokens.size(1)]
        x = lib.cat([cls.expand(tokens.size(0), -1, -1), x], dim=1)
        pad = lib.cat([tokens.new_zeros(tokens.size(0), 1).bool(), tokens == 0], 1)
        h, keep = model["enc"](x, src_key_padding_mask=pad), (~pad).unsqueeze(-1).float()
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)(model["head"]((h * keep).sum(1) / keep.sum(1)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        losses.append((loss.item(), sched.get_last_lr()))
    return losses, model, cls


def rotary(lib: Any) -> Any:
    """Rotary embeddings, complex and real; ALiBi; a sliding window."""
    freqs = 1.0 / (10000.0 ** (lib.arange(0, 8, 2)[:4].float() / 8))
    table = lib.outer(lib.arange(6, device=freqs.device), freqs).float()
    cis = lib.polar(lib.ones_like(table), table)
    q = normal(lib, 2, 6, 3, 8).requires_grad_()
    pairs = lib.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    turned = lib.view_as_real(pairs * cis.view(1, 6, 1, 4)).flatten(3).type_as(q)
    (turned**2 * lib.arange(8)).sum().backward()
    emb = lib.cat((table, table), dim=-1)
    half = lib.cat((-q[..., q.shape[-1] // 2 :], q[..., : q.shape[-1] // 2]), dim=-1)
    real = q * emb.cos()[None, :, None, :] + half * emb.sin()[None, :, None, :]
    slopes, pos = lib.tensor([2.0 ** -(k + 1) for k in range(4)]).view(4, 1, 1), lib.arange(6)
    alibi = -slopes * (pos[None, :] - pos[:, None]).abs()
    alibi = alibi.masked_fill(lib.triu(lib.ones(6, 6), diagonal=1).bool(), float("-inf"))
    window = lib.ones(6, 6).tril().triu(-2).bool()
    return cis, turned, q.grad, real, alibi.softmax(-1), lib.zeros(6, 6).masked_fill_(window.logical_not(), -math.inf)


def cache(lib: Any) -> Any:
    """Keys and values written in place into a buffer; nucleus sampling."""
    k = v = None
    keys, out = lib.zeros(1, 8, 2, 4), []
    with lib.inference_mode():
        q = normal(lib, 1, 3, 2, 4)
        for start in (0, 3, 4, 5):
            t = q.shape[1]
            keys[:1, start : start + t] = q
            att = q.transpose(1, 2) @ keys[:, : start + t].transpose(1, 2).transpose(2, 3)
            q = (att.softmax(-1) @ keys[:, : start + t].transpose(1, 2)).transpose(1, 2)[:, -1:]
            k = q if k is None else lib.cat([k, q], dim=1)
            out.append(tuple(k.shape))
        logits = normal(lib, 2, 10)
        p, order = lib.sort(logits.softmax(-1), dim=-1, descending=True)
        drop = lib.cumsum(p, dim=-1) > 0.7
        drop[..., 1:] = drop[..., :-1].clone()
        drop[..., 0] = 0
        logits = logits.masked_fill(drop.scatter(1, order, drop), -float("inf"))
    return keys, out, k, v, logits


# --- pictures --------------------------------------------------------------------------------------------


def resnet(lib: Any) -> Any:
    """Residual blocks with a downsample, `out += identity`, running statistics, accuracy as people count it."""
    nn = lib.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, i: int, o: int, stride: int = 1) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
            self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
            self.relu, self.downsample = nn.ReLU(inplace=True), None
            if stride != 1:
                self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

        def forward(self, x: Any) -> Any:
            identity = x if self.downsample is None else self.downsample(x)
            out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            out += identity
            return self.relu(out)

    device = lib.device("cuda" if lib.cuda.is_available() else "cpu")
    model = nn.Sequential(Block(3, 3), Block(3, 6, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(6, 4))
    filled(lib, model).to(device)
    opt = lib.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    sched, log = lib.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3), []
    for epoch in range(3):
        model.train()
        correct = total = 0
        x, y = normal(lib, 6, 3, 8, 8, seed=epoch).to(device, non_blocking=True), whole(lib, 4, 6).to(device)
        opt.zero_grad()
        out = model(x)
        loss = nn.CrossEntropyLoss()(out, y)
        loss.backward()
        opt.step()
        sched.step()
        _, predicted = out.max(1)
        total += y.size(0)
        correct += predicted.eq(y).sum().item()
        log.append((loss.item(), 100.0 * correct / total))
    model.eval()
    with lib.no_grad():
        pred = model(x).argmax(dim=1, keepdim=True)
    return log, pred.eq(y.view_as(pred)).float().mean(), str(model), model


def adversaries(lib: Any) -> Any:
    """A GAN: two optimizers, detach, a label filled in place; then a gradient penalty."""
    nn = lib.nn
    g = nn.Sequential(nn.ConvTranspose2d(4, 1, 4, 2, 1), nn.Tanh())
    d = nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(4, 1, 2), nn.Sigmoid())
    filled(lib, g), filled(lib, d, 1)
    criterion, log = nn.BCELoss(), []
    od, og = (lib.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.999)) for m in (d, g))
    for it in range(3):
        d.zero_grad()
        label = lib.full((3,), 1.0, dtype=lib.float)
        real = normal(lib, 3, 1, 4, 4, seed=it)
        first = criterion(d(real).view(-1), label)
        first.backward()
        fake = g(normal(lib, 3, 4, 2, 2, seed=it + 9))
        label.fill_(0.0)
        second = criterion(d(fake.detach()).view(-1), label)
        second.backward()
        od.step()
        g.zero_grad()
        label.fill_(1.0)
        third = criterion(d(fake).view(-1), label)
        third.backward()
        og.step()
        log.append((first + second, third.item()))
    between = (0.3 * real + 0.7 * fake.detach()).requires_grad_(True)
    score = d(between)
    (slope,) = lib.autograd.grad(
        outputs=score, inputs=between, grad_outputs=lib.ones_like(score), create_graph=True, only_inputs=True
    )
    penalty = ((slope.view(3, -1).norm(2, dim=1) - 1) ** 2).mean()
    d.zero_grad()
    penalty.backward()
    return log, penalty, [p.grad for p in d.parameters()], g, d


def diffusion(lib: Any) -> Any:
    """A small U-Net with attention and time embeddings, a moving average, sampling."""
    nn, F, steps = lib.nn, lib.nn.functional, 20

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
            self.inside, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8)
            self.qkv, self.down = nn.Conv2d(8, 24, 1, bias=False), nn.Conv2d(8, 8, 4, 2, 1)
            self.up, self.out = nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, x: Any, t: Any) -> Any:
            emb = lib.exp(lib.arange(4, device=x.device) * -(math.log(10000) / 3))
            emb = t[:, None] * emb[None, :]
            scale, shift = self.time(lib.cat((emb.sin(), emb.cos()), dim=-1))[:, :, None, None].chunk(2, dim=1)
            h = F.silu(self.norm(self.inside(x)) * (scale + 1) + shift)
            b, c, height, width = h.shape
            q, k, v = (y.reshape(b, 2, -1, height * width) for y in self.qkv(h).chunk(3, dim=1))
            sim = lib.einsum("b h d i, b h d j -> b h i j", q * 0.5, k)
            att = (sim - sim.amax(dim=-1, keepdim=True).detach()).softmax(dim=-1)
            h = h + lib.einsum("b h i j, b h d j -> b h d i", att, v).reshape(b, c, height, width)
            return self.out(lib.cat((self.up(self.down(h)), h), dim=1))

    x = lib.linspace(0, steps, steps + 1)
    alphas = lib.cos((x / steps + 0.008) / 1.008 * lib.pi * 0.5) ** 2
    betas = lib.clip(1 - alphas[1:] / alphas[:-1], 0.0001, 0.999)
    kept = lib.cumprod(1.0 - betas, axis=0)
    before = F.pad(kept[:-1], (1, 0), value=1.0)

    def extract(a: Any, t: Any, shape: Any) -> Any:
        return a.gather(-1, t.cpu()).reshape(t.shape[0], *((1,) * (len(shape) - 1))).to(t.device)

    model = filled(lib, Net())
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    opt, losses = lib.optim.SGD(model.parameters(), lr=0.05), []
    for it in range(3):
        x0, noise = normal(lib, 2, 1, 4, 4, seed=it).clamp(-1, 1), normal(lib, 2, 1, 4, 4, seed=it + 9)
        t = whole(lib, steps, 2, seed=it).long()
        xt = extract(kept.sqrt(), t, x0.shape) * x0 + extract((1 - kept).sqrt(), t, x0.shape) * noise
        loss = F.smooth_l1_loss(model(xt, t), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        with lib.no_grad():
            for e, p in zip(ema.parameters(), model.parameters(), strict=True):
                e.data = e.data * 0.9 + p.data * 0.1
    image = normal(lib, 2, 1, 4, 4, seed=77)
    with lib.no_grad():
        for i in reversed(range(steps - 3, steps)):
            t = lib.full((2,), i, device="cpu", dtype=lib.long)
            shift = extract(betas, t, image.shape) * ema(image, t) / extract((1 - kept).sqrt(), t, image.shape)
            image = (image - shift) * extract(lib.sqrt(1.0 / (1.0 - betas)), t, image.shape)
    return losses, image, betas, before, ema, model


# --- decisions -------------------------------------------------------------------------------------------


def q_learning(lib: Any) -> Any:
    """DQN: a replay buffer of tensors, a mask of final states, a target net that follows softly."""
    nn, F, rng, chance = lib.nn, lib.nn.functional, np.random.default_rng(0), random.Random(0)
    net, target = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2))
    target.load_state_dict(filled(lib, net).state_dict())
    opt, memory, losses = lib.optim.AdamW(net.parameters(), lr=1e-3, amsgrad=True), deque(maxlen=50), []
    for i in range(20):
        state = lib.tensor(rng.normal(size=4), dtype=lib.float32).unsqueeze(0)
        after = None if i % 7 == 0 else lib.tensor(rng.normal(size=4), dtype=lib.float32).unsqueeze(0)
        with lib.no_grad():
            action = net(state).max(1).indices.view(1, 1)
        memory.append((state, action, after, lib.tensor([float(rng.normal())])))
    for _ in range(4):
        states, actions, afters, rewards = zip(*chance.sample(list(memory), 8), strict=True)
        alive = lib.tensor(tuple(a is not None for a in afters), dtype=lib.bool)
        q = net(lib.cat(states)).gather(1, lib.cat(actions))
        value = lib.zeros(8)
        with lib.no_grad():
            value[alive] = target(lib.cat([a for a in afters if a is not None])).max(1).values
        loss = F.smooth_l1_loss(q, (value * 0.99 + lib.cat(rewards)).unsqueeze(1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 100)
        opt.step()
        state = target.state_dict()
        for key, p in net.state_dict().items():
            state[key] = p * 0.05 + state[key] * 0.95
        target.load_state_dict(state)
        for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
            slow.data.copy_(0.01 * fast.data + 0.99 * slow.data)
        losses.append(loss.item())
    return losses, net, target


def policy(lib: Any) -> Any:
    """PPO with a Gaussian policy: advantages backwards in time, shuffled mini-batches by numpy's indices."""
    nn = lib.nn
    mean, log_std, critic = nn.Linear(3, 2), nn.Parameter(lib.zeros(1, 2)), nn.Linear(3, 1)
    filled(lib, nn.ModuleList([mean, critic]))
    s, a, values = normal(lib, 17, 3), normal(lib, 16, 2, seed=1), normal(lib, 17, seed=2)

    def log_prob(s: Any, a: Any) -> Any:
        m = mean(s)
        ls = log_std.expand_as(m)
        return (-0.5 * ((a - m) / ls.exp()) ** 2 - ls - 0.5 * math.log(2 * math.pi)).sum(-1)

    adv, gae = lib.zeros(16), 0
    for t in reversed(range(16)):
        gae = s[t, 0] + 0.99 * values[t + 1] - values[t] + 0.99 * 0.95 * gae
        adv[t] = gae
    returns, adv = adv + values[:-1], (adv - adv.mean()) / (adv.std() + 1e-8)
    with lib.no_grad():
        old = log_prob(s[:-1], a)
    opt = lib.optim.Adam([*mean.parameters(), log_std, *critic.parameters()], lr=3e-3, eps=1e-5)
    out = []
    for start in range(0, 16, 8):
        mb = np.random.default_rng(0).permutation(16)[start : start + 8]
        ratio = (log_prob(s[mb], a[mb]) - old[mb]).exp()
        pg = lib.max(-adv[mb] * ratio, -adv[mb] * lib.clamp(ratio, 0.8, 1.2)).mean()
        loss = pg - 0.01 * log_std.sum() + 0.5 * ((critic(s[mb]).view(-1) - returns[mb]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append((loss.item(), ((ratio - 1.0).abs() > 0.2).float().mean().item()))
    return out, adv, mean, critic, log_std


def experts(lib: Any) -> Any:
    """A mixture of experts, routed by top-k, where and indexed addition."""
    nn = lib.nn
    model = filled(
        lib, nn.ModuleDict({"gate": nn.Linear(3, 4), "ex": nn.ModuleList(nn.Linear(3, 3) for _ in range(4))})
    )
    x = normal(lib, 6, 3)
    weights, chosen = lib.topk(model["gate"](x).softmax(-1), 2, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    out = lib.zeros_like(x)
    for i, expert in enumerate(model["ex"]):
        rows, nth = lib.where(chosen == i)
        out[rows] += weights[rows, nth, None] * expert(x[rows])
    share = lib.bincount(chosen.flatten(), minlength=4) / chosen.numel()
    (out.pow(2).sum() + share.var()).backward()
    return out, share, chosen, [p.grad for p in model["gate"].parameters()]
