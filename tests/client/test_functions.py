"""autograd.Function, checkpoint, gt.func, anomaly mode, hooks and grad modes, beside torch where torch has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.tensor import Later
from gt.errors import ArgumentError, AutogradError

pytestmark = pytest.mark.usefixtures("session")


def both(f: Any, *arrays: Any) -> None:
    """f(library, *leaves) returns tensors; they and the leaves' gradients agree."""
    found = []
    for lib in (gt, torch):
        leaves = [lib.tensor(a, requires_grad=True) for a in arrays]
        out = f(lib, *leaves)
        grads = [x.grad for x in leaves]
        found.append([t.detach().numpy() for t in (*out, *grads) if t is not None])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def cube(lib: Any) -> Any:
    class Cube(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float) -> Any:
            y = x * x * x * scale
            ctx.save_for_backward(x, y)
            ctx.scale = scale
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, _ = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False)
            return g * x * x * (3 * ctx.scale), None

    return Cube


def test_a_function_has_its_own_gradient() -> None:
    def f(lib: Any, x: Any) -> Any:
        y = cube(lib).apply(x, 2.0)
        y.sum().backward()
        return (y,)

    both(f, X)


def test_a_functions_gradient_has_a_gradient() -> None:
    def f(lib: Any, x: Any) -> Any:
        (g,) = lib.autograd.grad(cube(lib).apply(x, 2.0).sum(), x, create_graph=True)
        (g * g).sum().backward()
        return (g,)

    both(f, X)


def test_a_function_of_several_results() -> None:
    def f(lib: Any, x: Any) -> Any:
        class Parts(lib.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                sign = x > 0
                ctx.mark_non_differentiable(sign)
                return x * 2, sign, x * 3

            @staticmethod
            def backward(ctx: Any, a: Any, b: Any, c: Any) -> Any:
                return a * 2 + c * 3  # c is zeros: nobody used it

        a, sign, _ = Parts.apply(x)
        assert not sign.requires_grad
        (a * a).sum().backward()
        return (a,)

    both(f, X)


def test_a_function_may_return_what_is_no_tensor() -> None:
    def f(lib: Any, x: Any) -> Any:
        class Named(lib.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2, None, "twice"

            @staticmethod
            def backward(ctx: Any, a: Any, b: Any, c: Any) -> Any:
                assert (b, c) == (None, None)
                return a * 2

        a, nothing, name = Named.apply(x)
        assert (nothing, name) == (None, "twice")
        (a * a).sum().backward()
        return (a,)

    both(f, X)


def test_setup_context_instead_of_ctx() -> None:
    def f(lib: Any, x: Any) -> Any:
        class Sin(lib.autograd.Function):
            @staticmethod
            def forward(x: Any) -> Any:
                return x.sin()

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                ctx.save_for_backward(inputs[0])

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * ctx.saved_tensors[0].cos()

        y = Sin.apply(x)
        y.sum().backward()
        return (y,)

    both(f, X)


def test_a_function_that_returns_too_few_gradients() -> None:
    class Bad(gt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x + y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    x = gt.ones(2, requires_grad=True)
    with pytest.raises(AutogradError, match=r"Bad\.backward returned 1 gradients for 2 inputs"):
        Bad.apply(x, x).sum().backward()


def test_backward_drops_what_a_function_saved() -> None:
    x = gt.ones(2, requires_grad=True)
    y = cube(gt).apply(x, 2.0)
    saved = y.grad_fn.context
    y.sum().backward(retain_graph=True)
    assert len(saved.saved_tensors) == 2
    y.sum().backward()
    assert saved.saved_tensors == ()
    with pytest.raises(AutogradError, match="Cube: backward a second time"):
        y.sum().backward()


def test_defaults_of_forward_may_have_gradients_of_none() -> None:
    def f(lib: Any, x: Any) -> Any:
        class Scale(lib.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, by: float = 2.0, add: float = 1.0) -> Any:
                ctx.by = by
                return x * by + add

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * ctx.by, None, None

        y = Scale.apply(x) + Scale.apply(x, 3.0)
        y.sum().backward()
        return (y,)

    both(f, X)


def test_a_function_without_history_is_plain() -> None:
    assert not cube(gt).apply(gt.ones(2), 1.0).requires_grad
    with gt.no_grad():
        assert not cube(gt).apply(gt.ones(2, requires_grad=True), 1.0).requires_grad


# --- checkpoint --------------------------------------------------------------------------------------


def test_checkpoint_gives_the_same_gradients_with_dropout() -> None:
    model = gt.nn.Sequential(gt.nn.Linear(3, 8), gt.nn.Dropout(0.5), gt.nn.GELU(), gt.nn.Linear(8, 1))
    x = gt.tensor(X.astype(np.float32), requires_grad=True)

    def gradients(run: Any) -> list[np.ndarray]:
        gt.manual_seed(3)
        model.zero_grad()
        x.grad = None
        run(model, x).sum().backward()
        return [t.grad.numpy() for t in (*model.parameters(), x)]

    plain = gradients(lambda m, x: m(x))
    for way in (gt.checkpoint, lambda m, x: gt.checkpoint(lambda t: gt.checkpoint(m, t), x)):
        for a, b in zip(plain, gradients(way), strict=True):
            np.testing.assert_array_equal(a, b)
    sequential = gradients(lambda m, x: gt.checkpoint_sequential(m, 2, x))
    for a, b in zip(plain, sequential, strict=True):
        np.testing.assert_array_equal(a, b)


def test_checkpoint_keeps_no_values_and_draws_the_same_afterwards() -> None:
    x = gt.ones(3, requires_grad=True)
    gt.manual_seed(0)
    y = gt.checkpoint(lambda t: gt.nn.functional.dropout(t.exp(), 0.5).sin(), x)
    assert type(y.grad_fn.saved) is Later
    y.sum().backward()
    after = gt.rand(2).numpy()
    gt.manual_seed(0)
    gt.nn.functional.dropout(x.exp(), 0.5)
    np.testing.assert_array_equal(after, gt.rand(2).numpy())


def test_checkpoint_of_a_function_that_changes_its_mind() -> None:
    x, times = gt.ones(3, requires_grad=True), []

    def f(t: Any) -> Any:
        times.append(1)
        return t.exp() if len(times) == 1 else t.sin().exp()

    y = gt.checkpoint(f, x)
    with pytest.raises(AutogradError, match="recorded other ops in its second run"):
        y.sum().backward()


def test_checkpoint_inside_a_traced_function() -> None:
    w = gt.nn.Parameter(gt.full((3,), 0.5))

    def step(x: Any) -> Any:
        w.grad = None
        loss = gt.checkpoint(lambda t: gt.nn.functional.dropout(t * w, 0.5).exp(), x).sum()
        loss.backward()
        return loss.detach()

    fast = gt.function(step)
    for i in range(4):
        x = gt.full((3,), float(i))
        gt.manual_seed(i)
        a, ga = step(x).item(), w.grad.numpy()
        gt.manual_seed(i)
        assert fast(x).item() == pytest.approx(a)
        np.testing.assert_allclose(w.grad.numpy(), ga, rtol=1e-6)


# --- func --------------------------------------------------------------------------------------------


def f3(x: Any) -> Any:
    return (x * x * x).sum()


@pytest.mark.parametrize(
    "use",
    [
        lambda F, x: F.grad(f3)(x),
        lambda F, x: F.grad(lambda a, b: (a * b).sum(), argnums=1)(x, x * 2),
        lambda F, x: F.grad(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(x, x * 2),
        lambda F, x: F.grad(lambda a: F.grad(f3)(a).sum())(x),
        lambda F, x: F.grad(lambda a: (f3(a), a * 2), has_aux=True)(x),
        lambda F, x: F.grad(lambda d: (d["a"] * d["b"]).sum())({"a": x, "b": x * 2})["b"],
        lambda F, x: F.vjp(lambda a: a * a, x)[1](x)[0],
        lambda F, x: F.vjp(lambda a: (a * a, a * 3), x)[1]((x, x))[0],
        lambda F, x: F.jvp(lambda a: a * a, (x,), (x + 1,)),
        lambda F, x: F.jacrev(lambda a: a * a)(x),
        lambda F, x: F.hessian(f3)(x),
        lambda F, x: F.grad_and_value(f3)(x) if hasattr(F, "grad_and_value") else None,
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch.func's own
def test_func_is_torchs(use: Any) -> None:
    def flat(out: Any) -> list[Any]:
        return [y for x in out for y in flat(x)] if isinstance(out, tuple) else [out]

    ours, theirs = flat(use(gt.func, gt.tensor(X))), flat(use(torch.func, torch.tensor(X)))
    for a, b in zip(ours, theirs, strict=True):
        assert not a.requires_grad
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9)


def test_func_adds_nothing_to_grad_and_goes_through_outer_history() -> None:
    x = gt.tensor(2.0, requires_grad=True)
    g = gt.func.grad(lambda a: a**3)(x)
    assert x.grad is None
    g.backward()  # the derivative of 3 x^2
    assert x.grad.item() == 12.0
    value, slope = gt.func.value_and_grad(lambda a: a * a)(gt.tensor(3.0))
    assert (value.item(), slope.item()) == (9.0, 6.0)


def test_func_refuses_what_has_no_one_value() -> None:
    with pytest.raises(AutogradError, match="one element"):
        gt.func.grad(lambda a: a)(gt.ones(2))
    with pytest.raises(ArgumentError, match="argnums 3 is out of range for 1 arguments"):
        gt.func.grad(lambda a: a.sum(), argnums=3)(gt.ones(2))


def test_functional_call_uses_the_given_tensors() -> None:
    model = gt.nn.Linear(3, 1)
    other = {"weight": gt.ones(1, 3), "bias": gt.zeros(1)}
    before = model.weight.detach().numpy()
    out = gt.func.functional_call(model, other, (gt.ones(2, 3),))
    np.testing.assert_array_equal(out.detach().numpy(), np.full((2, 1), 3.0))
    np.testing.assert_array_equal(model.weight.detach().numpy(), before)
    grads = gt.func.grad(lambda p: gt.func.functional_call(model, p, (gt.ones(2, 3),)).sum())(other)
    np.testing.assert_array_equal(grads["weight"].numpy(), np.full((1, 3), 2.0))


# --- anomaly mode ------------------------------------------------------------------------------------


def test_anomaly_names_the_line_that_made_a_nan() -> None:
    x = gt.tensor([-1.0], requires_grad=True)
    with pytest.raises(AutogradError, match=r"test_functions\.py:\d+: Sqrt made a nan"), gt.autograd.detect_anomaly():
        (x.sqrt() * 2).sum()
    with (
        pytest.raises(AutogradError, match=r"test_functions\.py:\d+: SqrtBackward0 made a nan in backward"),
        gt.autograd.detect_anomaly(),
    ):
        ((x + 1).sqrt() * 0).sum().backward()
    gt.autograd.set_detect_anomaly(True)
    try:
        with pytest.raises(AutogradError, match="Log made a nan"):
            x.log() + 1
    finally:
        gt.autograd.set_detect_anomaly(False)
    assert np.isnan((x.log() + 1).detach().numpy()).all()


# --- hooks and modes ---------------------------------------------------------------------------------


def test_hooks_are_removed_by_their_handle() -> None:
    x = gt.ones(2, requires_grad=True)
    seen: list[int] = []
    handle = x.register_hook(lambda g: seen.append(1))
    x.sum().backward()
    handle.remove()
    handle.remove()
    x.sum().backward()
    assert seen == [1]
    with x.register_hook(lambda g: seen.append(2)):
        x.sum().backward()
    x.sum().backward()
    assert seen == [1, 2]


def test_hooks_after_accumulation_see_the_gradient() -> None:
    x = gt.ones(2, requires_grad=True)
    sums: list[float] = []
    x.register_post_accumulate_grad_hook(lambda t: sums.append(t.grad.sum().item()))
    (x * 3).sum().backward()
    (x * 3).sum().backward()
    assert sums == [6.0, 12.0]
    with pytest.raises(AutogradError, match="must be a leaf"):
        (x * 2).register_post_accumulate_grad_hook(print)


def test_retained_gradients_add_up_after_all_hooks() -> None:
    def f(lib: Any, x: Any) -> Any:
        y = x * 2
        assert not y.retains_grad
        y.retain_grad()
        y.retain_grad()
        y.register_hook(lambda g: g * 3)
        assert y.retains_grad
        (y * y).sum().backward(retain_graph=True)
        y.sum().backward()
        return (y.grad,)

    both(f, X)


def test_backward_to_some_inputs() -> None:
    def f(lib: Any, x: Any, y: Any) -> Any:
        z = x * y
        (z * z).sum().backward(inputs=[x], retain_graph=True)
        assert y.grad is None
        (z * z).sum().backward(inputs=(x, z))
        z.retain_grad()
        return (z.grad,)

    both(f, X, X + 1)
    x = gt.ones(2, requires_grad=True)
    with pytest.raises(AutogradError, match="one of the inputs does not require grad"):
        (x * 2).sum().backward(inputs=[gt.ones(2)])


def test_grad_modes() -> None:
    x = gt.ones(2, requires_grad=True)
    with gt.set_grad_enabled(False):
        assert not (x * 2).requires_grad
        with gt.enable_grad():
            assert (x * 2).requires_grad
    assert gt.is_grad_enabled()
    gt.set_grad_enabled(False)
    assert not gt.is_grad_enabled()
    gt.set_grad_enabled(True)
    with gt.inference_mode():
        assert not (x * 2).requires_grad

    @gt.no_grad()
    def f(t: Any) -> Any:
        return t * 2

    assert not f(x).requires_grad
    assert gt.is_grad_enabled()


def modes(lib: Any) -> list[Any]:
    """Whether gradients are on, in and beside functions and generators that switch them off."""
    mode, log = lib.is_grad_enabled, []
    for decorator in (lib.no_grad, lib.no_grad(), lib.inference_mode, lib.set_grad_enabled(False)):
        log += [decorator(mode)(), mode()]

    @lib.no_grad()
    def steps() -> Any:
        try:
            got = yield mode()
            yield got, mode()
        except KeyError:
            yield "caught", mode()
        finally:
            log.append(mode())
        return "end"

    def outer() -> Any:
        log.append((yield from steps()))

    turns = steps()
    log += [next(turns), mode(), turns.send(5), mode()]
    log += [turns.throw(KeyError()), mode()]
    turns.close()
    return [*log, mode(), list(outer())]


def test_grad_modes_as_decorators() -> None:
    assert modes(gt) == modes(torch)


def test_backward_of_several_tensors_and_to_some_inputs() -> None:
    def f(lib: Any, x: Any, y: Any) -> Any:
        lib.autograd.backward([(x * y).sum(), (x * 2).sum()], inputs=[x])
        assert y.grad is None
        return ()

    both(f, X, X + 1)


# --- autocast and the default dtype ------------------------------------------------------------------


def test_autocast_computes_products_in_the_narrow_type() -> None:
    for lib in (gt, torch):
        x, w = lib.ones(2, 3, requires_grad=True), lib.ones(3, 4, requires_grad=True)
        with lib.autocast("cpu", dtype=lib.bfloat16):
            y = x @ w
            z = y.softmax(-1)
            assert y.dtype == lib.bfloat16
            with lib.autocast("cpu", enabled=False):
                assert (x @ w).dtype == lib.float32
            assert lib.is_autocast_enabled("cpu")
        assert not lib.is_autocast_enabled("cpu")
        z.sum().backward()
        assert x.grad.dtype == w.grad.dtype == lib.float32
        assert (x @ w).dtype == lib.float32


def test_autocast_as_a_decorator_and_in_a_traced_function() -> None:
    @gt.autocast(dtype=gt.bfloat16)
    def product(a: Any, b: Any) -> Any:
        return a @ b

    a = gt.ones(2, 2)
    assert product(a, a).dtype is gt.bfloat16

    @gt.function
    def f(a: Any) -> Any:
        return a @ a

    assert f(a).dtype is gt.float32
    with gt.autocast(dtype=gt.bfloat16):
        assert f(a).dtype is gt.bfloat16
    assert f(a).dtype is gt.float32
    with pytest.raises(ArgumentError, match="bfloat16, float16 or float32, not int64"):
        gt.autocast(dtype=gt.int64)


def test_the_default_dtype_is_that_of_new_floats() -> None:
    results = []
    for lib in (gt, torch):
        lib.set_default_dtype(lib.float64)
        try:
            i = lib.tensor([1, 2, 3])
            made = [
                lib.tensor([1.5]), lib.zeros(2), lib.ones(2), lib.rand(2), lib.randn(2), lib.arange(0, 1, 0.5),
                lib.linspace(0, 1, 3), lib.full((2,), 0.5), lib.eye(2), i * 1.5, i / 2, i.exp(), i + 1,
                i * 1j, i.float() * 1j, i == np.array([1, 5, 3]), i * np.int64(2), i * np.float64(2),
                lib.where(i > 1, 1.0, 2.0), lib.where(i > 1, i, 2.5), lib.where(i > 1, i.float(), 2.5),
            ]  # fmt: skip
            results.append([str(t.dtype).split(".")[-1] for t in made])
            assert lib.get_default_dtype() == lib.float64
        finally:
            lib.set_default_dtype(lib.float32)
    assert results[0] == results[1]
    assert (gt.tensor([1, 2]) * 1.5).dtype is gt.float32


# --- looking at the graph ----------------------------------------------------------------------------


def test_a_node_shows_its_name_and_leads_on() -> None:
    def f(lib: Any, x: Any) -> Any:
        y = cube(lib).apply((x * 2.0).exp(), 1.0).unbind(0)[1].sum()
        names, fn = [], y.grad_fn
        while fn.next_functions:
            names.append(fn.name())
            assert f"{fn.name()} object at 0x" in repr(fn)
            fn = fn.next_functions[0][0]
        assert names == ["SumBackward0", "UnbindBackward0", "CubeBackward", "ExpBackward0", "MulBackward0"]
        assert "AccumulateGrad" in fn.name()
        return (y,)

    both(f, X)


def test_the_tape_shows_functions_and_checkpoints() -> None:
    x = gt.ones(2, requires_grad=True)
    y = cube(gt).apply(gt.checkpoint(lambda t: t.exp(), x), 1.0)
    lines = gt.debug.tape(y).splitlines()
    assert lines[0].startswith("Cube -> f32[2]  keeps 2  ")
    assert lines[1].startswith("exp -> f32[2]  computed again  ")
    y.sum().backward()
    assert gt.debug.tape(y).startswith("Cube -> f32[2]  released  ")
