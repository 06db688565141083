"""What loops read again, by the cost of streams: laws of :func:`read_bytes`."""

from __future__ import annotations

from itertools import permutations
from math import prod

import pytest
from constantdict import constantdict

from feinsum.ir import array, einsum
from feinsum.machine import MachineModel
from feinsum.transforms.cost import distinct_bytes
from feinsum.transforms.heuristics import LINE_BYTES
from feinsum.transforms.library.streaming_cost import read_bytes

EXTENTS = {"i": 64, "j": 48, "k": 512}
MATRICES = einsum("ik,kj->ij", array("A", (64, 512)), array("B", (512, 48)))
ORDERS = [[(i, EXTENTS[i]) for i in order] for order in permutations("ijk")]


def passing(loops, second_level):
    return read_bytes(
        MATRICES, loops, MachineModel(cache_bytes=constantdict(L2=second_level))
    )


@pytest.mark.parametrize("loops", ORDERS)
def test_arrays_that_stay_pass_once(loops):
    """In whole lines, whatever the order of the loops."""
    assert passing(loops, 1 << 30) == distinct_bytes(MATRICES)[0]


@pytest.mark.parametrize("loops", ORDERS)
def test_a_smaller_cache_passes_no_less(loops):
    """At least each array once; at most a line in every iteration, for each operand."""
    found = [passing(loops, 1 << n) for n in range(25, 5, -1)]
    assert found == sorted(found)
    assert found[-1] <= 2 * LINE_BYTES * prod(EXTENTS.values())


def test_cutting_a_loop_saves_what_is_read_again():
    """A tile of j that stays is read once for all i, with its part of B."""
    whole = [("i", 64), ("k", 512), ("j", 48)]
    tiled = [("j", 6), ("i", 64), ("k", 512), ("j", 8)]
    a, b = 64 * 512 * 8, 512 * 48 * 8
    second_level = 1 << 16  # B has 192 KiB, and its part of 8 columns 32
    assert passing(whole, second_level) == a + 64 * b
    assert passing(tiled, second_level) == 6 * a + b
