"""Networks for graphs and for acting. The same text serves torch and gt; see zoo.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from zoo import Arrays, Data

# --- a graph network ---------------------------------------------------------------------------------


def graph_network(lib: Any, layers: int, features: int, width: int, classes: int = 10) -> Any:
    """Messages along edges, added up at their targets; the mean over a graph's nodes is classified."""
    nn, F = lib.nn, lib.nn.functional

    class Layer(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.message = nn.Linear(2 * width, width)
            self.own, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

        def forward(self, x: Any, source: Any, target: Any, degree: Any) -> Any:
            message = F.relu(self.message(lib.cat([x[source], x[target]], dim=1)))  # (edges, width)
            total = lib.zeros_like(x).index_add_(0, target, message)
            return x + F.relu(self.norm(self.own(x) + total / degree))

    class GraphNetwork(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(features, width)
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])
            self.head = nn.Linear(width, classes)

        def forward(self, x: Any, edges: Any) -> Any:
            graphs, nodes, _ = x.shape
            # One large graph of all graphs of the batch: node k of graph g has the number g * nodes + k.
            first = lib.arange(graphs, device=x.device).view(-1, 1) * nodes
            source, target = (edges[:, 0] + first).reshape(-1), (edges[:, 1] + first).reshape(-1)
            x = self.embed(x.reshape(graphs * nodes, -1))
            ones = lib.ones(target.shape[0], device=x.device)
            degree = lib.zeros(graphs * nodes, device=x.device).scatter_add(0, target, ones).clamp(min=1).unsqueeze(1)
            for layer in self.layers:
                x = layer(x, source, target, degree)
            graph = lib.arange(graphs, device=x.device).repeat_interleave(nodes)
            pooled = lib.zeros(graphs, x.shape[1], device=x.device).index_add(0, graph, x) / nodes
            return self.head(pooled)

    return GraphNetwork()


def graphs(nodes: int, edges: int, features: int, classes: int = 10) -> Data:
    """Random graphs: features of nodes, pairs of nodes, a class for each graph."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        x = rng.standard_normal((rows, nodes, features), np.float32)
        return x, rng.integers(0, nodes, size=(rows, 2, edges)), rng.integers(0, classes, size=rows)

    return data


def classify_graphs(lib: Any, network: Any, x: Any, edges: Any, y: Any) -> Any:
    return lib.nn.functional.cross_entropy(network(x, edges), y)


# --- an actor and a critic ---------------------------------------------------------------------------


def actor_critic(lib: Any, observed: int, width: int, actions: int) -> Any:
    nn = lib.nn

    class ActorCritic(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(observed, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
            self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)

        def forward(self, x: Any) -> tuple[Any, Any]:
            h = self.body(x)
            return self.actor(h), self.critic(h).squeeze(-1)

    return ActorCritic()


def experience(observed: int, actions: int) -> Data:
    """What was observed, what was done, the return that followed, and the log probability with which it was done."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        x = rng.standard_normal((rows, observed), np.float32)
        old = np.full(rows, -np.log(actions), np.float32) + rng.normal(0, 0.1, rows).astype(np.float32)
        return x, rng.integers(0, actions, size=rows), rng.standard_normal(rows, np.float32), old

    return data


def clipped_policy(lib: Any, network: Any, x: Any, action: Any, returns: Any, old: Any) -> Any:
    """The loss of PPO: a clipped ratio of probabilities, the critic's error, and the entropy."""
    F = lib.nn.functional
    logits, value = network(x)
    log_probs = F.log_softmax(logits, dim=-1)
    log_prob = log_probs.gather(1, action.unsqueeze(1)).squeeze(1)
    advantage = returns - value.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (log_prob - old).exp()
    policy = -lib.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return policy + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy
