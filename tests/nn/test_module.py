"""Module: names, states, hooks, modes, types, containers."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, DTypeError, ShapeError, StateError
from tests.beside_torch import agree, agree_as_twins, arrays, as_in_torch, nn_twins, same
from tests.client.mistakes import Mistakes, refused

_rng = np.random.default_rng(3)
X = _rng.normal(size=(3, 4))


def net(nn: Any) -> Any:
    """Modules in modules, one of them twice, tied parameters, buffers of both kinds, nothings."""
    lib = torch if nn is torch.nn else gt

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again = self.first
            self.inner = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
            self.inner[0].weight = self.first.weight
            self.scale = nn.Parameter(lib.ones(4))
            self.register_buffer("shift", lib.zeros(4))
            self.register_buffer("scratch", lib.ones(2), persistent=False)
            self.register_buffer("none", None)
            self.register_parameter("no_weight", None)
            self.missing = None

        def forward(self, x: Any, *, times: float = 1.0) -> Any:
            return self.inner(self.again(self.first(x))) * self.scale * times + self.shift

    return Net()


# --- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("walk", ["named_parameters", "named_buffers", "named_modules"])
@pytest.mark.parametrize("duplicates", [False, True])
def test_names_and_their_order(walk: str, duplicates: bool) -> None:
    theirs, ours = net(torch.nn), net(gt.nn)
    names = [[n for n, _ in getattr(m, walk)(remove_duplicate=not duplicates)] for m in (ours, theirs)]
    assert names[0] == names[1]
    assert [n for n, _ in getattr(ours, walk)(prefix="p")] == [n for n, _ in getattr(theirs, walk)(prefix="p")]
    if walk != "named_modules":
        assert [n for n, _ in getattr(ours, walk)(recurse=False)] == [
            n for n, _ in getattr(theirs, walk)(recurse=False)
        ]


def test_text_children_and_attributes() -> None:
    theirs, ours = net(torch.nn), net(gt.nn)
    assert repr(ours) == repr(theirs)
    assert [n for n, _ in ours.named_children()] == [n for n, _ in theirs.named_children()]
    assert len(list(ours.modules())) == len(list(theirs.modules()))
    for name in ("weight", "scale", "shift", "inner", "missing", "train", "_parameters"):
        assert (name in dir(ours)) == (name in dir(theirs))
    assert ours.get_submodule("inner.1") is ours.inner[1]
    assert ours.get_submodule("") is ours
    assert ours.get_parameter("inner.0.weight") is ours.first.weight
    assert ours.get_buffer("inner.1.running_mean") is ours.inner[1].running_mean
    for get, name in (("submodule", "inner.7"), ("parameter", "inner.0.bias"), ("buffer", "scale")):
        with pytest.raises(AttributeError, match="has no"):
            getattr(ours, f"get_{get}")(name)
    ours.set_submodule("inner.0", gt.nn.Identity())
    assert type(ours.inner[0]) is gt.nn.Identity


def test_assigning() -> None:
    """What becomes a parameter, a buffer, a module or none of these; what is refused."""
    ours = net(gt.nn)
    ours.shift = gt.ones(4)
    assert ours.state_dict()["shift"].tolist() == [1.0] * 4
    ours.shift = None
    assert "shift" not in ours.state_dict()
    ours.scale = None
    assert "scale" in ours._parameters
    assert ours.scale is None
    ours.first = None
    assert "(first): None" in repr(ours)
    ours.missing = gt.nn.Parameter(gt.ones(1))
    assert "missing" in ours.state_dict()
    ours.plain = gt.ones(1)
    assert "plain" not in ours.state_dict()
    ours.kept = gt.nn.Buffer(gt.ones(1))
    ours.lost = gt.nn.Buffer(gt.ones(1), persistent=False)
    assert "kept" in ours.state_dict()
    assert "lost" not in ours.state_dict()
    assert {"kept", "lost"} <= {n for n, _ in ours.named_buffers()}
    del ours.scratch
    assert "scratch" not in dict(ours.named_buffers())
    for name, value in (("inner", gt.ones(1)), ("missing", gt.ones(1)), ("shift", 3)):
        with pytest.raises(DTypeError, match=f"{name}' must be set to"):
            setattr(ours, name, value)
    parameter, buffer, module = ours.register_parameter, ours.register_buffer, ours.add_module
    bad_names, linear = ((parameter, "a.b", None), (buffer, "", None), (module, "a.b", None)), gt.nn.Linear(1, 1)
    for register, name, value in (*bad_names, (parameter, "bad", linear), (buffer, "bad", 3), (module, "bad", 3)):
        with pytest.raises((ArgumentError, DTypeError)):
            register(name, value)
    with pytest.raises(KeyError, match="already has an attribute 'plain'"):
        ours.register_buffer("plain", None)


def test_attributes_are_replaced_and_deleted() -> None:
    ours = net(gt.nn)
    assert len(list(ours.parameters())) == 5
    ours.scale = gt.nn.Parameter(gt.zeros(4))
    assert ours.scale.tolist() == [0.0] * 4
    ours.first = ours.again = ours.inner = None
    assert [n for n, _ in ours.named_parameters()] == ["scale"]
    del ours.scale
    assert list(ours.parameters()) == []
    with pytest.raises(AttributeError, match="Net has no attribute 'scale'"):
        ours.scale  # noqa: B018

    class Early(gt.nn.Module):
        def __init__(self) -> None:
            self.w = gt.nn.Parameter(gt.ones(2))

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) before setting w"):
        Early()


def test_imports_from_both_places() -> None:
    from gt.client import nn, optim

    assert (nn, optim) == (gt.nn, gt.optim)
    assert all(hasattr(nn, name) for name in nn.__all__)


# --- states ------------------------------------------------------------------------------------------


def test_states_are_torchs_names_and_share_memory() -> None:
    theirs, ours = nn_twins(net)
    assert list(ours.state_dict(prefix="m.")) == list(theirs.state_dict(prefix="m."))
    state = ours.state_dict()
    assert not state["scale"].requires_grad
    assert ours.state_dict(keep_vars=True)["scale"] is ours.scale
    with gt.no_grad():
        ours.scale.fill_(3.0)
    assert state["scale"].tolist() == [3.0] * 4


@pytest.mark.parametrize("kind", ["gt", "numpy", "torch", "torch bfloat16"])
@pytest.mark.parametrize("assign", [False, True])
def test_loading(kind: str, assign: bool) -> None:
    model = gt.nn.Linear(3, 2)
    before = model.weight
    w = _rng.normal(size=(2, 3)).astype(np.float32)
    given: Any = {"gt": gt.from_numpy(w), "numpy": w}.get(kind)
    if given is None:
        given = torch.from_numpy(w)
        given = given.bfloat16() if kind == "torch bfloat16" else torch.nn.Parameter(given)
        w = given.detach().float().numpy()
    keys = model.load_state_dict({"weight": given, "b": 1}, strict=False, assign=assign)
    assert keys == (["bias"], ["b"])
    assert repr(keys).startswith("_IncompatibleKeys(missing_keys=['bias']")
    assert (model.weight is before) != assign
    assert model.weight.requires_grad
    np.testing.assert_array_equal(model.weight.detach().float().numpy(), w)
    assert repr(model.load_state_dict(model.state_dict())) == "<All keys matched successfully>"


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    model = gt.nn.Sequential(gt.nn.Linear(3, 2), gt.nn.Linear(2, 2))
    before = arrays(list(model.state_dict().values()))
    state = {k: v * 0.0 for k, v in model.state_dict().items()}
    with pytest.raises(StateError, match=r"missing \['1.bias'\], unexpected \['2.bias', 'x'\]") as caught:
        model.load_state_dict({"0.weight": state["0.weight"], "0.bias": state["0.bias"], "1.weight": state["1.weight"],
                               "2.bias": state["1.bias"], "x": state["1.bias"]})  # fmt: skip
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(ShapeError, match=r"1.weight must have shape \(2, 2\), got \(3, 3\)"):
        model.load_state_dict({**state, "1.weight": gt.ones(3, 3)})
    with pytest.raises(ShapeError, match=r"1\.weight must be a tensor or an array, got list"):
        model.load_state_dict({**state, "1.weight": [[1.0]]})
    with pytest.raises(DTypeError, match="expected a dict of tensors by name, got list"):
        model.load_state_dict([])
    same(arrays(list(model.state_dict().values())), before, rtol=0)


def test_extra_state_and_hooks_of_states() -> None:
    class Counter(gt.nn.Module):
        count = 3

        def get_extra_state(self) -> Any:
            return self.count

        def set_extra_state(self, state: Any) -> None:
            self.count = state

    model = gt.nn.Sequential(Counter(), gt.nn.Linear(1, 1))
    state = model.state_dict()
    assert state["0._extra_state"] == 3
    model.load_state_dict({**state, "0._extra_state": 5})
    assert model[0].count == 5
    with pytest.raises(StateError, match=r"missing \['0._extra_state'\]"):
        model.load_state_dict({k: v for k, v in state.items() if "extra" not in k})

    calls: list[Any] = []
    linear = gt.nn.Linear(1, 1)
    linear.register_state_dict_pre_hook(lambda m, prefix, keep: calls.append("before"))
    linear.register_state_dict_post_hook(
        lambda m, state, prefix, meta: state.update({"more": 1, "even more": 2, "again": 3})
    )
    linear.register_load_state_dict_pre_hook(lambda m, state, *rest: state.pop("more"))
    linear._register_load_state_dict_pre_hook(lambda state, prefix, *rest: state.pop("even more"))
    linear._register_load_state_dict_pre_hook(lambda m, state, *rest: state.pop("again"), with_module=True)
    handle = linear.register_load_state_dict_post_hook(lambda m, keys: calls.append(tuple(keys)))
    linear.load_state_dict(linear.state_dict())
    handle.remove()
    linear.load_state_dict(linear.state_dict())
    assert calls == ["before", ([], []), "before"]


# --- hooks -------------------------------------------------------------------------------------------


def test_hooks_of_all_modules() -> None:
    from importlib import import_module

    def story(lib: Any) -> list[Any]:
        every = import_module(f"{lib.__name__}.nn.modules.module")
        model = lib.nn.Sequential(lib.nn.Tanh(), lib.nn.Sigmoid())
        log: list[Any] = []
        own = model[1].register_forward_hook(lambda m, args, out: log.append("own"))
        handles = [
            every.register_module_forward_pre_hook(lambda m, args: log.append(("pre", type(m).__name__))),
            every.register_module_forward_hook(lambda m, args, out: log.append(("post", type(m).__name__))),
            every.register_module_forward_hook(lambda m, args, out: out * 2 if type(m).__name__ == "Tanh" else None),
            every.register_module_full_backward_pre_hook(lambda m, g: log.append(("in", type(m).__name__))),
            every.register_module_full_backward_hook(lambda m, gi, go: log.append(("out", type(m).__name__))),
        ]
        x = lib.from_numpy(X).requires_grad_()
        y = model(x)
        y.sum().backward()
        for handle in [own, *handles]:
            handle.remove()
        model(x)
        return [y, x.grad, log]

    agree(story, rtol=1e-6)


def _forward_hooks(module: Any, log: list[Any]) -> list[Any]:
    return [
        module.register_forward_pre_hook(lambda m, args: log.append("pre")),
        module.register_forward_pre_hook(lambda m, args: args[0] * 2),
        module.register_forward_pre_hook(
            lambda m, args, kwargs: (args, {"times": kwargs.get("times", 1.0) * 3}), with_kwargs=True, prepend=True
        ),
        module.register_forward_hook(lambda m, args, out: log.append(("post", len(args)))),
        module.register_forward_hook(lambda m, args, kwargs, out: out + kwargs["times"], with_kwargs=True),
        module.register_forward_hook(lambda m, args, out: log.append("first"), prepend=True),
    ]


def test_forward_hooks() -> None:
    def seen(lib: Any, module: Any) -> Any:
        log: list[Any] = []
        handles = _forward_hooks(module, log)
        hooked = module(lib.from_numpy(X), times=0.5)
        for handle in handles:
            handle.remove()
        plain = module(lib.from_numpy(X))
        assert log == ["pre", "first", ("post", 1)]
        return hooked, plain

    agree_as_twins(seen, net)


def _watching(module: Any, log: list[Any]) -> None:
    module.register_full_backward_pre_hook(lambda m, out: log.append(("pre", out)))
    module.register_full_backward_hook(lambda m, inp, out: log.append(("post", inp, out)))


def _changing(module: Any, log: list[Any]) -> None:
    module.register_full_backward_pre_hook(lambda m, out: tuple(None if g is None else g * 2 for g in out))
    module.register_full_backward_hook(
        lambda m, inp, out: tuple(g * 10 for g in inp[:2]) + inp[2:] if inp[0] is not None else None
    )
    _watching(module, log)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("register", [_watching, _changing])
@pytest.mark.parametrize("graded", [True, False])
def test_backward_hooks(register: Callable[..., None], graded: bool) -> None:
    """Gradients that hooks see and change; of inputs that have them, have none, or are no tensors."""

    def build(nn: Any) -> Any:
        class Twice(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 2)

            def forward(self, a: Any, b: Any, n: int) -> Any:
                return self.linear(a) * n, (a * b).sum()

        return Twice()

    def seen(lib: Any, module: Any) -> Any:
        log: list[Any] = []
        register(module, log)
        a = lib.from_numpy(X.copy())
        a = a.requires_grad_() if graded else a
        y, s = module(a, lib.from_numpy(X + 1), 3)
        ((y * y).sum() + (s * 2 if graded else 0)).backward()
        assert [kind for kind, *_ in log] == ["pre", "post"]
        return y, a.grad, [p.grad for p in module.parameters()], log

    agree_as_twins(seen, build)


def test_hooks_are_copied_and_functions_are_traced() -> None:
    module = gt.nn.Linear(2, 2)
    module.register_forward_hook(lambda m, args, out: out * 2)
    twin = copy.deepcopy(module)
    x = gt.ones(1, 2)
    np.testing.assert_array_equal(twin(x).detach().numpy(), module(x).detach().numpy())
    del twin  # while two tensors share one value, a trace cannot tell which of them was meant
    dropped = gt.nn.Dropout(1.0)

    @gt.function
    def run(x: Any) -> Any:
        with gt.no_grad():
            return dropped(module(x)).sum()

    assert [run(x).item() for _ in range(3)] == [0.0] * 3
    dropped.eval()
    assert run(x).item() == pytest.approx(module(x).sum().item())
    assert run.replays == 2


# --- types -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["double", "half", "bfloat16", "float", "cuda", "cpu", "share_memory"])
def test_types(method: str) -> None:
    model = gt.nn.BatchNorm1d(3)
    model(gt.randn(4, 3)).sum().backward()
    weight, before = model.weight, model.weight.detach().numpy()
    assert getattr(model, method)() is model
    name = {"double": "float64", "half": "float16", "bfloat16": "bfloat16"}.get(method, "float32")
    assert model.weight is weight
    assert {t.dtype.name for t in (model.weight, model.running_mean, model.weight.grad)} == {name}
    assert model.num_batches_tracked.dtype is gt.int64
    np.testing.assert_array_equal(model.weight.detach().float().numpy(), before)


def test_to_and_type() -> None:
    model = gt.nn.Linear(2, 2)
    assert model.to("cuda").weight.dtype is gt.float32
    assert model.to("cpu", dtype=gt.float64).weight.dtype is gt.float64
    assert model.to(gt.ones(1)).weight.dtype is gt.float32
    assert model.type(gt.float64).bias.dtype is gt.float64
    with pytest.raises(DTypeError, match="parameters must be floating point or complex, got int64"):
        model.to(gt.int64)
    y = model(gt.ones(1, 2, dtype=gt.float64)).sum()
    y.backward()
    assert model.weight.grad.dtype is gt.float64


@as_in_torch()
def test_modes_freezing_and_apply(lib: Any) -> Any:
    model, x, seen = net(lib.nn), lib.ones(2, 4), []
    model.eval()
    assert not any(m.training for m in model.modules())
    model.train()
    assert all(m.training for m in model.modules())
    model.requires_grad_(False)
    assert not model(x).requires_grad
    model.requires_grad_()
    model.apply(lambda m: seen.append(type(m).__name__))
    assert seen[-2:] == ["Sequential", "Net"]
    model(x).sum().backward()
    model.zero_grad(set_to_none=False)
    assert float(model.scale.grad.abs().sum()) == 0.0
    model.zero_grad()
    assert model.scale.grad is None
    return seen


def test_modes_reach_down_through_methods() -> None:
    class Frozen(gt.nn.Linear):
        def train(self, mode: bool = True) -> Any:
            return super().train(False)

    model = gt.nn.Sequential(Frozen(1, 1), gt.nn.Dropout())
    model.train()
    assert [m.training for m in model.modules()] == [True, False, True]
    with pytest.raises(ArgumentError, match="train: mode must be a bool, got 1"):
        model.train(1)
    with pytest.raises(NotImplementedError, match=r"Module has no forward\(\)"):
        gt.nn.Module()(1)


def test_copies_are_their_own_and_keep_ties() -> None:
    model = net(gt.nn)
    twin = copy.deepcopy(model)
    assert twin.inner[0].weight is twin.first.weight
    assert twin.again is twin.first
    with gt.no_grad():
        twin.scale.zero_()
    assert model.scale.tolist() == [1.0] * 4
    assert list(twin.state_dict()) == list(model.state_dict())


@as_in_torch(rtol=0)
def test_copies_are_frozen_where_the_module_is_and_have_no_gradients(lib: Any) -> Any:
    model = lib.nn.Sequential(lib.nn.Linear(2, 2), lib.nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    model.mean = lib.nn.Buffer(lib.ones(2))
    model.spare = lib.nn.Buffer(lib.zeros(2), persistent=False)
    model(lib.ones(1, 2)).sum().backward()
    twin = copy.deepcopy(model)
    parameters = [(name, p.requires_grad, p.grad is None) for name, p in twin.named_parameters()]
    return parameters, list(twin.state_dict()), twin.mean, twin.spare.persistent


# --- containers --------------------------------------------------------------------------------------


def _sequential(lib: Any) -> list[Any]:
    nn = lib.nn
    s = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    named = nn.Sequential(OrderedDict([("a", nn.Linear(2, 3)), ("b", nn.Tanh())]))
    seen: list[Any] = [s[1:], named[:1], s[-1], s[0], len(s), named]
    s[1] = nn.GELU()
    del s[0]
    seen.append(copy.deepcopy(s))
    s.append(nn.Tanh()).insert(0, nn.Sigmoid()).insert(-1, nn.Identity())
    s.extend([nn.ReLU(), nn.ELU()])
    seen += [copy.deepcopy(s), s + named, named * 2, 2 * named]
    s += nn.Sequential(nn.SELU())
    seen += [s.pop(1), s, [type(m).__name__ for m in s]]
    return seen


def _lists(lib: Any) -> list[Any]:
    nn = lib.nn
    m = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    seen: list[Any] = [copy.deepcopy(m), nn.ModuleList(), m[1:], m[-1], len(m)]
    m.append(nn.ReLU())
    m.insert(1, nn.Tanh())
    m += [nn.ReLU(), nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))]
    seen += [copy.deepcopy(m), m + nn.ModuleList([nn.Identity()]), m.pop(0)]
    del m[1:3]
    m[0] = nn.Sigmoid()
    return [*seen, m]


def _dicts(lib: Any) -> list[Any]:
    nn = lib.nn
    d = nn.ModuleDict({"b": nn.Linear(2, 2), "a": nn.ReLU()})
    d["c"] = nn.Tanh()
    d.update([("e", nn.ELU()), ("a", nn.SELU())])
    seen: list[Any] = [copy.deepcopy(d), list(d), "a" in d, len(d), list(d.keys()), d["c"], d.pop("b")]
    del d["c"]
    d.update(nn.ModuleDict({"z": nn.Identity()}))
    seen.append([(k, repr(v)) for k, v in d.items()])
    d.clear()
    return [*seen, d]


def _parameters(lib: Any) -> list[Any]:
    nn = lib.nn
    p = nn.ParameterList([nn.Parameter(lib.ones(2, 3)), lib.zeros(4)])
    p.append(lib.ones(1)).extend([lib.ones(2)])
    p[0] = lib.zeros(1)
    d = nn.ParameterDict({"b": lib.ones(2), "a": nn.Parameter(lib.zeros(3)), "n": 5})
    d["z"] = lib.ones(1)
    more = d | nn.ParameterDict({"y": lib.ones(1)})
    seen = [
        repr(p).replace("torch.", "gt."), len(p), [tuple(q.shape) for q in p], tuple(p[-1].shape), len(p[1:]),
        [n for n, _ in p.named_parameters()], list(p.state_dict()), list(d), [k for k, _ in d.items()], d["n"],
        [n for n, _ in d.named_parameters()], d.get("q", 7), "a" in d, list(more), d.pop("n"), len(d),
        type(d.setdefault("w", lib.ones(1))).__name__, d.popitem()[0], list(reversed(d)),
    ]  # fmt: skip
    d.clear()
    return [*seen, len(d)]


@pytest.mark.parametrize("script", [_sequential, _lists, _dicts, _parameters])
def test_containers_are_torchs(script: Callable[[Any], list[Any]]) -> None:
    theirs, ours = script(torch), script(gt)
    assert [repr(o) for o in ours] == [repr(t) for t in theirs]


MISTAKES: Mistakes = {
    "item": (lambda s: s[3], IndexError, "index 3 is out of range for 1 elements"),
    "insert": (lambda s: s.insert(3, gt.nn.ReLU()), IndexError, "index 3 is out of range for 1 modules"),
    "sum": (lambda s: s + gt.nn.ModuleList(), ArgumentError, "expected a Sequential, got ModuleList"),
    "product": (lambda s: s * 0, ArgumentError, "expected an int > 0, got 0"),
    "append": (lambda s: s.append(1), DTypeError, "1 must be a Module, got int"),
    "dict": (lambda s: gt.nn.ModuleDict([1]), DTypeError, "expected a mapping or pairs of name and value"),
    "call": (lambda s: gt.nn.ParameterList([gt.ones(1)])(), RuntimeError, "cannot be called"),
}
test_mistakes_with_containers = refused(MISTAKES, lambda: gt.nn.Sequential(gt.nn.ReLU()))


def test_parameters_that_require_gradients_are_floats() -> None:
    with pytest.raises(RuntimeError, match="not int64; use requires_grad=False"):
        gt.nn.Parameter(gt.arange(3))
    assert not gt.nn.Parameter(gt.arange(3), requires_grad=False).requires_grad


def test_a_state_that_was_loaded_is_not_kept() -> None:
    """Nothing of it waits for Python's garbage collector: it may be as large as the model."""
    model = gt.nn.Sequential(gt.nn.Linear(2, 3), gt.nn.Sequential(gt.nn.Linear(3, 1)))
    state = {name: gt.ones(t.shape) for name, t in model.state_dict().items()}
    kept = [weakref.ref(t) for t in state.values()]
    gc.collect()
    gc.disable()
    try:
        model.load_state_dict(state)
        del state
        assert [ref() for ref in kept] == [None] * 4
    finally:
        gc.enable()
    assert float(model[1][0].weight.sum()) == 3.0


@pytest.mark.filterwarnings("ignore:.*forward hook.*raised an.*:UserWarning")
@as_in_torch()
def test_hooks_that_are_always_called(lib: Any) -> list[str]:
    log: list[str] = []

    class Bad(lib.nn.Module):  # type: ignore[misc]  # of either library
        def forward(self, x: Any) -> Any:
            raise KeyError("forward")

    def hook(name: str) -> Any:
        def run(module: Any, args: Any, out: Any) -> None:
            log.append(f"{name} {out is None}")
            if name == "bad":
                raise RuntimeError(name)

        return run

    for model in (Bad(), lib.nn.ReLU()):
        for name, always in (("bad", True), ("not", False), ("last", True)):
            model.register_forward_hook(hook(name), always_call=always)
        with pytest.raises((KeyError, RuntimeError)) as error:
            model(lib.ones(1))
        log.append(type(error.value).__name__)
    return log
