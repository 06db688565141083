"""Operands that are dealt out cyclically: right as they are, or refused."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from feinsum.errors import PlanError
from feinsum.plans import cyclic_entries, named_plan, plan
from feinsum.plans.local import numpy_leaf, slices
from tests.plans.cases import KERNELS, by_numpy, einsum_of, operands_of


def dealt_run(made, operands, sizes):
    """The whole result of blocks that were dealt out, each of the entries it has."""
    arrays = {name: np.full_like(a, 99) for name, a in operands.items()}
    for name, array in operands.items():
        for rank in range(made.processes):
            at = cyclic_entries(made, name, rank, sizes)
            if at is not None:
                box = made.start_box(name, rank)
                arrays[name][slices(box)] = array[np.ix_(*at)]
    found = made.simulate(arrays, leaf=numpy_leaf)
    whole = np.full_like(found, 99)
    for rank in range(made.processes):
        at = cyclic_entries(made, made.outputs[-1], rank, sizes)
        if at is not None:
            whole[np.ix_(*at)] = found[slices(made.result_box(rank))]
    return whole


def parts_of(extent, block_size, n_parts):
    """The definition: the owner of every value."""
    owners = [x // block_size % n_parts for x in range(extent)]
    return [[x for x in range(extent) if owners[x] == p] for p in range(n_parts)]


def blocks_of(extent, sizes):
    """Lengths of the blocks of an index, each subdivided by the next machine axis."""
    found = [extent]
    for n in sizes:
        lengths = [(one, -(-one // n)) for one in found]
        found = [min(b, max(0, one - p * b)) for one, b in lengths for p in range(n)]
    return found


def sizes_of(held, axis):
    return tuple(held.machine.sizes[k] for k in held.cuts[axis])


def test_dealt_operands_are_right_or_refused():
    """Ragged or not: the result is numpy's exactly where parts are blocks in length."""
    rng, n_right, n_refused = np.random.default_rng(0), 0, 0
    for _ in range(80):
        i, j, k = (int(n) for n in rng.integers(2, 14, 3))
        einsum = einsum_of("ij,jk->ik", i=i, j=j, k=k)
        made = plan(einsum, processes=int(rng.integers(2, 7)))
        index = "ijk"[rng.integers(3)]
        sizes = {index: int(rng.integers(1, 4))}
        operands = operands_of(einsum)
        terms = {"A": ("ij", made.starts["A"]), "B": ("jk", made.starts["B"]),
                 "out": ("ik", made.result)}  # fmt: skip
        held = {
            name: (term.index(index), cutting)
            for name, (term, one) in terms.items()
            if index in term and prod(cutting := sizes_of(one, term.index(index))) > 1
        }
        n, cuttings = made.extents[index], {cutting for _, cutting in held.values()}
        lengths = {
            cutting: list(map(len, parts_of(n, sizes[index], prod(cutting))))
            for cutting in cuttings
        }
        if len(set(map(prod, cuttings))) > 1 or any(
            lengths[cutting] != blocks_of(n, cutting) for cutting in cuttings
        ):
            with pytest.raises(PlanError) as caught:
                dealt_run(made, operands, sizes)
            assert caught.value.rules == ("cyclic",)
            n_refused += 1
            continue
        n_right += 1
        found = dealt_run(made, operands, sizes)
        assert (found == by_numpy(einsum, operands)).all()
        for name, (axis, cutting) in held.items():
            for rank in range(made.processes):
                at = cyclic_entries(made, name, rank, sizes)
                owned = parts_of(n, sizes[index], prod(cutting))
                assert at is None or at[axis].tolist() in owned
    assert min(n_right, n_refused) > 15


def test_all_indices_are_dealt_at_once():
    """As ScaLAPACK does: both axes of each matrix, with blocks of one, two and three.

    The planner's grid of 2 x 2 x 2 has j in two parts of A and in four of B.
    """
    einsum = einsum_of("ij,jk->ik", every=36)
    operands, sizes = operands_of(einsum), {"i": 2, "j": 3, "k": 1}
    for name in ("summa", "pumma", "cannon"):
        made = named_plan(name, einsum, processes=9)
        assert (dealt_run(made, operands, sizes) == by_numpy(einsum, operands)).all()
    with pytest.raises(PlanError, match="j is in 2 parts in A and in 4 elsewhere"):
        cyclic_entries(plan(einsum, processes=8), "A", 0, {"j": 1})


def test_what_cannot_be_dealt_is_refused_by_name():
    """Ragged parts, an axis of two names, an unknown index, no block size."""
    made = plan(einsum_of("ij,jk->ik", i=10, j=4, k=4), processes=3)
    cases = [
        ("A", {"i": 1}, "have parts of 4, 3, 3; A has blocks of 4, 4, 2"),
        ("A", {"z": 1}, "expected a positive integer for an index of"),
        ("A", {"i": 0}, "block size 0 of i"),
        ("Z", {"i": 4}, "no tensor Z"),
    ]
    for tensor, sizes, words in cases:
        with pytest.raises(PlanError, match=words) as caught:
            cyclic_entries(made, tensor, 0, sizes)
        assert caught.value.rules == ("cyclic",)
    twice = plan(KERNELS["same twice"], processes=2)
    index = twice.groups[0].indices[0]
    with pytest.raises(PlanError, match="leave both in blocks"):
        cyclic_entries(twice, next(iter(twice.starts)), 0, {index: 1})
