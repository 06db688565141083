"""``feinsum.einsum`` in place of ``numpy.einsum``: what it takes, gives and refuses."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import opt_einsum
import pytest

import feinsum
from feinsum.calling import clear_call_cache, prepare_call
from feinsum.errors import InvalidTypeError
from feinsum.sparse import from_dense
from tests.calling.comparing import NO_FACTS, assert_like_numpy

RNG = np.random.default_rng(45)
A, B, C = (RNG.random(shape) for shape in [(3, 4), (4, 5), (5, 2)])
BIG = np.full((3, 3), 1e30, "f4")


@pytest.fixture(autouse=True)
def _fresh():
    """Every test has its own first calls."""
    clear_call_cache()


def ours(*arguments, **options):
    return feinsum.einsum(*arguments, database=NO_FACTS, **options)


# letters


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk", [(2,), (3,)]),
        ("i,ij->", [(2,), (2,)]),
        ("...ab c->c...", [(2,)]),
        ("cell dof, dof -> cell", [(2, 3), (3,)]),
    ],
)
def test_a_forgotten_dimension_is_an_error(subscripts, shapes):
    """Every letter is an index, whatever the operands have; the message says so."""
    operands = [np.ones(shape) for shape in shapes]
    with pytest.raises(ValueError, match=r"[{]|axes"):
        ours(subscripts, *operands)
    with pytest.raises(ValueError, match="subscript"):
        np.einsum(subscripts, *operands)


def test_an_index_is_any_character_or_a_name_in_braces():
    """All names that opt_einsum gives to indices, and those of one's own."""
    names = [opt_einsum.get_symbol(k) for k in (75, 107, 8052, 60)]
    tree = from_dense(A)
    for i, j, k in (names[:3], names[1:], ["{cell}", "{dof}", "m"]):
        found = ours(f"{i}{j},{j}{k}->{k}{i}", A, B)
        np.testing.assert_allclose(found, (A @ B).T)
        np.testing.assert_allclose(ours(f"{i}{j},{j}{k}->{i}{k}", tree, B), A @ B)


# dtypes


@pytest.mark.parametrize(
    ("operand", "out"),
    [
        (np.full(100, 100, "i1"), "i4"),
        (np.ones(3, bool), "f2"),
        (BIG[0], "c16"),
        (BIG[0], "g"),
        (np.full(9, 300, "f2"), "f4"),
    ],
)
def test_out_of_a_wider_dtype_is_computed_in_it(operand, out):
    """The common dtype of the operands and ``out``, in every interface."""
    expected = np.einsum("i,i->", operand, operand, out=np.zeros((), out))
    for call in (feinsum.einsum, feinsum.contract):
        made = call("i,i->", operand, operand, out=np.zeros((), out), database=NO_FACTS)
        np.testing.assert_allclose(made, expected)
    given = np.zeros((), out)
    expression = feinsum.contract_expression("i,i->", operand.shape, operand.shape)
    made = expression(operand, operand, out=given, database=NO_FACTS)
    assert made is given
    np.testing.assert_allclose(made, expected)


def test_out_of_a_wider_dtype_is_computed_in_it_with_a_sparse_operand():
    """As with dense ones."""
    found = ours("ij,j->i", from_dense(BIG), BIG[0], out=np.zeros(3))
    np.testing.assert_allclose(found, 3e60, rtol=1e-6)


@pytest.mark.parametrize(
    ("subscripts", "dtype"),
    [("i,i->", dtype) for dtype in ("f2", "?", "f4", "g", "O")]
    + [("i->", "f2"), (",->", "f2"), (",->", "?")],
)
def test_a_result_without_indices_has_rank_zero(subscripts, dtype):
    """A scalar of numpy, and an array of rank 0 in ``out``; of every dtype."""
    n = subscripts.count(",") + 1
    operand = np.array(1, dtype) if subscripts == ",->" else np.ones(10, dtype)
    assert_like_numpy(subscripts, *[operand] * n, effort="estimate")
    out = np.zeros((), dtype)
    assert ours(subscripts, *[operand] * n, out=out) is out
    assert out == np.einsum(subscripts, *[operand] * n)


@pytest.mark.parametrize(
    ("subscripts", "dtype"),
    [("ij,jk->ik", "g"), ("ij,jk,kl->li", "G"), ("ij->j", "O"), ("ii->i", "O")],
)
def test_dtypes_without_kernels_are_computed_by_numpy(subscripts, dtype):
    """Long doubles and objects, alone and beside other dtypes, without a word."""
    n = subscripts.count(",") + 1
    operands = [RNG.integers(0, 9, (4, 4)).astype(dtype) for _ in range(n)]
    assert_like_numpy(subscripts, *operands, effort="estimate")
    last = np.eye(4).astype("f8" if n > 1 else dtype)
    assert_like_numpy(subscripts, *operands[:-1], last, effort="estimate")
    assert prepare_call(subscripts, *operands, database=NO_FACTS).kernel is None


@pytest.mark.parametrize(("dtype", "optimize"), [("g", True), ("f8", [(0, 1), (0, 1)])])
def test_steps_have_the_dtype_of_the_whole(dtype, optimize):
    """Truth values and small integers are added up in it, whatever the order."""
    many = np.ones((9, 50), bool), np.full((9, 50), 100, "i1"), np.ones(9, dtype)
    expected = np.einsum("ij,ik,i->", *many)
    found = ours("ij,ik,i->", *many, optimize=optimize, effort="amortized")
    assert found == expected == 9 * 50 * 5000


def test_products_of_objects_are_taken_from_left_to_right():
    """Objects need not commute."""

    class Word(str):
        def __mul__(self, other):
            return Word(str(self) + str(other))

        def __radd__(self, other):
            return self

    x, y, z = (np.array([Word(letter)], object) for letter in "xyz")
    assert ours("i,i,i->i", x, y, z)[0] == np.einsum("i,i,i->i", x, y, z)[0] == "xyz"


def test_views_are_those_of_numpy():
    """Of one operand without a sum, of any dtype and byte order, and of any size."""
    for dtype in ("f8", ">f8", ">i2", "U3", "M8[D]", "O"):
        operand = np.zeros((2, 3), dtype)
        found = ours("ij->ji", operand)
        assert (found.dtype, found.base is operand) == (operand.dtype, True)
    assert ours("ij->j", np.ones((2, 3), ">f8")).dtype == np.dtype("f8").newbyteorder(
        "="
    )
    huge = np.broadcast_to(np.int8(1), (2**20, 2**20))
    assert np.may_share_memory(ours("ii->i", huge), huge)


def test_arrays_that_no_kernel_can_count_are_computed_by_numpy(monkeypatch):
    """Too large an operand, and too large a result."""
    monkeypatch.setattr("feinsum.calling.operands.MAX_ENTRIES", 100)
    for subscripts, n in (("ij->i", 11), ("i,j->ij", 30), ("i,j,j->ij", 30)):
        ranks = [len(term) for term in subscripts.split("->")[0].split(",")]
        operands = [np.full((n,) * rank, 2.0) for rank in ranks]
        assert prepare_call(subscripts, *operands, database=NO_FACTS).kernel is None
        assert_like_numpy(subscripts, *operands, effort="estimate")


# numbers that are not finite


@pytest.mark.parametrize(
    ("subscripts", "operands", "effort"),
    [
        ("ij,jk,kl->il", (BIG, BIG, BIG), "amortized"),
        ("ij->", (np.full((3, 3), np.float16(6e4)),), "estimate"),
        ("ij,ij->", (np.full((3, 3), "1e4000", "g"),) * 2, "amortized"),
    ],
)
def test_no_call_looks_at_the_errors_of_numpy(subscripts, operands, effort):
    """Neither the first call, nor the one that builds, nor later ones; nor casts."""
    for _ in range(3):
        with warnings.catch_warnings(), np.errstate(all="raise"):
            warnings.simplefilter("error")
            ours(subscripts, *operands, effort=effort)
            ours(subscripts, *operands, dtype="g", casting="same_kind", effort=effort)
    with np.errstate(all="raise"):
        half = ours(
            subscripts, *operands, dtype="f2", casting="unsafe", effort="amortized"
        )
    assert np.asarray(half).dtype == np.float16


# scalars


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,,jk->ik",
        ",,ij,jk->ik",
        ",i,i->",
        ",,->",
    ],
)
def test_scalars_are_operands_like_any_other(subscripts, caplog):
    """Wherever they are; recipes are predicted for them, too."""
    shapes = {"ij": (20, 30), "jk": (30, 40), "i": (20,), "": ()}
    terms = subscripts.split("->")[0].split(",")
    operands = [RNG.random(shapes[term]) for term in terms]
    with caplog.at_level(logging.WARNING, "feinsum"):
        call = prepare_call(subscripts, *operands, database=NO_FACTS)
        found = ours(subscripts, *operands)
    np.testing.assert_allclose(found, np.einsum(subscripts, *operands))
    assert call.kernel.spec is not None
    assert not caplog.records


# notations and options

EXAMPLES = [
    # spaces mean nothing
    (("...ab c->c...", RNG.random((2, 3, 4, 5))), {}),
    (("a b c -> c a b", RNG.random((2, 3, 4))), {}),
    (("... i j -> j ... i", RNG.random((2, 3, 4, 5))), {}),
    # lists of indices, bytes, an ellipsis of no axes
    ((A, [30, 1], B, [1, 2]), {}),
    ((A, [0, 1], B, [1, 2], [2, 0]), {}),
    ((RNG.random((2, 3, 4)), [..., 1], B, [1, 2], [2, ...]), {}),
    ((A, np.array([0, 1]), B, np.array([1, 2]), np.array([2, 0])), {}),
    ((A, (0, 1), B, range(1, 3)), {}),
    ((b"ij,jk->ki", A, B), {}),
    (("...ij,jk->...ik", A, B), {}),
    (("i->...", A[0]), {}),
    # options, also in lower case, as bytes and of their defaults
    (("ij,jk,kl->il", A, B, C), {"optimize": True}),
    (("ij,jk,kl", A, B, C), {"optimize": ["einsum_path", (0, 1), (0, 1)]}),
    (("ij,jk,kl->il", A, B, C), {"optimize": ("greedy", 100)}),
    (("ij,jk->ki", A.T.copy().T, B.T.copy().T), {"order": "A"}),
    (("ij,jk->ik", A, B), {"order": "c"}),
    (("ij,jk->ik", A, B), {"order": b"F"}),
    (("ij,jk->ik", A, B), {"order": None, "dtype": None, "out": None}),
    (("ij,jk->ik", A, B), {"optimize": None, "casting": b"safe"}),
    (("ij,jk", A.astype("f4"), B), {"dtype": "f4", "casting": "same_kind"}),
    (("i,i", np.arange(3), np.arange(3)), {"dtype": "f8"}),
    # wrong types
    (("ij,jk", A, B), {"dtype": "f4"}),
    (("ij,jk", A, B), {"out": np.empty((3, 5), "f4")}),
    (("ij,jk", A, B), {"out": [1]}),
    (("ij,jk", A, B), {"order": 3}),
    (("ij,jk", A, B), {"casting": None}),
    (("ij,jk", A, B), {"optimize": 3}),
    (("ij,jk", A.astype("U"), B), {}),
    (("i->", np.array(["2020"], "M8[D]")), {}),
    ((A, [0, 1], None), {}),
    # wrong values
    (("ij,jk", A, B), {"order": "Z"}),
    (("ij,jk", A, B), {"casting": "maybe"}),
    (("ij,jk", A, B), {"out": np.empty((5, 3))}),
    (("ij,jk", A, B), {"out": np.broadcast_to(0.0, (3, 5))}),
    (("ij,ij->", A.astype(object), A), {"out": np.empty(1, object)}),
    (("ii,ij->", A[:1], np.ones((4, 4))), {}),
    (("ij,ik", A, B), {}),
    (("ij->ii", A), {}),
]


@pytest.mark.parametrize(("arguments", "options"), EXAMPLES)
def test_a_call_is_that_of_numpy(arguments, options):
    """All its notations and options are read; errors are of its kinds, and ours."""
    assert_like_numpy(*arguments, **options)


def test_dtype_and_order_apply_to_views():
    """Unlike in numpy, which gives the view whatever was asked for."""
    assert ours("ij->ji", A, dtype="c16").dtype == np.dtype("c16")
    assert ours("ij->ji", A, order="C").flags.c_contiguous
    with pytest.raises(InvalidTypeError):
        ours("ij->ji", A, dtype="f4")


def test_an_expression_has_the_contractions_of_opt_einsum():
    """For its shapes and its path."""
    shapes = [(9, 8), (8, 7), (7, 2)]
    for options in ({}, {"optimize": [(0, 1), (0, 1)]}):
        made = feinsum.contract_expression("ij,jk,kl->il", *shapes, **options)
        known = opt_einsum.contract_expression("ij,jk,kl->il", *shapes, **options)
        assert made.contraction_list == known.contraction_list
