"""All orders of pairs, and what they have in common with the searches."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feinsum.contraction.paths import (
    find_contraction_steps,
    find_pairwise_path,
    list_factors,
    list_path_outputs,
    list_postorders,
    make_path,
)

CHAINS = [
    ("ij,jk,kl->il", {"i": 9, "j": 2, "k": 9, "l": 3}),
    ("ab,bc,cd,de->ae", {"a": 3, "b": 8, "c": 2, "d": 9, "e": 4}),
    ("ia,ja,ka,ijk->a", {"i": 4, "j": 5, "k": 6, "a": 3}),
    ("ab,cd,bc,da,e->e", {"a": 3, "b": 8, "c": 2, "d": 9, "e": 4}),
]


@pytest.mark.parametrize(
    ("n", "n_orders"), [(1, 1), (2, 1), (3, 3), (4, 18), (5, 150), (6, 1620)]
)
def test_each_order_is_there_once_and_after_its_factors(n, n_orders):
    """As many as the recurrence says; a factor is an operand or was made before.

    Source: Kanakagiri and Solomonik 2024 (SpTTN), section 4.1.1.
    """
    found = list(list_postorders(n))
    assert len(found) == len(set(found)) == n_orders
    for order in found:
        made = {frozenset({k}) for k in range(n)}
        for left, right in order:
            assert not left & right
            assert {left, right} <= made
            made.add(left | right)
        assert frozenset(range(n)) in made


@given(st.integers(2, 6), st.data())
@settings(max_examples=30)
def test_a_path_and_its_order_are_the_same(n, data):
    """From positions to factors and back."""
    path = []
    for left in range(n, 1, -1):
        first, second = data.draw(st.permutations(range(left)))[:2]
        path.append((min(first, second), max(first, second)))
    assert make_path(list_factors(tuple(path), n), n) == tuple(path)


@pytest.mark.parametrize(("subscripts", "extents"), CHAINS)
def test_the_counted_order_is_the_cheapest_of_all(subscripts, extents):
    """The search by subsets finds what a look at every postorder finds."""
    inputs, output = subscripts.split("->")
    terms = tuple(map(tuple, inputs.split(",")))

    def n_operations(path):
        left, total = [set(term) for term in terms], 0
        for step, made in zip(
            path, list_path_outputs(terms, output, path), strict=True
        ):
            joint = set().union(*(left[at] for at in step))
            n = prod(extents[i] for i in joint)
            total += n + max(n - prod(extents[i] for i in made), 0)
            left = [x for at, x in enumerate(left) if at not in step] + [set(made)]
        return total

    order = find_pairwise_path(terms, tuple(output), tuple(extents.items()))
    steps = find_contraction_steps(terms, tuple(output), tuple(extents.items()))
    counted = sum(step.n_operations for step in steps[len(terms) :])
    every = [
        n_operations(make_path(o, len(terms))) for o in list_postorders(len(terms))
    ]
    assert n_operations(order) == counted == min(every)
