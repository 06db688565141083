"""Plans of packed contractions: tiles cover every index and are as small as asked."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum import array, einsum
from feinsum.transforms import list_configurations
from feinsum.transforms.heuristics import LINE_ENTRIES
from feinsum.transforms.library import PACKED_CONTRACTION
from feinsum.transforms.library.packed.plan import make_plan
from feinsum.transforms.roles import find_packed_roles
from tests.transforms.support import EINSUMS

SIZES = st.integers(1, 300)


@pytest.mark.parametrize("extents", [(72, 72, 24, 72, 72), (7, 9, 5, 3, 11)])
@given(st.sampled_from([4, 8]), st.integers(1, 8), SIZES, SIZES)
def test_tiles_cover_and_stay_small(extents, lanes, rows, width, depth):
    """The tiles of an index reach its end; a side has no more entries than
    asked, or than a line of its least tiles.
    """
    a, b, c, d, e = extents
    sketch = einsum("dbea,ec->abcd", array("A", (d, b, e, a)), array("B", (e, c)))
    tiles = {"vector": "c", "register": "a", "lanes": lanes, "vectors": 2}
    tiles |= {"rows": rows, "width": width, "height": width, "depth": depth}
    plan = make_plan(sketch, sketch.extents, tiles)
    for cut in plan.cuts.values():
        assert cut.size * (cut.n_tiles - 1) < cut.extent <= cut.size * cut.n_tiles
        assert cut.is_exact == (cut.extent % cut.size == 0)
    units = {"c": 2 * lanes, "a": rows}
    for side, limit in (
        (plan.columns, width),
        (plan.rows, width),
        (plan.summed, depth),
    ):
        largest = max(LINE_ENTRIES * units.get(side[-1].index, 1), limit)
        assert prod(cut.size for cut in side) <= largest
    assert set(plan.cuts) == set(sketch.indices)


@pytest.mark.parametrize(
    ("name", "vector", "register", "expected"),
    [
        ("gradient", "i", "e", {"left": (2,), "late": (0,), "postponed": ("r",)}),
        ("divergence", "i", "e", {"left": (0, 2), "late": (), "folded": ("x",)}),
        ("face mass", "i", "e", {"left": (1, 2), "late": (), "folded": ()}),
        ("mass", "i", "e", {"left": (1, 2), "late": (), "summed": ("j",)}),
        ("batch index", "k", "i", {"left": (0,), "late": (), "batch": ("b",)}),
    ],
)
def test_roles_take_the_fewest_operations(name, vector, register, expected):
    """Geometry goes with the field where it is summed, to the sums where it is not."""
    roles = find_packed_roles(EINSUMS[name], vector, register)
    assert {key: getattr(roles, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "vector", "register"),
    [
        ("pointwise product", "e", "e"),
        ("gradient", "e", "i"),
        ("diagonal", "j", "e"),
        ("operand that is summed alone", "e", "i"),
    ],
)
def test_indices_that_split_nothing_have_no_roles(name, vector, register):
    """The vector index is of one operand alone, which shares a sum with the others."""
    assert find_packed_roles(EINSUMS[name], vector, register) is None


def test_the_register_index_is_read_along_the_last_axis():
    """Of two long indices, rows are packed best over the one stored together."""
    for term, expected in (("bda", "a"), ("adb", "b")):
        shape = (312, 312, 312)
        sketch = einsum(f"{term},dc->abc", array("A", shape), array("B", (312, 24)))
        first = next(list_configurations(PACKED_CONTRACTION, sketch))
        assert first.parameters["register"] == expected
