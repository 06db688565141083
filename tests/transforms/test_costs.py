"""What tiles of packed contractions and streams cost: laws that trials showed."""

from __future__ import annotations

from itertools import permutations
from math import prod

import pytest
from constantdict import constantdict

from feinsum import array, einsum
from feinsum.ir import BatchedEinsum
from feinsum.machine import MachineModel
from feinsum.transforms.cost import count_distinct_bytes, replace_sizes
from feinsum.transforms.heuristics import LINE_BYTES
from feinsum.transforms.library.packed.cost import cost as packed_cost
from feinsum.transforms.library.streaming_cost import count_read_bytes

MACHINE = MachineModel(n_cores=2, vector_bytes=64, fma_bytes=128)
TILES = {
    "lanes": 8,
    "vectors": 2,
    "rows": 8,
    "inside": "rows",
    "width": 192,
    "height": 192,
    "depth": 256,
    "stores": "cached",
}


def product_of(subscripts: str, extents: dict[str, int]) -> BatchedEinsum:
    terms = subscripts.split("->")[0].split(",")
    operands = [
        array(name, tuple(extents[index] for index in term))
        for name, term in zip("AB", terms, strict=True)
    ]
    return einsum(subscripts, *operands)


def cost(e: BatchedEinsum, **parameters: int | str) -> float:
    return packed_cost(e, {**TILES, **parameters}, MACHINE)


SIX = {"a": 24, "b": 16, "c": 16, "d": 24, "e": 16, "f": 16, "g": 24}


def test_rows_next_to_each_other_are_stored_faster_than_rows_far_apart():
    """The vectors of a row are two lines; with rows along e, they are in one run."""
    e = product_of("geab,dfgc->abcdef", SIX)
    near, far = (cost(e, vector="f", register=row, height=384) for row in "ea")
    assert far > 1.5 * near


def test_a_small_result_is_better_kept_in_the_caches():
    """It is read next; a large one is not."""
    small = product_of("ik,kj->ij", {"i": 48, "k": 3600, "j": 960})
    large = product_of("ik,kj->ij", {"i": 4800, "k": 24, "j": 4800})
    pair = {"vector": "j", "register": "i"}
    assert cost(small, **pair, stores="streamed") > cost(small, **pair)
    assert cost(large, **pair, stores="streamed") < cost(large, **pair)


def test_an_operand_that_is_packed_again_is_read_again():
    """The left side, once for each tile of the columns; all else is the same."""
    e = product_of("ik,kj->ij", {"i": 192, "k": 100_000, "j": 1536})
    two, eight = (cost(e, vector="j", register="i", width=n) for n in (768, 192))
    more_s = 6 * 192 * 100_000 * 8 / MACHINE.bandwidth_bytes_per_s
    assert eight - two > 0.2 * more_s


@pytest.mark.parametrize("extent", [192, 200, 208])
def test_tiles_are_even_so_no_thread_is_idle(extent):
    """208 rows are two tiles of 104, not one of 192 and one of 16."""
    e = product_of("ik,kj->ij", {"i": extent, "k": 20_000, "j": 384})
    each = cost(e, vector="j", register="i", rows=8) / extent
    usual = product_of("ik,kj->ij", {"i": 192, "k": 20_000, "j": 384})
    assert each < 1.25 * cost(usual, vector="j", register="i", rows=8) / 192


def sized(n: int) -> tuple[BatchedEinsum, BatchedEinsum]:
    """A product of square matrices: with that extent built in, and at run time."""
    general = einsum("ik,kj->ij", array("A", ("N", "N")), array("B", ("N", "N")))
    return replace_sizes(
        product_of("ik,kj->ij", dict.fromkeys("ikj", n)), {}
    ), replace_sizes(general, {"N": n})


PAIR = {"vector": "j", "register": "i"}
AREA = {"rows": 4, "vectors": 4, "depth": 128}


def test_tiles_of_run_time_extents_may_keep_cores_waiting():
    """1024 rows are two tiles of 512, or tiles of 384, 384 and 256: measured, a quarter
    slower on two cores. Known at build time, they are three tiles of 342.
    """
    fixed, general = sized(1024)
    low, high = ({**PAIR, **AREA, "width": 768, "height": n} for n in (384, 512))
    assert cost(general, **low) > 1.05 * cost(general, **high)
    assert cost(fixed, **low) < 1.03 * cost(fixed, **high)


def test_an_extent_that_tiles_divide_costs_the_same_built_in_or_not():
    fixed, general = sized(1536)
    tiles = {**PAIR, **AREA, "width": 768, "height": 384}
    assert cost(general, **tiles) == pytest.approx(cost(fixed, **tiles))


def test_many_half_written_panels_are_slow():
    """Rows of six doubles end within lines; those of eight do not."""
    e = product_of("ki,kj->ij", {"k": 1024, "i": 512, "j": 1024})
    tall = {**PAIR, "width": 384, "height": 512}
    split, whole = (cost(e, **tall, rows=n) for n in (6, 8))
    low = {**tall, "height": 96}
    assert split / whole > 1.03 * cost(e, **low, rows=6) / cost(e, **low, rows=8)


EXTENTS = {"i": 64, "j": 48, "k": 512}
MATRICES = einsum("ik,kj->ij", array("A", (64, 512)), array("B", (512, 48)))
ORDERS = [[(i, EXTENTS[i]) for i in order] for order in permutations("ijk")]


def passing(loops, second_level):
    return count_read_bytes(
        MATRICES, loops, MachineModel(cache_bytes=constantdict(L2=second_level))
    )


@pytest.mark.parametrize("loops", ORDERS)
def test_arrays_that_stay_pass_once(loops):
    """In whole lines, whatever the order of the loops."""
    assert passing(loops, 1 << 30) == count_distinct_bytes(MATRICES)[0]


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
