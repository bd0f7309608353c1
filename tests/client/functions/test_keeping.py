"""gt.keep, gt.kept, gt.publish, gt.get: objects that outlive their client, in a cluster in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gt
from gt import config, nn
from gt.client.session.placing import set_mesh
from gt.errors import ArgumentError, IndexOutOfRange, OutOfMemory, ServerError, StateError
from gt.transport.messages import Keep, Kept
from tests.sim.cluster import Cluster, using


@contextmanager
def client(cluster: Cluster, name: str = "exp") -> Iterator[Any]:
    """A client of a session with this name; killed at the end of the block."""
    session = cluster.client(name=name)
    with using(session):
        yield session
    cluster.kill_link(session.channel)


def left(cluster: Cluster) -> dict[str, int]:
    """By session: how many tensors it has at the dispatcher."""
    cluster.run()
    return {s.name: len(s.tensors) for s in cluster.machine.state.sessions.values()}


def test_what_was_kept_does_not_change_and_comes_back() -> None:
    cluster = Cluster(1)
    with client(cluster):
        x = gt.arange(4.0)
        gt.keep("x", x)
        x.add_(1)
        np.testing.assert_array_equal(gt.kept("x").numpy(), [0, 1, 2, 3])
    with client(cluster):
        y = gt.kept("x")
        y.mul_(3)
        z = gt.kept("x")
        np.testing.assert_array_equal(z.numpy(), [0, 1, 2, 3])
        assert not z.requires_grad
        del y, z
    assert left(cluster) == {"[exp]": 1}


def test_tied_weights_are_one_tensor_and_views_are_their_own() -> None:
    cluster = Cluster(1)
    with client(cluster):
        w = gt.arange(6.0).reshape(2, 3)
        gt.keep("net", {"a": w, "b": w, "column": w[:, 1], "bias": nn.Parameter(gt.ones(2))})
    assert left(cluster) == {"[exp]": 3}
    with client(cluster):
        net = gt.kept("net")
        net["a"].add_(1)
        np.testing.assert_array_equal(net["b"].numpy(), np.arange(6).reshape(2, 3))
        np.testing.assert_array_equal(net["column"].numpy(), [1, 4])


def gan() -> tuple[Callable[[], float], Callable[[], Any], Callable[[Any], None]]:
    """A generator and a discriminator with an optimizer each: a step, its state, and how it is loaded."""
    generator = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    judge = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    first, second = gt.optim.Adam(generator.parameters()), gt.optim.RMSprop(judge.parameters(), lr=0.01)
    parts = {"generator": generator, "judge": judge, "first": first, "second": second}
    loss_of = nn.functional.binary_cross_entropy_with_logits

    def step() -> float:
        fake, real = generator(gt.randn(4, 2)), gt.randn(4, 2) + 3
        second.zero_grad()
        loss = loss_of(judge(real), gt.ones(4, 1)) + loss_of(judge(fake.detach()), gt.zeros(4, 1))
        loss.backward()
        second.step()
        first.zero_grad()
        loss_of(judge(fake), gt.ones(4, 1)).backward()
        first.step()
        return float(loss.item())

    def state() -> Any:
        return {**{name: part.state_dict() for name, part in parts.items()}, "random": gt.get_rng_state()}

    def load(saved: Any) -> None:
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        gt.set_rng_state(saved["random"])

    return step, state, load


def test_a_gan_with_two_optimizers_goes_on_bit_for_bit() -> None:
    cluster = Cluster(1, engine="torch")
    with client(cluster):
        gt.manual_seed(3)
        step, state, _ = gan()
        for _ in range(4):
            step()
        gt.keep("gan", state())
        expected = [step() for _ in range(4)]
    with client(cluster):
        step, state, load = gan()
        load(gt.kept("gan"))
        assert [step() for _ in range(4)] == expected


def test_shards_come_back_in_their_layouts_on_their_workers() -> None:
    cluster = Cluster(4)
    data = np.arange(24.0).reshape(8, 3)
    with client(cluster, "other"):
        gt.ones(3).numpy()  # somebody else is on the first worker
        with client(cluster) as session:
            set_mesh(session, "", {"x": 3})
            set_mesh(session, "pair", {"y": 2}, [1, 2])
            gt.keep("x", [gt.shard(gt.tensor(data), {0: "x"}), gt.shard(gt.tensor(data), {1: "y"}, "pair")])
            workers = session.meshes.by_name[""].workers
        with client(cluster) as session:
            assert session.meshes.by_name[""].workers == workers
            rows, columns = gt.kept("x")
            assert (repr(rows.layout), rows.layout.mesh.workers) == ("[8@x]", workers)
            assert (repr(columns.layout), columns.layout.mesh.workers) == ("[. 3@y]", workers[1:])
            np.testing.assert_array_equal((rows + columns).numpy(), 2 * data)


def test_a_client_on_other_workers_reads_what_is_published() -> None:
    cluster = Cluster(2)
    with client(cluster, "") as first:
        gt.publish("x", {"rows": gt.arange(4.0)})
        with client(cluster, "") as second:
            mine = gt.ones(4) * 10
            mine.numpy()
            assert first.stats()["session"]["workers"] != second.stats()["session"]["workers"]
            theirs = gt.get("x")["rows"]
            np.testing.assert_array_equal((mine + theirs).numpy(), [10, 11, 12, 13])
            gt.unpublish("x")
            with pytest.raises(ArgumentError, match="nothing is published as 'x' that you may read"):
                gt.get("x")
            np.testing.assert_array_equal((mine - theirs).numpy(), [10, 9, 8, 7])


def test_an_earlier_failure_is_raised_and_nothing_is_replaced() -> None:
    cluster = Cluster(1)
    with client(cluster) as session:
        x = gt.zeros(3)
        gt.keep("x", x)
        x.add_(gt.ones(3)[gt.tensor([0, 1, 9])])
        with pytest.raises(IndexOutOfRange):
            gt.keep("x", x + 1)
        gt.keep("y", x)  # the failure is known now; this is the value from before
        assert session.reported == 1
        np.testing.assert_array_equal(gt.kept("x").numpy(), np.zeros(3))
        np.testing.assert_array_equal(gt.kept("y").numpy(), np.zeros(3))


def test_too_large_for_a_second_copy() -> None:
    settings = config.replace(config.load(), worker_memory=2600)
    cluster = Cluster(1, settings=settings)
    with client(cluster):
        x = gt.ones(100)  # 400 bytes
        gt.keep("x", x)
        gt.keep("x", x * 2)
        large = gt.ones(300)
        large.sum().item()
        with pytest.raises(OutOfMemory, match=r"copies of 400 bytes on worker 1, which has \d+ bytes free of 2.5 KiB"):
            gt.keep("x", x * 3)
        np.testing.assert_array_equal(gt.kept("x")[:2].numpy(), [2, 2])
        del large
        gt.keep("x", x * 3)
        assert gt.kept() == {"x": "f32[100]"}
        np.testing.assert_array_equal(gt.kept("x")[:2].numpy(), [3, 3])


def test_what_a_form_may_be_is_checked() -> None:
    """Another client wrote it."""
    cluster = Cluster(1)
    with client(cluster) as session:
        session.settle_value(gt.ones(2)._v)
        forms = ('[{"tensor": "a"}, {"a": 7}]', '[{"what": 1}, {}]', '[{"dict": 3}, {}]')
        for text in ("", "[", "[1]", *forms, "[" * 9999):
            answer = session.ask(lambda request, text=text: Keep(request, "odd", text, b"", 0))
            assert answer == Kept(answer.request)
            with pytest.raises(ServerError, match="what is stored as 'odd' cannot be read"):
                gt.kept("odd")


def test_an_interrupted_question_leaves_nothing_behind() -> None:
    cluster = Cluster(1)
    with client(cluster) as session:
        gt.keep("x", gt.ones(3))
        move = cluster.while_waiting

        def interrupt(link: Any) -> None:
            cluster.while_waiting = move
            raise KeyboardInterrupt

        cluster.while_waiting = interrupt
        with pytest.raises(KeyboardInterrupt):
            gt.kept("x")
        cluster.run()
        session.process()
        session.flush_frees()
        assert sorted(left(cluster).values()) == [0, 1]


def test_where_nothing_can_be_kept() -> None:
    with client(Cluster(1), ""):
        for do in (lambda: gt.keep("x", 1), gt.kept, gt.drop):
            with pytest.raises(StateError, match=r"this session has no name; connect with gt\.connect"):
                do()
        with pytest.raises(ArgumentError, match="must not contain a slash, got 'a/b'"):
            gt.publish("a/b", 1)
        with pytest.raises(ArgumentError, match="this server has no users; leave out `to`"):
            gt.publish("a", gt.ones(2), to="bob")
        for wrong in ([], [3], ""):
            with pytest.raises(ArgumentError, match="to must be names of users"):
                gt.publish("a", 1, to=wrong)
        for name in ("", 3, None):
            with pytest.raises(ArgumentError, match="must be a str that is not empty"):
                gt.get(name)  # type: ignore[arg-type]
    with gt.on_paper(), pytest.raises(StateError, match="on_paper"):
        gt.publish("x", 1)
