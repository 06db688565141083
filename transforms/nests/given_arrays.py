"""A nest over the arrays of a kernel, reading tree and operands in place.

Bounds and indices of nodes are read from the kernel's arrays, operands through its
rules, and the result is written where its instruction assigns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from loopy.symbolic import SubstitutionMapper
from pymbolic import parse, var
from pymbolic.mapper.substitutor import make_subst_func
from pytools import UniqueNameGenerator

from feinsum.codegen.nest_arrays import (
    CHUNK,
    ENTRY,
    FLAT,
    ROW,
    TILED,
    NestArrays,
    apart,
    axes_of,
    row_of,
    subscripted,
)
from feinsum.codegen.nest_writer import Writer
from feinsum.codegen.nests import SILENCED, make_nest_kernel
from feinsum.errors import TransformError
from feinsum.nests import Buffer, Nest, NestForm
from feinsum.nests.form import COPIES_BYTES, is_private
from feinsum.raising import PARENT, POSITION, LoopNest
from feinsum.transforms import heuristics as cpu

SCALE, START = "feinsum_scale", "feinsum_start"


def over_given_arrays(
    t_unit: lp.TranslationUnit, nest: LoopNest, new_nest: Nest, form: NestForm
) -> lp.TranslationUnit:
    """Return the kernel in which a nest replaces the instructions that it implements.

    Args:
        t_unit: a unit whose kernel has exactly the instructions of the nest.
        nest: a nest whose sparse operand is stored as described by
            :attr:`LoopNest.tree`.
        new_nest: the nest that replaces them.
        form: vectorization and parallel loops of the new nest.

    Raises:
        TransformError: if its copies and buffers are known to be large.
    """
    kernel = _with_extent(t_unit[nest.kernel_name], nest, form)
    used_names = {
        *kernel.all_variable_names(),
        *kernel.all_inames(),
        *kernel.substitutions,
    }
    copies = UniqueNameGenerator(used_names)("copies")
    form = _in_tiles(form, nest)
    arrays = _GivenArrays(new_nest, form, nest, copies)
    dense = arrays.numbers()
    _check(new_nest, form, nest, dense)
    dtype = nest.einsum.output_dtypes[0]
    writer = Writer(
        new_nest,
        form.filled(dense),
        form,
        dtype,
        arrays=arrays,
        used_names=used_names | {copies},
    )
    writer.write()
    buffers = [_buffer(writer, buffer) for buffer in new_nest.buffers]
    buffers += arrays.shared(dtype)
    generated = make_nest_kernel(
        writer,
        [*kernel.args, *buffers],
        [*kernel.substitutions.values(), *arrays.rules()],
        name=kernel.name,
        index_dtype=kernel.index_dtype,
        target=kernel.target,
        assumptions=kernel.assumptions,
    )
    return t_unit.with_kernel(
        _merged(kernel, lp.expand_subst(generated)[kernel.name], nest)
    )


def _with_extent(
    kernel: lp.LoopKernel, nest: LoopNest, form: NestForm
) -> lp.LoopKernel:
    """Assume that the extent of the lanes is not negative.

    Without that, Loopy cannot prove that vectors of a run-time extent are in bounds.
    """
    extent = nest.extent(form.lane) if form.lane else 0
    return kernel if isinstance(extent, int) else lp.assume(kernel, f"{extent} >= 0")


def _in_tiles(form: NestForm, nest: LoopNest) -> NestForm:
    """Add tiles where the extent of the lanes is known only in a call."""
    if not form.lane or form.tile or isinstance(nest.extent(form.lane), int):
        return form
    return replace(form, tile=cpu.TILE_VECTORS * form.lanes)


def _check(
    new_nest: Nest, form: NestForm, nest: LoopNest, dense: Mapping[str, int]
) -> None:
    n_rows = new_nest.network.n_rows
    shared_axes = [
        b.indices for b in new_nest.buffers if not is_private(b.indices, dense, n_rows)
    ]
    shared_axes += [new_nest.network.output] if form.has_copies else []
    n_bytes = n_rows * sum(
        nest.einsum.output_dtypes[0].itemsize
        * (cpu.N_COPIES if form.is_chunked else 1)
        * prod(n for i in axes if isinstance(n := nest.extent(i), int))
        for axes in shared_axes
    )
    if n_bytes > COPIES_BYTES:
        raise TransformError(
            f"copies and buffers of this nest take {n_bytes / 1e6:.3g} MB or more; "
            f"expected at most {COPIES_BYTES / 1e6:.3g} MB"
        )


def _buffer(writer: Writer, buffer: Buffer) -> lp.TemporaryVariable:
    """Declare a buffer that is private, or in memory that each chunk has."""
    array = writer.buffers[buffer.producer]
    n_rows = writer.nest.network.n_rows
    if is_private(buffer.indices, writer.dense, n_rows):
        return writer.private_array(array)
    extents = {i: writer.of.extent(i) for i in buffer.indices}
    extents |= {i: str(n) for i, n in writer.dense.items()}
    extents |= {CHUNK: writer.of.n_chunks(), TILED: str(writer.form.tile)}
    extents |= {ROW: str(n_rows)}
    shape, tags = axes_of(array.indices, extents, writer.form)
    return lp.TemporaryVariable(
        array.name,
        writer.dtype,
        apart(shape) if CHUNK in array.indices else shape,
        dim_tags=tags,
        address_space=lp.AddressSpace.GLOBAL,
    )


class _GivenArrays(NestArrays):
    """The arrays of a kernel, by the names that it has for them."""

    is_flat = True
    is_cleared = False

    def __init__(
        self, nest: Nest, form: NestForm, loop_nest: LoopNest, copies: str
    ) -> None:
        super().__init__(nest, form)
        assert loop_nest.tree is not None
        self.loop_nest, self.tree = loop_nest, loop_nest.tree
        # `out = out + sum` finds in the result what others have to put there first
        adds = [
            s == a for s, a in zip(loop_nest.shifts, loop_nest.assignees, strict=True)
        ]
        self.has_start = not all(adds) and not form.has_copies
        self.has_copies, self.copies = form.has_copies, copies
        dense = self.numbers()
        self.has_own = form.has_copies or not all(
            is_private(buffer.indices, dense, nest.network.n_rows)
            for buffer in nest.buffers
        )

    def numbers(self) -> dict[str, int]:
        """Return the extents of indices that the tree does not have, as far as known.

        Of lanes whose extent is not, it is that of a tile, which is all that is held.
        """
        einsum, form = self.loop_nest.einsum, self.form
        extents: dict[str, Any] = {i: self.loop_nest.extent(i) for i in einsum.indices}
        if form.tile and not isinstance(extents[form.lane], int):
            extents[form.lane] = form.tile
        return {
            index: extent
            for index, extent in sorted(extents.items())
            if isinstance(extent, int) and index not in self.nest.network.level_of
        }

    def root(self) -> tuple[str, str]:
        return self._bounds(0, "0")

    def n_chunks(self) -> str:
        return str(cpu.N_COPIES if self.has_own else cpu.N_CHUNKS)

    def chunk(self, chunk: str) -> tuple[str, str]:
        # The first n % n_chunks chunks have one node more than the others.
        begin, end = self._bounds(0, "0")
        is_from_zero = begin == "0"
        n = f"({end})" if is_from_zero else f"({end} - ({begin}))"
        share, rest = f"({n} // {self.n_chunks()})", f"({n} % {self.n_chunks()})"

        def first(k: str) -> str:
            more = f"({k} if {k} < {rest} else {rest})"
            whole = f"({k})*{share} + {more}"
            return whole if is_from_zero else f"{begin} + {whole}"

        return first(chunk), first(f"({chunk} + 1)")

    def children(self, level: int, above: str) -> tuple[str, str]:
        return self._bounds(level, above)

    def _bounds(self, level: int, above: str) -> tuple[str, str]:
        bounds, names = self.tree.levels[level], {PARENT.name: above}
        return _text(bounds.begin, names), _text(bounds.end, names)

    def index(self, level: int, node: str) -> str:
        index = self.tree.levels[level].index
        return node if index is None else _text(index, {POSITION.name: node})

    def value(self, leaf: str) -> str:
        rule = self._rule(0, self.nest.network.sparse or 0)
        return f"{rule}({leaf})"

    def _rule(self, row: int, position: int) -> str:
        return self.loop_nest.rules[self.loop_nest.einsum.rows[row][position].name]

    def operand(self, position: int, at: Mapping[str, str]) -> str:
        if position >= self.loop_nest.einsum.n_operands:
            return "1"
        term = self.nest.network.inputs[position]
        arguments = ", ".join(self._flat(at)[index] for index in term)
        rule = self._rule(row_of(at), position)
        return f"{rule}({arguments})" if arguments else rule

    def result(self, at: Mapping[str, str]) -> str:
        if self.has_copies and CHUNK in at:
            return subscripted(self.copies, self.result_axes(), self._flat(at))
        assignee = self.loop_nest.assignees[row_of(at)]
        return _text(self.in_indices(assignee), self._flat(at))

    def shared(self, dtype: np.dtype[Any]) -> list[lp.TemporaryVariable]:
        """Return the array of all copies."""
        if not self.has_copies:
            return []
        extents = {CHUNK: self.n_chunks(), ROW: str(self.nest.network.n_rows)}
        shape = tuple(extents.get(i) or self.extent(i) for i in self.result_axes())
        space = lp.AddressSpace.GLOBAL
        return [lp.TemporaryVariable(self.copies, dtype, shape, address_space=space)]

    def scaled(self, value: str, at: Mapping[str, str]) -> str:
        row = row_of(at)
        is_plain = self.loop_nest.scales[row] == 1
        return value if is_plain else f"{_of_row(SCALE, row)}()*({value})"

    def start(self, at: Mapping[str, str]) -> str:
        arguments = ", ".join(self._flat(at)[i] for i in self._start_arguments())
        return f"{_of_row(START, row_of(at))}({arguments})"

    def extent(self, index: str) -> str:
        return str(self.loop_nest.extent(index))

    def _start_arguments(self) -> tuple[str, ...]:
        entry = (ENTRY,) if self.nest.network.has_sparse_output else ()
        return (*self.nest.network.output, *entry)

    def rules(self) -> list[lp.SubstitutionRule]:
        """Return the scale of each row, and with what its result begins."""
        names = {i: f"_{k}" for k, i in enumerate(self._start_arguments())}
        rules = []
        terms = zip(self.loop_nest.scales, self.loop_nest.shifts, strict=True)
        for row, (scale, shift) in enumerate(terms):
            start = _with_names(self.in_indices(shift), names)
            rules += [
                lp.SubstitutionRule(_of_row(SCALE, row), (), scale),
                lp.SubstitutionRule(_of_row(START, row), tuple(names.values()), start),
            ]
        return rules

    def _flat(self, at: Mapping[str, str]) -> Mapping[str, str]:
        """Replace the index of the lanes by one number."""
        lane = self.form.lane
        return {**at, lane: at[FLAT]} if lane in at and FLAT in at else at

    def in_indices(self, expression: Any) -> Any:
        """Express something in the einsum's indices, and in the position of a leaf."""
        names = {point: var(i) for i, point in self.loop_nest.points.items()}
        if self.nest.network.has_sparse_output:
            names[var(self.tree.inames[-1])] = var(ENTRY)
        return SubstitutionMapper(names.get)(expression)


def _of_row(name: str, row: int) -> str:
    return f"{name}_{row}"


def _with_names(expression: Any, names: Mapping[str, str]) -> Any:
    variables = {old: var(new) for old, new in names.items()}
    return SubstitutionMapper(make_subst_func(variables))(expression)


def _text(expression: Any, values: Mapping[str, str]) -> str:
    """Return an expression of whole numbers, with values for variables."""
    parsed = {name: parse(value) for name, value in values.items()}
    return str(SubstitutionMapper(make_subst_func(parsed))(expression))


def _merged(
    kernel: lp.LoopKernel, generated: lp.LoopKernel, nest: LoopNest
) -> lp.LoopKernel:
    """Replace a kernel's loops and instructions by those of another one."""
    replaced = {
        name for insn in kernel.instructions for name in insn.assignee_var_names()
    }
    inames = kernel.all_inames() & nest.loops
    inames |= {i for insn in kernel.instructions for i in insn.within_inames}
    inames |= {i for insn in kernel.instructions for i in insn.reduction_inames()}
    temporaries = {
        name: temporary
        for name, temporary in kernel.temporary_variables.items()
        if name not in replaced
        or name in generated.get_read_variables() | generated.get_written_variables()
    }
    # Loops that only these instructions had go with them.
    left = [
        d for domain in kernel.domains if (d := _without(domain, inames)) is not None
    ]
    return kernel.copy(
        domains=[*left, *generated.domains],
        instructions=generated.instructions,
        inames={
            **{name: i for name, i in kernel.inames.items() if name not in inames},
            **generated.inames,
        },
        temporary_variables={**temporaries, **generated.temporary_variables},
        loop_priority=generated.loop_priority,
        # chunks write what is theirs, which Loopy cannot see
        options=kernel.options.copy(disable_global_barriers=True),
        silenced_warnings=frozenset({*kernel.silenced_warnings, *SILENCED}),
        linearization=None,
        state=lp.KernelState.INITIAL,
    )


def _without(domain: isl.BasicSet, inames: frozenset[str]) -> isl.BasicSet | None:
    """Return a domain without loops; None if nothing is left of it."""
    names = domain.get_var_names(isl.dim_type.set)
    if {*names} <= inames:
        return None if names else domain
    for name in inames.intersection(names):
        _, axis = domain.get_var_dict()[name]
        domain = domain.project_out(isl.dim_type.set, axis, 1)
    return domain
