"""Orders and fully fused forests are the same thing, and buffers follow from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidEinsumError
from feinsum.nests import Nest, NestLoop, Network, fuse, network
from tests.nests.networks import EXAMPLE, KERNELS, path_of, random_nest
from tests.nests.paper import is_fully_fused, unfuse

ORDERS = st.lists(
    st.lists(st.sampled_from("ijkr"), unique=True, max_size=4).map(tuple),
    min_size=1,
    max_size=4,
).map(tuple)


@given(ORDERS)
def test_peeling_and_reading_the_orders_off_are_inverse(orders):
    """And the forest is fully fused."""
    forest = fuse(orders)
    assert is_fully_fused(forest)
    assert unfuse(forest) == orders


@given(ORDERS, ORDERS)
def test_other_orders_are_another_forest(first, second):
    """One to one."""
    assert (fuse(first) == fuse(second)) == (first == second)


def test_neighbouring_loops_over_one_index_are_not_fully_fused():
    """At any depth; a term in between separates them."""
    loops = (NestLoop("i", (0,)), NestLoop("i", (1,)))
    assert not is_fully_fused(loops)
    assert not is_fully_fused((NestLoop("j", loops),))
    assert is_fully_fused((NestLoop("i", (0,)), 1, NestLoop("i", (2,))))


def test_the_example_of_the_paper_has_its_buffers():
    """Section 5.3: a vector, and a matrix."""
    path = path_of(EXAMPLE, (0, 3), (4, 2), (5, 1))
    nest = Nest(EXAMPLE, path, (tuple("ijklt"), tuple("ijkst"), tuple("ijrst")))
    assert [buffer.indices for buffer in nest.buffers] == [("t",), ("s", "t")]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [("ijks", "ijsr", "s"), ("ijks", "ijrs", "s"), ("ijsk", "ijsr", ""),
     ("ijks", "isrj", "js"), ("ijks", "sijr", "ijs")],
)  # fmt: skip
def test_a_buffer_has_what_the_loops_around_both_terms_have_not(first, second, kept):
    """Source: section 3.3, and listings 2 and 4."""
    net = KERNELS["ttmc-3"]
    nest = Nest(net, path_of(net, (0, 2), (3, 1)), (tuple(first), tuple(second)))
    assert nest.buffers[0].indices == tuple(kept)


@pytest.mark.parametrize("name", KERNELS)
def test_every_result_but_the_last_has_a_buffer(name):
    """With no index that is summed in the producer, and none of a common loop."""
    rng = np.random.default_rng(5)
    net = KERNELS[name]
    paths = [random_nest(net, rng).path] if name == "tucker" else None
    for _ in range(5):
        nest = random_nest(net, rng, paths)
        assert [b.producer for b in nest.buffers] == [*range(len(nest.path) - 1)]
        for buffer in nest.buffers:
            producer, consumer = (
                nest.orders[buffer.producer],
                nest.orders[buffer.consumer],
            )
            kept = {*producer} & {*consumer}
            assert {*buffer.indices} <= kept
            common = kept - {*buffer.indices}
            assert {*producer[: len(common)]} == {*consumer[: len(common)]} == common


BROKEN = [
    (("ijka",), "2 terms"),
    (("ijka", "ij"), "a term with"),
    (("ijka", "ijaa"), "a term with"),
    (("ikja", "ija"), "ahead of a level above"),
]


@pytest.mark.parametrize(("orders", "message"), BROKEN)
def test_orders_that_are_none_of_a_path_are_refused(orders, message):
    """With the rule ``nest``."""
    net = KERNELS["mttkrp-3"]
    with pytest.raises(InvalidEinsumError, match=message) as caught:
        Nest(net, path_of(net, (0, 2), (3, 1)), tuple(map(tuple, orders)))
    assert caught.value.rules == ("nest",)


@pytest.mark.parametrize(
    "make",
    [
        lambda: network("ijk->i"),
        lambda: network(",".join(["ij"] * 9)),
        lambda: network("iij,j->i"),
        lambda: network("ij,j->i", sparse=2),
        lambda: network("ij,j->i", sparse=-1),
        lambda: network("ij,j->i", levels="ik"),
        lambda: network("ij,j->i", has_sparse_output=True),
        lambda: network("ij,j->ij", sparse=None, has_sparse_output=True),
        lambda: Network((("i",), ("i",)), ("k",)),
    ],
)
def test_what_is_no_network_of_a_nest_is_refused(make):
    """With the rule ``network``."""
    with pytest.raises(InvalidEinsumError) as caught:
        make()
    assert caught.value.rules == ("network",)
