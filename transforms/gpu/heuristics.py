"""Numbers of the GPU back end, each with its meaning and its source.

Limits of the hardware are from the CUDA C++ Programming Guide, "Compute Capabilities".
Numbers of cost models only have to rank recipes: the trials of both suites on an H100
(``make gpu-pack``, and its ``gpu.sh`` on the GPU) show whether the fastest recipe of a
workload is among the first predicted ones. Run them before a change of a number and
after it.
"""

from __future__ import annotations

# Limits of the hardware, all of compute capability 7.0 and newer.
from feinsum.targets.cuda.figures import MAX_REGISTERS as MAX_REGISTERS
from feinsum.targets.cuda.figures import MAX_THREADS as MAX_THREADS
from feinsum.targets.cuda.figures import REGISTERS as REGISTERS
from feinsum.targets.cuda.figures import WARP as WARP

SHARED_BYTES = 48 << 10
"""Shared memory that a work-group can declare; OpenCL devices often have no more."""

SHARED_BYTES_SM70 = 96 << 10
"""Shared memory that a launch can request since Volta, except on Turing."""

SHARED_BYTES_SM80 = 163 << 10
"""The same since sm_80, where tensor cores have double precision; some newer GPUs have
less, and refuse such launches."""

BANKS = 8
"""Half of the banks of doubles: half a warp reads four terms of four elements at once.
If the distance of elements is an odd multiple of four, it reads from all banks."""

PADDING = 4
"""Padding entries after each row of a tile. If rows are multiples of 8 doubles, a block
of 4 by 4 entries, and a run of 16, are then in 16 different banks."""

SECTOR_BYTES = 32
"""The smallest transfer between the caches."""

LINE_BYTES = 128
"""Bytes that a warp reads in a cycle, at most."""

MIN_WIDTH = PIECE = SECTOR_BYTES // 8
"""Fewest work-items along a row of a tile, and values of an index that stay together by
default: a sector of double precision."""

MAX_COUNTED = 1 << 31
"""Numbers below it are counted in 32 bits, in which GPUs divide faster."""

MAX_GRID_ROWS = 1 << 20
"""Entries of a side that may be the second axis of a grid, of 65535 groups."""

# Rates and latencies of launches: estimates, but for ``OVERLAP``, which was fitted to
# the trials. These judge them as a whole.

CACHE_BYTES_PER_CYCLE = 24
"""Bytes that a multiprocessor reads from the second cache per cycle."""

LATENCY_S = 6e-7
"""Latency of a load from global memory."""

CACHE_LATENCY_S = 2e-7
"""Latency of a load from the second cache."""

UNROLLED = 4
"""Loads of a sum that a work-item waits for together."""

BUSY_WARPS = 16
"""Warps that keep a multiprocessor busy if each of them waits for its sum."""

REREAD = 8
"""Groups that run together share reads: one in so many bytes that they request comes
from memory, if the arrays are larger than the cache."""

OVERHEAD_CYCLES = 1
"""Cycles that a step of a loop spends on addresses and the test for its end."""

BARRIER_CYCLES = 8
"""Cycles for which a warp waits for the others of its group."""

OVERLAP = 0.5
"""Share of the shorter parts of the time that is added to the longest. In the trials,
the recipes predicted to be the fastest are nearer to the fastest with 0.5 than with
0.2, for the half of the workloads that it was chosen by and for the others."""

SYNCHRONOUS_SHARE = 0.62
"""Share of the rate of halves that instructions of one warp reach since sm_90, where
libraries use those of four warps. Source: Luo et al., Benchmarking and Dissecting the
Nvidia Hopper GPU Architecture (2024), table of "mma" and "wgmma"."""

STEPS_OF_TILE = 4
"""Latency of a tile until it is in shared memory, in loads of a sum."""

STEPS_OF_SUM = 4
"""Latency of the barriers of a sum of ``gpu_elements``, in loads."""

STEPS_OF_ROW = 8
"""Latency of a row of a batch of ``gpu_operator``: of its tile and its sums."""

STEPS_OF_TURN, STEPS_AHEAD = 16, 2
"""Latency of a tile and its sums in ``gpu_operator_mma``, and with loads ahead."""

# Estimates for whole calls, which ``python -m benchmarks.gpu.everyday`` times.

CALL_S = 6e-6
"""Seconds to select and start a product or a kernel."""

PEAK_SHARE = 0.85
"""Share of the peak rate that large products of cuBLAS reach."""

BANDWIDTH_SHARE = 0.6
"""Share of the bandwidth that products with a short side reach."""

COPY_SHARE = 0.6
"""Share of the bandwidth that transposing copies reach."""

PACKING_SHARE = 0.75
"""Share of the bandwidth that launches of ``gpu_matrices`` reach which pack arrays."""

LIBRARY_TILE = 64
"""Sides that are shorter than that leave a part of the multiprocessor idle."""

LIBRARY_CHUNK = 1024
"""Terms of a sum; several multiprocessors share longer ones."""

# Configurations that families offer. The trials of TCCG set the numbers for products,
# those of DG the numbers for operators.

MIN_REUSE = 4.0
"""Points of the loop nest per entry, below which tiles do not pay."""

LONG_SUM = 256
"""Terms of a sum from which on loads take longer than stores."""

PIECES = (8, 4, 16)
"""Values of an operand's last index that stay together in a tile."""

SHORT = 32
"""The length of tiles that are for short sides."""

FEW_TILES = 16
"""Tiles of the shorter side, up to which it is the faster one of the grid."""

ADDING_ITEMS = 128
"""Work-items of a group that adds parts of sums."""

MAX_GROUPS = 1024
"""Groups up to which sums are shared: about two rounds of four groups on each of the
132 multiprocessors of an H100."""

MAX_SHARES = 64
"""Parts of a sum; the second launch reads as many entries for each result."""

MIN_TILES = 8
"""Fewest tiles along the summed indices in each of several shares."""

MAX_SUMS = 64
"""Most sums of a work-item in double precision: each takes two of 255 registers. There
may be twice as many in single precision, in which halves are added up."""

MAX_HELD = 96
"""Most sums and entries of matrices of a lane of ``gpu_operator_mma``."""

MIN_REGISTERS = 32
"""Registers of such a lane for addresses and loads."""

MIN_ELEMENTS = 8
"""Fewest elements of a group for which ``gpu_elements`` is offered."""

MIN_SPLIT_TERMS = 4096
"""Fewest terms of a sum that are worth a second launch."""

PACKING_ITEMS, PACKING_LANES, MAX_PACKING_STEPS = 256, 8, 8
"""Of launches that pack: work-items of a group; entries side by side, of one array and
of the other, which are 64 bytes of double precision; and entries of a work-item, for
which it computes the other indices once."""

PRODUCT_STARTS = (
    (32, 32, 16, 2, 2, 2, "asynchronous"),
    (16, 16, 16, 1, 1, 2, "asynchronous"),
    (128, 64, 8, 8, 4, 3, "asynchronous"),
    (64, 128, 8, 4, 8, 3, "asynchronous"),
    (128, 128, 8, 8, 8, 2, "asynchronous"),
    (128, 128, 8, 8, 8, 2, "registers"),
)
"""Of ``gpu_product``: across, along, depth, columns, rows, stages, copies."""

MMA_STARTS = (
    (64, 64, 8, 32, 32, 8, 4, "arguments"),
    (64, 80, 8, 16, 80, 8, 4, "arguments"),
    (64, 32, 8, 16, 16, 8, 4, "arguments"),
    (128, 64, 8, 32, 32, 8, 4, "arguments"),
    (64, 64, 16, 32, 32, 8, 3, "arguments"),
    (64, 64, 32, 32, 32, 8, 2, "arguments"),
    (64, 80, 16, 16, 80, 8, 3, "arguments"),
    (64, 32, 16, 16, 16, 8, 2, "registers"),
    (80, 80, 16, 40, 16, 8, 3, "arguments"),
    (128, 32, 16, 16, 32, 8, 3, "arguments"),
    (64, 128, 8, 32, 32, 8, 4, "arguments"),
    (128, 128, 16, 64, 32, 8, 3, "arguments"),
    (32, 32, 16, 16, 16, 4, 4, "arguments"),
)
"""Of ``gpu_mma``: across, along, depth, columns, rows, terms, stages, copies; first the
fastest ones for functional contractions of TCCG on an H100."""

HALF_STARTS = (
    (128, 128, 32, 32, 64, 16, 4, "arguments"),
    (256, 128, 32, 64, 64, 16, 3, "arguments"),
    (128, 128, 64, 64, 64, 16, 3, "arguments"),
    (128, 64, 32, 32, 32, 16, 4, "arguments"),
    (64, 128, 32, 32, 32, 16, 4, "arguments"),
    (64, 64, 64, 32, 32, 16, 3, "arguments"),
    (128, 128, 32, 32, 64, 16, 3, "registers"),
    (64, 64, 32, 32, 32, 16, 3, "registers"),
    (32, 32, 32, 16, 16, 16, 3, "arguments"),
)
"""The same in half precision, in which sums take half as many registers and an
instruction adds twice as many terms. They are those of CUTLASS's default kernels for
sm_80; no trial has ranked them yet."""

OPERATOR_STARTS = (
    (16, 2, 2, True), (32, 1, 4, True), (64, 1, 2, True), (32, 4, 2, True),
    (32, 2, 5, True), (32, 2, 4, False), (32, 1, 2, False), (32, 4, 5, True),
    (16, 4, 4, True), (32, 2, 7, True), (64, 2, 4, True),
)  # fmt: skip
"""Of ``gpu_operator``: lanes, columns, rows, stage_matrix. The first four were the
fastest of 35 of 36 operators of DG on an H100."""

OPERATOR_MMA_STARTS = (
    (32, 32, 8, 4, 10, 2), (64, 32, 8, 4, 6, 4), (32, 32, 8, 4, 5, 5),
    (32, 32, 8, 4, 7, 3), (64, 32, 8, 4, 4, 3), (64, 16, 16, 4, 8, 3),
    (16, 16, 8, 4, 13, 3), (64, 16, 8, 4, 8, 4),
)  # fmt: skip
"""Of ``gpu_operator_mma``: elements, height, width, terms, turns, groups. The fastest
of 34 of 40 operators of DG on an H100 are among the first five."""

ELEMENT_STARTS = (
    (16, 8, 4, "element", False), (8, 32, 1, "row", True),
    (64, 4, 4, "element", True), (32, 4, 5, "element", False),
    (8, 16, 2, "row", False), (128, 1, 8, "element", False),
)  # fmt: skip
"""Of ``gpu_elements``: elements, workers, rows, lane, stage_matrices: few elements with
many workers, and the reverse; matrices from the cache."""
