"""Derivatives of einsums are einsums, of which torch and JAX make use."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.calling import einsum
from feinsum.errors import FeinsumError, InvalidEinsumError, InvalidTypeError
from feinsum.integrations import jax_einsum, torch_einsum
from feinsum.integrations.multilinear import (
    batch_subscripts,
    infer_result_shape,
    transpose_einsum,
)
from tests.portions import spread

# what is called is tested, and no kernel has to be built for it
pytestmark = pytest.mark.usefixtures("usual_calls")

CASES = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,ij,jk->k", (2, 3), (2, 3), (3, 2)),
    ("ij->ji", (2, 3)),
    ("i->i", (4,)),
    ("i,i,i->i", (3,), (3,), (3,)),
    (",->", (), ()),
    # sums over an index of one operand, and diagonals
    ("bi,bj->", (2, 3), (2, 4)),
    ("ii->", (3, 3)),
    ("iij->j", (3, 3, 4)),
    ("iii,ij->ij", (3, 3, 3), (3, 2)),
    # broadcast axes
    ("...i,i->...", (4, 1, 3), (3,)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ab,b", (1, 3), (3,)),
    ("aab,ab->ab", (2, 2, 1), (2, 3)),
    # no entries
    ("ij,jk->ik", (2, 0), (0, 4)),
]
ids = [text for text, *_ in CASES]
cases = pytest.mark.parametrize("case", CASES, ids=ids)
CASES_AND_DTYPES = [
    *((case, float) for case in CASES),
    *((case, complex) for case in CASES[::4]),
]
cases_and_dtypes = pytest.mark.parametrize(("case", "dtype"), CASES_AND_DTYPES)


def operands_of(shapes, dtype=float):
    rng = np.random.default_rng(len(shapes))
    real = [rng.standard_normal(shape) for shape in shapes]
    if dtype is complex:
        return [x + 1j * rng.standard_normal(x.shape) for x in real]
    return real


@cases
def test_the_transpose_has_the_same_inner_product(case):
    """<y, einsum(..., x, ...)> = <transpose(y), x>, in every operand."""
    text, *shapes = case
    operands = operands_of(shapes)
    result = np.asarray(einsum(text, *operands))
    assert result.shape == infer_result_shape(text, shapes)
    (y,) = operands_of([result.shape])
    for position, operand in enumerate(operands):
        others = operands[:position] + operands[position + 1 :]
        transposed = transpose_einsum(text, tuple(shapes), position)
        terms = transposed.operands(y, others, np)
        gradient = np.asarray(einsum(transposed.subscripts, *terms))
        gradient = gradient.reshape(transposed.shape)
        assert gradient.shape == operand.shape
        np.testing.assert_allclose(np.vdot(gradient, operand), np.vdot(y, result))


@cases
def test_a_batch_is_one_einsum(case):
    """Of all operands but the first, which all of the batch share."""
    text, *shapes = case
    axes = [None, *(len(shape) for shape in shapes[1:])]
    first, *others = operands_of(shapes)
    batch = [np.stack([x, 2 * x], axis=-1) for x in others]
    if not others:
        axes, first = [0], np.stack([first, 2 * first])
    expected = np.asarray(einsum(text, *operands_of(shapes)))
    terms = [first, *batch]
    result = einsum(batch_subscripts(text, [x.shape for x in terms], axes), *terms)
    factor = 2 ** max(1, len(others))
    np.testing.assert_allclose(result, [expected, factor * expected])


# torch itself uses what it deprecates
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch", reason="torch is not installed")

    def tensors(self, torch, shapes, dtype=float):
        return [
            torch.from_numpy(np.asarray(x)).requires_grad_()
            for x in operands_of(shapes, dtype)
        ]

    @cases_and_dtypes
    def test_gradients_and_tangents(self, torch, case, dtype):
        """Those of finite differences, also of gradients."""
        text, *shapes = case
        tensors = self.tensors(torch, shapes, dtype)

        def call(*operands):
            return torch_einsum(text, *operands)

        arrays = [x.detach().numpy() for x in tensors]
        np.testing.assert_allclose(
            call(*tensors).detach(), np.einsum(text, *arrays), rtol=1e-12
        )
        if 0 in shapes[0]:  # no finite differences
            call(*tensors).real.sum().backward()
            assert all(x.grad.shape == x.shape for x in tensors)
            return
        check = torch.autograd.gradcheck
        assert check(call, tensors, check_forward_ad=dtype is float)
        assert torch.autograd.gradgradcheck(call, tensors)

    def test_functions_of_torch_func(self, torch):
        a, b = (x.detach() for x in self.tensors(torch, [(2, 3), (3, 4)]))

        def row(x, y):
            return torch_einsum("j,jk->k", x, y)

        func = torch.func
        assert torch.allclose(func.vmap(row, in_dims=(0, None))(a, b), a @ b)
        assert torch.allclose(func.vmap(row, in_dims=(1, None))(a.T, b), a @ b)
        assert torch.allclose(func.jacrev(row)(a[0], b), b.T)
        assert torch.allclose(func.jacfwd(row)(a[0], b), b.T)
        square = a.T @ a
        hessian = func.hessian(lambda x: torch_einsum("i,ij,j->", x, square, x))(
            b[:, 0]
        )
        assert torch.allclose(hessian, 2 * square)

    def test_compilers_see_one_operation(self, torch):
        """No break of the graph; gradients pass, and shapes may change."""
        a, b = self.tensors(torch, [(2, 3), (3, 4)])

        @torch.compile(backend="aot_eager", fullgraph=True)
        def compiled(x, y):
            return torch_einsum("ij,jk->ik", 2 * x, y).sin()

        expected = (2 * a @ b).sin()
        assert torch.allclose(compiled(a, b), expected)
        of_compiled = torch.autograd.grad(compiled(a, b).sum(), [a, b])
        for found, gradient in zip(
            of_compiled, torch.autograd.grad(expected.sum(), [a, b]), strict=True
        ):
            assert torch.allclose(found, gradient)
        longer = torch.ones(7, 3, dtype=torch.float64)
        assert torch.allclose(compiled(longer, b), (2 * longer @ b).sin())

    def test_compilers_see_batches(self, torch):
        """A compiled function may have torch.vmap of an einsum, with a gradient."""
        a, b = self.tensors(torch, [(2, 3), (3, 4)])

        def row(x, y):
            return torch_einsum("j,jk->k", x, y)

        batched = torch.vmap(row, in_dims=(0, None))
        compiled = torch.compile(batched, backend="aot_eager", fullgraph=True)
        result = compiled(a, b)
        assert torch.allclose(result, a @ b)
        (gradient,) = torch.autograd.grad(result.sum(), [b])
        assert torch.allclose(gradient, a.sum(0)[:, None].expand(3, 4))

    def test_the_operator_keeps_the_rules_of_torch(self, torch):
        """Schema, memory of its own, shapes of traces, registered gradients."""
        tensors = self.tensors(torch, [(2, 3), (3, 4)])
        for arguments in [("ij,jk->ik", tensors), ("ij->ij", tensors[:1])]:
            torch.library.opcheck(torch.ops.feinsum.einsum.default, arguments)

    def test_dtypes_are_those_of_torch(self, torch):
        a, b = torch.ones(2, 3), torch.ones(3, 4, dtype=torch.int64)
        assert torch_einsum("ij,jk->ik", a, b).dtype == torch.float32
        c = a.bfloat16().requires_grad_()
        result = torch_einsum("ij,jk->ik", c, b)
        assert result.dtype == torch.bfloat16
        result.sum().backward()
        assert c.grad.dtype == torch.bfloat16
        assert torch.equal(c.grad, torch.full((2, 3), 4.0, dtype=torch.bfloat16))

    def test_notes_of_tensors_are_read(self, torch):
        """Conjugated and negated ones, and index lists instead of letters."""
        a, b = (x.detach() for x in self.tensors(torch, [(2, 3), (3, 4)], complex))
        result = torch_einsum(a.conj(), [0, 1], b, [1, 2], [0, 2])
        assert torch.allclose(result, a.conj() @ b)

    def test_what_is_no_tensor_is_refused(self, torch):
        with pytest.raises(FeinsumError, match="operand 1 is of type list"):
            torch_einsum("i,i->", torch.ones(1), [1.0])
        with pytest.raises(FeinsumError, match=r"layout torch.sparse_coo.*to_dense"):
            torch_einsum("i->", torch.ones(1).to_sparse())
        with pytest.raises(InvalidEinsumError, match="needs an operand"):
            torch_einsum("->")


class TestJax:
    @pytest.fixture
    def jax(self):
        module = pytest.importorskip("jax", reason="JAX is not installed")
        module.config.update("jax_platforms", "cpu")
        with module.enable_x64(True):
            yield module

    @pytest.mark.parametrize(("case", "dtype"), spread(CASES_AND_DTYPES, 8))
    def test_transforms(self, jax, case, dtype):
        """Jit, vmap, and derivatives in both modes, twice."""
        from jax.test_util import check_grads

        text, *shapes = case
        arrays = [jax.numpy.asarray(x) for x in operands_of(shapes, dtype)]

        def call(*operands):
            return jax_einsum(text, *operands)

        expected = np.einsum(text, *map(np.asarray, arrays))
        np.testing.assert_allclose(call(*arrays), expected, rtol=1e-12)
        np.testing.assert_allclose(jax.jit(call)(*arrays), expected, rtol=1e-12)
        check_grads(call, arrays, order=2)
        batch = [jax.numpy.stack([x, 2 * x], axis=-1) for x in arrays]
        results = jax.vmap(call, in_axes=-1)(*batch)
        np.testing.assert_allclose(
            results, [expected, 2 ** len(arrays) * expected], rtol=1e-12
        )

    def test_it_is_in_a_compiled_program(self, jax):
        """A gradient in jit calls the foreign function, not Python's trace."""
        a, b = (jax.numpy.asarray(x) for x in operands_of([(2, 3), (3, 4)]))
        gradient = jax.jit(jax.grad(lambda x: jax_einsum("ij,jk->ik", x, b).sum()))
        np.testing.assert_allclose(gradient(a), np.ones((2, 4)) @ b.T)
        assert "feinsum_einsum" in gradient.lower(a).as_text()

    def test_dtypes_are_those_of_jax(self, jax):
        a, b = jax.numpy.ones((2, 3), "float32"), jax.numpy.ones((3, 4), "int32")
        assert jax_einsum("ij,jk->ik", a, b).dtype == np.float32
        assert jax_einsum("ij,jk->ik", a.astype("bfloat16"), b).dtype == "bfloat16"
        for dtype in ("bool", "int8", "uint16", "float16", "complex64"):
            result = jax_einsum("ij,jk->ik", a.astype(dtype), b.astype(dtype))
            np.testing.assert_array_equal(
                result, np.full((2, 4), 3, "f4").astype(dtype)
            )

    def test_errors_are_those_of_einsum(self, jax):
        a = jax.numpy.ones((2, 3))
        for call in (jax_einsum, jax.jit(jax_einsum, static_argnums=0)):
            with pytest.raises(InvalidEinsumError, match="extent 3"):
                call("ij,jk->ik", a, a)
        with pytest.raises(InvalidEinsumError, match="float8"):
            jax_einsum("ij->", a.astype("float8_e5m2"))
        for wrong in (None, "A", [[1.0], [2.0, 3.0]]):
            with pytest.raises(InvalidTypeError, match="operand 1 is of type"):
                jax_einsum("ij,j->i", a, wrong)

    def test_operands_are_converted_as_by_jax(self, jax):
        """Lists and arrays of numpy become arrays; scalars take the dtype of arrays."""
        a = jax.numpy.ones((2, 3), "float32")
        np.testing.assert_array_equal(jax_einsum("ij,j->i", a, [1, 2, 3]), [6, 6])
        np.testing.assert_array_equal(jax_einsum("ij,j->i", a, np.ones(3)), [3, 3])
        assert jax_einsum("ij,->ij", a, 2.0).dtype == np.float32

    def test_an_error_within_xla_is_reported(self, jax, monkeypatch):
        """What the foreign function raises is an error of the program."""
        from feinsum.integrations import jax_primitive

        def fail(*_, **__):
            raise InvalidEinsumError("no such einsum")

        monkeypatch.setattr(jax_primitive, "einsum", fail)
        with pytest.raises(Exception, match="InvalidEinsumError: no such einsum"):
            jax_einsum("ij->i", jax.numpy.ones((2, 5))).block_until_ready()
