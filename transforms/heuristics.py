"""Numbers of the cost models of CPUs, each with what it stands for and what sets it.

A cost only has to rank configurations. So a number is right if the recipes of the
benchmarks come in the order of their measured times, not if it is that of a data sheet.
Cycles are those of one core. ``make trials`` records times of many recipes, and
``make bench-everyday`` shows what predictions are worth: run both before a change of a
number and after it.

Limits of what a family offers are not here, but beside its space.
"""

from __future__ import annotations

import numpy as np

LINE_BYTES = 64
"""A line of a cache, which is read and written as a whole."""

# Loops that stream through arrays: generic, rowwise, unroll_and_jam, split_sum.
# ``make bench-fallback`` times the recommended recipes.

LOOP_CYCLES = 6.0
"""To start an innermost loop."""

CHAIN_CYCLES = 4.0
"""Of an addition that waits for the one before."""

PARTIAL_CYCLES = 2.4
"""Of an addition to one of several partial sums, which gcc does not vectorize."""

ADD_UP_CYCLES = 0.5
"""Of a partial sum at the end of a sum."""

RAGGED_CYCLES = 1.5
"""Of an entry beside whole vectors."""

STRIDED_CYCLES = 1.6
"""To read or write an entry whose neighbours are not used with it."""

MISS_CYCLES = 6.0
"""The same, where each entry is in a line of the cache of its own."""

NEAR_BYTES = 1 << 18
"""Largest array whose lines used together stay in the second level."""

MOST_STREAMS = 8
"""Streams that are read concurrently at full speed."""

UNROLLED = 32
"""Trip count up to which gcc unrolls a loop."""

TOGETHER = 0.45
"""Factor of the cost of leftovers in such loops: no row waits for another."""

SPILL_CYCLES = 2.0
"""In other loops, for each row, to keep its sum out of the registers."""

CROWDED = 1.3
"""Factor of the cycles of a tile with more than ``MOST_STREAMS`` rows."""

FAR, JUMPS = 0.6, 0.3
"""Added shares of the time to read an array in order: for rows that do not stand side
by side, and for an outer index that is not the outermost one of the array.
"""

MANY_STREAMS = 0.5
"""The same for more than ``MOST_STREAMS`` streams at a time."""

RESTART_S = 5e-8
"""Until a core reads memory at full speed again after a jump."""

WIDE_BYTES = 64
"""Vectors of processors that permute two of them at a time, and have 32 of them."""

NARROW_COMPLEX_LANES = {8: 0.08, 16: 0.35}
"""Of several sums of complex numbers of a size on others, where gcc spills."""

MOST_NARROW_TERMS, NARROW_SPILLS = 8, 2.0
"""Terms of complex numbers that an iteration adds there in registers; cost of more."""

# Squares of vectors: turned.

ALONE_CYCLES = 2.5
"""To read and store an entry of a transpose by itself, beside the squares."""

# Packed tiles: packed_contraction. Panels, rows and shares were chosen by 30 recipes
# each of 14 workloads on a Zen 5, runs by trials of 49 workloads there.

PACK_CYCLES = 1.0
"""Of an entry whose neighbours in the pack are neighbours in memory, over a vector."""

TURN_CYCLES = 0.75
"""Of an entry that is brought to its place by squares, or alone."""

MANY_PANELS, LINE_CYCLES, SPLIT_LINE_CYCLES = 32, 0.5, 2.0
"""Of an entry that is packed into one of many panels in turns; more where a line of a
cache holds entries of two turns, since it leaves the first level between them.
"""

TILE_CYCLES = 20.0
"""To begin a register tile, beside loads and stores of its sums."""

SCATTERED_CYCLES = 3.0
"""To store an entry of a vector whose entries lie apart."""

RUN_BYTES = 1024
"""A shorter run of neighbouring entries does not reach the full bandwidth."""

READ_RUN_CYCLES, STORE_RUN_CYCLES, FAR_RUN_CYCLES = 30.0, 30.0, 90.0
"""Of such a run in a large array: to read it, to store it, and to store it if the next
row of a register tile is on another page.
"""

PAGE_BYTES = 4096
"""Of virtual memory."""

STREAMED_SHARE = 0.5
"""Of the last-level cache: smaller results are better off in it than stored past it."""

CACHED_STORE, STREAMED_STORE, NEEDLESS_STREAM = 1.7, 1.0, 3.0
"""Bytes moved for a byte of the result: a store to the caches also reads the line."""

LATENCY_CYCLES = 5.0
"""Of a multiply-add, which the next one to the same sum waits for, and of a step of the
loop. With vectors of four doubles, eight sums would be just enough for four cycles; of
the 201 packaged facts with such vectors 27 have eight sums, and 140 have twelve.
"""

MANY_VECTORS, MANY_VECTORS_FACTOR = 4, 1.25
"""Tiles of five vectors were a quarter slower than their multiply-adds with gcc 12."""

ROW_BYTES = 96.0
"""Of the rows of a tile that are read in a cycle for which multiply-adds wait."""

L2_SHARE, OVERFLOW_FACTOR = 0.7, 1.04
"""Of steps whose packs take more than that share of the second-level cache."""

CALL_CYCLES = 300.0
"""To begin a tile in the caches."""

MANY_AREAS = 16
"""Areas for each core; with more, it matters little that they are not equal."""

# Products by numpy's BLAS: library_contraction, library_path.

BLAS_SHARE = 0.85
"""Of the peak, by products of large matrices."""

SERIAL_OPERATIONS = 1e6
"""Products of less are made by one thread."""

VECTOR_SHARE = 0.5
"""Of the bandwidth, by products with vectors: OpenBLAS reads at 0.4 to 1.1 of it."""

SERIAL_ENTRIES = 1e4
"""Of an operand: products of fewer with a vector are made by one thread."""

ELEMENTWISE_BYTES_PER_S = 6e9
"""Of results, where entries are only multiplied: by one thread, on a Zen 3."""

PRODUCT_S = 1e-7
"""To begin a product of a stack."""

MOST_BYTES = np.iinfo(np.intp).max
"""Of an array; numpy makes none that is larger, not even to look at it."""
