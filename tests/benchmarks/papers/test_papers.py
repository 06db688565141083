"""Costs of the papers: their examples, and the grids that have the least of them."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import pytest

from benchmarks.papers.schedules import choose_cosma_grid, make_named_plans
from feinsum.distributed import groups_of, plan
from feinsum.distributed.grids import (
    choose_eindecomp_grids,
    compute_repartition,
    list_grids,
    order_by_first_use,
)
from feinsum.distributed.groups import find_default_path
from tests.distributed.cases import einsum_of


def test_equal_parts_cost_nothing():
    """What is where it is needed is not repartitioned."""
    assert float(compute_repartition([2, 4], [2, 4], [8, 8])) == 0


@pytest.mark.parametrize("subscripts", ["ij,jk,kl->il", "ijk,ja,ka,al->il"])
@pytest.mark.parametrize("processes", [2, 4, 8])
def test_eindecomps_grids_are_brute_force(subscripts, processes):
    """No grids of all groups have a smaller sum of its costs."""
    rng = random.Random(subscripts)
    for _ in range(2):
        einsum = einsum_of(subscripts, **{i: rng.choice([8, 16, 32]) for i in "ijkla"})
        extents = dict(einsum.extents)
        groups = groups_of(einsum, find_default_path(einsum, extents), extents)
        choices = [
            [tuple(g) for g in list_grids(processes, order_by_first_use(x), extents)]
            for x in groups
        ]
        least = min(total(groups, extents, grids) for grids in product(*choices))
        found = choose_eindecomp_grids(groups, extents, processes)
        assert total(groups, extents, found) == pytest.approx(least)


def total(groups, extents, grids) -> float:
    """The costs by their definitions, one group after the other."""
    cost, given = 0.0, {}
    for group, grid in zip(groups, grids, strict=True):
        parts = dict(zip(order_by_first_use(group), grid, strict=True))

        def block(access, parts=parts):
            return prod(extents[i] / parts[i] for i in access.indices)

        cost += prod(grid) * sum(map(block, group.inputs))
        summed = prod(parts[i] for i in group.summed)
        cost += prod(grid) / summed * (summed - 1) * block(group.output)
        for access in group.inputs:
            if access.tensor in given:
                lengths = [extents[i] for i in access.indices]
                wanted = [parts[i] for i in access.indices]
                cost += float(
                    compute_repartition(wanted, given[access.tensor], lengths)
                )
        given[group.output.tensor] = [parts[i] for i in group.output.indices]
    return cost


@pytest.mark.parametrize(
    ("sizes", "processes", "grid"),
    [
        ((4096, 4096, 4096), 64, (4, 4, 4)),
        ((64, 64, 65536), 8, (1, 1, 8)),
        ((4096, 4096, 16), 16, (4, 4, 1)),
        ((100, 100, 100), 65, (4, 4, 4)),
    ],
)
def test_grids_of_cosma(sizes, processes, grid):
    """Cubes where they fit, long sums cut along them, and a few processes idle."""
    assert choose_cosma_grid(*sizes, processes) == grid


def random_einsum(rng: random.Random):
    subscripts = rng.choice(
        ["ij,jk->ik", "ij,jk,kl->il", "ijk,ja,ka->ia", "ijk,ja,ka,al->il", "ijk,k->ij",
         "bij,bjk->bik", "ij,jk,kl,lm->im", "ijk,ijk->"]
    )  # fmt: skip
    sizes = {i: rng.choice([2, 5, 8, 10, 24, 33, 64]) for i in "abijklm"}
    return einsum_of(subscripts, **sizes)


def test_never_above_the_planners_of_both_papers():
    """Whatever einsum, extents and processes; what only one computes is no plan."""
    rng = random.Random(3)
    for _ in range(12):
        einsum, processes = random_einsum(rng), rng.choice([2, 3, 6, 7, 8, 16, 31, 64])
        made = plan(einsum, processes=processes)
        runners = make_named_plans(einsum, processes=processes, path=made.path)
        assert {"deinsum", "eindecomp", "footprint"} <= set(runners)
        for other in runners.values():
            estimate = other.estimate()
            is_alone = estimate.counts.busy == 1
            assert is_alone or not estimate.is_better_than(made.estimate()), other.name
