"""Products of two operands by tiles: the loops and costs that all such families share.

An einsum of two operands is ``C[along, across] = sum(summed, ...)``: ``across`` are the
output indices of the operand that has the last one, so that neighbouring work-items
write neighbours; ``along`` are those of the other operand::

                  across                     each group has a tile of C, and goes
               +----+----+----+              through the tiles of both operands
               |    | B0 |    |  depth
               |    | B1 |    |              share s of S has the tiles s, s + S, ...
               +----+----+----+              and writes partial sums, which a second
     +-------+ +----+----+----+              launch adds
     |       | |    |    |    |
     | A0 A1 | |    | C  |    |  along
     |       | |    |    |    |
     +-------+ +----+----+----+

Source: Osama, Merrill, Cecka, Garland and Owens, Stream-K (2023), section 2: "split-k".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from math import inf

import loopy as lp
from pymbolic import parse, var
from pymbolic import primitives as p

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Gpu, list_loads
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.cost import (
    count_sector_bytes,
    get_itemsize,
    predict_kernel_s,
)
from feinsum.transforms.gpu.families import explain_items, explain_shared_bytes
from feinsum.transforms.gpu.layouts import (
    UNSWIZZLED,
    Flat,
    Swizzle,
    is_evenly_partitioned,
)
from feinsum.transforms.gpu.pipeline import TileLoop
from feinsum.transforms.gpu.sides import Side, find_sides
from feinsum.transforms.gpu.tiles import Items, Points
from feinsum.transforms.primitives import Schedule, begin
from feinsum.transforms.primitives.copy_async import COPIES
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import count_points


def _has_few_tiles(flat: Flat, tile: int, longer: Flat) -> bool:
    """Return whether a side has several tiles, but few.

    If it is the fastest axis of the grid, consecutive work-groups share a tile of the
    longer side, and find it in the cache.
    """
    if not (flat.is_known and longer.is_known):
        return False
    n = flat.n_values
    return tile < n <= h.FEW_TILES * tile and n < longer.n_values <= h.MAX_GRID_ROWS


class TiledProduct(TileLoop):
    """Writes the loops over tiles; a subclass writes those that multiply a tile.

    All such families have the parameters ``across``, ``along``, ``depth``, ``stages``
    and ``copies``; some have ``cut`` and ``shares``.
    """

    def __init__(
        self, t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
    ) -> None:
        schedule, piece = begin(t_unit, nest), parameters.get("cut")
        sides = find_sides(nest.einsum, schedule.extents, piece)
        if sides is None:
            raise TransformError(
                f"{nest.einsum.subscripts} is not a product of two operands with an "
                "output index and a sum each"
            )
        super().__init__(schedule, sides, parameters)
        # outermost first; Loopy maps them to axes of the grid by their tags alone
        grid: list[str] = []
        if sides.batch.indices:
            grid = [self.loop("batch", f"{{}} < {sides.batch.size}", tag="g.0")]
            self.batch = sides.batch.unravel(var(grid[0]))
        self.across, self.along = self._make_sides(parameters, piece, len(grid))
        grid += [self.across.group, self.along.group]
        self.n_shares = parameters.get("shares", 1)
        # only products without batch indices have the third axis of the grid free
        if self.n_shares > 1:
            self.share = self.loop("share", size=self.n_shares, tag="g.2")
            grid.append(self.share)
        self.number_items(grid, self.make_items(parameters))
        self.partials: dict[int, tuple[Expression, str]] = {}

    def _make_sides(
        self, parameters: Parameters, piece: int | None, axis: int
    ) -> tuple[Side, Side]:
        """Loop over the tiles of both sides, which take two axes from ``axis`` on."""
        x, y = self.sides.across, self.sides.along
        n_x, n_y = parameters["across"], parameters["along"]
        # consecutive groups are along the first axis of the grid
        is_exchanged = piece is not None and _has_few_tiles(y, n_y, x)
        swizzle = UNSWIZZLED
        if piece is not None and x.cut:
            swizzle = Swizzle(piece, n_x // piece)
        across = self._make_side(x, n_x, axis + is_exchanged, swizzle)
        return across, self._make_side(y, n_y, axis + (not is_exchanged))

    def _make_side(
        self, flat: Flat, tile: int, axis: int, swizzle: Swizzle = UNSWIZZLED
    ) -> Side:
        group = self.loop("group", f"{tile}*{{}} < {flat.size}", tag=f"g.{axis}")
        return Side(flat, group, tile, swizzle)

    def written(self) -> Schedule:
        """Return the schedule with the nest replaced."""
        self.write_loop()
        if self.partials:
            self._add_parts()
        return self.build().with_preamble(COPIES)

    @abstractmethod
    def make_items(self, parameters: Parameters) -> Items:
        """Make the loops over the work-items of a group."""

    def store_sum(
        self,
        row: int,
        value: p.Subscript,
        y: tuple[Points, Expression],
        x: tuple[Points, Expression],
        inames: Names,
        *,
        is_pair: bool = False,
    ) -> None:
        """Store a sum, two neighbouring sums, or the partial sum of a share.

        Args:
            row: number of the row.
            value: the first of the sums, in registers.
            y: points along, and the step at which they are evaluated.
            x: points across, likewise.
            inames: loops over the sums of a work-item.
            is_pair: whether two neighbouring sums are stored together.
        """
        loops = (*self.around, *inames)
        (rows, at_row), (columns, at_column) = y, x
        before = (*rows.statements, *columns.statements)
        inside = (*rows.inside(at_row), *columns.inside(at_column))
        points = {**self.batch, **rows.at(at_row), **columns.at(at_column)}
        if self.share:
            self._store_part(row, value, (y, x), loops, before, inside)
        elif is_pair:
            self.store_pair(row, value, points, loops, before, predicates=inside)
        else:
            self.store(row, value, points, loops, before, predicates=inside)
        self.note_apart(self.schedule.instructions[row])

    # partial sums: out[y,x] = sum(share, part[share,y,x]), in a second launch

    def _store_part(
        self,
        row: int,
        value: Expression,
        sides: Sequence[tuple[Points, Expression]],
        loops: Names,
        before: Names,
        inside: tuple[Expression, ...],
    ) -> None:
        """Store partial sums of a row."""
        shape = self.n_shares, *(parse(s.flat.size) for s in (self.along, self.across))
        dtype = self.schedule.get_sum_dtype(row)
        partial_sums = var(self.array("part", shape, dtype, is_global=True))
        # sides stay flat: only the second launch has to compute their indices
        subscripts = (var(points.value)[step] for points, step in sides)
        stored = self.assign(
            "part", partial_sums[(var(self.share), *subscripts)], value, loops, before,
            predicates=inside,
        )  # fmt: skip
        self.note_apart(stored)
        self.partials[row] = partial_sums, stored

    def _add_parts(self) -> None:
        """Write the second launch, which adds partial sums."""
        stored = [insn_id for _, insn_id in self.partials.values()]
        after = (*stored, self.end_launch(stored))
        across, along, n = self.across.flat, self.along.flat, h.ADDING_ITEMS
        group = self.loop("group", f"{n}*{{}} < {across.size}", tag="g.0")
        line = self.loop("line", f"{{}} < {along.size}", tag="g.1")
        item = self.loop("item", size=n, tag="l.0")
        around = (group, line, item)
        at_x = p.Sum((n * var(group), var(item)))
        x = self.compute_points(across, 1, lambda _: at_x, around, after, tile=n)
        y = self.compute_points(along, 1, lambda _: var(line), around, after, tile=1)
        before = (*after, *y.statements, *x.statements)
        for row, (partial_sums, _) in self.partials.items():
            share = self.loop("share", size=self.n_shares)
            term = partial_sums[var(share), var(y.value)[0], var(x.value)[0]]
            total, step = self.add_up(
                self.schedule.get_sum_dtype(row), term, around, [share], before,
                conditions=x.inside(0),
            )  # fmt: skip
            self.store(
                row, total, {**y.at(0), **x.at(0)}, around, [step, *before],
                predicates=x.inside(0),
            )  # fmt: skip
            self.note_apart(self.schedule.instructions[row])


def list_suited_starts(
    workload: Workload, names: Iterable[str], tried: Iterable[Sequence[int | str]]
) -> Iterator[Parameters]:
    """Yield the configurations whose tiles suit the sides of a workload.

    Tiles are not too long, and short only for short sides.

    Args:
        workload: the workload.
        names: names of the parameters, of which the first two are across and along.
        tried: values of the parameters of each configuration.

    >>> from feinsum import array, einsum
    >>> thin = einsum("ik,kj->ij", array("A", (24, 70)), array("B", (70, 900)))
    >>> tried = [(128, 32), (128, 64)]
    >>> [*list_suited_starts(Workload(thin), ("across", "along"), tried)]
    [{'across': 128, 'along': 32}]
    """
    einsum = workload.sized
    sides = find_sides(einsum, einsum.extents)
    assert sides is not None
    lengths = [
        count_points(einsum, flat.indices) for flat in (sides.across, sides.along)
    ]
    for values in tried:
        start: Parameters = dict(zip(names, values, strict=True))
        tiles = start["across"], start["along"]
        # long narrow tiles reuse little: they suit only sides that are short themselves
        is_thin = min(tiles) <= h.SHORT < max(tiles)
        # a tile of twice the side would leave half of the group idle
        has_work = all(
            tile <= h.SHORT or tile < 2 * length
            for tile, length in zip(tiles, lengths, strict=True)
        )
        if has_work and (not is_thin or min(lengths) <= h.SHORT):
            yield start


def explain_tiles(
    einsum: BatchedEinsum,
    parameters: Parameters,
    *,
    n_items: int,
    least_items: int = 1,
    most_bytes: int,
    keeps_order: bool,
) -> str | None:
    """Explain why a group cannot have such tiles; None if it can.

    Args:
        einsum: the einsum.
        parameters: those of :class:`TiledProduct`.
        n_items: work-items of a group.
        least_items: their least number.
        most_bytes: shared memory of a group, at most.
        keeps_order: see :class:`TiledProduct`.
    """
    excess = explain_items(n_items, least_items)
    if excess is not None:
        return excess
    depth = parameters["depth"]
    for tile in (parameters["across"], parameters["along"]):
        # either axis may be the fast one, depending on the operand
        shapes = ((tile, depth), (depth, tile))
        if not all(is_evenly_partitioned(*shape, n_items) for shape in shapes):
            return f"{n_items} work-items do not share {tile} times {depth} entries"
    n_bytes = count_shared_bytes(einsum, parameters, keeps_order=keeps_order)
    # the driver would refuse larger groups, but only after the compilation
    return explain_shared_bytes(n_bytes, most_bytes)


def count_shared_bytes(
    einsum: BatchedEinsum, parameters: Parameters, *, keeps_order: bool
) -> int:
    """Return the shared memory of a work-group, in bytes."""
    across, along, depth = (parameters[n] for n in ("across", "along", "depth"))
    stages: int = parameters["stages"]
    sides = find_sides(einsum, einsum.extents)
    assert sides is not None
    piece = parameters.get("cut", 1)
    # an operand on both sides has two kinds of tiles
    staged = {(op, k == sides.first) for row in einsum.rows for k, op in enumerate(row)}
    n_bytes = 0
    for operand, is_across in staged:
        itemsize = operand.dtype.itemsize
        tile = across if is_across else along
        swizzle = Swizzle(piece, across // piece) if is_across else UNSWIZZLED
        n_entries = depth * (tile + swizzle.get_padding(itemsize))
        if keeps_order:
            # the larger of both orders, as operands differ
            padding = UNSWIZZLED.get_padding(itemsize)
            n_entries = max(n_entries, tile * (depth + padding))
        n_bytes += n_entries * itemsize
    return stages * n_bytes


def predict_tiled_s(
    einsum: BatchedEinsum,
    parameters: Parameters,
    gpu: Gpu,
    *,
    n_items: int,
    cycles: float,
    keeps_order: bool,
    registers: int,
    chains: int,
    is_on_tensor_cores: bool = False,
) -> float:
    """Predict the seconds of a product; a group reads each tile from the caches once.

    Args:
        einsum: the einsum, with known extents.
        parameters: those of :class:`TiledProduct`.
        gpu: the GPU.
        n_items: work-items of a work-group.
        cycles: cycles in which a warp issues the reads for one step of the sum.
        keeps_order: see :class:`TiledProduct`.
        registers: see :class:`feinsum.transforms.gpu.cost.LaunchWork`.
        chains: see :class:`feinsum.transforms.gpu.cost.LaunchWork`.
        is_on_tensor_cores: whether tensor cores multiply.
    """
    sides = find_sides(einsum, einsum.extents, parameters.get("cut"))
    assert sides is not None
    if registers > h.MAX_REGISTERS:
        return inf
    n_rows, itemsize = einsum.batch_size, get_itemsize(einsum)
    across, along, depth, stages = (
        parameters[n] for n in ("across", "along", "depth", "stages")
    )
    shares: int = parameters.get("shares", 1)
    n_tiles = -(-sides.summed.n_values // (depth * shares))
    n_groups = sides.batch.n_values * shares
    n_groups *= -(-sides.across.n_values // across)
    n_groups *= -(-sides.along.n_values // along)
    box = {
        **sides.across.box_of(across),
        **sides.along.box_of(along),
        **sides.summed.box_of(depth),
    }
    # bytes that a group reads for each tile along the sum, and writes at the end
    tile_bytes = sum(
        count_sector_bytes(einsum, *load, box) for load in list_loads(einsum)
    )
    out_bytes = count_sector_bytes(einsum, einsum.output, itemsize, box) * n_rows
    # tiles are read from the caches and written to shared memory
    requests = 2 * tile_bytes / h.LINE_BYTES + n_items / h.WARP * depth * cycles
    # halves are copied in vectors: all tiles ahead are in flight
    n_ahead = (stages - 1) * tile_bytes / itemsize / n_items
    launch_s = predict_kernel_s(
        gpu,
        einsum,
        n_groups=n_groups,
        n_items=n_items,
        # ragged tiles take as many multiply-adds as full ones
        multiply_adds=n_groups * n_tiles * depth * across * along * n_rows,
        requests=n_groups * (n_tiles * requests + out_bytes / h.LINE_BYTES),
        cached_bytes=n_groups * (n_tiles * tile_bytes + out_bytes),
        # the latencies of tiles that are loaded ahead overlap
        steps=h.STEPS_OF_TILE * n_tiles / max(stages - 1, 1),
        shared_bytes=count_shared_bytes(einsum, parameters, keeps_order=keeps_order),
        registers=registers,
        chains=chains,
        n_loads=max(h.UNROLLED, n_ahead) if itemsize == 2 else h.UNROLLED,
        is_on_tensor_cores=is_on_tensor_cores,
    )
    if shares == 1:
        return launch_s
    # partial sums are written once and read once, by a second launch
    n_bytes = count_points(einsum, einsum.output) * itemsize * n_rows
    latency_s = h.LATENCY_S * shares / h.UNROLLED
    moved_s = 2 * shares * n_bytes / gpu.bandwidth_bytes_per_s
    return launch_s + (gpu.launch_s + latency_s + moved_s)
