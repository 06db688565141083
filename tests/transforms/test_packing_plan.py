"""Plans of packed contractions: tiles cover every index and are as small as asked."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum import array, canonicalize, einsum
from feinsum.transforms.library.packing_plan import make_plan
from feinsum.transforms.primitives import begin
from tests.transforms.support import CONTRACTIONS, generated

DEPTHS = st.integers(1, 300)


@pytest.mark.parametrize("extents", [(72, 72, 24, 72, 72), (7, 9, 5, 3, 11)])
@given(
    lanes=st.sampled_from([4, 8]), rows=st.integers(1, 8), width=DEPTHS, depth=DEPTHS
)
def test_tiles_cover_and_stay_small(extents, lanes, rows, width, depth):
    """The tiles of an index reach its end; a side has no more entries than asked."""
    a, b, c, d, e = extents
    case = generated(
        einsum("dbea,ec->abcd", array("A", (d, b, e, a)), array("B", (e, c)))
    )
    sizes = {
        "lanes": lanes,
        "vectors": 2,
        "rows": rows,
        "width": width,
        "height": width,
    }
    roles = {"vector": "a", "register": "c", "depth": depth}
    plan = make_plan(case.einsum, begin(case.t_unit, case.nest), sizes | roles)
    for cut in plan.cuts.values():
        assert cut.size * (cut.n_tiles - 1) < cut.extent <= cut.size * cut.n_tiles
        assert cut.is_exact == (cut.extent % cut.size == 0)
        assert all(stride >= 1 for stride in cut.strides)
    units = {"a": 2 * lanes, "c": rows}
    for side, limit in (
        (plan.columns, width),
        (plan.rows, width),
        (plan.summed, depth),
    ):
        largest = max(units.get(side[-1].index, 1), limit)
        assert prod(cut.size for cut in side) <= largest
    assert set(plan.cuts) == set(case.einsum.indices)


def test_every_index_has_one_place():
    """Batch indices are cut too; none is in two groups."""
    e = canonicalize(CONTRACTIONS["batch index"]).einsum
    case = generated(e)
    (batch,) = [i for i in e.output if all(i in term for term in e.inputs)]
    vector, register = [i for i in reversed(e.output) if i != batch]
    sizes = {
        "lanes": 4,
        "vectors": 1,
        "rows": 6,
        "width": 48,
        "height": 48,
        "depth": 64,
    }
    roles = {"vector": vector, "register": register}
    plan = make_plan(e, begin(case.t_unit, case.nest), sizes | roles)
    groups = (plan.columns, plan.rows, plan.summed, plan.batch)
    assert sorted(cut.index for group in groups for cut in group) == sorted(e.indices)
    assert [cut.index for cut in plan.batch] == [batch]
    assert not plan.is_deep
