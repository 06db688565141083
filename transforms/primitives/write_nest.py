"""A writer of new nests: loops, arrays and statements that replace the rows.

If a family changes the shape of a whole nest, it is shorter to write a new nest than to
rewrite the old one step by step, and Loopy has less to prove. A copy in tiles of four::

    writer = NestWriter(schedule)
    tile = writer.blocks("i", 4)                     # for i_tile while 4*i_tile < N
    entry = writer.entries("i", tile)                #   for i while 4*i_tile + i < N
    value = schedule.multiply_row(0, {"i": entry.point})
    writer.store(0, value, {"i": entry.point}, [*tile.loops, *entry.loops])
    return writer.build().t_unit
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from loopy.types import NumpyType
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import Extent
from feinsum.raising.expressions import substitute
from feinsum.transforms.primitives.loops import make_domain
from feinsum.transforms.primitives.operands import vectorize_last_axis
from feinsum.transforms.primitives.schedule import (
    CStatement,
    Expression,
    Names,
    Schedule,
    StatementBuilder,
    make_c_statement,
    make_scaled_sum,
    make_tagged_statement,
)
from feinsum.transforms.primitives.store_pair import PairStore
from feinsum.transforms.primitives.vector_store import (
    ELEMENTS,
    PREAMBLE,
    compute_offset,
    find_global_array,
)

GRID = ("g.", "l.")
"""Prefixes of the tags of loops that run in parallel, and are not loops of the code."""


@dataclass(frozen=True)
class LoopRange:
    """Loops over a range of an index, and the value of the index inside them.

    Attributes:
        loops: inames, outermost first.
        point: the first value of the index in an iteration.
        size: number of consecutive values that an iteration covers.
    """

    loops: Names
    point: Expression
    size: int = 1

    @property
    def loop(self) -> str:
        """The innermost loop."""
        return self.loops[-1]


class NestWriter:
    """Collects loops, arrays and statements with which :meth:`build` replaces rows.

    Rewrite::

        for i, j:  out[i,j] = shift + scale*sum(k, A(i,k)*B(k,j))

        (the new nest, whose stores assign shift + scale*value to out)
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._unused = schedule.kernel.get_var_name_generator()
        self._unused_ids = schedule.kernel.get_instruction_id_generator()
        self._domains: list[isl.BasicSet] = []
        self._tags: dict[str, str] = {}
        self._arrays: dict[str, lp.TemporaryVariable] = {}
        self._vectors: list[str] = []
        self._statements: list[lp.InstructionBase] = []
        self._orders: list[Names] = []
        self._parts: dict[int, Names] = {}
        self._inames: list[str] = []
        self._single: set[str] = set()
        self._has_vector_stores = False
        self._apart: set[str] = set()
        self._ordered: set[str] = set()

    def loop(
        self, stem: str, *conditions: str, size: Extent | None = None, tag: str = ""
    ) -> str:
        """Add a loop from 0, below ``size`` and while all ``conditions`` hold.

        Args:
            stem: beginning of the iname.
            conditions: in isl's syntax, with ``{}`` for the new iname.
            size: extent of the loop; None for no bound but the conditions.
            tag: tag of the iname.
        """
        iname = str(self._unused(stem))
        self._inames.append(iname)
        bounds = [f"0 <= {iname}", *(text.format(iname) for text in conditions)]
        bounds += [f"{iname} < {size}"] if size is not None else []
        self._domains.append(make_domain([iname], *bounds))
        if tag:
            self._tags[iname] = tag
        # Loopy warns of a race even if a single work-item runs the loop
        if tag.startswith("l.") and size == 1:
            self._single.add(iname)
        return iname

    def blocks(self, index: str, size: int, *, stem: str = "tile") -> LoopRange:
        """Loop over blocks of an index, of which the last one may be shorter."""
        extent = self.schedule.extents[index]
        iname = self.loop(f"{index}_{stem}", f"{size}*{{}} < {extent}")
        return LoopRange((iname,), size * var(iname), size)

    def entries(self, index: str, block: LoopRange | None = None) -> LoopRange:
        """Loop over all values of an index, or over those of a block."""
        extent = self.schedule.extents[index]
        if block is None:
            iname = self.loop(index, size=extent)
            return LoopRange((iname,), var(iname))
        # without the bound, the trip count is a constant to the compiler
        is_exact = isinstance(extent, int) and extent % block.size == 0
        bounds = [] if is_exact else [f"{block.point} + {{}} < {extent}"]
        iname = self.loop(index, *bounds, size=block.size)
        return LoopRange((iname,), block.point + var(iname))

    def cut(
        self,
        index: str,
        size: int,
        block: LoopRange | None = None,
        *,
        stem: str = "step",
    ) -> tuple[LoopRange | None, LoopRange | None]:
        """Loop over the full tiles of an index or block, and over the remainder.

        Rewrite, for an index i of the extent N::

            for i < N:  f(i)

            for i_step while size*i_step + size <= N:  f(size*i_step), ...
            for i_left while size*i_left < N < size*i_left + size:
                for i' while size*i_left + i' < N:  f(size*i_left + i')

        The remainder has loops of its own: a condition in the full tiles would keep
        compilers from vectorizing them.

        Returns:
            The loops over full tiles, and those over the remainder. None in place of
            loops that are known to be empty: Loopy refuses a constant empty domain.
        """
        extent = self.schedule.extents[index]
        start, base = (f"{block.point} + ", block.point) if block else ("", 0)
        count = block.size // size if block else None
        position = f"{start}{size}*{{0}}"
        whole_tiles = remainder = None
        if not isinstance(extent, int) or extent >= size:
            full = f"{position} + {size} <= {extent}"
            tile = self.loop(f"{index}_{stem}", full, size=count)
            whole_tiles = LoopRange((tile,), base + size * var(tile), size)
        # tiles of one value leave nothing, whatever the extent is
        if size > 1 and (not isinstance(extent, int) or extent % size):
            is_left = f"{extent} < {position} + {size}", f"{position} < {extent}"
            tile = self.loop(f"{index}_left", *is_left, size=count)
            inside = f"{position.format(tile)} + {{}} < {extent}"
            entry = self.loop(index, inside, size=size)
            remainder = LoopRange((tile, entry), base + size * var(tile) + var(entry))
        return whole_tiles, remainder

    def tag(self, iname: str, tag: str) -> None:
        """Set Loopy's tag of a loop, such as ``unr``, ``vec`` or ``g.0``."""
        self._tags[iname] = tag

    def array(
        self,
        stem: str,
        shape: Sequence[Any],
        dtype: np.dtype[Any],
        *,
        has_lanes: bool = False,
        is_shared: bool = False,
        is_global: bool = False,
    ) -> str:
        """Declare a private array; with lanes, its last axis becomes OpenCL vectors.

        A shared array belongs to all work-items of a group; Loopy puts barriers between
        dependent statements that access it. A global array keeps its contents from one
        launch to the next; see :meth:`launch_end`.
        """
        name = str(self._unused(stem))
        spaces = lp.AddressSpace
        space = spaces.LOCAL if is_shared else spaces.PRIVATE
        self._arrays[name] = lp.TemporaryVariable(
            name,
            dtype,
            shape=tuple(shape),
            address_space=spaces.GLOBAL if is_global else space,
        )
        if has_lanes:
            self._vectors.append(name)
        return name

    def get_dtype(self, array: str) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self._arrays[array].dtype.numpy_dtype
        return dtype

    def assign(
        self,
        stem: str,
        assignee: Expression,
        value: Expression,
        loops: Sequence[str],
        after: Collection[str] = (),
        *,
        predicates: Collection[Expression] = (),
    ) -> str:
        """Add an assignment in ``loops``, outermost first, under all ``predicates``."""
        statement = lp.Assignment(
            assignee,
            value,
            predicates=frozenset(predicates),
            **self._make_attributes(stem, loops, after),
        )
        return self._add(statement, loops)

    def scalar(
        self, stem: str, value: Expression, loops: Sequence[str], after: Names = ()
    ) -> tuple[str, str]:
        """Assign a private scalar that C statements read; return its name and id."""
        name = self.array(stem, (), np.dtype(np.int64))
        return name, self.assign(stem, var(name), value, loops, after)

    def point_to(
        self, entry: p.Subscript, loops: Sequence[str], after: Names = ()
    ) -> tuple[tuple[str, str], str]:
        """Assign the offset of an entry of this nest's arrays, in C order, to a scalar.

        Returns:
            The array and the scalar, as C statements take pointers; and the id.
        """
        array, offset = entry.aggregate.name, 0
        for index, extent in zip(
            entry.index_tuple, self._arrays[array].shape, strict=True
        ):
            offset = p.Sum((p.Product((extent, offset)), index))
        scalar, computed = self.scalar("place", offset, loops, after)
        return (array, scalar), computed

    def add(
        self,
        stem: str,
        build: StatementBuilder,
        loops: Sequence[str],
        after: Collection[str] = (),
    ) -> str:
        """Add a statement that ``build`` makes from its id, loops and dependencies."""
        attributes = self._make_attributes(stem, loops, after)
        insn = build(attributes["id"], loops, attributes["depends_on"])
        return self._add(insn, loops)

    def state(
        self,
        stem: str,
        statement: CStatement,
        loops: Sequence[str],
        after: Collection[str] = (),
        *,
        row: int | None = None,
        n_axes: int = 0,
    ) -> str:
        """Add a statement of C code, or replace a row by it; return its id.

        The number of axes is for :func:`make_tagged_statement`.
        """
        rows, before = self.schedule.instructions, frozenset(after) | self._before
        insn_id = str(self._unused_ids(stem)) if row is None else rows[row]
        tagged = make_tagged_statement(statement, insn_id, loops, before, n_axes=n_axes)
        return self._add(tagged, loops)

    def barrier(self, loops: Sequence[str], after: Collection[str]) -> str:
        """Add a barrier at which all work-items of a group wait for each other."""
        return self._add_barrier("barrier", "local", loops, after)

    def note_ordered(self, *ids: str) -> None:
        """Declare these statements ordered, so that Loopy adds no barriers between."""
        self._ordered |= {*ids}

    def note_apart(self, *ids: str) -> None:
        """Declare that work-items assign distinct entries, which Loopy cannot prove."""
        self._apart |= {*ids}

    def end_launch(self, after: Collection[str]) -> str:
        """Add a barrier that ends a launch, and return its id."""
        return self._add_barrier("launch_end", "global", (), after)

    def _add_barrier(
        self, stem: str, kind: str, loops: Sequence[str], after: Collection[str]
    ) -> str:
        attributes = self._make_attributes(stem, loops, after)
        return self._add(
            lp.BarrierInstruction(synchronization_kind=kind, **attributes), loops
        )

    def store(
        self,
        row: int,
        value: Expression,
        points: Mapping[str, Expression],
        loops: Sequence[str],
        after: Collection[str] = (),
        *,
        is_last: bool = True,
        predicates: Collection[Expression] = (),
    ) -> str:
        """Assign a row's value at ``points`` of the output.

        The statement keeps the row's id, and those of its loops that belong to no index
        of the einsum, which have a single iteration.

        Args:
            row: number of the row.
            value: the sum, before scale and shift are applied.
            points: value of each output index.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
            is_last: whether this store completes the row. Each entry is stored once; a
                store of some of them that is not the last has an id of its own.
            predicates: conditions that all have to hold.

        Returns:
            The id of the statement.
        """
        schedule = self.schedule
        statement, replaced = self._target(row, points, loops, after)
        if not is_last:
            part_id = str(self._unused_ids(f"row_{row}_part"))
            self._parts[row] = (*self._parts.get(row, ()), part_id)
            statement = statement.copy(id=part_id)
        if predicates:
            conditions = statement.predicates | frozenset(predicates)
            statement = statement.copy(predicates=conditions)
        value = self.scaled(row, value)
        if schedule.is_shifted(schedule.instructions[row]):
            shift = substitute(schedule.shifts[row], replaced)
            value = p.Sum((shift, value))
        return self._add(statement.copy(expression=value), loops)

    def store_vector(
        self,
        row: int,
        vector: Expression,
        points: Mapping[str, Expression],
        loops: Sequence[str],
        after: Collection[str] = (),
        *,
        lanes: int,
        is_streamed: bool,
    ) -> None:
        """Store a private vector of a row's values.

        Rewrite::

            out[i,4*j] = vector

            feinsum_store(double, 4, vector, out, place);

        Args:
            row: number of the row.
            vector: the variable; its values are scaled already.
            points: value of each output index at the first lane.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
            lanes: entries of the vector.
            is_streamed: whether the store bypasses the caches, if the vector is aligned
                in the output.
        """
        kernel = self.schedule.kernel
        target, _ = self._target(row, points, loops, after)
        array = find_global_array(kernel, target.assignee.aggregate.name)
        offset = self.array("place", (), np.dtype(np.int64))
        flat = compute_offset(kernel, target.assignee)
        other_loops = sorted(target.within_inames - {*loops})
        step = self.assign(offset, var(offset), flat, [*loops, *other_loops], after)
        self._has_vector_stores = True
        macro = "feinsum_stream" if is_streamed else "feinsum_store"
        element = ELEMENTS[array.dtype.numpy_dtype.itemsize]
        store = make_c_statement(
            f"{macro}({element}, {lanes}, {vector.name}, {array.name}, {offset});",
            target.id,
            target.within_inames,
            target.depends_on | {step},
            read_variables=frozenset({vector.name, offset}),
            assignees=(target.assignee,),
            no_sync_with=target.no_sync_with,
        )
        self._add(store, loops)

    def store_pair(
        self,
        row: int,
        first: p.Subscript,
        points: Mapping[str, Expression],
        loops: Sequence[str],
        after: Collection[str],
        *,
        predicates: Collection[Expression] = (),
    ) -> None:
        """Store two contiguous sums of a work-item in contiguous entries of the output.

        Args:
            row: number of the row.
            first: the first of the two sums, in a private array.
            points: value of each output index at the first entry.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
            predicates: conditions that all have to hold.
        """
        kernel = self.schedule.kernel
        target = self._target(row, points, loops, after)[0].assignee
        inside = p.If(p.LogicalAnd(tuple(predicates)), 1, 0) if predicates else 1
        before = tuple(after)
        source, source_id = self.point_to(first, loops, before)
        flat = compute_offset(kernel, target)
        target_offset, target_id = self.scalar("place", flat, loops, before)
        is_inside, inside_id = self.scalar("inside", inside, loops, before)
        store = PairStore((target.aggregate.name, target_offset), source, is_inside)
        after = (*before, source_id, target_id, inside_id)
        n_axes = len(target.index_tuple)
        self.state("store", store, loops, after, row=row, n_axes=n_axes)

    def scaled(self, row: int, value: Expression) -> Expression:
        """Multiply a sum by the scale of its row."""
        return make_scaled_sum(self.schedule.scales[row], (), value)

    def _target(
        self,
        row: int,
        points: Mapping[str, Expression],
        loops: Sequence[str],
        after: Collection[str],
    ) -> tuple[lp.Assignment, dict[str, Expression]]:
        """Move a row's statement to ``points`` and ``loops``.

        Returns:
            The statement, and the point that replaces each iname of an output index.
        """
        schedule = self.schedule
        insn = schedule.kernel.id_to_insn[schedule.instructions[row]]
        replaced = {schedule.inames[i]: points[i] for i in schedule.output}
        # keep the kernel's loops that belong to no index of the einsum
        other_loops = insn.within_inames - frozenset(schedule.inames.values())
        part_ids = self._parts.get(row, ())
        moved = insn.copy(
            assignee=substitute(insn.assignee, replaced),
            within_inames=frozenset(loops) | other_loops,
            depends_on=frozenset((*after, *part_ids)) | self._before,
            no_sync_with=insn.no_sync_with | {(part_id, "any") for part_id in part_ids},
        )
        return moved, replaced

    def build(self) -> Schedule:
        """Return the schedule with the rows replaced by the new nest."""
        schedule, kernel = self.schedule, self.schedule.kernel
        rows = set(schedule.instructions)
        other_statements = [insn for insn in kernel.instructions if insn.id not in rows]
        schedule = schedule.with_kernel(
            instructions=[*other_statements, *map(self._with_order, self._statements)],
            temporary_variables={**kernel.temporary_variables, **self._arrays},
            domains=[*kernel.domains, *self._domains],
            # offsets in large arrays exceed 32 bits
            index_dtype=NumpyType(np.dtype(np.int64)),
            silenced_warnings=kernel.silenced_warnings | self._list_false_races(),
        )
        # the loops of the old nest, and new ones that no statement uses
        inames = frozenset({*schedule.inames.values(), *self._inames})
        t_unit = lp.remove_unused_inames(schedule.t_unit, inames)
        t_unit = lp.tag_inames(t_unit, self._tags)
        t_unit = lp.prioritize_loops(t_unit, self._order_loops())
        schedule = schedule.with_unit(t_unit)
        for name in self._vectors:
            schedule = vectorize_last_axis(schedule, name)
        return schedule.with_preamble(PREAMBLE) if self._has_vector_stores else schedule

    def _order_loops(self) -> Names:
        """Order all sequential loops, consistently with every statement."""
        # one order for all statements: Loopy compares each pair of loops in each order
        # that it is given, which takes long if every statement has one
        sorter: TopologicalSorter[str] = TopologicalSorter()
        for order in self._orders:
            loops = [i for i in order if not self._tags.get(i, "").startswith(GRID)]
            for outer, inner in pairwise(loops):
                sorter.add(inner, outer)
        return tuple(sorter.static_order())

    def _with_order(self, statement: lp.InstructionBase) -> lp.InstructionBase:
        """Declare the order on each ordered statement, since Loopy checks them all."""
        if statement.id not in self._ordered:
            return statement
        unsynchronized = frozenset((other_id, "local") for other_id in self._ordered)
        return statement.copy(no_sync_with=statement.no_sync_with | unsynchronized)

    def _list_false_races(self) -> frozenset[str]:
        """Return the race warnings to silence: those of statements without a race."""
        return frozenset(
            f"write_race({statement.id})"
            for statement in self._statements
            if self._single & statement.within_inames or statement.id in self._apart
        )

    @property
    def _before(self) -> frozenset[str]:
        """Ids of other statements on which the rows depend."""
        rows = frozenset(self.schedule.instructions)
        insns = self.schedule.kernel.id_to_insn
        return frozenset().union(*(insns[row].depends_on for row in rows)) - rows

    def _make_attributes(
        self, stem: str, loops: Sequence[str], after: Collection[str]
    ) -> dict[str, Any]:
        """Return the id, the loops and the dependencies of a new statement."""
        return {
            "id": str(self._unused_ids(stem)),
            "within_inames": frozenset(loops),
            "depends_on": frozenset(after) | self._before,
        }

    def _add(self, statement: lp.InstructionBase, loops: Sequence[str]) -> str:
        """Add a statement, and return its id."""
        self._statements.append(statement)
        if len(loops) > 1:
            self._orders.append(tuple(loops))
        return str(statement.id)
