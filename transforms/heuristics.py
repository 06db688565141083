"""Numbers of the cost models of CPUs, each with its meaning and the benchmark for it.

A cost only has to rank configurations. So a number is right if predictions order the
recipes of the benchmarks by their measured times, whatever a data sheet says.
Cycles are those of one core. ``make bench-agreement`` compares the first recipes with
the best of many trials, and ``make bench-everyday`` shows what predictions are worth:
run both before a change of a number and after it. A number without effect on the order
of recipes does not stand here.

Limits of spaces come last. They bound the number of configurations; the benchmark of a
section shows whether a configuration that was left out would have been faster.
"""

from __future__ import annotations

LINE_BYTES = 64
"""Bytes of a cache line, which is read and written as a whole."""

# Loops that stream through arrays: generic, rowwise, split_sum, turned.
# ``make bench-fallback`` times the recommended recipes.

LOOP_CYCLES = 6.0
"""Cycles to start an innermost loop."""

CHAIN_CYCLES = 4.0
"""Cycles of an addition that waits for the result of the previous one."""

STRIDED_CYCLES = 6.0
"""Cycles to read or write an entry whose neighbours in memory are not used with it."""

MOST_STREAMS = 8
"""Streams that a core reads concurrently at full speed."""

RESTART_S = 5e-8
"""Seconds until a core reads memory at full speed again after a jump."""

NARROW_COMPLEX_LANES = {8: 0.08, 16: 0.35}
"""With 16 vector registers, effective lanes of several sums of complex numbers, by the
size of a number: gcc spills.
"""

MOST_NARROW_TERMS, NARROW_SPILLS = 8, 2.0
"""Complex terms that an iteration adds in registers there, and the factor on the cost
if there are more.
"""

# Packed tiles: packed_contraction. Panels, rows and shares were chosen by 30 recipes
# each of 14 workloads on a Zen 5, runs by trials of 49 workloads there.

PACK_CYCLES = 1.0
"""Cycles, divided by the vector length, to pack an entry whose neighbours in the pack
are neighbours in memory.
"""

TURN_CYCLES = 0.75
"""Cycles to pack an entry by transposed squares, or alone."""

MANY_PANELS, LINE_CYCLES, SPLIT_LINE_CYCLES = 32, 0.5, 2.0
"""With more panels than the first, packing in turns costs the second for each entry. It
costs the third if a cache line holds entries of two turns, since the line leaves the
first level between them.
"""

TILE_CYCLES = 20.0
"""Cycles to begin a register tile, apart from the loads and stores of its sums."""

SCATTERED_CYCLES = 3.0
"""Cycles to store an entry of a vector whose entries are not adjacent in memory."""

RUN_BYTES = 1024
"""Length of a contiguous run below which it does not reach the full bandwidth."""

READ_RUN_CYCLES, STORE_RUN_CYCLES, FAR_RUN_CYCLES = 30.0, 30.0, 90.0
"""Cycles of such a run in a large array: to read it, to store it, and to store it if
the next row of a register tile is on another page.
"""

PAGE_BYTES = 4096
"""Bytes of a page of virtual memory."""

STREAMED_SHARE = 0.5
"""Share of the last-level cache up to which results are better stored in it than past
it.
"""

CACHED_STORE, STREAMED_STORE, NEEDLESS_STREAM = 1.7, 1.0, 3.0
"""Bytes moved for a byte of the result: through the caches, which read the line first;
past them; and past them although the result fits.
"""

LATENCY_CYCLES = 5.0
"""Latency of a multiply-add, for which the next one to the same sum waits, and of a
step of the loop. With vectors of four doubles, eight sums would be just enough for four
cycles; of the 201 packaged facts with such vectors 27 have eight sums, and 140 have
twelve.
"""

MANY_VECTORS, MANY_VECTORS_FACTOR = 4, 1.25
"""Register tiles of more vectors than this were slower than their multiply-adds by this
factor, with gcc 12.
"""

ROW_BYTES = 96.0
"""Bytes of the rows of a tile that are read in a cycle for which multiply-adds wait."""

MANY_AREAS = 16
"""Areas for each core, from which on their unequal sizes hardly matter."""

# Products by the compiled contraction kernel: library_contraction.

LIBRARY_SHARE = 0.85
"""Share of the peak rate that products of large matrices reach."""

SERIAL_OPERATIONS = 1e6
"""Operations below which one thread multiplies."""

VECTOR_SHARE = 0.5
"""Share of the bandwidth that products with vectors reach."""

# Spaces of generic and rowwise: ``make bench-fallback``.

MIN_LENGTH = 16
"""Trip count below which the overhead of an innermost loop counts."""

STRIDED_WEIGHT = 4
"""Cost of an entry whose neighbours are not used with it, relative to one whose are."""

GROUP_POINTS = 1 << 15
"""Iterations that make the start of a work-group, or of another thread, negligible."""

FUNCTION_TILE_BYTES = 1 << 14
"""Bytes of an operand at one value of the index; more would leave the first cache."""

# Elements in the lanes: element_blocked. ``make bench-dgfem``.

ELEMENT_TILE_ENTRIES = 1 << 12
"""Entries of all tiles for one element. In double precision, those of the eight
elements of a vector take 256 KiB of the second-level cache.
"""

MAX_BATCH_ROWS = 4
"""Rows of a batch that is searched: for more, Loopy takes too long for the tiles."""

# Long sums: split_sum. ``make bench-bandwidth``.

MAX_RESULTS = 4096
"""Results of a row; more are enough work for all threads."""

MIN_SUM_LENGTH = 256
"""Terms of each result; a sum of fewer is not long."""

MIN_PARTS, MAX_PARTS = 4, 512
"""Fewer parts leave threads idle; more would be a long sum in the second nest, which
adds them.
"""

N_PARTS_OFFERED = 4
"""Numbers of parts that are searched for one index."""

# Spaces of packed tiles: packed_contraction. ``make bench-tccg``, ``make bench-dgfem``.

MIN_LANES = 4
"""Least extent of a vectorized index: with less, most lanes are idle."""

DEPTHS = (160, 256, 128, 96, 384, 64)
"""Terms that are packed at once. The first depth fills 245 KB with the first height in
double precision; deeper tiles load and store the sums less often, but leave the caches.
"""

ROWS = (2, 3, 4, 6, 8, 12)
"""Rows of a register tile, which loads ``vectors + rows`` values for ``vectors * rows``
products; 2 x 6 and 3 x 4 are the largest for which 16 registers suffice.
"""

N_PAIRS = 4
"""Pairs of a vector index and a register index among which a prediction chooses."""

PACK_BYTES = 400_000
"""Bytes of all packs on the left together; larger ones leave the second-level cache."""

LARGE_TILE = 12
"""Sums of a register tile from which on several widths and heights are proposed: the
extents decide which of them share the work among cores evenly.
"""

PRIVATE_BYTES = 6_000_000
"""Bytes of all private arrays of a work-item, which must fit the stack of a thread."""

MIN_TILES = 4
"""Tiles that run in parallel, at least; fewer only if the output is small."""

STREAMED_ENTRIES = 1_000_000
"""Entries of an output from which on it is best stored past the caches."""

PANEL_BYTES = 1 << 15
"""Bytes of a tile in the first-level cache: the sums of all rows, or what a register
tile reads on the right.
"""

LINE_ENTRIES = LINE_BYTES // 8
"""Entries of a cache line in double precision."""

MIN_PACKED_REUSE = 16
"""Reuse of an einsum from which on families without packing are not worth a trial."""

MAX_UNROLLED = 16
"""Terms of a sum that is written out, of folded and postponed indices together."""

# Orders of contraction: contraction_path. ``make bench-everyday``.

MAX_PATH_OPERANDS = 16
"""Operands of an einsum that is contracted along a path: each step is a kernel to
compile.
"""

MAX_PATHS = 4
"""Paths that are offered; each multiplies the configurations of a search."""

NEAR_LEAST = 4
"""Ratio of the operations of an offered path to the fewest, at most."""

FEWER_OPERATIONS = 8
"""Least ratio of the operations of one nest to those of a path."""

FEWER_THAN_PACKED = 2
"""The same ratio for packed tiles, for einsums that are searched."""

# Operands that numpy evaluates: library_contraction. ``make bench-everyday``.

LIBRARY_BLOCKS = (16, 4, 64, 1, 256)
"""Values of the index in a block: operands that are functions are evaluated into memory
that stays in the caches until the product reads it, in few calls of the library.
"""

MIN_LIBRARY_REUSE = 4
"""Reuse below which reading the arrays takes longer than multiplying the matrices."""

MIN_FUSED_SIDE = 8
"""Rows and columns from which on the contraction kernel packs operands, and applies
their affine functions there.
"""

PIECE_ENTRIES = 1 << 19
"""Entries that are evaluated or moved at once: all of them stay in the last-level
cache.
"""

# Sparse operands: sparse_nest. ``make bench-sparse``.

MAX_SPARSE_ROWS = 16
"""Rows of a batch: each row adds its own statements to the kernel, and needs
registers.
"""

POOR_NEST = 10
"""Ratio of estimated times from which on the nest of a path is not offered."""

USUAL_FIBER = 8
"""Length of a fiber of a tree that is assumed where unknown."""

N_CHUNKS = 128
"""Equal parts of the root's nodes: more than threads, which take them dynamically."""

N_COPIES = 8
"""Copies of the result and of large buffers, each for one of as many chunks: so many
threads can take part.
"""

TILE_VECTORS = 4
"""Vectors of a tile whose extent is known only in a call: so few stay in registers, and
the tree is read once for each tile.
"""
