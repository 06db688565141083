"""Distributions: who holds what, and what moves between any two of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

from feinsum.distributed import Distribution, Machine, factorizations
from feinsum.distributed.boxes import find_overlap
from feinsum.distributed.distribution import find_distribution_violations
from feinsum.errors import PlanError

N_CASES = 2_000
"""Boxes that are moved, each between two distributions."""


def owners(
    held: Distribution, shape: tuple[int, ...]
) -> dict[tuple[int, ...], set[int]]:
    """Who holds each entry, by the definition: floor division along every axis."""
    found: dict[tuple[int, ...], set[int]] = {x: set() for x in np.ndindex(shape)}
    for rank in range(held.machine.n_processes):
        place = np.unravel_index(rank, held.machine.sizes) if held.machine.sizes else ()
        if any(place[k] != at for k, at in held.fixed):
            continue
        for entry in found:
            if all(
                is_mine(x, n, held, [(k, place[k]) for k in cuts])
                for x, n, cuts in zip(entry, shape, held.cuts, strict=True)
            ):
                found[entry].add(rank)
    return found


def is_mine(
    x: int, length: int, held: Distribution, cuts: list[tuple[int, int]]
) -> bool:
    """By floor division of blocks, and by what is left of values dealt out in turn."""
    for k, part in cuts:
        n_parts = held.machine.sizes[k]
        if k in held.cyclic:
            if x % n_parts != part:
                return False
            length, x = -(-(length - part) // n_parts), x // n_parts
            continue
        block = -(-length // n_parts)
        if x // block != part:
            return False
        length = min(block, length - part * block)
        x %= block
    return True


def random_distribution(rng: np.random.Generator, n_axes: int) -> Distribution:
    """Any: ragged blocks, cyclic or not, several axes on one, fixed places, copies."""
    sizes = [(), (2,), (3,), (5,), (2, 2), (3, 2), (2, 4), (2, 2, 2), (2, 3, 2)]
    machine = Machine(sizes[rng.integers(len(sizes))])
    cuts: list[tuple[int, ...]] = [()] * n_axes
    fixed = []
    for k in rng.permutation(machine.n_axes).tolist():
        place = int(rng.integers(-2, n_axes))
        if place >= 0:
            cuts[place] = (*cuts[place], k)
        elif place == -1:
            fixed.append((k, int(rng.integers(machine.sizes[k]))))
    cyclic = (k for cutting in cuts for k in cutting if rng.random() < 0.3)
    return Distribution(machine, tuple(cuts), tuple(fixed), tuple(cyclic))


def test_every_rank_has_its_entries():
    """Boxes are the owners of the definition, ragged or not, empty or not."""
    rng = np.random.default_rng(1)
    for _ in range(150):
        shape = tuple(rng.integers(0, 7, rng.integers(0, 4)).tolist())
        held = random_distribution(rng, len(shape))
        n_ranks = held.machine.n_processes + int(rng.integers(0, 3))
        boxes = held.boxes(shape, n_ranks)
        expected = owners(held, shape)
        for rank in range(n_ranks):
            box = boxes.box(rank)
            mine = set() if box is None else set(product(*box))
            assert mine == {x for x, who in expected.items() if rank in who}
            assert boxes.sizes()[rank] == len(mine)


@pytest.mark.parametrize("transposed", [False, True])
def test_redistribution_is_brute_force(transposed):
    """Each entry comes to each that needs it, once, from one that holds it."""
    rng = np.random.default_rng(2 + transposed)
    n_boxes = 0
    while n_boxes < N_CASES // 2:
        shape = tuple(rng.integers(1, 9, rng.integers(0, 4)).tolist())
        held = random_distribution(rng, len(shape))
        needed = random_distribution(rng, len(shape))
        if transposed:
            needed = replace(held, cuts=held.cuts[::-1])
        n_ranks = max(held.machine.n_processes, needed.machine.n_processes)
        n_boxes += assert_redistributed(held, needed, shape, n_ranks)


def assert_redistributed(held, needed, shape, n_ranks) -> int:
    """Each entry comes to its targets; return the number of boxes that are sent."""
    places = map(tuple, held.machine.coordinates(n_ranks)[:, list(held.copied_axes)])
    known = {}
    labels = np.array([known.setdefault(place, len(known)) for place in places])
    sources, targets = held.boxes(shape, n_ranks), needed.boxes(shape, n_ranks)
    holders, wanted = owners(held, shape), owners(needed, shape)
    arrived = {x: [] for x in wanted}
    found = list(find_overlap(sources, targets, labels).boxes())
    order = [(target, source) for source, target, _ in found]
    assert order == sorted(set(order))
    for source, target, box in found:
        for entry in product(*box):
            assert source in holders[entry]
            arrived[entry].append(target)
            if target in holders[entry]:
                assert source == target, "fetched, though it is here"
    assert {x: sorted(who) for x, who in wanted.items()} == {
        x: sorted(who) for x, who in arrived.items()
    }
    return len(found)


@pytest.mark.parametrize("n", [1, 60, 97])
def test_factorizations_are_all_there_are(n):
    """Ascending factors from 2 whose product is the number, each once."""
    divisors = [d for d in range(2, n + 1) if n % d == 0]
    expected = {
        factors
        for k in range(1, 5)
        for factors in product(divisors, repeat=k)
        if prod(factors) == n and list(factors) == sorted(factors)
    }
    found = list(factorizations(n))
    assert len(found) == len(set(found))
    assert set(found) == (expected or {()})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("xy", "no arrow"),
        ("xy->x", "1 axis"),
        ("xy->xx", "twice"),
        ("xx->x*", "twice"),
        ("xy->xz", "no axis of the tensor"),
        ("xy->x9", "place 9"),
        ("xy->x%", "1 axis"),
        ("xy->%x", "'%', which is no axis"),
    ],
)
def test_wrong_notation_is_refused(text, words):
    """The message says what was given and what was expected."""
    with pytest.raises(PlanError, match=words) as caught:
        Distribution.parse(text, Machine((2, 2)))
    assert caught.value.rules == ("notation",)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("cuts", "fixed", "cyclic", "rule"),
    [
        (((0,),), (), (), "rank"),
        (((0,), (2,)), (), (), "axis"),
        (((0,), (0,)), (), (), "axis"),
        (((0,), ()), ((0, 1),), (), "axis"),
        (((0,), ()), ((1, 5),), (), "axis"),
        (((0,), ()), (), (1,), "axis"),
        (((0,), ()), (), (0, 0), "axis"),
    ],
)
def test_a_checker_names_the_rule(cuts, fixed, cyclic, rule):
    """An invalid distribution breaks the named rule."""
    held = Distribution(Machine((2, 2)), cuts, fixed, cyclic)
    broken = list(find_distribution_violations("T", held, 2, 4))
    assert {v.rule for v in broken} == {rule}


def test_a_machine_must_fit_the_processes():
    """More processes than there are is a broken rule of its own."""
    held = Distribution(Machine((4, 4)), ((0,), (1,)))
    assert [v.rule for v in find_distribution_violations("T", held, 2, 8)] == [
        "machine"
    ]
