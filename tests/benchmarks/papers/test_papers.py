"""Costs of the papers: their examples, and the grids that have the least of them."""

from __future__ import annotations

import random
from itertools import product
from math import comb, prod

import numpy as np
import pytest

from benchmarks.papers.costs import paper_cost
from benchmarks.papers.schedules import cosma_grid, named_plan, named_plans
from feinsum.distributed import groups_of, plan
from feinsum.distributed.grids import (
    aggregation,
    by_first_use,
    eindecomp_grids,
    grids_within,
    join,
    repartition,
)
from feinsum.distributed.groups import default_path
from tests.distributed.cases import KERNELS, einsum_of


def test_the_number_of_partitionings():
    """3003 of six indices on 1024 processes, and 10, not 8, of a product on 8."""
    many = grids_within(1024, "abcdef", dict.fromkeys("abcdef", 2**10))
    assert len(many) == comb(15, 5) == 3003
    assert len(grids_within(8, "ijk", dict.fromkeys("ijk", 8))) == 10


def test_calls_of_a_grid():
    """[16,2,2,4] with the middle index shared makes 128 calls."""
    assert float(join([16, 2, 4], [1])) == 128


@pytest.mark.parametrize(
    ("grid", "cost"),
    [((4, 1, 4), 512), ((2, 1, 8), 640), ((2, 4, 2), 448), ((2, 2, 4), 448)],
)
def test_the_four_plans_of_figure_1(grid, cost):
    """8 x 8 matrices on 16 calls: join and aggregation by the paper's formula."""
    i, j, k = grid
    blocks = [64 // (i * j), 64 // (j * k)]
    found = join(grid, blocks) + aggregation(grid, [j], 64 // (i * k))
    assert float(found) == cost


def test_the_examples_of_costs():
    """64 of an aggregation, 320 of a repartition; equal parts cost nothing."""
    assert float(aggregation([2, 2, 4], [2], 64 // 8)) == 64
    assert float(repartition([4, 1], [2, 4], [8, 8])) == 320
    assert float(repartition([2, 4], [2, 4], [8, 8])) == 0


@pytest.mark.parametrize("subscripts", ["ij,jk,kl->il", "ijk,ja,ka,al->il"])
@pytest.mark.parametrize("processes", [2, 4, 8])
def test_eindecomps_grids_are_brute_force(subscripts, processes):
    """No grids of all groups have a smaller sum of its costs."""
    rng = random.Random(subscripts)
    for _ in range(4):
        einsum = einsum_of(subscripts, **{i: rng.choice([8, 16, 32]) for i in "ijkla"})
        extents = dict(einsum.extents)
        groups = groups_of(einsum, default_path(einsum, extents), extents)
        choices = [
            [tuple(g) for g in grids_within(processes, by_first_use(x), extents)]
            for x in groups
        ]
        least = min(total(groups, extents, grids) for grids in product(*choices))
        found = eindecomp_grids(groups, extents, processes)
        assert total(groups, extents, found) == pytest.approx(least)


def total(groups, extents, grids) -> float:
    """The costs by their definitions, one group after the other."""
    cost, given = 0.0, {}
    for group, grid in zip(groups, grids, strict=True):
        parts = dict(zip(by_first_use(group), grid, strict=True))

        def block(access, parts=parts):
            return prod(extents[i] / parts[i] for i in access.indices)

        cost += prod(grid) * sum(map(block, group.inputs))
        summed = prod(parts[i] for i in group.summed)
        cost += prod(grid) / summed * (summed - 1) * block(group.output)
        for access in group.inputs:
            if access.tensor in given:
                lengths = [extents[i] for i in access.indices]
                wanted = [parts[i] for i in access.indices]
                cost += float(repartition(wanted, given[access.tensor], lengths))
        given[group.output.tensor] = [parts[i] for i in group.output.indices]
    return cost


def test_costs_of_plans_are_those_of_their_grids():
    """What a plan of EinDecomp's grids costs is the sum that was made small."""
    einsum = einsum_of("ij,jk,kl->il", i=16, j=32, k=8, l=16)
    extents = dict(einsum.extents)
    groups = groups_of(einsum, default_path(einsum, extents), extents)
    made = named_plan("eindecomp", einsum, processes=8)
    expected = total(groups, extents, eindecomp_grids(groups, extents, 8))
    assert paper_cost("eindecomp", made) == pytest.approx(expected)
    others = [plan(einsum, processes=8), *named_plans(einsum, processes=8).values()]
    for other in others:
        if other.counts.busy == 8:
            assert paper_cost("eindecomp", other) >= expected - 1e-9


def test_the_footprint_of_a_plan():
    """Elements in the blocks of a process."""
    einsum = einsum_of("ij,jk->ik", every=16)
    made = named_plan("footprint", einsum, processes=8)
    assert paper_cost("footprint", made) == 3 * 64
    with pytest.raises(ValueError, match="no cost 'seconds'"):
        paper_cost("seconds", made)


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
    assert cosma_grid(*sizes, processes) == grid


def test_cosma_moves_what_its_grid_says():
    """On 4x4x4 every block of both operands is needed by four, and sums of four."""
    counts = named_plan("cosma", einsum_of("ij,jk->ik", every=576), processes=64).counts
    assert counts.received == 2 * 3 * 576**2
    assert counts.reduced == 3 * 576**2


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
    for _ in range(25):
        einsum, processes = random_einsum(rng), rng.choice([2, 3, 6, 7, 8, 16, 31, 64])
        made = plan(einsum, processes=processes)
        runners = named_plans(einsum, processes=processes, path=made.path)
        assert {"deinsum", "eindecomp", "footprint"} <= set(runners)
        for other in runners.values():
            estimate = other.estimate()
            is_alone = estimate.counts.busy == 1
            assert is_alone or not estimate.is_better_than(made.estimate()), other.name


@pytest.mark.parametrize("name", ["1mm", "paper", "mttkrp-3-0"])
def test_never_above_a_runner_up_within_a_memory(name):
    """Of those that fit it; what the plan holds fits it, too."""
    runners = [
        one
        for one in named_plans(KERNELS[name], processes=4).values()
        if one.counts.busy > 1
    ]
    for peak in sorted({one.counts.peak for one in runners})[:3]:
        made = plan(KERNELS[name], processes=4, memory=8 * peak)
        assert made.counts.peak <= peak
        for one in runners:
            if one.counts.peak <= peak:
                assert made.counts.moved <= one.counts.moved, one.name


def test_numbers_are_exact():
    """Elements of the largest plans are integers, not floats."""
    counts = plan(einsum_of("ij,jk->ik", every=2**20), processes=512).counts
    assert isinstance(counts.moved, int)
    assert counts.moved == 7 * 3 * 2**40
    assert np.log2(counts.points) == 60
