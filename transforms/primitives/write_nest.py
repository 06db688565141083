"""Writing new nests: loops, arrays and statements that replace the rows.

If a recipe changes the shape of a whole nest, writing a new one is shorter than
rewriting the old one step by step, and Loopy has less to prove.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from loopy.symbolic import SubstitutionMapper
from loopy.types import NumpyType
from pymbolic import primitives as p
from pymbolic import var
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.ir import Extent
from feinsum.transforms.primitives.schedule import (
    Expression,
    Names,
    Schedule,
    scaled_sum,
)
from feinsum.transforms.primitives.stage_operand import vectorize_last_axis
from feinsum.transforms.primitives.store_pair import PairStore, store_pair
from feinsum.transforms.primitives.vector_store import (
    flat_subscript,
    vector_store,
    with_store_macros,
)

GRID = ("g.", "l.")
"""How tags of loops begin that are no loops of the code."""


@dataclass(frozen=True)
class LoopPart:
    """Loops over a part of an index, and the first value that it has inside them.

    Attributes:
        loops: outermost first.
        point: the value of the index.
        size: the values from that one on which belong to an iteration.
    """

    loops: Names
    point: Expression
    size: int = 1

    @property
    def loop(self) -> str:
        """The innermost loop."""
        return self.loops[-1]


class NestWriter:
    """Collects the parts of a nest; :meth:`finished` puts it in place of the rows.

    Rewrite::

        for i, j:  out[i,j] = shift + scale*sum(k, A(i,k)*B(k,j))

        (what was written, whose stores assign shift + scale*value to out)
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
        text = " and ".join(bounds)
        # every other name in the conditions is a loop around it, or an argument
        outer = sorted(set(re.findall(r"[A-Za-z_]\w*", text)) - {iname, "and"})
        params = f"[{', '.join(outer)}] -> " if outer else ""
        self._domains.append(isl.BasicSet(f"{params}{{ [{iname}] : {text} }}"))
        if tag:
            self._tags[iname] = tag
        # a single work-item cannot race with itself, of which Loopy warns all the same
        if tag.startswith("l.") and size == 1:
            self._single.add(iname)
        return iname

    def blocks(self, index: str, size: int, *, stem: str = "tile") -> LoopPart:
        """Loop over blocks of an index, the last of which the extent may cut."""
        extent = self.schedule.extents[index]
        iname = self.loop(f"{index}_{stem}", f"{size}*{{}} < {extent}")
        return LoopPart((iname,), size * var(iname), size)

    def entries(self, index: str, block: LoopPart | None = None) -> LoopPart:
        """Loop over the entries of an index, or over those of a block in the array."""
        extent = self.schedule.extents[index]
        if block is None:
            iname = self.loop(index, size=extent)
            return LoopPart((iname,), var(iname))
        # without a bound the compiler knows the trip count
        is_exact = isinstance(extent, int) and extent % block.size == 0
        bounds = [] if is_exact else [f"{block.point} + {{}} < {extent}"]
        iname = self.loop(index, *bounds, size=block.size)
        return LoopPart((iname,), block.point + var(iname))

    def cut(
        self,
        index: str,
        size: int,
        block: LoopPart | None = None,
        *,
        stem: str = "step",
    ) -> tuple[LoopPart | None, LoopPart | None]:
        """Loop over the whole tiles of an index, or of a block, and over the rest.

        Rewrite, for an index i of the extent N::

            for i < N:  f(i)

            for i_step while size*i_step + size <= N:  f(size*i_step), ...
            for i_left while size*i_left < N < size*i_left + size:
                for i' while size*i_left + i' < N:  f(size*i_left + i')

        The rest has loops of its own: a condition in the whole tiles would keep
        compilers from making vectors of them.

        Returns:
            Both parts; None for one that is known to be empty, whose literal domain
            Loopy refuses.
        """
        extent = self.schedule.extents[index]
        start, base = (f"{block.point} + ", block.point) if block else ("", 0)
        count = block.size // size if block else None
        position = f"{start}{size}*{{0}}"
        whole = rest = None
        if not isinstance(extent, int) or extent >= size:
            full = f"{position} + {size} <= {extent}"
            tile = self.loop(f"{index}_{stem}", full, size=count)
            whole = LoopPart((tile,), base + size * var(tile), size)
        if not isinstance(extent, int) or extent % size:
            is_left = f"{extent} < {position} + {size}", f"{position} < {extent}"
            tile = self.loop(f"{index}_left", *is_left, size=count)
            inside = f"{position.format(tile)} + {{}} < {extent}"
            entry = self.loop(index, inside, size=size)
            rest = LoopPart((tile, entry), base + size * var(tile) + var(entry))
        return whole, rest

    def tag(self, iname: str, tag: str) -> None:
        """Change how a loop runs, by Loopy's tags."""
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

        One that is shared belongs to all work-items of a group. Loopy puts barriers
        between statements of which one depends on the other. One that is global is
        handed from one launch to the next; see :meth:`launch_end`.
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

    def dtype_of(self, array: str) -> np.dtype[Any]:
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
        """Add a statement in ``loops``, outermost first, where all conditions hold."""
        insn_id = str(self._unused_ids(stem))
        self._add(
            lp.Assignment(
                assignee,
                value,
                id=insn_id,
                within_inames=frozenset(loops),
                depends_on=frozenset(after) | self._before,
                predicates=frozenset(predicates),
            ),
            loops,
        )
        return insn_id

    def scalar(
        self, stem: str, value: Expression, loops: Sequence[str], after: Names = ()
    ) -> tuple[str, str]:
        """Assign a private scalar for statements of C; return its name and the id."""
        name = self.array(stem, (), np.dtype(np.int64))
        return name, self.assign(stem, var(name), value, loops, after)

    def offset_scalar(
        self, entry: p.Subscript, loops: Sequence[str], after: Names = ()
    ) -> tuple[str, str]:
        """Assign a scalar with the offset of an entry of an own array, in C's order."""
        shape = self._arrays[entry.aggregate.name].shape
        return self.scalar("place", _flat(entry.index_tuple, shape), loops, after)

    def add(
        self,
        stem: str,
        build: Callable[[str, Sequence[str], frozenset[str]], lp.InstructionBase],
        loops: Sequence[str],
        after: Collection[str] = (),
    ) -> str:
        """Add a statement of another kind, built from id, loops and dependencies."""
        insn_id = str(self._unused_ids(stem))
        self._add(build(insn_id, loops, frozenset(after) | self._before), loops)
        return insn_id

    def replace(
        self,
        row: int,
        build: Callable[[str, Sequence[str], frozenset[str]], lp.InstructionBase],
        loops: Sequence[str],
        after: Collection[str],
    ) -> None:
        """Replace a row by a statement of another kind."""
        insn_id = self.schedule.instructions[row]
        self._add(build(insn_id, loops, frozenset(after) | self._before), loops)

    def barrier(self, loops: Sequence[str], after: Collection[str]) -> str:
        """Add a barrier at which all work-items of a group wait for each other."""

        def build(insn_id: str, loops: Sequence[str], after: frozenset[str]) -> Any:
            return lp.BarrierInstruction(
                insn_id,
                synchronization_kind="local",
                within_inames=frozenset(loops),
                depends_on=after,
            )

        return self.add("barrier", build, loops, after)

    def note_ordered(self, *ids: str) -> None:
        """Keep Loopy from adding barriers between these statements."""
        self._ordered |= {*ids}

    def note_apart(self, *ids: str) -> None:
        """Note that work-items assign distinct entries, which Loopy cannot see."""
        self._apart |= {*ids}

    def launch_end(self, after: Collection[str]) -> str:
        """Add a barrier that ends a launch, and return its id."""

        def build(insn_id: str, _loops: Sequence[str], after: frozenset[str]) -> Any:
            return lp.BarrierInstruction(
                insn_id, synchronization_kind="global", depends_on=after
            )

        return self.add("launch_end", build, (), after)

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
        """Assign a row's value at ``points`` of the output; it keeps the row's id.

        It keeps loops that are of no index as well: those of a single iteration.

        Args:
            row: number of the row.
            value: the sum, still without scale and shift.
            points: value of each output index.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
            is_last: False for entries that others follow, each of which is stored
                once. Such a statement has an id of its own.
            predicates: conditions that all have to hold.

        Returns:
            The id of the statement.
        """
        schedule = self.schedule
        statement, at = self._target(row, points, loops, after)
        if not is_last:
            part = str(self._unused_ids(f"row_{row}_part"))
            self._parts[row] = (*self._parts.get(row, ()), part)
            statement = statement.copy(id=part)
        if predicates:
            conditions = statement.predicates | frozenset(predicates)
            statement = statement.copy(predicates=conditions)
        value = self.scaled(row, value)
        if schedule.is_shifted(schedule.instructions[row]):
            value = p.Sum((at(schedule.shifts[row]), value))
        self._add(statement.copy(expression=value), loops)
        return str(statement.id)

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
        """Assign a private vector that has a row's value; see :func:`vector_store`.

        Args:
            row: number of the row.
            vector: the variable, with the scale already.
            points: value of each output index at the first lane.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
            lanes: entries of the vector.
            is_streamed: whether the store bypasses the caches.
        """
        kernel = self.schedule.kernel
        moved, _ = self._target(row, points, loops, after)
        offset = self.array("place", (), np.dtype(np.int64))
        flat = flat_subscript(kernel, moved.assignee)
        others = sorted(moved.within_inames - {*loops})
        step = self.assign(offset, var(offset), flat, [*loops, *others], after)
        statement = moved.copy(expression=vector, depends_on=moved.depends_on | {step})
        self._has_vector_stores = True
        self._add(
            vector_store(kernel, statement, lanes, offset, is_streamed=is_streamed),
            loops,
        )

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
        """Assign two contiguous sums of a work-item to contiguous entries of a row.

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
        source, source_id = self.offset_scalar(first, loops, before)
        offset = flat_subscript(kernel, target)
        at, target_id = self.scalar("place", offset, loops, before)
        is_inside, inside_id = self.scalar("inside", inside, loops, before)
        names = first.aggregate.name, target.aggregate.name
        store = PairStore((names[1], at), (names[0], source), is_inside)
        build = partial(store_pair, store, len(target.index_tuple))
        self.replace(row, build, loops, (*before, source_id, target_id, inside_id))

    def scaled(self, row: int, value: Expression) -> Expression:
        """Multiply a sum by the scale of its row."""
        return scaled_sum(self.schedule.scales[row], (), value)

    def _target(
        self,
        row: int,
        points: Mapping[str, Expression],
        loops: Sequence[str],
        after: Collection[str],
    ) -> tuple[lp.Assignment, SubstitutionMapper]:
        """Move a row's statement to ``points`` and ``loops``; return the mapper too."""
        schedule = self.schedule
        insn = schedule.kernel.id_to_insn[schedule.instructions[row]]
        at = SubstitutionMapper(
            make_subst_func({schedule.inames[i]: points[i] for i in schedule.output})
        )
        # loops of the kernel that are no index of the einsum stay around the statement
        others = insn.within_inames - frozenset(schedule.inames.values())
        parts = self._parts.get(row, ())
        moved = insn.copy(
            assignee=at(insn.assignee),
            within_inames=frozenset(loops) | others,
            depends_on=frozenset((*after, *parts)) | self._before,
            no_sync_with=insn.no_sync_with | {(part, "any") for part in parts},
        )
        return moved, at

    def finished(self) -> Schedule:
        """Return the kernel with the rows replaced by the new nest."""
        schedule, kernel = self.schedule, self.schedule.kernel
        rows = set(schedule.instructions)
        others = [insn for insn in kernel.instructions if insn.id not in rows]
        schedule = schedule.with_kernel(
            instructions=[*others, *map(self._with_order, self._statements)],
            temporary_variables={**kernel.temporary_variables, **self._arrays},
            domains=[*kernel.domains, *self._domains],
            # offsets in large arrays exceed 32 bits
            index_dtype=NumpyType(np.dtype(np.int64)),
            silenced_warnings=kernel.silenced_warnings | self._without_races(),
        )
        # the loops of the old nest, and new ones that no statement uses
        inames = frozenset({*schedule.inames.values(), *self._inames})
        t_unit = lp.remove_unused_inames(schedule.t_unit, inames)
        t_unit = lp.tag_inames(t_unit, self._tags)
        t_unit = lp.prioritize_loops(t_unit, self._nesting())
        schedule = schedule.with_unit(t_unit)
        for name in self._vectors:
            schedule = vectorize_last_axis(schedule, name)
        return with_store_macros(schedule) if self._has_vector_stores else schedule

    def _nesting(self) -> Names:
        """Order all sequential loops, consistently with every statement.

        Loopy compares each pair of loops in each order that it is given.
        """
        # One order for all statements: with an order for each, Loopy compares every
        # pair of loops in every order.
        sorter: TopologicalSorter[str] = TopologicalSorter()
        for order in self._orders:
            loops = [i for i in order if not self._tags.get(i, "").startswith(GRID)]
            for outer, inner in pairwise(loops):
                sorter.add(inner, outer)
        return tuple(sorter.static_order())

    def _with_order(self, statement: lp.InstructionBase) -> lp.InstructionBase:
        """Note the order on both of two statements, since Loopy checks either."""
        if statement.id not in self._ordered:
            return statement
        others = frozenset((other, "local") for other in self._ordered)
        return statement.copy(no_sync_with=statement.no_sync_with | others)

    def _without_races(self) -> frozenset[str]:
        """Return the warnings of races in statements that have none."""
        return frozenset(
            f"write_race({statement.id})"
            for statement in self._statements
            if self._single & statement.within_inames or statement.id in self._apart
        )

    @property
    def _before(self) -> frozenset[str]:
        """Ids on which the rows depend, apart from each other."""
        rows = frozenset(self.schedule.instructions)
        insns = self.schedule.kernel.id_to_insn
        return frozenset().union(*(insns[row].depends_on for row in rows)) - rows

    def _add(self, statement: lp.InstructionBase, loops: Sequence[str]) -> None:
        self._statements.append(statement)
        if len(loops) > 1:
            self._orders.append(tuple(loops))


def _flat(indices: Sequence[Expression], shape: Sequence[int]) -> Expression:
    """Return an offset in C's order."""
    offset: Expression = 0
    for index, extent in zip(indices, shape, strict=True):
        offset = p.Sum((p.Product((extent, offset)), index))
    return offset
