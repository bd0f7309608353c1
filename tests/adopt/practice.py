"""Ten small training scripts in the manner of those that come with torch: run by `python` and by `gt run`, this file
prints the same losses. Data and first parameters are NumPy's, since random numbers of GT differ from torch's."""

from __future__ import annotations

import argparse
import io
import sys

import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

rng = np.random.default_rng(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def noise(*shape):
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def fixed(model):
    """The model with parameters of NumPy's."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(noise(*p.shape) * 0.2)
    return model.to(device)


def shown(name, *values):
    print(name, *[f"{float(v):.3f}" for v in values], flush=True)


def mnist(args):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, 1), nn.Conv2d(4, 8, 3, 1)
            self.fc1, self.fc2 = nn.Linear(8 * 4 * 4, 16), nn.Linear(16, 10)
            self.drop = nn.Dropout(0.0)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
            return F.log_softmax(self.fc2(self.drop(F.relu(self.fc1(torch.flatten(x, 1))))), dim=1)

    data = TensorDataset(noise(48, 1, 12, 12), torch.from_numpy(rng.integers(0, 10, 48)))
    model = fixed(Net())
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(2):
        model.train()
        for data_, target in DataLoader(data, batch_size=16):
            data_, target = data_.to(device), target.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(data_), target)
            loss.backward()
            optimizer.step()
        scheduler.step()
    model.eval()
    correct = lost = 0
    with torch.no_grad():
        for data_, target in DataLoader(data, batch_size=48):
            output = model(data_.to(device))
            lost += F.nll_loss(output, target.to(device), reduction="sum").item()
            guess = output.argmax(dim=1, keepdim=True)
            correct += guess.eq(target.to(device).view_as(guess)).sum().item()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    shown("mnist", loss, lost / 48, correct)


def vae(args):
    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.mu, self.logvar = nn.Linear(20, 12), nn.Linear(12, 4), nn.Linear(12, 4)
            self.fc3, self.fc4 = nn.Linear(4, 12), nn.Linear(12, 20)

        def forward(self, x):
            h = F.relu(self.fc1(x))
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.zeros_like(mu) * torch.exp(0.5 * logvar) + 0 * torch.randn_like(mu)
            return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar

    model, x = fixed(VAE()), torch.sigmoid(noise(32, 20))
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    for (batch,) in DataLoader(TensorDataset(x), batch_size=8):
        recon, mu, logvar = model(batch.to(device))
        bce = F.binary_cross_entropy(recon, batch.to(device), reduction="sum")
        loss = bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    shown("vae", loss, bce)


def dcgan(args):
    g = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(True),
        nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    d = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 1, 4, 1, 0, bias=False),
        nn.Sigmoid(),
    )
    fixed(g), fixed(d)
    og, od = (optim.Adam(m.parameters(), lr=0.01, betas=(0.5, 0.999)) for m in (g, d))
    criterion, one, zero = nn.BCELoss(), torch.ones(8), torch.zeros(8)
    for _ in range(2):
        real, z = noise(8, 1, 8, 8).to(device), noise(8, 6, 1, 1).to(device)
        d.zero_grad()
        errd = criterion(d(real).view(-1), one)
        errd.backward()
        fake = g(z)
        fakes = criterion(d(fake.detach()).view(-1), zero)
        fakes.backward()
        od.step()
        g.zero_grad()
        errg = criterion(d(fake).view(-1), one)
        errg.backward()
        og.step()
    shown("dcgan", errd + fakes, errg)


def words(args):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.rnn, self.decoder = nn.Embedding(20, 12), nn.LSTM(12, 12, 2), nn.Linear(12, 20)
            self.decoder.weight = self.encoder.weight

        def forward(self, x, hidden):
            out, hidden = self.rnn(self.encoder(x), hidden)
            return F.log_softmax(self.decoder(out).view(-1, 20), dim=1), hidden

    text = torch.from_numpy(rng.integers(0, 20, 140)).view(4, -1).t().contiguous()
    model = fixed(Model())
    hidden = (torch.zeros(2, 4, 12), torch.zeros(2, 4, 12))
    for i in range(0, text.size(0) - 1 - 7, 7):
        data, target = text[i : i + 7], text[i + 1 : i + 8].reshape(-1)
        model.zero_grad()
        hidden = tuple(h.detach() for h in hidden)
        output, hidden = model(data, hidden)
        loss = nn.NLLLoss()(output, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-1.0)
    shown("words", loss)


def actor_critic(args):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.affine, self.action, self.value = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

        def forward(self, x):
            x = F.relu(self.affine(x))
            return F.softmax(self.action(x), dim=-1), self.value(x)

    model = fixed(Policy())
    optimizer = optim.Adam(model.parameters(), lr=3e-2)
    for episode in range(3):
        state, saved, rewards = rng.normal(size=4).astype(np.float32), [], []
        for _ in range(3 + episode):
            probs, value = model(torch.from_numpy(state).float())
            action = probs.argmax()  # a sample would differ between torch and GT
            saved.append((Categorical(probs).log_prob(action), value))
            state = state * 0.9 + (0.1 if action.item() else -0.1)
            rewards.append(float(state.sum()))
        returns, total = [], 0.0
        for r in rewards[::-1]:
            total = r + 0.99 * total
            returns.insert(0, total)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        policy = [-log * (r - v.item()) for (log, v), r in zip(saved, returns, strict=True)]
        values = [F.smooth_l1_loss(v, torch.tensor([r])) for (_, v), r in zip(saved, returns, strict=True)]
        optimizer.zero_grad()
        loss = torch.stack(policy).sum() + torch.stack(values).sum()
        loss.backward()
        optimizer.step()
    shown("actor-critic", loss)


def time_sequence(args):
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 8), nn.LSTMCell(8, 8), nn.Linear(8, 1)

        def forward(self, x, future=0):
            h, c, h2, c2 = (torch.zeros(x.size(0), 8, dtype=torch.double) for _ in range(4))
            outputs = []
            for t in x.split(1, dim=1):
                h, c = self.lstm1(t, (h, c))
                h2, c2 = self.lstm2(h, (h2, c2))
                outputs.append(self.linear(h2))
            for _ in range(future):
                h, c = self.lstm1(outputs[-1], (h, c))
                h2, c2 = self.lstm2(h, (h2, c2))
                outputs.append(self.linear(h2))
            return torch.cat(outputs, dim=1)

    x = torch.from_numpy(np.sin(np.arange(36).reshape(4, 9) / 3.0))
    model = fixed(Sequence().double())
    optimizer = optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(x[:, :-1]), x[:, 1:])
        loss.backward()
        return loss

    first = optimizer.step(closure)
    with torch.no_grad():
        after = model(x[:, :-1], future=3)
    shown("time sequence", first, after[:, -1].mean())


def siamese(args):
    class Pairs(Dataset):
        def __init__(self):
            self.x = noise(24, 1, 8, 8)

        def __len__(self):
            return 12

        def __getitem__(self, i):
            return self.x[i], self.x[23 - i], torch.tensor(i % 2, dtype=torch.float)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 8))
            self.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 1), nn.Sigmoid())

        def forward(self, a, b):
            return self.head(torch.cat((self.body(a), self.body(b)), 1))

    model = fixed(Net())
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    for a, b, target in DataLoader(Pairs(), batch_size=4, num_workers=args.workers):
        optimizer.zero_grad()
        loss = nn.BCELoss()(model(a.to(device), b.to(device)).squeeze(), target.to(device))
        loss.backward()
        optimizer.step()
    shown("siamese", loss)


def super_resolution(args):
    net = fixed(
        nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2))
    )
    optimizer, total = optim.Adam(net.parameters(), lr=0.01), 0.0
    for low, high in DataLoader(TensorDataset(noise(12, 1, 6, 6), noise(12, 1, 12, 12)), batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(low.to(device)), high.to(device))
        total += loss.item()
        loss.backward()
        optimizer.step()
    psnr = 10 * torch.log10(1 / loss.detach())
    shown("super resolution", total / 3, psnr)


def graph(args):
    class Conv(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.kernel, self.bias = nn.Parameter(torch.empty(a, b)), nn.Parameter(torch.empty(b))
            nn.init.xavier_normal_(self.kernel)
            nn.init.zeros_(self.bias)

        def forward(self, x, edges):
            nothing = torch.zeros(x.size(0), self.bias.numel())
            return nothing.index_add(0, edges[1], (x @ self.kernel)[edges[0]]) + self.bias

    edges = torch.from_numpy(rng.integers(0, 16, (2, 60)))
    x, labels = noise(16, 6), torch.from_numpy(rng.integers(0, 3, 16))
    first, second = fixed(Conv(6, 8)), fixed(Conv(8, 3))
    optimizer = optim.Adam([*first.parameters(), *second.parameters()], lr=0.01, weight_decay=5e-4)
    for _ in range(4):
        optimizer.zero_grad()
        out = F.log_softmax(second(F.relu(first(x, edges)), edges), dim=1)
        loss = F.nll_loss(out[:8], labels[:8])
        loss.backward()
        optimizer.step()
    shown("graph", loss, (out[8:].argmax(1) == labels[8:]).float().mean())


def vision_transformer(args):
    class ViT(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 5)
            self.token, self.at = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.zeros(1, 5, 16))
            layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.size(0), -1, -1), x], dim=1) + self.at
            return self.head(self.body(x)[:, 0])

    model = fixed(ViT())
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    for x, y in DataLoader(TensorDataset(noise(24, 3, 8, 8), torch.from_numpy(rng.integers(0, 5, 24))), batch_size=8):
        with torch.autocast("cpu", enabled=False):
            loss = F.cross_entropy(model(x.to(device)), y.to(device), label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
    shown("vision transformer", loss, scheduler.get_last_lr()[0])


ALL = (mnist, vae, dcgan, words, actor_critic, time_sequence, siamese, super_resolution, graph, vision_transformer)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    for script in ALL:
        if not arguments.only or arguments.only == script.__name__:
            script(arguments)
    print("type", type(torch.ones(1)).__module__, file=sys.stderr)
