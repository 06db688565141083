"""Paths, orders, fully fused forests, buffers and texts of nests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidEinsumError
from feinsum.nests import (
    Nest,
    NestLoop,
    Network,
    find_consumers,
    format_nest,
    fuse,
    list_paths,
    parse_nest,
    parse_network,
)
from tests.nests.networks import KERNELS, path_of, random_nest
from tests.nests.paper import is_fully_fused, unfuse
from tests.portions import spread

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


def test_neighbouring_loops_over_one_index_are_not_fully_fused():
    """At any depth; a term in between separates them."""
    loops = (NestLoop("i", (0,)), NestLoop("i", (1,)))
    assert not is_fully_fused(loops)
    assert not is_fully_fused((NestLoop("j", loops),))
    assert is_fully_fused((NestLoop("i", (0,)), 1, NestLoop("i", (2,))))


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


@pytest.mark.parametrize("name", spread(KERNELS, 6))
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
        lambda: parse_network("ijk->i"),
        lambda: parse_network(",".join(["ij"] * 9)),
        lambda: parse_network("iij,j->i"),
        lambda: parse_network("ij,j->i", sparse=2),
        lambda: parse_network("ij,j->i", sparse=-1),
        lambda: parse_network("ij,j->i", levels="ik"),
        lambda: parse_network("ij,j->i", has_sparse_output=True),
        lambda: parse_network("ij,j->ij", sparse=None, has_sparse_output=True),
        lambda: Network((("i",), ("i",)), ("k",)),
    ],
)
def test_what_is_no_network_of_a_nest_is_refused(make):
    """With the rule ``network``."""
    with pytest.raises(InvalidEinsumError) as caught:
        make()
    assert caught.value.rules == ("network",)


@pytest.mark.parametrize(
    "name", ["spmv", "mttkrp-3", "ttmc-3 of all modes", "tttc", "dense chain"]
)
def test_a_nest_comes_back_from_its_text(name):
    """Whatever the path and the orders."""
    net, rng = KERNELS[name], np.random.default_rng(2)
    for _ in range(10):
        nest = random_nest(net, rng)
        assert parse_nest(net, format_nest(nest)) == nest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 2, 3 1",
        "0 2, 3 1 | i j k a",
        "0 2, 3 1 | i j k a, i j",
        "0 2, 3 1 | k j i a, i j a",
        "0 2, 3 2 | i j k a, i j a",
        "0 0, 3 1 | i j k a, i j a",
        "0 -2, 3 1 | i j k a, i j a",
        "0 2, 3 9 | i j k a, i j a",
        "0 x, 3 1 | i j k a, i j a",
        "0 ², 3 1 | i j k a, i j a",
        f"0 {'9' * 5000}, 3 1 | i j k a, i j a",
        "0 1, 3 2, 4 0 | i j k a, i j a, i",
    ],
)
def test_a_text_that_is_no_nest_is_refused(text):
    """With the rule ``nest``."""
    with pytest.raises(InvalidEinsumError) as caught:
        parse_nest(parse_network("ijk,ja,ka->ia"), text)
    assert caught.value.rules == ("nest",)


@pytest.mark.parametrize(
    ("n", "postordered"), [(2, 1), (3, 3), (4, 18), (5, 150), (7, 21_420)]
)
def test_paths_are_the_postorders_of_binary_trees(n, postordered):
    """The paper's recurrence counts sequences of pairs, of which there are more."""
    terms = ",".join("abcdefg"[k : k + 1] + "z" for k in range(n))
    paths = list(list_paths(parse_network(f"{terms}->z", sparse=None)))
    assert len(paths) == len(set(paths)) == postordered


@pytest.mark.parametrize("name", ["mttkrp-4", "tttp", "dense chain"])
def test_a_path_computes_the_network_in_postorder(name):
    """Every result is taken once, and what is taken last was made last."""
    net = KERNELS[name]
    for path in list_paths(net):
        taken = find_consumers(path)
        assert taken[-1] is None
        assert path[-1].result.inputs == frozenset(range(len(net.inputs)))
        assert path[-1].result.indices == {*net.output}
        stack = []
        for number, term in enumerate(path):
            used = {k for k, by in enumerate(taken) if by == number}
            assert set(stack[len(stack) - len(used) :]) == used
            del stack[len(stack) - len(used) :]
            stack.append(number)
            others = frozenset(range(len(net.inputs))) - term.result.inputs
            needed = {*net.output}.union(*(net.inputs[k] for k in others))
            assert term.result.indices == term.indices & needed
        assert stack == [len(path) - 1]
