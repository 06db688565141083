"""Batches of cells: a loop over cells that calls a kernel, for several cells at once.

A program such as PyOP2 gathers the inputs of a one-cell kernel, calls it, and scatters
its outputs. This module inlines the kernel, and makes every statement run for all cells
of a batch at once, in GNU C vectors::

    for c in start .. end              for b in batches
        t[i] = w[map[c, i]]                t[i, l] = w[map[cell(b, l), i]]   for all l
        call kernel(A, t)       ->         A[j, l] = A[j, l] + p[i, j]*t[i, l]
        out[map[c, j]] += A[j]             for l, one after the other
                                               out[map[cell(b, l), j]] += A[j, l]

Values are scattered cell by cell, in the original order. Beyond the last cell, a batch
repeats that cell and scatters nothing.

Source: the cross-element vectorization of Sun et al., A study of vectorization for
matrix-free finite element methods, International Journal of High Performance Computing
Applications 34 (2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from loopy.symbolic import (
    IdentityMapper,
    SubstitutionMapper,
    get_dependencies,
    pw_aff_to_expr,
)
from pymbolic import primitives as p
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.errors import TransformError
from feinsum.raising import called_kernels
from feinsum.raising.affine import are_distinct_places, find_strides
from feinsum.raising.expressions import Expression, get_subscripts
from feinsum.raising.rewriting import without_no_ops
from feinsum.targets.host import EmbeddedCTarget

WIDTHS = (4, 8)
"""Batch sizes to try: one or two vectors of double precision."""


def batch_cells(unit: lp.TranslationUnit, width: int) -> lp.TranslationUnit:
    """Rewrite a unit to compute batches of cells, with the same name and arguments.

    Args:
        unit: a unit with one entry point, which calls one kernel in a loop over cells.
        width: the number of cells in a batch.

    Raises:
        TransformError: if cells may depend on each other, except by adding to an array
            in order.
    """
    (name,) = unit.entrypoints
    (called,) = called_kernels(unit, name)
    loop = find_loop_around(unit[name], called)
    # the compiler could not vectorize over calls
    inlined = lp.inline_callable_kernel(unit, called)
    kernel = without_no_ops(lp.infer_unknown_types(inlined)[name])
    cells = CellLoop(kernel, loop, width)
    cells.check()
    return EmbeddedCTarget.embedded(inlined.with_kernel(_build_batched_kernel(cells)))


def _build_batched_kernel(cells: CellLoop) -> lp.LoopKernel:
    """Build the kernel in which batches take the place of cells."""
    batch = _Batch(
        cells,
        cells.kernel.get_var_name_generator(),
        cells.kernel.get_instruction_id_generator(),
    )
    instructions = batch.instructions()
    domains = [
        domain
        for domain in cells.kernel.domains
        if cells.loop not in domain.get_var_names(isl.dim_type.set)
    ]
    inames = {n: i for n, i in cells.kernel.inames.items() if n != cells.loop}
    order = frozenset(
        tuple(i for i in loops if i != cells.loop)
        for loops in cells.kernel.loop_priority
    )
    kernel = cells.kernel.copy(
        domains=[*domains, *map(isl.BasicSet, batch.domains)],
        inames=inames,
        instructions=instructions,
        temporary_variables=batch.temporaries(),
        loop_priority=frozenset(loops for loops in order if len(loops) > 1),
    )
    kernel = lp.remove_unused_inames(kernel)
    # Loopy's newer scheduler cannot vectorize. Some statements cannot be vectorized at
    # all; their lanes run one by one. Both are expected.
    expected = ("v1_scheduler_fallback", "vectorize_failed")
    silenced = {*kernel.silenced_warnings, *expected}
    kernel = kernel.copy(silenced_warnings=frozenset(silenced))
    return lp.tag_inames(kernel, {batch.lane: "vec"})


class _InLane(IdentityMapper):  # type: ignore[misc]
    """Add the lane to the subscripts of private values, and substitute the cell."""

    def __init__(
        self, private: Iterable[str], lane: Expression, loop: str, cell: Expression
    ) -> None:
        super().__init__()
        self.private, self.lane = frozenset(private), lane
        self.loop, self.cell = loop, cell

    def map_variable(self, expr: p.Variable, /) -> Expression:
        if expr.name == self.loop:
            return self.cell
        return expr[self.lane,] if expr.name in self.private else expr

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        indices = tuple(self.rec(index) for index in expr.index_tuple)
        if expr.aggregate.name in self.private:
            indices = (*indices, self.lane)
        return p.Subscript(expr.aggregate, indices)


@dataclass
class _Batch:
    """The replacement of the loop over cells."""

    cells: CellLoop
    fresh: Any
    ids: Any
    domains: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        first, last = self.cells.bounds
        width = self.cells.width
        self.batch = str(self.fresh("batch"))
        names = sorted(get_dependencies((first, last)))
        self.lane, self.unit_vector = str(self.fresh("lane")), str(self.fresh("ones"))
        self._start = first + width * p.Variable(self.batch)
        self._last = last
        bound = f"0 <= {self.batch} and {first} + {width}*{self.batch} <= {last}"
        self.domains.append(f"[{', '.join(names)}] -> {{[{self.batch}]: {bound}}}")
        self.domains.append(f"{{[{self.lane}]: 0 <= {self.lane} < {width}}}")

    def instructions(self) -> list[lp.Assignment]:
        """Build the instructions, each dependent on the one before."""
        instructions = [self._set_ones()]
        arrays = self.cells.kernel.arg_dict
        for insn in self.cells.order:
            # private values are computed in all lanes; those beyond the last cell
            # repeat that cell
            if insn.assignee_var_names()[0] not in arrays:
                lane = p.Variable(self.lane)
                lane_cell = self._start + lane
                cell = p.If(
                    p.Comparison(lane_cell, "<=", self._last), lane_cell, self._last
                )
                instructions.append(self._move_to_lanes(insn, lane, cell))
                continue
            # cells may add to the same entry, so they do it one after the other, in the
            # order of the given loop
            for k in range(self.cells.width):
                cell = self._start + k
                stored = self._move_to_lanes(self._with_own_loops(insn), k, cell)
                has_cell = frozenset({p.Comparison(cell, "<=", self._last)})
                name = str(self.ids(f"{insn.id}_lane"))
                instructions.append(stored.copy(id=name, predicates=has_cell))
        return [
            insn.copy(
                depends_on=frozenset(
                    before.id for before in instructions[max(0, k - 1) : k]
                ),
                depends_on_is_final=True,
            )
            for k, insn in enumerate(instructions)
        ]

    def _move_to_lanes(
        self, insn: lp.Assignment, lane: Expression, cell: Expression
    ) -> lp.Assignment:
        """Move an instruction to all lanes or to one lane."""
        move = _InLane(self.cells.private, lane, self.cells.loop, cell)
        lanes = {self.lane} if lane == p.Variable(self.lane) else set()
        inner_loops = insn.within_inames - {self.cells.loop}
        value = move(insn.expression)
        # Loopy assigns a scalar to one lane only
        if lanes and self._is_one_number(insn):
            value = p.Product((value, p.Variable(self.unit_vector)[lane,]))
        return insn.copy(
            assignee=move(insn.assignee),
            expression=value,
            within_inames=frozenset({*inner_loops, self.batch, *lanes}),
            within_inames_is_final=True,
            no_sync_with=frozenset(),
        )

    def _set_ones(self) -> lp.Assignment:
        """Build the assignment that sets a vector to ones.

        A number that all lanes share becomes a vector when it is multiplied by ones.
        """
        return lp.Assignment(
            p.Variable(self.unit_vector)[p.Variable(self.lane),],
            1.0,
            id=str(self.ids("ones")),
            within_inames=frozenset({self.batch, self.lane}),
            within_inames_is_final=True,
        )

    def _is_one_number(self, insn: lp.Assignment) -> bool:
        (name,) = insn.assignee_var_names()
        lanes = {*self.cells.private, self.cells.loop}
        return self.cells.private[
            name
        ].dtype == self.dtype and not lanes & get_dependencies(insn.expression)

    @cached_property
    def dtype(self) -> Any:
        """The dtype of most values, and of the vector of ones."""
        floats = [
            t.dtype
            for t in self.cells.private.values()
            if t.dtype.numpy_dtype.kind == "f"
        ]
        if not floats:
            raise TransformError("no value of a cell is a floating point number")
        return max(floats, key=lambda dtype: dtype.itemsize)

    def _with_own_loops(self, insn: lp.Assignment) -> lp.Assignment:
        """Give an instruction loops of its own, which end before the next cell."""
        kernel = self.cells.kernel
        loops = sorted(insn.within_inames - {self.cells.loop})
        new_loops = {loop: str(self.fresh(loop)) for loop in loops}
        for name, new_loop in new_loops.items():
            domain = kernel.get_inames_domain(frozenset({name}))
            alone = domain.project_out_except([name], [isl.dim_type.set])
            self.domains.append(str(alone.set_dim_name(isl.dim_type.set, 0, new_loop)))
        names = {name: p.Variable(new_loop) for name, new_loop in new_loops.items()}
        renamed = SubstitutionMapper(make_subst_func(names))
        within = frozenset(new_loops.get(i, i) for i in insn.within_inames)
        return insn.with_transformed_expressions(renamed).copy(within_inames=within)

    def temporaries(self) -> dict[str, lp.TemporaryVariable]:
        """Declare private values as vectors of lanes; tables keep their shapes."""
        kernel, width = self.cells.kernel, self.cells.width
        values = {n: (t.dtype, t.shape) for n, t in self.cells.private.items()}
        private = {
            name: lp.TemporaryVariable(
                name,
                dtype,
                shape=(*shape, width),
                dim_tags=[*(f"N{k}" for k in reversed(range(len(shape)))), "vec"],
                address_space=lp.AddressSpace.PRIVATE,
            )
            for name, (dtype, shape) in {
                **values,
                self.unit_vector: (self.dtype, ()),
            }.items()
        }
        tables = {
            name: temporary.copy(address_space=lp.AddressSpace.GLOBAL)
            if temporary.initializer is not None
            else temporary
            for name, temporary in kernel.temporary_variables.items()
        }
        return {**tables, **private}


MOST_BYTES = 1 << 18
"""Maximum bytes of the private values of a batch, which are on the stack."""


def find_loop_around(kernel: lp.LoopKernel, called: str) -> str:
    """Return the one loop around the call."""
    calls = [i for i in kernel.instructions if isinstance(i, lp.CallInstruction)]
    around = frozenset[str]().union(*(insn.within_inames for insn in calls))
    if len(calls) != 1 or len(around) != 1:
        raise TransformError(
            f"kernel {called!r} is called {len(calls)} times, in the loops "
            f"{sorted(around)}; expected one call in one loop over cells"
        )
    (loop,) = around
    return loop


@dataclass(frozen=True)
class CellLoop:
    """A loop over cells without calls."""

    kernel: lp.LoopKernel
    loop: str
    width: int

    @cached_property
    def order(self) -> list[lp.Assignment]:
        """The instructions, each after those that it waits for."""
        waiting = list(self.kernel.instructions)
        ordered: list[lp.Assignment] = []
        ids: set[str] = set()
        while waiting:
            ready = next((i for i in waiting if i.depends_on <= ids), None)
            if ready is None:
                raise TransformError("its instructions depend on each other in a cycle")
            waiting.remove(ready)
            ids.add(ready.id)
            ordered.append(ready)
        return ordered

    @cached_property
    def private(self) -> dict[str, lp.TemporaryVariable]:
        """The private values of each cell."""
        written = self.kernel.get_written_variables()
        temporaries = self.kernel.temporary_variables
        return {n: t for n, t in temporaries.items() if n in written}

    @cached_property
    def bounds(self) -> tuple[Expression, Expression]:
        """The first cell and the last one."""
        bounds = self.kernel.get_iname_bounds(self.loop)
        ends = bounds.lower_bound_pw_aff, bounds.upper_bound_pw_aff
        if any(len(end.get_pieces()) != 1 for end in ends):
            raise TransformError(f"loop {self.loop!r} has no plain bounds")
        first, last = (pw_aff_to_expr(end) for end in ends)
        return first, last

    def check(self) -> None:
        """Raise a TransformError if the cells cannot be computed together."""
        if self.kernel.substitutions:
            raise TransformError("the kernel has substitution rules")
        for insn in self.order:
            is_plain = (
                isinstance(insn, lp.Assignment)
                and not (insn.predicates or insn.atomicity)
                and isinstance(insn.assignee, (p.Variable, p.Subscript))
                and not insn.reduction_inames()
            )
            if not is_plain or self.loop not in insn.within_inames:
                raise TransformError(
                    f"instruction {insn.id!r} is not a plain assignment in the loop "
                    f"{self.loop!r}"
                )
        self._check_domains()
        self._check_arrays()
        for name, temporary in self.private.items():
            self._check_private(name, temporary)
        n_bytes = sum(
            self.width * prod(t.shape) * t.dtype.itemsize for t in self.private.values()
        )
        if n_bytes > MOST_BYTES:
            raise TransformError(
                f"the values of {self.width} cells take {n_bytes} bytes; at most "
                f"{MOST_BYTES} are put on the stack"
            )

    def _check_domains(self) -> None:
        for domain in self.kernel.domains:
            if self.loop in domain.get_var_names(isl.dim_type.param):
                raise TransformError(f"a loop has bounds that depend on {self.loop!r}")
            names = domain.get_var_names(isl.dim_type.set)
            if self.loop in names and len(names) > 1:
                raise TransformError(f"loop {self.loop!r} shares its domain")

    def _check_arrays(self) -> None:
        """Check that each written array has one writer.

        Only the writer may read it, and only the entry to which it adds.
        """
        arrays = set(self.kernel.arg_dict)
        for insn in self.order:
            (name,) = insn.assignee_var_names()
            if name not in arrays:
                continue
            other_users = [
                other.id
                for other in self.order
                if other.id != insn.id and name in other.dependency_names()
            ]
            # the names that it reads, except the entry to which it adds
            value = SubstitutionMapper({insn.assignee: 0}.get)(insn.expression)
            read = get_dependencies((value, *get_subscripts(insn.assignee)))
            if other_users or name in read:
                raise TransformError(
                    f"{name!r} is written, and read or written elsewhere; a cell may "
                    "depend on the one before"
                )

    def _check_private(self, name: str, temporary: lp.TemporaryVariable) -> None:
        """Check that each cell assigns all entries of a value before it reads any."""
        touching = [i for i in self.order if name in i.dependency_names()]
        first = touching[0]
        is_first = (
            name in first.assignee_var_names()
            and name not in get_dependencies(first.expression)
            and temporary.base_storage is None
            and temporary.initializer is None
            and isinstance(temporary.shape, tuple)
            and all(isinstance(n, (int, np.integer)) for n in temporary.shape)
        )
        if not is_first or not self._is_covering(first, temporary.shape):
            raise TransformError(
                f"not every entry of {name!r} is assigned before it is read in a cell"
            )

    def _is_covering(self, insn: lp.Assignment, shape: Sequence[int]) -> bool:
        """Return whether an assignment in its loops assigns all entries of a value."""
        if not shape:
            return True
        inames = insn.within_inames - {self.loop}
        extents = {i: self.kernel.get_constant_iname_length(i) for i in inames}
        subscripts = [find_strides(i, inames) for i in insn.assignee.index_tuple]
        used = [i for subscript in subscripts if subscript for i in subscript.inames]
        return (
            all(subscript is not None for subscript in subscripts)
            and len(set(used)) == len(used)
            and all(
                are_distinct_places(subscript, extents)
                for subscript in subscripts
                if subscript
            )
            and prod(extents[i] for i in used) == prod(shape)
        )
