"""A search of packed tiles begins with one that a lower bound says is the best."""

from __future__ import annotations

from math import prod

import pytest

from feinsum import array, canonicalize, einsum
from feinsum.ir import Workload
from feinsum.transforms import applicable_transforms, check_spec
from feinsum.transforms.library import PACKED_CONTRACTION
from feinsum.transforms.library.packed.space import CACHE_BYTES, least_tile
from feinsum.tuning import make_search

PRODUCT = canonicalize(
    einsum("ij,jk->ik", array("A", ("N", 2000)), array("B", (2000, 2000)))
).einsum
SIZES = {PRODUCT.size_params[0].name: 3000}


def test_the_least_tile_fills_the_cache_evenly():
    """Three square parts of a product, which together take no more than it holds."""
    tile = least_tile(Workload(PRODUCT, SIZES))
    assert len({*tile.values()}) == 1
    sides = [prod(tile[i] for i in term) for term in (*PRODUCT.inputs, PRODUCT.output)]
    assert CACHE_BYTES < 8 * sum(sides) < 3.2 * CACHE_BYTES  # a piece and what is moved


@pytest.mark.parametrize(
    "workload",
    [
        Workload(PRODUCT),
        Workload(
            canonicalize(
                einsum("ij,j->i", array("A", (5000, 900)), array("x", 900))
            ).einsum
        ),
    ],
    ids=["unknown sizes", "every array once"],
)
def test_where_tiles_do_not_matter_there_is_none(workload):
    """A start is for what depends on it, and on sizes that are known."""
    assert least_tile(workload) == {}


def test_a_search_begins_with_the_least_tile():
    """It is offered, is none of the other starts, and is proposed among the first."""
    workload = Workload(PRODUCT, SIZES)
    *_, start = PACKED_CONTRACTION.starts(workload)
    assert start not in PACKED_CONTRACTION.starts(Workload(PRODUCT))
    assert (start["height"], start["width"], start["depth"]) == (384, 384, 384)
    spec = PACKED_CONTRACTION.spec(start)
    assert check_spec(spec, PRODUCT) is PACKED_CONTRACTION
    search = make_search("tpe", workload, applicable_transforms(workload), seed=0)
    assert spec in [search.ask() for _ in range(8)]
