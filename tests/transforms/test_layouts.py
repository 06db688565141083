"""Layouts: every entry has one place, and one lane or work-item that holds it."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymbolic import var
from pymbolic.mapper.evaluator import evaluate

from feinsum.transforms.gpu.fragments import (
    HALVES,
    INTERLEAVED,
    INTERLEAVED_SUM_COLUMN,
    LANES,
    QUAD,
    ROW,
    SUM_COLUMN,
    TERM,
)
from feinsum.transforms.gpu.layouts import (
    Flat,
    Swizzle,
    TileLayout,
    is_evenly_partitioned,
    partition,
    partition_raggedly,
)
from feinsum.transforms.primitives.multiply_fragments import COLUMNS, DEPTHS, ROWS, WARP

LAYOUTS = st.lists(
    st.tuples(st.sampled_from((1, 2, 3, 4, 8)), st.integers(0, 40)),
    min_size=1,
    max_size=3,
).map(lambda modes: TileLayout(*zip(*modes, strict=True)))


def positions(layout):
    """The position of each number, by expressions of all of them at once."""
    found = evaluate(layout.at(var("k")), {"k": np.arange(layout.size)})
    return np.broadcast_to(found, layout.size).tolist()


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


@given(layout=LAYOUTS)
def test_a_layout_is_an_array_of_strides(layout):
    """Numbers count its entries with the first coordinate the fastest, as Fortran."""
    whole = np.arange(1 + sum(
        (n - 1) * step for n, step in zip(layout.shape, layout.strides, strict=True)
    ))  # fmt: skip
    strides = [step * whole.itemsize for step in layout.strides]
    entries = np.lib.stride_tricks.as_strided(whole, layout.shape, strides)
    assert positions(layout) == entries.ravel(order="F").tolist()
    for at in product(*map(range, layout.shape)):
        assert evaluate(layout(*at)) == entries[at]


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_lanes_of_a_warp_hold_each_entry_of_a_fragment_once(depth):
    """Of left, right and sums, as PTX defines them."""
    lanes = [
        tuple(evaluate(x) for x in LANES.coordinates(lane)) for lane in range(WARP)
    ]
    halves, quads = range(HALVES), range(depth // QUAD)
    left = [
        (evaluate(ROW(h, g)), evaluate(TERM(q, t)))
        for (t, g), h, q in product(lanes, halves, quads)
    ]
    assert_each_once(left, (ROWS, depth))
    right = [(evaluate(TERM(q, t)), g) for (t, g), q in product(lanes, quads)]
    assert_each_once(right, (depth, COLUMNS))
    sums = [
        (evaluate(ROW(h, g)), evaluate(SUM_COLUMN(e, t)))
        for (t, g), h, e in product(lanes, halves, range(2))
    ]
    assert_each_once(sums, (ROWS, COLUMNS))


def test_interleaved_columns_come_back_in_the_sums():
    """What lane g loads as column g is, in the sums, where its lanes store it."""
    loaded = positions(INTERLEAVED)
    assert sorted(loaded) == [*range(COLUMNS)]
    for t, e in product(range(QUAD), range(2)):
        column = evaluate(SUM_COLUMN(e, t))
        assert loaded[column] == evaluate(INTERLEAVED_SUM_COLUMN(e, t))


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
    axes = partition_raggedly(slow, fast, n_items, var("item"))
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
        assert place == evaluate(swizzle.compute_load_position(var("w")), {"w": load})
        places.append(place)
    assert len({*places}) == piece * run
    assert max(places) < piece * run + swizzle.get_padding()


@given(extents=st.lists(st.integers(1, 6), min_size=1, max_size=4), data=st.data())
def test_ravel_is_the_inverse_of_unravel(extents, data):
    """As expressions and as numbers."""
    flat = Flat(tuple("ijkl"[: len(extents)]), tuple(extents))
    value = data.draw(st.integers(0, flat.n_values - 1))
    points = {i: evaluate(x, {"m": value}) for i, x in flat.unravel(var("m")).items()}
    assert points == flat.unravel_number(value)
    assert flat.ravel(points) == value
