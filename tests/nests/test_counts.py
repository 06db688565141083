"""How many paths and loop nests there are, by enumeration and in closed form."""

from __future__ import annotations

import pytest

from feinsum.nests import consumers, network, postorders
from tests.contraction.path_counts import n_pair_sequences, n_postorders
from tests.nests.networks import EXAMPLE, KERNELS, path_of
from tests.nests.paper import all_orders, n_orders


@pytest.mark.parametrize(
    ("n", "postordered", "sequences"),
    [(2, 1, 1), (3, 3, 3), (4, 18, 18), (5, 150, 180), (6, 1620, 2700)],
)
def test_paths_are_the_postorders_of_binary_trees(n, postordered, sequences):
    """The paper's recurrence counts sequences of pairs, of which there are more."""
    terms = ",".join("abcdef"[k : k + 1] + "z" for k in range(n))
    paths = list(postorders(network(f"{terms}->z", sparse=None)))
    assert len(paths) == len(set(paths)) == n_postorders(n) == postordered
    assert n_pair_sequences(n) == sequences


def test_seven_operands_have_as_many_paths_as_the_recurrence_says():
    """Each of them once."""
    paths = list(postorders(KERNELS["tucker"]))
    assert len(paths) == len(set(paths)) == n_postorders(7) == 21_420


@pytest.mark.parametrize("name", ["mttkrp-4", "tttp", "dense chain"])
def test_a_path_computes_the_network_in_postorder(name):
    """Every result is taken once, and what is taken last was made last."""
    net = KERNELS[name]
    for path in postorders(net):
        taken = consumers(path)
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


TABLE = [
    ("mttkrp-3", [(0, 2), (3, 1)], 144, 12),
    ("ttmc-3", [(0, 2), (3, 1)], 576, 48),
    ("ttmc-3", [(1, 2), (3, 0)], 2_880, 240),
    ("tttp", [(1, 2), (4, 3), (5, 0)], 864, 12),
    ("ttmc-4", [(0, 3), (4, 2), (5, 1)], 1_728_000, 6_000),
    ("tttc", [(1, 2), (6, 3), (7, 4), (8, 5), (9, 0)], 52_672_757_760_000, 2_116_800),
]


@pytest.mark.parametrize(("name", "pairs", "every", "stored"), TABLE)
def test_orders_are_counted_in_closed_form(name, pairs, every, stored):
    """All of them, and those that keep the order of the levels."""
    net = KERNELS[name]
    path = path_of(net, *pairs)
    assert n_orders(net, "any", path) == every
    assert n_orders(net, "relative", path) == stored


@pytest.mark.parametrize("rule", ["any", "relative", "prefix"])
@pytest.mark.parametrize(
    ("name", "pairs"),
    [("mttkrp-3", [(0, 2), (3, 1)]), ("ttmc-3", [(0, 1), (3, 2)]),
     ("tttp", [(1, 3), (4, 2), (5, 0)]), ("ttmc-3", [(1, 2), (3, 0)])],
)  # fmt: skip
def test_orders_are_enumerated_each_once(rule, name, pairs):
    """As many as the closed form says."""
    net = KERNELS[name]
    path = path_of(net, *pairs)
    orders = list(all_orders(net, rule, path))
    assert len(orders) == len(set(orders)) == n_orders(net, rule, path)


def test_the_stronger_rule_allows_no_index_without_those_of_the_levels_above():
    """A term that lacks one of them has no order."""
    path = path_of(EXAMPLE, (1, 2), (4, 3), (5, 0))
    assert n_orders(EXAMPLE, "relative", path) > 0
    assert n_orders(EXAMPLE, "prefix", path) == 0
