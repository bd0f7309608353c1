"""Products, diagonals, einsum, distances and complex numbers, beside torch; on the numpy engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, AutogradError, DimError, DTypeError, ShapeError
from tests.beside_torch import as_in_torch, compare
from tests.client.functions.linalg.drawing import draws
from tests.client.mistakes import Mistakes, refused

pytestmark = pytest.mark.usefixtures("session")

real, turning = draws(0)

Case = tuple[Callable[..., Any], tuple[Any, ...]]

PRODUCTS: dict[str, Case] = {
    "mm": (lambda lib, a, b: (lib.mm(a, b), a.mm(b), a @ b), (real(2, 3), real(3, 4))),
    "complex matmul": (lambda lib, a, b: a @ b, (turning(2, 2, 3), turning(3, 2))),
    "complex vectors": (lambda lib, a, b: (a @ b, lib.vdot(a, b), lib.outer(a, b)), (turning(3), turning(3))),
    "bmm": (lambda lib, a, b: lib.bmm(a, b), (real(2, 3, 4), real(2, 4, 2))),
    "mv, dot": (lambda lib, a, x: (a.mv(x), lib.dot(x, x), x.inner(x)), (real(2, 3), real(3))),
    "inner": (lambda lib, a, b: lib.inner(a, b), (real(2, 3), real(4, 5, 3))),
    "addmm": (lambda lib, c, a, b: lib.addmm(c, a, b, beta=0.5, alpha=2), (real(4), real(2, 3), real(3, 4))),
    "addmm_": (lambda lib, a, b: lib.ones(2, 2, dtype=lib.float64).addmm_(a, b), (real(2, 3), real(3, 2))),
    "beta 0": (lambda lib, c, a, b: lib.addmm(c * float("nan"), a, b, beta=0), (real(2), real(3, 2), real(2, 2))),
    "addmv": (lambda lib, c, a, x: c.addmv(a, x, alpha=3), (real(2), real(2, 3), real(3))),
    "addr": (lambda lib, c, x, y: lib.addr(c, x, y, beta=2), (real(2, 3), real(2), real(3))),
    "baddbmm": (lambda lib, c, a, b: lib.baddbmm(c, a, b), (real(2, 1, 1), real(2, 3, 4), real(2, 4, 2))),
    "addbmm": (lambda lib, c, a, b: lib.addbmm(c, a, b), (real(3, 2), real(2, 3, 4), real(2, 4, 2))),
    "tensordot": (lambda lib, a, b: lib.tensordot(a, b, dims=2), (real(2, 3, 4), real(3, 4, 5))),
    "tensordot, named": (
        lambda lib, a, b: lib.tensordot(a, b, dims=([1, 0], [0, -1])), (real(2, 3, 4), real(3, 5, 2))
    ),
    "kron": (lambda lib, a, b: lib.kron(a, b), (real(2, 3), real(2))),
    "cross": (lambda lib, a, b: (lib.cross(a, b, dim=1), lib.linalg.cross(a, b)), (real(2, 3), real(2, 3))),
    "chain": (lambda lib, a, b, c: lib.linalg.multi_dot([a, b, c]), (real(2, 3), real(3, 4), real(4, 1))),
}  # fmt: skip

DIAGONALS: dict[str, Case] = {
    "diagonal": (lambda lib, x: (x.diagonal(), lib.diagonal(x, -1), x.diagonal(1, 1, 0)), (real(3, 4),)),
    "batched": (lambda lib, x: (lib.diagonal(x, 0, -2, -1), lib.linalg.diagonal(x, offset=1)), (real(2, 3, 3),)),
    "embed": (lambda lib, x: (lib.diag_embed(x), lib.diag_embed(x, 1, 0, 2), x.diag_embed(-1)), (real(2, 3),)),
    "diag": (lambda lib, x, m: (lib.diag(x), lib.diag(x, 2), m.diag(), m.diag(-1)), (real(3), real(3, 2))),
    "diagflat": (lambda lib, x: lib.diagflat(x, 1), (real(2, 2),)),
    "scatter": (lambda lib, x, s: lib.diagonal_scatter(x, s, 1), (real(3, 3), real(2))),
    "trace": (lambda lib, x: (x.trace(), lib.trace(x)), (real(3, 4),)),
    "block_diag": (lambda lib, a, b, c: lib.block_diag(a, b, c), (real(2, 2), real(3), np.array(1.5))),
    "written": (lambda lib, x: write_diagonal(x.clone()), (real(3, 3),)),
    "tril": (lambda lib, x: (x.tril(-1), lib.triu(x, 1)), (real(3, 4),)),
}


def write_diagonal(x: Any) -> Any:
    x.diagonal().mul_(2)
    x.diagonal(1)[0] = 7.0
    return x


EQUATIONS = [
    ("ij->ji", [(2, 3)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 2)]),
    ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("i,j->ij", [(2,), (3,)]),
    ("ij,ij->", [(2, 3), (2, 3)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("i...,i...->...", [(3, 2), (3, 2)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("b i j , j -> b i", [(2, 3, 4), (4,)]),
    ("ij,kj->", [(2, 3), (4, 3)]),
    ("ijk,jil->kl", [(2, 3, 4), (3, 2, 5)]),
    ("ij,ij->ij", [(1, 3), (2, 3)]),
    ("...,...", [(), (2,)]),
    ("aab,b->a", [(2, 2, 3), (3,)]),
    ("ba,ab->...", [(2, 3), (3, 2)]),
    ("Ab,bC->CA", [(2, 3), (3, 4)]),
]


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    f, arrays = PRODUCTS[name]
    compare(f, *arrays, second=name != "beta 0")  # of which torch's second gradient is nan


@pytest.mark.parametrize(("f", "arrays"), DIAGONALS.values(), ids=DIAGONALS)
def test_diagonals(f: Any, arrays: Any) -> None:
    compare(f, *arrays)


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[e for e, _ in EQUATIONS])
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    compare(lambda lib, *xs: lib.einsum(equation, *xs), *[np.asarray(real(*s)) for s in shapes])


def test_einsum_in_its_other_forms() -> None:
    a, b = real(2, 3), real(3, 4)
    compare(lambda lib, a, b: lib.einsum(a, [0, 1], b, [1, 2], [0, 2]), a, b)
    compare(lambda lib, a, b: lib.einsum(a, [0, 1], b, [1, 2]), a, b)
    compare(lambda lib, a: lib.einsum(a, [..., 1], [1, ...]), a)
    compare(lambda lib, a, b: lib.einsum("ij,jk->ik", [a, b]), a, b)
    compare(lambda lib, a, b: lib.einsum("ij,jk->ki", a, b), turning(2, 3), turning(3, 2))


DISTANCES = [(p, mode) for p in (0.0, 0.5, 1.0, 2.0, 3.0, float("inf")) for mode in (None,)] + [
    (2.0, "use_mm_for_euclid_dist"), (2.0, "donot_use_mm_for_euclid_dist")
]  # fmt: skip


@pytest.mark.parametrize(("p", "mode"), DISTANCES)
def test_distances(p: float, mode: str | None) -> None:
    more = {} if mode is None else {"compute_mode": mode}
    x = real(4, 3)
    near = np.concatenate([x[:1], real(2, 3)])  # one distance is zero
    rtol = 1e-5 if mode == "use_mm_for_euclid_dist" else 1e-7
    compare(lambda lib, a, b: lib.cdist(a, b, p, **more), x, real(2, 5, 3), rtol=rtol)
    if mode != "use_mm_for_euclid_dist":
        compare(lambda lib, a, b: lib.cdist(a, b, p, **more), x, near)
        compare(lambda lib, a: lib.pdist(a, p), x)


def test_sets() -> None:
    compare(lambda lib, a, b: lib.cartesian_prod(a, b), real(2), real(3))
    compare(lambda lib, a: (lib.combinations(a), lib.combinations(a, 3, True), lib.combinations(a, 0)), real(4))
    compare(lambda lib, a: (lib.vander(a.detach()), lib.vander(a.detach(), 2, increasing=True)), real(3))
    compare(lambda lib, a: lib.linalg.vander(a, N=4), real(2, 3))


#: What a user gets wrong: the error names the op and the sizes.
MISTAKES: Mistakes = {
    "mm": (lambda: gt.ones(2, 3).mm(gt.ones(3)), ShapeError, r"mm: expected two matrices, got shapes \(2, 3\) and"),
    "types": (lambda: gt.ones(2, 2) @ gt.ones(2, 2).double(), DTypeError, "matmul: expected one dtype"),
    "bool": (lambda: gt.ones(2, 2).bool() @ gt.ones(2, 2).bool(), DTypeError, "not defined for bool"),
    "batches": (lambda: gt.bmm(gt.ones(2, 3, 4), gt.ones(3, 4, 2)), ShapeError, "bmm: expected two batches of the"),
    "expand": (lambda: gt.addmm(gt.ones(3), gt.ones(2, 2), gt.ones(2, 2)), ShapeError, r"input of shape \(3,\) does"),
    "letters": (lambda: gt.einsum("ij,jk", gt.ones(2, 3), gt.ones(4, 2)), ShapeError, "'j' has sizes 3 and 4"),
    "rank": (lambda: gt.einsum("ijk", gt.ones(2, 3)), ShapeError, r"'ijk' does not fit an operand of shape \(2, 3\)"),
    "nowhere": (lambda: gt.einsum("ij->ik", gt.ones(2, 3)), ArgumentError, "einsum: 'ij->ik': 'k' is in the output"),
    "count": (lambda: gt.einsum("ij,jk", gt.ones(2, 3)), ArgumentError, "einsum: 'ij,jk' expects 2 operands, got 1"),
    "diagonal": (lambda: gt.ones(2, 2).diagonal(0, 1, 1), DimError, "diagonal: dim1 and dim2 must differ, got"),
    "cross": (lambda: gt.cross(gt.ones(2), gt.ones(2)), ShapeError, "cross: expected a dimension of size 3, got shape"),
    "complex": (lambda: gt.complex(gt.ones(2), gt.ones(2).int()), DTypeError, "float32 or float64, got int32"),
    "imag": (lambda: gt.ones(2).imag, DTypeError, "imag: expected a complex tensor, got float32"),
}


test_mistakes = refused(MISTAKES)


# --- complex numbers -----------------------------------------------------------------------------------

COMPLEX: dict[str, Case] = {
    "parts": (lambda lib, z: (z.real, z.imag, z.conj(), z.angle(), z.abs()), (turning(3),)),
    "made": (lambda lib, a, b: (lib.complex(a, b), lib.polar(a.exp(), b)), (real(2, 1), real(3))),
    "pairs": (lambda lib, z, x: (lib.view_as_real(z), lib.view_as_complex(x)), (turning(2), real(3, 2))),
    "adjoint": (lambda lib, z: (z.H, z.mH, z.adjoint(), z.mT), (turning(2, 3),)),
    "numbers": (lambda lib, x: (x * 2j, 1j - x, x + (1 + 2j), (x == 1j)), (real(3),)),
    "integers": (lambda lib, x: (x * 2j, lib.real(x), x.conj()), (np.array([1, 2]),)),
    "functions": (lambda lib, z: (z * z.conj(), z.exp(), z / (z + 1), z.sum(), z.mean(0)), (turning(2, 2),)),
    "casts": (lambda lib, x: (x.to(lib.complex64) * 1j, x.to(lib.complex128)), (real(2),)),
}


@pytest.mark.parametrize(("f", "arrays"), COMPLEX.values(), ids=COMPLEX)
def test_complex(f: Any, arrays: Any) -> None:
    compare(f, *arrays)
    narrow = {"f": np.float32, "c": np.complex64, "i": np.int64}
    compare(f, *[a.astype(narrow[a.dtype.kind]) for a in arrays], rtol=1e-5)


@as_in_torch(rtol=0)
def test_the_parts_of_a_complex_tensor_are_views(lib: Any) -> Any:
    z = lib.tensor([1 + 2j, 3 - 4j])
    z.real[0] = 5.0
    z.imag = lib.tensor([7.0, 8.0])
    lib.view_as_real(z)[1, 0] = 9.0
    z.conj().mul_(2)
    pairs = lib.zeros(2, 2)
    lib.view_as_complex(pairs).add_(1 - 1j)
    return z, pairs, z[0].item(), z.tolist()


@pytest.mark.parametrize(
    "data",
    [
        [1 + 2j, 3 - 4.5j],
        [[1e-6 + 1j, 0], [1e5, -2j]],
        (1.5 - 2j),
        [],
        list(np.arange(1100) * (1 - 2j)),
        [complex(float("nan"), 1), complex(1, -float("inf"))],
    ],
    ids=range(6),
)
def test_complex_tensors_print_as_in_torch(data: Any) -> None:
    ours, theirs = gt.tensor(np.array(data, np.complex64)), torch.tensor(np.array(data, np.complex64))
    assert repr(ours) == repr(theirs).replace("torch.", "gt.")


def test_backward_of_a_complex_tensor_needs_a_gradient() -> None:
    z = gt.tensor([1 + 2j], requires_grad=True)
    with pytest.raises(AutogradError, match=r"complex64 tensor needs backward\(gradient="):
        (z * z).sum().backward()
    (z * z).sum().backward(gt.tensor(1 + 0j))
    np.testing.assert_allclose(z.grad.numpy(), [2 - 4j])


def test_complex_tensors_in_files(tmp_path: Any) -> None:
    z = gt.tensor(turning(2, 3))
    gt.save({"z": z}, tmp_path / "z.safetensors")
    loaded = gt.load(tmp_path / "z.safetensors")["z"]
    assert loaded.dtype is gt.complex128
    np.testing.assert_array_equal(loaded.numpy(), z.numpy())
