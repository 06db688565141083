"""Einsums bound by memory bandwidth, and all that only the generic family fits."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from feinsum import array, batched_einsum, einsum
from feinsum.errors import InvalidParameterError, NotAnEinsumError
from feinsum.transforms import (
    check_spec,
    find_applicable_transforms,
    list_configurations,
)
from feinsum.transforms.library import ELEMENT_BLOCKED, GENERIC, TURNED
from tests.portions import spread
from tests.strategies import SIZES, counts, einsums, sketches
from tests.transforms.support import (
    LOOPY_WARNINGS,
    generated,
    opencl_code,
    ragged_sizes,
    recipes,
    sampled,
    with_literals,
)

pytestmark = LOOPY_WARNINGS


def doubles(**shapes):
    return [array(name, shape) for name, shape in shapes.items()]


def stream(subscripts, **shapes):
    return einsum(subscripts, *doubles(**shapes))


N, M = "N", "M"
REDUCTIONS = {
    "row sums": stream("ij->i", A=(N, M)),
    "row sums of a known length": stream("ij->i", A=(N, 67)),
    "column sums": stream("ij->j", A=(N, M)),
    "sums around an index": stream("ijk->j", A=(N, 6, M)),
    "matrix times vector": stream("ij,j->i", A=(N, M), x=M),
    "vector times matrix": stream("ij,i->j", A=(N, M), x=N),
    "inner products": stream("xi,xi->x", A=(N, M), B=(N, M)),
    "sum of all": stream("ij->", A=(N, M)),
    "trace": stream("ii->", A=(N, N)),
    "bilinear form": stream("i,ij,jk,k->", a=N, B=(N, 5), C=(5, 7), d=7),
}
MAPS = {
    "outer product": stream("ai,bj->abij", A=(N, 5), B=(M, 7)),
    "transpose": stream("ij->ji", A=(N, M)),
    "transpose of four": stream("abcd->dbca", A=(N, 3, M, 19)),
    "transpose of a sum": stream("ikj->ji", A=(N, 5, M)),
    "transpose of two": batched_einsum(
        "ij->ji", [doubles(A=(N, M)), doubles(B=(N, M))]
    ),
    "diagonal of a matrix": stream("ii->i", A=(N, N)),
    "transpose of floats": einsum("ij->ji", array("A", (N, M), "float32")),
    "product with a transpose": stream("ij,ji->ij", A=(N, M), B=(M, N)),
    "scalars": stream(",->", a=(), b=()),
    "a single entry": stream("ij->ji", A=(1, 1)),
    "integers": einsum("ij->ji", array("n", (N, M), "int16")),
}
STREAMS = REDUCTIONS | MAPS


def assert_right(e, spec):
    case = generated(e)
    case.assert_right(case.apply(spec), ragged_sizes(e))


@pytest.mark.parametrize(
    ("name", "spec"),
    spread((r for r in recipes(STREAMS, 0) if r[1].name in ("generic", "turned")), 12),
)
def test_the_first_configuration_is_right(name, spec):
    """The recommended recipe is right at sizes that no tile divides."""
    assert_right(STREAMS[name], spec)


@pytest.mark.parametrize("name", ["row sums", "transpose of a sum", "transpose"])
def test_literal_extents_are_right(name):
    """So is it where the extents are numbers, shorter and longer than a tile."""
    for sizes in ({"N": 3, "M": 8}, {"N": 37, "M": 100}):
        e = with_literals(STREAMS[name], sizes)
        for transform in (GENERIC, TURNED):
            for spec in sampled(e, transform, 0) if transform.fits(e) else ():
                assert_right(e, spec)


@pytest.mark.long
@pytest.mark.parametrize("name", STREAMS)
def test_every_configuration_is_right(name):
    """And so are all of them."""
    for transform in (GENERIC, TURNED):
        fits = transform.fits(STREAMS[name])
        for spec in list_configurations(transform, STREAMS[name]) if fits else ():
            assert_right(STREAMS[name], spec)


@counts(default=40, long=2000)
@given(e=einsums())
def test_something_is_offered_for_every_einsum(e):
    """The generic family fits them all, and its recommended recipe is valid."""
    assert GENERIC in find_applicable_transforms(e)
    first = next(list_configurations(GENERIC, e))
    assert check_spec(first, e) is GENERIC


@st.composite
def native_einsums(draw):
    """Einsums of dtypes that OpenCL knows, of few operands or many, of no index."""
    sketch = draw(sketches(n_indices=5, n_terms=3, n_rows=2))
    native = tuple(dtype.replace(">", "<") for dtype in sketch.dtypes)
    return replace(sketch, dtypes=native).build()


def _mixes_integers(row):
    dtypes = {operand.dtype for operand in row}
    return len(dtypes) > 1 and any(dtype.kind in "biu" for dtype in dtypes)


@counts(default=8, long=1000)
@given(e=native_einsums(), seed=st.integers(0, 1 << 16))
def test_any_configuration_is_right_for_any_einsum(e, seed):
    """Also with repeated indices and mixed dtypes. Rows of integers among others may be
    refused, as recipes reorder their products; see the raising of narrow factors.
    """
    try:
        case = generated(e)
    except NotAnEinsumError:
        if not any(map(_mixes_integers, e.rows)):
            raise
        reject()
    spec = random.Random(seed).choice(list(list_configurations(GENERIC, e)))
    sizes = [{x.name: SIZES[x.name] for x in e.size_params}]
    case.assert_right(case.apply(spec), sizes)


def test_sums_of_several_rows_are_independent():
    """Each row adds to a literal entry: a register of its own."""
    e = REDUCTIONS["row sums"]
    case = generated(e)
    spec = next(list_configurations(GENERIC, e))
    assert spec.parameters["vector"] == "j"
    code = opencl_code(case.apply(spec))
    for row in range(spec.parameters["step"]):
        assert f"row_0_tile[{row}] = row_0_tile[{row}] + " in code


@pytest.mark.parametrize(
    ("name", "vector"),
    [
        ("row sums", "j"),
        ("vector times matrix", "j"),
        ("outer product", "j"),
        ("inner products", "i"),
    ],
)
def test_the_innermost_index_has_unit_stride(name, vector):
    """The recommended vector index is the one that stands last in the large arrays."""
    assert (
        next(list_configurations(GENERIC, STREAMS[name])).parameters["vector"] == vector
    )


def test_squares_are_read_and_stored_by_vectors():
    """Neighbours of the operand are lanes of a row, those of the output of a vector,
    which passes the caches.
    """
    e = MAPS["transpose"]
    spec = next(list_configurations(TURNED, e))
    code = opencl_code(generated(e).apply(spec))
    lines = [line.strip() for line in code.splitlines()]
    reads = [line for line in lines if line.startswith("row_0_square[0].s")]
    places = [read.partition(" = ")[2].rstrip("];") for read in reads]
    assert places[1:] == [f"{places[0]} + {k}" for k in (1, 2, 3)]
    stores = [
        line for line in lines if line.startswith("feinsum_stream(double, 4, row")
    ]
    assert len(stores) == spec.parameters["lanes"]


@pytest.mark.parametrize("shape", [(5, 7), (19, 37), (8, 12), (N, 19)], ids=str)
def test_any_tile_of_squares_is_right(shape):
    """Extents are shorter than two vectors, or no multiple of them."""
    e = stream("ij->ji", A=shape)
    for spec in sampled(e, TURNED, 2):
        assert_right(e, spec)


def test_tiles_are_made_of_squares():
    """A square has a place in each tile, and in the array."""
    e = stream("ij->ji", A=(5, 19))
    spec = next(list_configurations(TURNED, e))
    for change in ({"lanes": 8}, {"width": 20, "lanes": 8}):
        with pytest.raises(InvalidParameterError):
            check_spec(TURNED.spec({**spec.parameters, **change}), e)


def test_large_batches_are_not_searched_for_blocks_of_elements():
    """Loopy takes too long for them; what is on record stays valid."""
    shared = doubles(J=(3, 3, N), D=(3, 5, 5))
    for n_rows in (1, 19):
        rows = [[*shared, array(f"u{k}", (N, 5))] for k in range(n_rows)]
        e = batched_einsum("xre,rij,ej->xei", rows)
        is_searched = ELEMENT_BLOCKED in find_applicable_transforms(e)
        assert is_searched == (n_rows == 1)
        spec = next(list_configurations(ELEMENT_BLOCKED, e))
        assert check_spec(spec, e) is ELEMENT_BLOCKED
