"""The cost of packed tiles: cycles and bytes of packing, multiplying and storing.

For a product of matrices whose tiles make 3 areas of columns and 4 of rows::

    multiply   every register tile, including padding at the edges
    pack       the right side 4 times; the left side 3 times if rows are inside, or once
    store      each result once
    idle       12 areas for 8 cores: the busiest core has 2 of them, the mean is 1.5
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapreplace
from itertools import product
from math import prod

from feinsum.ir import BatchedEinsum, Extent, IndexList, SizeParam
from feinsum.machine import MachineModel, estimate_region_s
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.cost import SizedEinsum, compute_padding, count_distinct_bytes
from feinsum.transforms.library.packed.plan import Cut, make_plan
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import count_points


def cost(einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel) -> float:
    """Predict the seconds of :func:`packed_contraction`, with padded register tiles."""
    work = _Work(einsum, parameters, machine)
    n_rows = einsum.batch_size
    n_areas = work.n_wide * work.n_high * work.batch
    cycles = n_rows * (work.multiply_cycles + work.pack_cycles + work.store_cycles)
    read, written = count_distinct_bytes(einsum)
    is_streamed = parameters.get("stores") == "streamed"
    moved = _get_store_factor(is_streamed, written, machine)
    # cores take whole areas, so a few areas leave cores idle; see ``_Work.idle``
    return estimate_region_s(
        machine,
        cycles,
        read + n_rows * work.again_bytes + moved * written,
        n_groups=n_areas,
        idle=work.idle,
        footprint=read + written,
    )


def _get_store_factor(is_streamed: bool, written: int, machine: MachineModel) -> float:
    """Return the bytes moved for a byte of the result."""
    if not is_streamed:
        return cpu.CACHED_STORE
    is_large = written > cpu.STREAMED_SHARE * machine.cache_bytes["L3"]
    return cpu.STREAMED_STORE if is_large else cpu.NEEDLESS_STREAM


class _Work:
    """The work of one row of an einsum in packed tiles, on a machine.

    Attributes:
        lanes: entries of a vector; the compiler splits vectors that are too long for
            the processor.
        is_row_inside: whether the loop over tiles of rows is inside that over columns.
        columns, rows, summed, batch: number of values of all indices of each role.
        n_wide, n_high, n_deep: number of tiles over the columns, the rows, the sum.
    """

    def __init__(
        self, einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
    ) -> None:
        self.einsum, self.machine = einsum, machine
        self.itemsize = einsum.operands[0].dtype.itemsize
        self.vector, self.register = parameters["vector"], parameters["register"]
        wanted, self.tile_rows = int(parameters["lanes"]), int(parameters["rows"])
        self.lanes = min(wanted, machine.lanes(einsum.operands[0].dtype))
        self.n_vectors = int(parameters["vectors"]) * wanted // self.lanes
        self.is_row_inside = parameters["inside"] == "rows"
        split = {**parameters, "lanes": self.lanes, "vectors": self.n_vectors}
        self.plan = plan = make_plan(einsum, _get_build_extents(einsum), split)
        roles = plan.roles
        self.columns = count_points(einsum, roles.columns)
        self.rows = count_points(einsum, roles.rows)
        self.summed = count_points(einsum, roles.summed)
        self.batch = count_points(einsum, (*roles.batch, *roles.outer))
        self.n_wide = self._count_tiles(plan.columns)
        self.n_high = self._count_tiles(plan.rows)
        self.n_deep = self._count_tiles(plan.summed)

    def _count_tiles(self, cuts: Iterable[Cut]) -> int:
        return prod(-(-self._count_points((cut.index,)) // cut.size) for cut in cuts)

    @property
    def idle(self) -> float:
        """The work of the busiest core over the mean of all cores.

        Each core takes one area after the other. Areas at the end of an index are
        smaller.
        """
        n_cores = self.machine.n_cores
        sides = (*self.plan.columns, *self.plan.rows)
        n_areas = self.batch * self._count_tiles(sides)
        # with many areas, the last round lacks half of its areas on average
        if n_areas > cpu.MANY_AREAS * n_cores:
            return 1 + n_cores / n_areas / 2
        lengths = [
            _list_lengths(self._count_points((cut.index,)), cut.size) for cut in sides
        ]
        busy = [0.0] * n_cores
        # the first idle core takes the next area, as in OpenMP's dynamic schedule
        for area in [*map(prod, product(*lengths))] * self.batch:
            heapreplace(busy, busy[0] + area)
        return max(busy) * n_cores / sum(busy)

    @property
    def multiply_cycles(self) -> float:
        """Cycles of multiply-adds in registers, and of loads and stores of the sums."""
        n_vectors, n_rows = self.n_vectors, self.tile_rows
        unit = n_vectors * self.lanes
        # tiles at the edge also compute their padding
        wide = self.columns * compute_padding(self._count_points((self.vector,)), unit)
        high = self.rows * compute_padding(self._count_points((self.register,)), n_rows)
        fma_cycles = self.machine.fma_cycles(self.lanes * self.itemsize)
        # A step takes as long as the slowest of: the multiply-adds; the loads of a
        # column and of the rows, two a cycle; the latency of an addition to one sum.
        step = max(
            n_rows * n_vectors * fma_cycles,
            n_vectors * fma_cycles + n_rows / 2,
            cpu.LATENCY_CYCLES,
        )
        if n_vectors > cpu.MANY_VECTORS:
            step *= cpu.MANY_VECTORS_FACTOR
        # Registers hold the sums, the vectors of the column, and an entry of a row.
        # What exceeds them is stored and loaded in every step.
        n_held = n_rows * n_vectors + n_vectors + 1
        spilled = max(0, n_held - self.machine.n_registers)
        # rows come from the second-level cache; multiply-adds hide that only in part
        step += n_rows * self.itemsize / cpu.ROW_BYTES
        per_tile = self.summed * (step + 2 * spilled)
        per_tile += self.n_deep * (cpu.TILE_CYCLES + 3 * n_rows * n_vectors)
        # the packs are multiplied for each value of the postponed indices
        postponed = self._count_points(self.plan.roles.postponed)
        return self.batch * postponed * per_tile * wide * high / (unit * n_rows)

    @property
    def pack_cycles(self) -> float:
        """Cycles to pack each side once for each tile of the other."""
        roles = self.plan.roles
        right_cycles = self._pack_cycles(roles.right, self.vector)
        left_cycles = sum(self._pack_cycles(k, self.register) for k in roles.left)
        entries = (
            right_cycles * self._right * self.n_high
            + left_cycles * self._left * self._n_left
        )
        return self.batch * entries

    @property
    def again_bytes(self) -> float:
        """Bytes of operands that are read again, after the first time."""
        again = self._right * (self.n_high - 1) + self._left * (self._n_left - 1)
        return self.batch * again * self.itemsize

    @property
    def _n_left(self) -> int:
        """How often the left side is packed."""
        return self.n_wide if self.is_row_inside else 1

    @property
    def _right(self) -> int:
        """Entries of the right side, for one value of the batch."""
        return (
            self.columns * self.summed * self._count_points(self.plan.roles.postponed)
        )

    @property
    def _left(self) -> int:
        return self.rows * self.summed * self._count_points(self.plan.roles.folded)

    def _count_points(self, indices: Names) -> int:
        return count_points(self.einsum, indices)

    def _pack_cycles(self, position: int, index: str) -> float:
        """Return the cycles to pack an entry of an operand along ``index``."""
        term = self.einsum.inputs[position]
        is_along = term[-1:] == (index,)  # a scalar has no last index
        # an entry is loaded and stored: two accesses for a vector of entries
        width = self.lanes if index == self.vector else min(self.tile_rows, self.lanes)
        cycles = cpu.PACK_CYCLES * 2 / width if is_along else cpu.TURN_CYCLES
        if is_along and index == self.register:
            height = min(self.plan.cuts[index].size, self._count_points((index,)))
            # The entries of one line go to different panels. If there are many, a line
            # of a panel leaves the first-level cache before its next entry comes.
            n_panels = height / self.tile_rows
            is_split = self.tile_rows * self.itemsize % cpu.LINE_BYTES > 0
            if n_panels > cpu.MANY_PANELS:
                cycles += cpu.SPLIT_LINE_CYCLES if is_split else cpu.LINE_CYCLES
        return cycles + cpu.READ_RUN_CYCLES * self._count_runs(term)

    @property
    def store_cycles(self) -> float:
        """Cycles to store results, in vectors if these are along the last axis."""
        output = self.einsum.output
        is_along = self.vector == output[-1]
        cycles = 2.0 / self.lanes if is_along else cpu.SCATTERED_CYCLES
        after = output[output.index(self.register) + 1 :]
        is_far = self._count_points(after) * self.itemsize > cpu.PAGE_BYTES
        cycles += (
            cpu.FAR_RUN_CYCLES if is_far else cpu.STORE_RUN_CYCLES
        ) * self._count_runs(output)
        return self._count_points(output) * cycles

    def _count_runs(self, term: IndexList) -> float:
        """Return the number of short runs per entry that tiles read of an array.

        It is 0 for long runs, and for an array that stays in the second-level cache.
        """
        # a run spans the last axes, up to the first one that the tile cuts
        run = 1
        for index in reversed(term):
            extent = self._count_points((index,))
            cut = self.plan.cuts.get(index)
            size = min(cut.size, extent) if cut and cut.levels else 1
            run *= size
            if size < extent:
                break
        is_near = (
            self._count_points(term) * self.itemsize <= self.machine.cache_bytes["L2"]
        )
        return 0.0 if is_near or run * self.itemsize >= cpu.RUN_BYTES else 1 / run


def _get_build_extents(einsum: BatchedEinsum) -> Mapping[str, Extent]:
    """Return the extents with which the kernel is built."""
    unknown = einsum.at_run_time if isinstance(einsum, SizedEinsum) else frozenset()
    return {
        index: SizeParam(f"n_{index}") if index in unknown else n
        for index, n in einsum.extents.items()
    }


def _list_lengths(extent: int, size: int) -> list[int]:
    """Return the lengths of the tiles of an index.

    >>> _list_lengths(1000, 384)
    [384, 384, 232]
    """
    n_whole, remainder = divmod(extent, size)
    return [size] * n_whole + [remainder] * (remainder > 0)
