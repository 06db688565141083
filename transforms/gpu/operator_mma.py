"""Operators with one matrix for all elements, on tensor cores of double precision.

A group multiplies ``turns`` tiles of elements one after another by a matrix. For the
gradient ``xre,rij,ej->xei``, D is the right factor. Each warp loads its part once, and
keeps it in registers. The elements are rows of the left factor::

    acc[r][e, i] += tile[e, j] @ D[r][i, j].T        (a warp: height e, width i)
    result[x][e, i] = sum(r, J[x,r,e] * acc[r][e, i])

                  rows i of the matrix, ``width`` of each warp
                +--------+--------+
    elements    | warp 0 | warp 1 |    ``height`` elements of each warp
    of a tile   +--------+--------+
                | warp 2 | warp 3 |
                +--------+--------+

Elements are in blocks of 16 down, rows of the matrix in blocks of 8 across. See
:mod:`feinsum.transforms.gpu.fragments` for what each lane holds, and
:mod:`feinsum.transforms.gpu.staging` for how tiles are loaded. The time line of a turn,
with ``ahead``::

    settle   registers of this turn's tile -> shared memory, times the early factors
    load     the next tile -> registers           (global memory answers during `mma`)
    barrier
    mma      fragments of the tile @ fragments of the matrix
    share    sums times the late factors -> shared memory
    barrier
    store    results -> global memory, in their order there

Copies of what functions read begin after the barrier. The rows of a batch are computed
one after another in each tile.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA", for blocks of warps and instructions;
paper, section 7, for the steps before and after the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import inf

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var
from pytools.tag import Tag

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.raising.expressions import make_sum
from feinsum.targets.cuda.code import LeastGroups, OrderedLoads
from feinsum.transforms.cost import Gpu
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.cost import (
    count_group_bytes,
    has_tensor_cores,
    predict_kernel_s,
)
from feinsum.transforms.gpu.families import (
    explain_items,
    explain_shared_bytes,
    is_double,
    list_starts,
    register_family,
)
from feinsum.transforms.gpu.fragments import (
    DOUBLE,
    HALVES,
    INTERLEAVED,
    INTERLEAVED_SUM_COLUMN,
    QUAD,
    ZERO,
    WarpProduct,
)
from feinsum.transforms.gpu.layouts import clamp
from feinsum.transforms.gpu.operator_steps import NAMES, OperatorSteps, OperatorTiles
from feinsum.transforms.gpu.staging import RowParts, StagingWriter
from feinsum.transforms.gpu.tiles import Point
from feinsum.transforms.primitives import Schedule, begin
from feinsum.transforms.primitives.copy_async import COPIES
from feinsum.transforms.primitives.multiply_fragments import COLUMNS, PRODUCTS, ROWS
from feinsum.transforms.primitives.schedule import Expression
from feinsum.transforms.registry import (
    Parameters,
    Space,
    list_choices,
    register,
    with_starts,
)
from feinsum.transforms.roles import count_points, find_element_indices


def apply_gpu_operator_mma(
    t_unit: lp.TranslationUnit,
    nest: LoopNest,
    parameters: Parameters,
    *,
    has_early_loads: bool = True,
) -> lp.TranslationUnit:
    """Multiply tiles of elements by the matrix, of which each warp holds some rows.

    Rewrite, for the gradient ``xre,rij,ej->xei``::

        for x, e, i:  out[x,e,i] = sum((r,j), J[x,r,e]*D[r,i,j]*u[e,j])

        for group, warp, lane in parallel:
            matrix[:,:,:] = D[:,i,:]                       # for rows i of the warp
            for turn:
                tile[:,:], factors[:,:,:] = u[e,:], J[:,:,e]     # all work-items
                (barrier)
                for j, r:  acc[r,:,:] += tile[:,j] @ matrix[r,:,j]     # a warp
                for x:  result[x,:,:] = sum(r, factors[x,r,:]*acc[r,:,:])
                (barrier)
                out[:,e,:] = result[:,:,:]                 # all work-items

    Parameters:
        element: the long index.
        elements: elements of a tile.
        height: elements of a tile that a warp multiplies.
        width: rows of the matrix that a warp holds.
        terms: terms that one instruction adds to each sum.
        turns: tiles that a group multiplies one after another.
        groups: groups for which a multiprocessor must have enough registers.
        ahead: whether to load a tile to registers while the previous one is multiplied.
    """
    schedule = begin(t_unit, nest)
    steps = _find_steps(nest.einsum, parameters["element"])
    if steps is None:
        raise TransformError(
            f"{nest.einsum.subscripts} is no product of elements with one matrix whose "
            "results lie in order"
        )
    tiles = OperatorTiles.of(nest.einsum, steps, parameters)
    writer = _OperatorMma(schedule, steps, tiles, has_early_loads=has_early_loads)
    return writer.written().t_unit


def _apply_1(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    return apply_gpu_operator_mma(t_unit, nest, parameters, has_early_loads=False)


class _OperatorMma(StagingWriter):
    """Writes the loops; see :func:`apply_gpu_operator_mma`."""

    def __init__(
        self,
        schedule: Schedule,
        steps: OperatorSteps,
        tiles: OperatorTiles,
        *,
        has_early_loads: bool,
    ) -> None:
        super().__init__(schedule, steps, tiles, has_early_loads=has_early_loads)
        # the warp's blocks of elements, and of rows of the matrix
        self.down = p.FloorDiv(var(self.warp), tiles.across)
        self.across = p.Remainder(var(self.warp), tiles.across)
        self.product = WarpProduct(
            self, self.lane, tiles.height, tiles.width, tiles.terms
        )
        self.rows = self.flat(steps.rows)

    def written(self) -> Schedule:
        """Return the schedule with the nest replaced."""
        steps, tiles, schedule = self.steps, self.tiles, self.schedule
        self.declare_tiles()
        shape = (tiles.elements, tiles.row_stride)
        self.result = self.declare_shared("result", steps.fan, shape)
        self.matrices = {
            name: self._load_matrix(name)
            for name in dict.fromkeys(row[steps.matrix] for row in schedule.rows)
        }
        row_parts = [self.list_parts(k) for k in range(len(schedule.rows))]
        before = [self._zero_padding()] if tiles.depth > tiles.n_terms else []
        loads: list[str] = []
        if tiles.is_ahead:
            start = self.assign_start(self.first, self.around)
            loads = [
                *self.load_parts(row_parts[0], start, before),
                *self.begin_copies(row_parts[0], start, before),
            ]
        for k, parts in enumerate(row_parts):
            if not tiles.is_ahead:
                loads = self.load_parts(parts, self.now, before)
            settled = self.settle_parts(parts, [*loads, *before])
            settled, loads = self._await_tile(row_parts, k, settled)
            before = self._write_row(k, [*settled, *loads])
        self.note_ordered(*self.shared_accesses)
        self.note_apart(*self.shared_accesses)
        schedule = self.build().with_preamble(PRODUCTS)
        if self.copies:
            schedule = schedule.with_preamble(COPIES)
        tags: set[Tag] = {LeastGroups(tiles.groups)}
        if self.has_early_loads:
            tags |= {OrderedLoads()}
        return schedule.with_kernel(tags=schedule.kernel.tags | tags)

    def _await_tile(
        self, row_parts: Sequence[RowParts], k: int, settled: list[str]
    ) -> tuple[list[str], list[str]]:
        """Wait for full tiles; load the next ones before or after the barrier."""
        if not self.has_early_loads:
            settled = [*settled, self.barrier(self.loops, settled)]
        loads: list[str] = []
        if self.tiles.is_ahead:
            parts, start = self.get_next(row_parts, k)
            loads = self.load_parts(parts, start, settled)
        if self.has_early_loads:
            # the compiler cannot move the loads past this barrier, into the product
            settled = [*settled, self.barrier(self.loops, [*settled, *loads])]
        if self.tiles.is_ahead:
            # after the barrier, as copies overwrite what was read before it
            loads += self.begin_copies(parts, start, settled)
        return settled, loads

    def _write_row(self, k: int, after: Sequence[str]) -> list[str]:
        """Multiply and store a row; return the ids of the last barrier and before."""
        steps = self.steps
        matrix = self.matrices[self.schedule.rows[k][steps.matrix]]
        shared = self._share_result(*self._multiply(matrix, after), after)
        # lanes store results of other lanes
        before = [self.barrier(self.loops, [shared]), shared]
        entries = self.visit((self.element,), steps.rows, steps.fan, self.now)
        points = entries.points
        stored = self.store(
            k, self._get_result_entry(points, self.rows.ravel(points)),
            entries.points_of_all, [*self.loops, *entries.loops],
            [*before, *entries.after], predicates=entries.exists,
        )  # fmt: skip
        self.note_shared(stored)
        return before

    def _load_matrix(self, name: str) -> tuple[str, str]:
        """Load the right fragments of a matrix to registers; return array and id.

        Their columns are interleaved: of eight rows of the matrix, the two in the sums
        of a lane are four apart, and neighbouring lanes have neighbouring rows; see
        :data:`feinsum.transforms.gpu.fragments.INTERLEAVED`.
        """
        tiles = self.tiles
        loops, points = self.loop_over(self.steps.deferred, "unr")
        shape = (
            tiles.width // COLUMNS, tiles.depth // tiles.terms, tiles.terms // QUAD
        )  # fmt: skip
        inames = [self.unroll(n) for n in shape]
        block, step, quad = map(var, inames)
        term = self.product.term(step, quad)
        row = self._compute_matrix_row(block, INTERLEAVED.at(self.product.g))
        points |= self._unravel_row(row)
        # The last instruction may have terms beyond the matrix. They must not be read,
        # and must be zero: NaN times the zeros of the tile would be NaN.
        is_padded = tiles.depth > tiles.n_terms
        existing = clamp(term, tiles.n_terms) if is_padded else term
        points |= self.terms.unravel(existing)
        value = self.schedule.multiply((name,), points)
        if is_padded:
            value = p.If(p.Comparison(term, "<", tiles.n_terms), value, ZERO)
        lengths = tuple(map(self.length, self.steps.deferred))
        array = self.array("matrix", (*lengths, *shape), DOUBLE)
        loops = [*loops, *inames]
        entry = var(array)[tuple(map(var, loops))]
        return array, self.assign("load", entry, value, [*self.around, *loops])

    def _zero_padding(self) -> str:
        """Zero the padding terms of a tile, which fill the last instruction.

        Once before the first turn is enough: tiles are not written there.
        """
        tiles = self.tiles
        n = tiles.depth - tiles.n_terms
        n_entries = n * tiles.elements
        step = self.unroll(-(-n_entries // self.n_items))
        number = p.Sum((var(self.item), self.n_items * var(step)))
        entry = self.tile[
            p.FloorDiv(number, n), p.Sum((tiles.n_terms, p.Remainder(number, n)))
        ]
        return self.note_shared(
            self.assign(
                "pad", entry, ZERO, [*self.around, step], [self.numbered],
                predicates=[p.Comparison(number, "<", n_entries)],
            )
        )  # fmt: skip

    def _multiply(
        self, matrix: tuple[str, str], filled: Sequence[str]
    ) -> tuple[str, str]:
        """Add products of fragments to a warp's sums; return their array and the id."""
        tiles, product = self.tiles, self.product
        lengths = tuple(map(self.length, self.steps.deferred))
        acc, zero = product.clear_sums(lengths, self.loops, filled)
        step = self.unroll(tiles.depth // tiles.terms)

        def of_tile(
            block: Expression, quad: Expression, half: Expression
        ) -> Expression:
            return self.tile[
                self._compute_element(block, half), product.term(var(step), quad)
            ]

        shape = (tiles.height // ROWS, tiles.terms // QUAD, HALVES)
        left, loaded = product.load_fragments(
            "elements", shape, of_tile, [*self.loops, step], filled
        )
        self.note_shared(loaded)
        # one left fragment serves all values of the deferred indices, whose loops are
        # therefore innermost
        down, across, *inames = (self.unroll(n) for n in (*product.n_blocks, *lengths))
        outer = tuple(map(var, inames))
        entries = (
            var(acc)[(*outer, var(down), var(across), 0)],
            var(left)[var(down), 0, 0],
            var(matrix[0])[(*outer, var(across), var(step), 0)],
        )
        return acc, product.multiply(
            entries, (*self.loops, step, down, across, *inames),
            [zero, loaded, matrix[1]],
        )  # fmt: skip

    def _share_result(self, acc: str, summed: str, filled: Sequence[str]) -> str:
        """Write the sums, multiplied by the late factors, to shared memory."""
        tiles, steps = self.tiles, self.steps
        inames, points = self.loop_over(steps.fan, "unr")
        shape = (tiles.height // ROWS, HALVES, tiles.width // COLUMNS, 2)
        block = [self.unroll(n) for n in shape]
        down, half, across, e = map(var, block)
        points[self.element] = self._compute_element(down, half)
        row = self._compute_matrix_row(
            across, INTERLEAVED_SUM_COLUMN(e, self.product.t)
        )
        points |= self._unravel_row(row)
        terms: list[Expression] = []
        for late in self.list_values(steps.deferred):
            # entry [h, e] of the sums of a fragment
            of_fragment = down, across, p.Sum((2 * half, e))
            term = var(acc)[(*(late[i] for i in steps.deferred), *of_fragment)]
            if self.factors:
                factor = self.factors.at({**points, **late}, points[self.element])
                term = p.Product((factor, term))
            terms.append(term)
        loops = [*self.loops, *inames, *block]
        # the result has room for padding rows, so no lane needs a guard
        entry = self._get_result_entry(points, row)
        return self.note_shared(
            self.assign("share", entry, make_sum(terms), loops, [summed, *filled])
        )

    def _get_result_entry(self, points: Point, row: Expression) -> Expression:
        outer = tuple(points[i] for i in (*self.steps.fan, self.element))
        return self.result[(*outer, row)]

    def _compute_element(self, block: Expression, half: Expression) -> Expression:
        """Return the element of a lane, counted within the tile."""
        first = self.tiles.height * self.down
        return self.product.compute_row_or_column(first, ROWS, block, half)

    def _compute_matrix_row(self, block: Expression, column: Expression) -> Expression:
        return p.Sum((self.tiles.width * self.across, COLUMNS * block, column))

    def _unravel_row(self, row: Expression) -> dict[str, Expression]:
        """Return the point of a row of the matrix; a padding row has the last one."""
        tiles = self.tiles
        is_full = tiles.width * tiles.across == tiles.n_rows
        return self.rows.unravel(row if is_full else clamp(row, tiles.n_rows))


def _find_steps(einsum: BatchedEinsum, element: str) -> OperatorSteps | None:
    """Return steps that sum over all indices of a tile, and store results in order."""
    steps = OperatorSteps.of(einsum, element)
    # An outer index would need a tile for each value. The results go through shared
    # memory in the order of the output, so rows of an element have to be adjacent.
    if steps is None or {*steps.tile} != {*steps.contracted} or not steps.contracted:
        return None
    return steps if steps.has_results_in_order(einsum) else None


def _make_space(workload: Workload) -> Space | None:
    """Fit operators in double precision with a long element index and one matrix."""
    einsum = workload.einsum
    if not is_double(einsum):
        return None
    fits = {i: s for i in find_element_indices(einsum) if (s := _find_steps(einsum, i))}
    if not fits:
        return None
    table = {
        "element": tuple(fits),
        "elements": (32, 64, 16),
        "height": (32, 16),
        "width": (8, 16, 24),
        "terms": (4, 8),
        "turns": (4, 5, 6, 7, 8, 10, 13, 2, 1),
        "groups": (2, 3, 4, 5, 1),
        "ahead": (True, False),
    }

    def constraint(parameters: Parameters) -> str | None:
        steps = fits[parameters["element"]]
        return _find_excess(OperatorTiles.of(einsum, steps, parameters))

    def others() -> Iterable[Parameters]:
        # more terms in an instruction waste more of the last one of a sum
        return list_choices(
            {**table, "terms": (4,), "turns": (4, 7, 10), "ahead": (True,)}
        )

    starts = partial(list_starts, table, NAMES, h.OPERATOR_MMA_STARTS)
    return with_starts(Space(table, constraint), starts, others)


def _find_excess(tiles: OperatorTiles) -> str | None:
    """Explain which limit of GPUs with such tensor cores is exceeded, or None."""
    if tiles.elements % tiles.height:
        return f"{tiles.height} elements of a warp do not divide {tiles.elements}"
    n_items = h.WARP * tiles.n_warps
    # what a lane holds during a whole turn; fragments of the tile are short-lived
    n_held = tiles.n_sums + tiles.n_fragments
    if n_held > h.MAX_HELD:
        return f"{n_held} numbers of a lane, expected at most {h.MAX_HELD}"
    # `__launch_bounds__` makes the compiler spill what exceeds this
    most = h.REGISTERS // (n_items * tiles.groups)
    if tiles.groups > 1 and 2 * n_held + h.MIN_REGISTERS > most:
        return f"{n_held} numbers of a lane do not fit {most} registers"
    return explain_items(n_items) or explain_shared_bytes(
        8 * tiles.n_shared * tiles.groups, h.SHARED_BYTES_SM80
    )


def _predict_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds; tiles and results pass once through shared memory."""
    # the family gains nothing where tensor cores are not faster than other units
    if not has_tensor_cores(gpu, 8):
        return inf
    element = parameters["element"]
    steps = _find_steps(einsum, element)
    assert steps is not None
    tiles = OperatorTiles.of(einsum, steps, parameters)
    n_rows = einsum.batch_size
    n_turns = -(-count_points(einsum, (element,)) // tiles.elements)
    n_groups = -(-n_turns // tiles.turns)
    box = {i: count_points(einsum, (i,)) for i in einsum.indices}
    # each group reads the matrix once, not for each tile
    matrices = 8 * tiles.n_matrices * tiles.n_deferred * tiles.n_rows * tiles.n_terms
    n_bytes = count_group_bytes(einsum, box | {element: tiles.elements}) - matrices
    products = tiles.n_deferred * tiles.across * tiles.width * tiles.depth
    per_line = h.LINE_BYTES // 8
    n_items = h.WARP * tiles.n_warps
    of_element = [i for i in einsum.inputs[tiles.streamed] if i != element]
    most = min(h.MAX_REGISTERS, h.REGISTERS // (tiles.groups * n_items))
    # accesses to shared memory for each element: every warp across reads fragments,
    # results are written and read, the tile and its factors are written
    entries = tiles.across * tiles.depth + 2 * tiles.n_fan * tiles.n_rows
    entries += (len(steps.early) + 2) * tiles.n_terms
    of_turn = h.STEPS_AHEAD if tiles.is_ahead else h.STEPS_OF_TURN
    return predict_kernel_s(
        gpu,
        einsum,
        n_groups=n_groups,
        n_items=n_items,
        multiply_adds=n_turns * n_rows * tiles.elements * products,
        requests=n_turns * n_rows * tiles.elements * entries / per_line,
        cached_bytes=n_turns * n_bytes + n_groups * matrices,
        steps=h.STEPS_OF_TURN + of_turn * n_rows * tiles.turns,
        shared_bytes=8 * tiles.n_shared,
        registers=min(most, 64 + 2 * (tiles.n_sums + tiles.n_fragments)),
        chains=tiles.n_sums,
        n_loads=count_points(einsum, of_element) * tiles.elements / n_items,
        is_on_tensor_cores=True,
    )


GPU_OPERATOR_MMA = register_family(
    "gpu_operator_mma",
    2,
    "one matrix for all elements, on tensor cores of double precision",
    _make_space,
    apply_gpu_operator_mma,
    _predict_s,
)
register(
    replace(
        GPU_OPERATOR_MMA,
        version=1,
        summary="gpu_operator_mma@2, but the compiler decides when to load ahead",
        apply=_apply_1,
    )
)
