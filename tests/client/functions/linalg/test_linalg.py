"""gt.linalg beside torch.linalg, on the numpy engine: values, first and second gradients, failures, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, AutogradError, DTypeError, LinAlgError, ShapeError
from tests.beside_torch import compare
from tests.client.functions.linalg.drawing import draws
from tests.client.mistakes import Mistakes, refused
from tests.sessions import session_on

pytestmark = [
    pytest.mark.usefixtures("session"),
    pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated:UserWarning"),
]

real, turning = draws(3)


def well(*size: int) -> Any:
    """Far from singular."""
    return real(*size) * 0.4 + 2 * np.eye(size[-2], size[-1])


def positive(lib: Any, x: Any) -> Any:
    """Symmetric and positive definite, whatever x is."""
    return x @ x.mH + lib.eye(x.shape[-1], dtype=x.dtype)


Case = tuple[Callable[..., Any], tuple[Any, ...]]

#: Results that no sign is free in: numpy's may differ from torch's there.
CASES: dict[str, Case] = {
    "inv": (lambda lib, a: (lib.linalg.inv(a), a.inverse(), lib.linalg.inv_ex(a).inverse), (well(2, 3, 3),)),
    "complex inv": (lambda lib, a: lib.linalg.inv(a), (turning(3, 3),)),
    "solve": (lambda lib, a, b: lib.linalg.solve(a, b), (well(2, 3, 3), real(3, 2))),
    "solve a vector": (lambda lib, a, b: lib.linalg.solve(a, b), (well(3, 3), real(3))),
    "solve vectors": (lambda lib, a, b: lib.linalg.solve(a, b), (well(2, 3, 3), real(2, 3))),
    "solve right": (lambda lib, a, b: lib.linalg.solve(a, b, left=False), (well(3, 3), real(2, 3))),
    "solve_ex": (lambda lib, a, b: lib.linalg.solve_ex(a, b), (well(2, 3, 3), real(2, 3, 1))),
    "complex solve": (lambda lib, a, b: lib.linalg.solve(a, b), (turning(3, 3), turning(3, 2))),
    "triangle": (
        lambda lib, a, b: lib.linalg.solve_triangular(a, b, upper=False, unitriangular=True), (well(3, 3), real(3, 2))
    ),
    "triangle right": (
        lambda lib, a, b: lib.linalg.solve_triangular(a, b, upper=True, left=False), (well(2, 3, 3), real(2, 3))
    ),
    "cholesky": (
        lambda lib, a: (lib.linalg.cholesky(positive(lib, a)), lib.cholesky(positive(lib, a), True)), (real(2, 3, 3),)
    ),
    "complex cholesky": (lambda lib, a: lib.linalg.cholesky(positive(lib, a)), (turning(3, 3),)),
    "cholesky_solve": (lambda lib, a, b: lib.cholesky_solve(b, a, upper=True), (well(3, 3), real(3, 2))),
    "cholesky_inverse": (lambda lib, a: lib.cholesky_inverse(a), (well(3, 3),)),
    "det": (lambda lib, a: (lib.det(a), a.logdet(), *lib.linalg.slogdet(a)), (well(2, 3, 3),)),
    "complex det": (lambda lib, a: (lib.linalg.det(a), *lib.linalg.slogdet(a)), (turning(3, 3),)),
    "pinv": (lambda lib, a, b: lib.linalg.pinv(a @ b), (real(4, 2), real(2, 3))),
    "lstsq": (lambda lib, a, b: lib.linalg.lstsq(a, b).solution, (real(4, 3), real(4, 2))),
    "power": (
        lambda lib, a: (lib.matrix_power(a, 5), a.matrix_power(-2), lib.linalg.matrix_power(a, 0)), (well(2, 2),)
    ),
    "exp": (lambda lib, a: (lib.matrix_exp(a), lib.linalg.matrix_exp(a * 5)), (real(2, 3, 3),)),
    "complex exp": (lambda lib, a: lib.matrix_exp(a), (turning(2, 2),)),
    "qr": (lambda lib, a: lib.linalg.qr(a), (well(2, 4, 3),)),
    "wide qr": (lambda lib, a: lib.linalg.qr(a), (well(2, 3, 4),)),
    "complex qr": (lambda lib, a: lib.linalg.qr(a), (turning(3, 3),)),
    "eigenvalues": (lambda lib, a: lib.linalg.eigvalsh(a + a.mH), (real(2, 3, 3),)),
    "eigenvectors": (lambda lib, a: rebuilt(*lib.linalg.eigh(a + a.mT)), (real(3, 3),)),
    "complex eigenvectors": (lambda lib, a: rebuilt(*lib.linalg.eigh(a + a.mH)), (turning(3, 3),)),
    "general eigenvectors": (lambda lib, a: abs(lib.linalg.eig(a)[1]).sort()[0], (well(3, 3),)),
    "singular values": (lambda lib, a: (lib.linalg.svdvals(a), lib.svd(a)[1]), (real(2, 4, 3),)),
    "singular vectors": (lambda lib, a: svd_twice(lib, a), (real(4, 3),)),
    "wide singular vectors": (lambda lib, a: svd_twice(lib, a), (real(2, 2, 3),)),
    "complex singular vectors": (lambda lib, a: svd_twice(lib, a), (turning(4, 3),)),
    "lu": (lambda lib, a: (lib.linalg.lu(a), lib.lu_unpack(*lib.linalg.lu_factor(a))), (real(2, 3, 3),)),
    "tall lu": (lambda lib, a: lib.linalg.lu(a), (real(4, 2),)),
    "wide lu": (lambda lib, a: lib.linalg.lu(a), (real(2, 4),)),
    "lu_solve": (
        lambda lib, a, b: lib.linalg.lu_solve(*lib.linalg.lu_factor(a), b, adjoint=True), (well(3, 3), real(3, 2))
    ),
    "householder": (
        lambda lib, a, t: lib.linalg.householder_product(a, t), (real(4, 3), real(2))
    ),
    "multi_dot": (lambda lib, a, b, c: lib.linalg.multi_dot([a, b, c]), (real(3), real(3, 4), real(4))),
    "tensorsolve": (lambda lib, a, b: lib.linalg.tensorsolve(a, b), (real(2, 3, 6), real(2, 3))),
    "tensorinv": (lambda lib, a: lib.linalg.tensorinv(a, ind=1), (real(6, 2, 3),)),
    "vecdot": (lambda lib, a, b: lib.linalg.vecdot(a, b, dim=0), (turning(3, 2), turning(3, 2))),
    "vector norms": (
        lambda lib, x: [lib.linalg.vector_norm(x, p, (0,)) for p in (0, 0.5, 1, 2, 3, float("inf"))], (real(4, 2),)
    ),
    "matrix norms": (
        lambda lib, x: [lib.linalg.matrix_norm(x, p) for p in ("fro", "nuc", 1, -1, 2, -2, float("inf"))],
        (real(2, 3, 4),),
    ),
    "norm": (
        lambda lib, x: (lib.linalg.norm(x), lib.linalg.norm(x, 1), lib.linalg.norm(x, 3, dim=1, keepdim=True)),
        (real(3, 4),),
    ),
    "cond": (
        lambda lib, a: (*(lib.linalg.cond(a, p) for p in (None, 2, -2)), lib.linalg.cond(a.detach(), 1)), (well(3, 3),)
    ),
}  # fmt: skip

ONCE = {"complex det", "general eigenvectors", "exp", "complex exp", "vector norms", "matrix norms", "cond", "det"}


def rebuilt(values: Any, vectors: Any) -> Any:
    """A function of eigenvectors that their signs do not change."""
    weights = values * values + values.sin()
    return (vectors * weights) @ vectors.mH, abs(vectors)


def svd_twice(lib: Any, x: Any) -> Any:
    u, s, vh = lib.linalg.svd(x, full_matrices=False)
    return (u * s.sin()) @ vh, abs(u), abs(vh), u @ u.mH


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    f, arrays = CASES[name]
    compare(f, *arrays, second=name not in ONCE, rtol=1e-6)


def test_results_without_a_gradient() -> None:
    for kwargs in ({}, {"atol": 1.0}, {"rtol": 0.5}, {"hermitian": True}):
        a = well(2, 3, 3) + well(2, 3, 3).swapaxes(-1, -2)
        ours = gt.linalg.matrix_rank(gt.tensor(a), **kwargs)
        theirs = torch.linalg.matrix_rank(torch.tensor(a), **kwargs)
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    x = gt.tensor(well(3, 2), requires_grad=True)
    q, _ = gt.linalg.qr(x, mode="complete")
    with pytest.raises(AutogradError, match="mode='complete' of \\(3, 2\\) has no gradient"):
        q.sum().backward()


def test_the_gradient_of_a_singular_determinant() -> None:
    for a in (np.diag([1.0, 2.0, 0.0]), np.ones((2, 2)), np.zeros((2, 2)), np.zeros((1, 1))):
        x = gt.tensor(a, requires_grad=True)
        gt.linalg.det(x).backward()
        n = a.shape[0]
        cofactors = np.array(
            [[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(n)] for i in range(n)]
        )
        np.testing.assert_allclose(x.grad.numpy(), cofactors, atol=1e-12)


# --- failures ------------------------------------------------------------------------------------------

SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])

FAILURES: dict[str, tuple[Callable[[], Any], str]] = {
    "inv": (lambda: gt.linalg.inv(gt.tensor(SINGULAR)), "linalg.inv: the matrix is singular"),
    "solve": (lambda: gt.linalg.solve(gt.tensor(SINGULAR), gt.ones(2).double()), "linalg.solve: the matrix is singul"),
    "cholesky": (lambda: gt.linalg.cholesky(gt.tensor(INDEFINITE)), "linalg.cholesky: the matrix is not positive def"),
    "of a batch": (
        lambda: gt.linalg.inv(gt.tensor(np.stack([np.eye(2), SINGULAR]))), r"singular.*\(number 1 of the batch\)"
    ),
    "checked": (lambda: gt.linalg.inv_ex(gt.tensor(SINGULAR), check_errors=True)[0], "linalg.inv_ex: the matrix is"),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@pytest.mark.parametrize(("f", "text"), FAILURES.values(), ids=FAILURES)
def test_failures(f: Any, text: Any, engine: str) -> None:
    with session_on(engine):
        good = gt.ones(2) * 2
        good.numpy()
        with pytest.raises(LinAlgError, match=text):
            f().numpy()
        np.testing.assert_array_equal(good.numpy(), [2, 2])  # only that call failed


def test_info_says_which_failed() -> None:
    both = gt.tensor(np.stack([np.eye(2), SINGULAR]))
    assert (gt.linalg.inv_ex(both).info != 0).tolist() == [False, True]
    assert (gt.linalg.solve_ex(both, both).info != 0).tolist() == [False, True]
    assert (gt.linalg.cholesky_ex(gt.tensor(np.stack([np.eye(2), INDEFINITE]))).info != 0).tolist() == [False, True]
    assert (gt.linalg.lu_factor_ex(both).info != 0).tolist() == [False, True]
    assert float(gt.linalg.cond(gt.tensor(SINGULAR), 1)) == float("inf")


MISTAKES: Mistakes = {
    "square": (lambda: gt.linalg.inv(gt.ones(2, 3)), ShapeError, r"linalg.inv: expected square matrices"),
    "vector": (lambda: gt.linalg.inv(gt.ones(3)), ShapeError, r"linalg.inv: expected matrices"),
    "integers": (lambda: gt.linalg.det(gt.eye(2).int()), DTypeError, "expected a floating-point or complex dtype"),
    "sizes": (lambda: gt.linalg.solve(gt.eye(2), gt.ones(3, 1)), ShapeError, r"\(2, 2\) and \(3, 1\): sizes 2 and 3"),
    "types": (
        lambda: gt.linalg.solve(gt.eye(2), gt.eye(2).double()),
        DTypeError,
        "expected one dtype, got float32 and float64",
    ),
    "left": (lambda: gt.linalg.solve(gt.eye(2), gt.ones(2), left=False), ShapeError, "left=False needs a matrix B,"),
    "mode": (lambda: gt.linalg.qr(gt.eye(2), mode="x"), ArgumentError, r"linalg\.qr: mode must be one of 'reduced',"),
    "ord": (lambda: gt.linalg.matrix_norm(gt.eye(2), 7), ArgumentError, "ord must be one of 'fro', 'nuc', 1,"),
    "dim": (lambda: gt.linalg.norm(gt.ones(2, 2, 2), 1), IndexError, r"linalg\.norm: ord=1 needs 1 or 2 dimensions"),
    "driver": (lambda: gt.linalg.lstsq(gt.eye(2), gt.eye(2), driver="x"), ArgumentError, "driver must be one of"),
}


test_mistakes = refused(MISTAKES)
