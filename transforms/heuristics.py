"""Numbers of the cost models of CPUs, each with what it stands for and what sets it.

A cost only has to rank configurations. So a number is right if the recipes of the
benchmarks come in the order of their measured times, not if it is that of a data sheet.
Cycles are those of one core. ``make trials`` records times of many recipes, and
``make bench-everyday`` shows what predictions are worth: run both before a change of a
number and after it.

Limits of what spaces offer come last; they bound the number of configurations, and the
benchmark of a section shows whether one that was left out would have been faster.
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

# Spaces of generic, unroll_and_jam and rowwise: ``make bench-fallback``.

MIN_LENGTH = 16
"""Shorter loops cost more for each of their iterations."""

STRIDED_WEIGHT = 4
"""What an entry costs if its neighbours are not used with it."""

GROUP_POINTS = 1 << 15
"""Iterations of a work-group that make its start negligible."""

SUMS_BYTES = 1 << 16
"""Of the sums of all rows; more would leave the first levels of a cache."""

FUNCTION_TILE_BYTES = 1 << 14
"""Of an operand at one value of the index; more would leave the first cache."""

# Elements in the lanes: element_blocked. ``make bench-dgfem``.

MAX_ELEMENT_LANES = 8
"""Of double precision that are searched; so long are the vectors of AVX-512."""

ELEMENT_TILE_BYTES = 1 << 18
"""Private memory of a work-group; larger tiles leave the second cache level."""

MAX_BATCH_ROWS = 4
"""Of a batch that is searched: for more, Loopy takes too long for the tiles."""

# Long sums: split_sum. ``make bench-bandwidth``.

MAX_RESULTS = 4096
"""Of a row; more are work enough for all threads."""

MIN_TERMS = 1 << 15
"""Of all results; fewer are added sooner than a thread is woken."""

MIN_SUM_LENGTH = 256
"""Terms of each result; fewer are no long sum."""

MIN_PARTS, MAX_PARTS = 4, 512
"""Fewer leave threads idle; the parts are added up by one nest, of so many terms."""

N_PARTS_OFFERED = 4
"""Numbers of parts that are searched for one index."""

# Spaces of packed tiles: packed_contraction. ``make bench-tccg``, ``make bench-dgfem``.

MIN_LANES = 4
"""Least extent of a vectorized index: with less, most lanes are idle."""

HEIGHTS, WIDTHS = (192, 384, 96, 48, 512), (1536, 768, 384, 192, 96, 48)
"""Of a tile. Most are multiples of 48, since most register tiles are parts of 48: only
the last tile of an index is cut.
"""

DEPTHS = (160, 256, 128, 96, 384, 64)
"""Terms that are packed at once. The first fills 245 KB with the first height in double
precision; deeper tiles load and store the sums less often, but leave the caches.
"""

VECTORS, ROWS = (1, 2, 3, 4, 5), (2, 3, 4, 6, 8, 12)
"""Of a register tile, which loads ``vectors + rows`` values for ``vectors * rows``
products; 2 x 6 and 3 x 4 are the largest for which 16 registers suffice.
"""

N_PAIRS = 4
"""Of a vector index and a register index, among which a prediction chooses."""

PACK_BYTES = 400_000
"""Of all packs on the left together; larger ones leave the second cache level."""

LARGE_TILE = 12
"""Sums of register tiles that are proposed with several widths and heights: the extents
decide which of them share the work among cores evenly.
"""

PRIVATE_BYTES = 6_000_000
"""Of all private arrays of a work-item: a thread's stack has to hold them."""

MIN_TILES = 4
"""Which run in parallel; fewer do only if the output is small."""

STREAMED_ENTRIES = 1_000_000
"""Outputs of more are best stored past the caches."""

N_REGISTERS = 16
"""Vector registers of a core that has the fewest."""

PANEL_BYTES = 1 << 15
"""Of what a register tile reads on the right, from the first level."""

LINE_ENTRIES = 8
"""Entries of a line of a cache, in double precision."""

MIN_PACKED_REUSE = 16
"""Of einsums for which families without packing are not worth a trial."""

MAX_UNROLLED = 16
"""Terms of a sum that is written out, of folded and postponed indices together."""

# Orders of contraction: contraction_path, library_path. ``make bench-everyday``.

MAX_PATH_OPERANDS = 16
"""Of an einsum contracted along a path: each step is a kernel to compile."""

MAX_PATHS = 4
"""Each path multiplies the configurations of a search."""

NEAR_LEAST = 4
"""How many times the fewest operations a path may take to be worth a trial."""

FEWER_OPERATIONS = 8
"""Least ratio of the operations of one nest to those of a path."""

FEWER_THAN_PACKED = 2
"""The same ratio for packed tiles, for einsums that are searched."""

FUSED_BYTES = 1 << 17
"""Of all arrays for one value of the outer index: they stay in the second cache."""

STAGED_BYTES = 1 << 24
"""Of products and results that leave all caches: fused steps are tried first."""

MIN_OUTER = 64
"""Values of an outer index that keep all cores at work."""

MAX_ITERATION_TERMS = 12
"""That an iteration adds to an entry of a product."""

# Operands that numpy evaluates: library_contraction. ``make bench-everyday``.

LIBRARY_BLOCKS = (16, 4, 64, 1, 256)
"""Values of the index at a time: operands that are functions are evaluated into memory
that stays in the caches until the product reads it, in few calls of the library.
"""

MIN_LIBRARY_REUSE = 4
"""Below it the arrays take longer to read than the matrix products to compute."""

PIECE_ENTRIES = 1 << 19
"""Of what is evaluated or moved at once: all of it stays in the last cache level."""

FEW_ENTRIES = 1 << 15
"""They are evaluated sooner than a thread is started."""

# Sparse operands: sparse_nest. ``make bench-sparse``.

SPARSE_LANES, SPARSE_TILES = (1, 2, 4, 8, 16), (0, 16, 32, 64, 128)
"""Entries of a vector, and of the lanes' index at a time; 0 for all of it."""

MAX_SPARSE_ROWS = 16
"""Of a batch: each row adds its own statements to the kernel, and needs registers."""

N_SPARSE_PATHS = 4
"""Paths whose best nest is offered, besides the best of all."""

POOR_NEST = 10
"""A path is left out if its nest is estimated so many times slower than the best."""

USUAL_EXTENT, USUAL_FIBER = 4096, 8
"""Default extent of an index and default length of a fiber of a tree."""

VECTOR_BYTES = 32
"""Of the registers of most processors."""

N_CHUNKS = 128
"""Equal parts of the root's nodes, more than threads, which take them dynamically."""

N_COPIES = 8
"""Of the result, and of large buffers, each for one of as many chunks: so many threads
can take part.
"""

TILE_VECTORS = 4
"""Of lanes whose extent is known only in a call: so few stay in registers, and the tree
is read once for each tile.
"""
