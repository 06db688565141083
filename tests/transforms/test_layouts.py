"""Layouts: every entry has one place, and one lane or work-item that holds it."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymbolic import var
from pymbolic.mapper.evaluator import evaluate

from feinsum.transforms.gpu.fragments import (
    HALVES,
    INTERLEAVED_COLUMN,
    LEFT_ROW,
    QUAD,
    RIGHT_COLUMN,
    SUM_COLUMN,
    TERM,
    Lane,
)
from feinsum.transforms.gpu.layouts import (
    Flat,
    Swizzle,
    is_evenly_partitioned,
    partition,
    ragged_partition,
)
from feinsum.transforms.primitives.multiply_fragments import COLUMNS, DEPTHS, ROWS, WARP

LANES = [
    tuple(evaluate(part, {"lane": lane}) for part in Lane.of("lane"))
    for lane in range(WARP)
]
"""g and t of each."""


def assert_each_once(entries, shape):
    """The entries are all of an array of this shape."""
    assert Counter(entries) == Counter(product(*map(range, shape)))


def entries_of(item, axes):
    """Those of a work-item, along each axis."""
    first = [evaluate(axis.first, {"item": item}) for axis in axes]
    for steps in product(*(range(axis.n) for axis in axes)):
        yield tuple(
            at + axis.stride * k for at, axis, k in zip(first, axes, steps, strict=True)
        )


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_lanes_of_a_warp_hold_each_entry_of_a_fragment_once(depth):
    """Of left, right and sums, as PTX defines them."""
    halves, quads = range(HALVES), range(depth // QUAD)
    left = [
        (LEFT_ROW(h, g).children, TERM(q, t).children)
        for (g, t), h, q in product(LANES, halves, quads)
    ]
    assert_each_once([(sum(row), sum(term)) for row, term in left], (ROWS, depth))
    right = [
        (sum(TERM(q, t).children), sum(RIGHT_COLUMN(0, g).children))
        for (g, t), q in product(LANES, quads)
    ]
    assert_each_once(right, (depth, COLUMNS))
    sums = [
        (sum(LEFT_ROW(h, g).children), sum(SUM_COLUMN(t, e).children))
        for (g, t), h, e in product(LANES, halves, range(2))
    ]
    assert_each_once(sums, (ROWS, COLUMNS))


def test_interleaved_columns_come_back_in_the_sums():
    """What lane g loads as column g is, in the sums, at ``INTERLEAVED_COLUMN``."""
    column_of = {
        g: evaluate(Lane(var("g"), var("t")).interleaved_column(), {"g": g})
        for g in range(COLUMNS)
    }
    assert sorted(column_of.values()) == [*range(COLUMNS)]
    for t, e in product(range(QUAD), range(2)):
        in_sums = sum(SUM_COLUMN(t, e).children)
        assert column_of[in_sums] == sum(INTERLEAVED_COLUMN(e, t).children)


@given(
    slow=st.integers(1, 64),
    fast=st.integers(1, 12).map(lambda n: 4 * n),
    n_items=st.sampled_from((32, 64, 96, 128)),
    lanes=st.sampled_from((1, 2, 4)),
)
def test_work_items_share_a_tile_evenly(slow, fast, n_items, lanes):
    """Each vector of each tile has one work-item, where that is possible at all."""
    if not is_evenly_partitioned(slow, fast // lanes, n_items):
        return
    axes = partition(slow, fast, n_items, var("item"), lanes)
    loads = [load for item in range(n_items) for load in entries_of(item, axes)]
    assert Counter(loads) == Counter(product(range(slow), range(0, fast, lanes)))


@given(
    slow=st.integers(1, 40),
    fast=st.integers(1, 200),
    n_items=st.sampled_from((32, 160)),
)
def test_ragged_tiles_are_shared_too(slow, fast, n_items):
    """Each entry has one work-item; the others are beyond a limit, or idle."""
    axes = ragged_partition(slow, fast, n_items, var("item"))
    loads: Counter[tuple[int, ...]] = Counter()
    for item in range(n_items):
        first = evaluate(axes[0].first, {"item": item})
        if axes[0].is_idle and first >= axes[0].stride:
            continue
        for entry in entries_of(item, axes):
            assert all(at < axis.limit for at, axis in zip(entry, axes, strict=True))
            loads[entry] += entry[0] < slow and entry[1] < fast
    assert +loads == Counter(product(range(slow), range(fast)))


@given(piece=st.sampled_from((2, 4, 8, 16)), run=st.integers(1, 16))
def test_a_swizzle_is_one_place_in_both_orders(piece, run):
    """Whether an entry is named by the order of loads or by that of results."""
    swizzle = Swizzle(piece, run)
    places = []
    for wide in range(piece * run):
        load = evaluate(swizzle.to_load_order(var("w")), {"w": wide})
        place = evaluate(swizzle.position(var("w")), {"w": wide})
        assert place == evaluate(swizzle.position_of_load(var("w")), {"w": load})
        places.append(place)
    assert len({*places}) == piece * run
    assert max(places) < piece * run + swizzle.padding


@given(extents=st.lists(st.integers(1, 6), min_size=1, max_size=4), data=st.data())
def test_ravel_is_the_inverse_of_unravel(extents, data):
    """As expressions and as numbers."""
    flat = Flat(tuple("ijkl"[: len(extents)]), tuple(extents))
    value = data.draw(st.integers(0, flat.n_values - 1))
    points = {i: evaluate(x, {"m": value}) for i, x in flat.unravel(var("m")).items()}
    assert points == flat.unravel_number(value)
    assert flat.ravel(points) == value
