"""What tiles of packed contractions cost: laws that trials showed."""

from __future__ import annotations

import pytest

from feinsum import array, einsum
from feinsum.ir import BatchedEinsum
from feinsum.transforms.cost import Machine
from feinsum.transforms.library.packed.cost import packed_cost

MACHINE = Machine(n_cores=2, vector_bytes=64, fma_bytes=128)
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
