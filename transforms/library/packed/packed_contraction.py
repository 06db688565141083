"""Contractions by packed tiles, the way libraries compute matrix products.

For ``ac,cb->ab`` with the vector index b and the register index a, a work-group
computes a tile of the output of ``height`` times ``width`` entries. It packs the parts
of A and B that the tile needs for ``depth`` terms of the sum, and multiplies the packs
in register tiles of ``rows`` rows times ``vectors`` vectors of ``lanes`` entries::

                          B_pack: panels of vectors * lanes columns
                          +------+------+------+
                   depth  |      |######|      |     # is read by one register tile
                          |      |######|      |
                          +------+------+------+
      A_pack: blocks
      of rows  depth             width
            +--------+    +------+------+------+
      rows  |        |    |      |      |      |
            +--------+    +------+------+------+
            |########|    |      | tile |      |     rows * vectors vector registers
            +--------+    +------+------+------+
            |        |    |      |      |      |     height
            +--------+    +------+------+------+

A panel of B_pack stays in the first-level cache while it is multiplied by all blocks of
A_pack, which stay in the second-level cache. A register tile reads contiguous entries
in each step of the sum: B_pack[panel,c,:,:] and A_pack[block,c,:].

The recommended tiles suit the smallest supported processor, with 16 vector registers
and 256 KB of second-level cache; for other processors, the cost model chooses among
candidates. For a product of matrices of 720 rows in double precision::

    lanes 4, vectors 2, rows 6     12 sums, 2 vectors of a column, 1 entry of a row: 15
    height 192, depth 160          left pack: 245 KB, in the second-level cache
    width 768                      right pack: 983 KB, mostly in the third level

Source: Goto and van de Geijn 2008, van Zee and van de Geijn 2015 for the loops around
a register tile; Springer and Bientinesi 2018 (GETT) for tiles that span several
indices; paper, section 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product

import loopy as lp

from feinsum.ir import BatchedEinsum, Extent, Workload
from feinsum.machine import TYPICAL
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.library.packed.cost import cost
from feinsum.transforms.library.packed.nest import PackedNest
from feinsum.transforms.library.packed.plan import sum_distances
from feinsum.transforms.primitives import begin
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import (
    compute_reuse,
    count_points,
    find_carriers,
    find_packed_roles,
    get_typical_extent,
    has_real_dtype,
    is_long,
)


def apply(
    t_unit: lp.TranslationUnit,
    nest: LoopNest,
    parameters: Parameters,
    *,
    is_explicit: bool = True,
) -> lp.TranslationUnit:
    """Pack tiles of both operands and multiply them by register tiles.

    Rewrite, for ``ac,cb->ab`` with the vector index b and the register index a::

        for a, b:  out[a,b] = sum(c, A[a,c]*B[c,b])

        for b_tile, a_tile in parallel:
            sums[...] = 0
            for c_tile:
                B_pack[panel,c,v,:] = B(...)          # 0 outside of the array
                A_pack[block,c,r] = A(...)
                for panel, block:                     # r < rows, v < vectors unrolled
                    tile[r,v,:] = sums[panel,block,r,v,:]
                    for c:
                        tile[r,v,:] += A_pack[block,c,r]*B_pack[panel,c,v,:]
                    sums[panel,block,r,v,:] = tile[r,v,:]
            out[...] = sums[...]

    Tiles span as many indices as needed to fill them. If one tile holds the whole sum,
    each register tile is stored as soon as it is complete.

    With more than two operands, some are multiplied during packing and others into the
    sums, in the way that takes the fewest operations; see :class:`PackedNest`.

    Args:
        t_unit: the unit of the kernel.
        nest: the loop nest to rewrite.
        parameters: values of the parameters below.
        is_explicit: whether the code says which vectors to hold in registers, and
            transposes them there; version 2 leaves both to the compiler.

    Parameters:
        vector: output index of one operand alone, which is packed on the right; its
            entries are lanes.
        register: output index of the operands packed on the left.
        lanes: entries of a vector.
        vectors: vectors of a register tile.
        rows: rows of a register tile.
        inside: the inner loop over register tiles, ``rows`` or ``columns``.
        width: entries of a tile over the output indices of the right side.
        height: entries of a tile over those of the left side.
        depth: entries of a tile over the summed indices.
        stores: ``cached``, or ``streamed`` past the caches.
    """
    writer = PackedNest(
        begin(t_unit, nest), nest.einsum, parameters, is_explicit=is_explicit
    )
    return writer.written().t_unit


def space(workload: Workload) -> Space | None:
    """Fit einsums with two output indices on different operands and a common sum."""
    einsum = workload.einsum
    if einsum.n_operands < 2 or not has_real_dtype(einsum):
        return None
    # vectors along a last axis are loaded and stored at once
    nearest_first = tuple(reversed(einsum.output))
    pairs = [
        (vector, register_index)
        for vector in sorted(nearest_first, key=lambda i: _rank_vector_index(einsum, i))
        for register_index in reversed(einsum.output)
        if _fits(einsum, vector, register_index)
    ]
    if not pairs:
        return None
    vectors = list(dict.fromkeys(vector for vector, _ in pairs))
    registers = list(dict.fromkeys(register_index for _, register_index in pairs))
    registers.sort(key=lambda index: _rank_register_index(einsum, index))
    # tiles along short indices would mostly be padding
    registers = [
        i for i in registers if get_typical_extent(einsum.extents[i]) >= 8
    ] or registers
    # AVX2 first, which all supported processors have, then AVX-512
    lanes = (4, 8) if einsum.operands[0].dtype.itemsize == 8 else (8, 4, 16)
    n_vectors = _order_vectors(einsum.extents[vectors[0]], lanes[0])
    best = next(pair for pair in product(vectors, registers) if pair in pairs)
    widths, heights = _list_areas(einsum, *best)
    table: Table = {
        "vector": tuple(vectors),
        "register": tuple(registers),
        "lanes": lanes,
        "vectors": n_vectors,
        "rows": _order_rows(einsum.extents[best[1]], n_vectors[0]),
        "inside": ("rows", "columns"),
        "width": widths,
        "height": heights,
        "depth": cpu.DEPTHS,
        "stores": _list_stores(einsum, tuple(vectors), lanes[0]),
    }
    return Space(
        table,
        partial(_find_problem, workload),
        partial(_list_candidates, workload, table),
    )


def _list_candidates(workload: Workload, offered: Table) -> Iterator[Parameters]:
    """Yield every register tile for the best pairs of indices, with suitable areas."""
    einsum, sized = workload.einsum, workload.sized
    pairs = [
        (str(vector), str(row))
        for vector, row in product(offered["vector"], offered["register"])
        if _fits(einsum, str(vector), str(row))
    ]
    for vector, row in pairs[: cpu.N_PAIRS]:
        roles = find_packed_roles(einsum, vector, row)
        assert roles is not None
        n_summed = count_points(sized, roles.summed)
        pair = {"vector": vector, "register": row, "inside": "rows"}
        choices = product(offered["lanes"], range(1, 6), cpu.ROWS, offered["stores"])
        for lanes, n_vectors, n_rows, stores in choices:
            assert isinstance(lanes, int)
            tile = {"lanes": lanes, "vectors": n_vectors, "rows": n_rows}
            # a panel is ``depth`` such lines, which each register tile of a column of
            # the area reads again
            line_bytes = lanes * n_vectors * einsum.operands[0].dtype.itemsize
            depth = _choose_depth(n_summed, line_bytes)
            widths, heights = _list_areas(sized, vector, row, depth=depth)
            # propose other areas only where they matter: for the best pair of indices
            # and large register tiles
            is_best = (vector, row) == pairs[0]
            has_other_areas = is_best and n_vectors * n_rows >= cpu.LARGE_TILE
            areas = [(widths[0], h) for h in heights[: None if has_other_areas else 1]]
            areas += [(w, heights[0]) for w in widths[1:3] if has_other_areas]
            for width, height in areas:
                area = {"width": width, "height": height, "depth": depth}
                yield {**pair, **tile, **area, "stores": stores}


def _choose_depth(n_summed: int, line_bytes: int) -> int:
    """Return the depth of a short sum, or one whose panels fit the first-level cache.

    >>> _choose_depth(90, 128), _choose_depth(5000, 128)
    (96, 256)
    """
    enough = [n for n in cpu.DEPTHS if n >= n_summed]
    fitting = [n for n in cpu.DEPTHS if n * line_bytes <= cpu.PANEL_BYTES]
    deepest = max(fitting, default=min(cpu.DEPTHS))
    return min([deepest, *enough])


def _rank_vector_index(einsum: BatchedEinsum, index: str) -> tuple[int, int]:
    """Count the entries of arrays with the index whose last axis is another one.

    The output counts twice: vectors of it can bypass the caches, while the lines of
    single entries are read before they are written. Of equal indices, the one of the
    largest operands is the best.
    """
    carried = [einsum.inputs[k] for k in find_carriers(einsum, index)]
    turned = [
        term
        for term in (*carried, einsum.output, einsum.output)
        if term[-1] != index and term[-1] in einsum.output
    ]
    n_turned, n_carried = (
        sum(count_points(einsum, term) for term in terms) for terms in (turned, carried)
    )
    return n_turned, -n_carried


def _rank_register_index(einsum: BatchedEinsum, index: str) -> tuple[bool, int, int]:
    """Rank an index for the rows: the best is long and nearest to the last axes.

    If the output is larger than all operands together, the best is the index nearest to
    its last axis.
    """
    extent, output = einsum.extents[index], einsum.output
    inputs = sum(count_points(einsum, term) for term in einsum.inputs)
    is_stored = count_points(einsum, output) > inputs
    near = -output.index(index) if is_stored else sum_distances(einsum, index)
    return not is_long(extent) and not is_stored, near, -get_typical_extent(extent)


def _list_stores(einsum: BatchedEinsum, vectors: Names, lanes: int) -> tuple[str, ...]:
    """Return the kinds of stores: vectors along the last axis can bypass the caches.

    That is best for a large output. An output of unknown size counts as large.
    """
    last = einsum.output[-1]
    extents = [einsum.extents[index] for index in einsum.output]
    if last not in vectors or (isinstance(extents[-1], int) and extents[-1] % lanes):
        return ("cached",)
    is_known = all(isinstance(extent, int) for extent in extents)
    is_large = (
        not is_known or count_points(einsum, einsum.output) > cpu.STREAMED_ENTRIES
    )
    is_best = is_large and last == vectors[0]
    return ("streamed", "cached") if is_best else ("cached", "streamed")


def _fits(einsum: BatchedEinsum, vector: str, register_index: str) -> bool:
    if (
        get_typical_extent(einsum.extents[vector]) < cpu.MIN_LANES
        or vector == register_index
    ):
        return False
    return find_packed_roles(einsum, vector, register_index) is not None


@lru_cache(maxsize=256)
def _list_areas(
    einsum: BatchedEinsum,
    vector: str,
    register_index: str,
    depth: int = cpu.DEPTHS[0],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the widths and heights of tiles, the best pair first.

    The best tiles are large, but there are enough of them for several cores. All packs
    on the left, one for each row of the batch, fit the second-level cache; a pack on
    the right may take 2.5 times as much.
    """
    roles = find_packed_roles(einsum, vector, register_index)
    assert roles is not None
    depth = min(count_points(einsum, roles.summed), depth)
    line_bytes = depth * einsum.operands[0].dtype.itemsize
    column_bytes = einsum.batch_size * line_bytes
    # The largest fitting one first, then smaller ones, then those that do not fit. Most
    # are multiples of 48, as most register tiles divide 48: only the last tile of an
    # index is then cut.
    heights = sorted(
        (48, 96, 192, 384, 512), key=lambda n: (n * column_bytes > cpu.PACK_BYTES, -n)
    )
    widths = sorted(
        (48, 96, 192, 384, 768, 1536),
        key=lambda n: (n * line_bytes > 2.5 * cpu.PACK_BYTES, -n),
    )
    n_columns, n_rows, n_batch = (
        count_points(einsum, indices)
        for indices in (roles.columns, roles.rows, roles.batch)
    )

    def is_parallel(tile: tuple[int, int]) -> bool:
        height, width = tile
        return n_batch * -(-n_columns // width) * -(-n_rows // height) >= cpu.MIN_TILES

    tiles = sorted(product(heights, widths), key=lambda tile: not is_parallel(tile))
    height, width = tiles[0]
    return (
        tuple(sorted(widths, key=lambda n: n != width)),
        tuple(sorted(heights, key=lambda n: n != height)),
    )


def _order_vectors(extent: Extent, lanes: int) -> tuple[int, ...]:
    """Order numbers of vectors by the number of idle lanes.

    >>> _order_vectors(20, 4), _order_vectors(72, 4)
    ((5, 1, 3, 2, 4), (2, 3, 1, 4, 5))
    """
    length = get_typical_extent(extent)
    preferred = (2, 3, 1, 4, 5) if length > 5 * lanes else (5, 4, 3, 2, 1)
    return tuple(sorted(preferred, key=lambda n: -(-length // (n * lanes)) * n))


def _order_rows(extent: Extent, vectors: int) -> tuple[int, ...]:
    """Order numbers of rows: the largest tile that fits the registers first.

    If more than a tenth of the rows would be beyond the end of the index, smaller tiles
    come first.

    >>> _order_rows(72, 2), _order_rows(32, 2), _order_rows(72, 4)
    ((6, 4, 3, 2, 8, 12), (4, 3, 2, 6, 8, 12), (2, 3, 4, 6, 8, 12))
    """
    # sums, vectors of a column and an entry of a row: (rows + 1) * vectors + 1
    # registers
    few = [rows for rows in cpu.ROWS if (rows + 1) * vectors < TYPICAL.n_registers]
    length = get_typical_extent(extent)

    def is_wasteful(rows: int) -> bool:
        return -length % rows > length / 10

    few.sort(key=lambda rows: (is_wasteful(rows), -rows))
    return (*few, *(rows for rows in cpu.ROWS if rows not in few))


def _find_problem(workload: Workload, parameters: Parameters) -> str | None:
    einsum = workload.einsum
    vector, register_index = parameters["vector"], parameters["register"]
    if not _fits(einsum, vector, register_index):
        return f"the indices {vector!r} and {register_index!r} split no operands"
    n_sums = parameters["rows"] * parameters["vectors"]
    # Fewer than six sums do not hide the latency of multiply-adds. With fewer than 32
    # entries, or more than 32 vectors, loads and spills take longer than multiply-adds.
    if not 6 <= n_sums <= 32 or n_sums * parameters["lanes"] < 32:
        return f"{n_sums} vectors of sums are too few or too many"
    if parameters["stores"] == "streamed" and vector != einsum.output[-1]:
        return "only vectors of the last axis can be streamed"
    n_bytes = _estimate_private_bytes(einsum, parameters)
    if n_bytes > cpu.PRIVATE_BYTES:
        return f"private arrays would take up to {n_bytes} bytes of a thread's stack"
    return None


def _estimate_private_bytes(einsum: BatchedEinsum, parameters: Parameters) -> int:
    """Estimate the bytes of the packs and of stored sums, for all rows of a batch."""
    roles = find_packed_roles(einsum, *(parameters[n] for n in ("vector", "register")))
    assert roles is not None
    n_values = [
        count_points(einsum, i) for i in (roles.columns, roles.rows, roles.summed)
    ]
    limits: list[int] = [parameters[name] for name in ("width", "height", "depth")]
    width, height, depth = map(min, n_values, limits)
    n_all_sums = width * height * count_points(einsum, roles.postponed)
    # sums are kept between the tiles of a sum that takes several of them
    n_sums = n_all_sums if depth < n_values[2] else 0
    itemsize = einsum.operands[0].dtype.itemsize
    return einsum.batch_size * itemsize * (n_sums + depth * (width + height))


def apply_version_2(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Apply recipes of version 2, in which the compiler chooses what registers hold."""
    return apply(t_unit, nest, parameters, is_explicit=False)


register(
    Transform(
        "packed_contraction",
        2,
        "operands packed in tiles, as before vectors were held in registers",
        space,
        apply_version_2,
    )
)

PACKED_CONTRACTION = register(
    Transform(
        "packed_contraction",
        3,
        "operands packed in tiles over several indices, multiplied in registers",
        space,
        apply,
        cost,
    )
)


@lru_cache(maxsize=1024)
def suits_packing(einsum: BatchedEinsum) -> bool:
    """Return whether only this family is worth a trial."""
    return (
        PACKED_CONTRACTION.fits(einsum)
        and compute_reuse(einsum) >= cpu.MIN_PACKED_REUSE
    )
