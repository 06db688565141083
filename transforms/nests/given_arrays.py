"""A nest over the arrays of a kernel, which reads tree and operands in place.

It reads bounds and indices of nodes from the kernel's own arrays, and operands through
the kernel's rules, and writes the result where the kernel's instruction assigns it.
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
from pytools import UniqueNameGenerator

from feinsum.codegen.nest_arrays import (
    CHUNK,
    ENTRY,
    FLAT,
    ROW,
    TILED,
    NestArrays,
    format_subscript,
    get_axes,
    get_row,
    pad_chunks,
)
from feinsum.codegen.nest_writer import Writer
from feinsum.codegen.nests import SILENCED, make_nest_kernel
from feinsum.errors import TransformError
from feinsum.nests import Buffer, Nest, NestForm
from feinsum.nests.form import COPIES_BYTES, is_private
from feinsum.raising import PARENT, POSITION, LoopNest
from feinsum.raising.expressions import rename, substitute
from feinsum.transforms import heuristics as cpu

SCALE, START = "feinsum_scale", "feinsum_start"


def replace_loops(
    t_unit: lp.TranslationUnit, nest: LoopNest, new_nest: Nest, form: NestForm
) -> lp.TranslationUnit:
    """Replace the instructions of a kernel by the loops of a nest.

    Args:
        t_unit: a unit whose kernel has exactly the instructions of the nest.
        nest: the loops of the kernel, whose sparse operand :attr:`LoopNest.tree`
            describes.
        new_nest: the nest that replaces them.
        form: vectors and parallel loops of the new nest.

    Raises:
        TransformError: if copies and buffers of the nest are known to be too large.
    """
    kernel = _with_extent(t_unit[nest.kernel_name], nest, form)
    used_names = {
        *kernel.all_variable_names(),
        *kernel.all_inames(),
        *kernel.substitutions,
    }
    copies = UniqueNameGenerator(used_names)("copies")
    form = _with_tiles(form, nest)
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
    buffers = [_declare_buffer(writer, buffer) for buffer in new_nest.buffers]
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
        _merge(kernel, lp.expand_subst(generated)[kernel.name], nest)
    )


def _with_extent(
    kernel: lp.LoopKernel, nest: LoopNest, form: NestForm
) -> lp.LoopKernel:
    """Assume that the extent of the lanes is not negative.

    Otherwise Loopy cannot prove that vectors of a run-time extent are in bounds.
    """
    extent = nest.extent(form.lane) if form.lane else 0
    return kernel if isinstance(extent, int) else lp.assume(kernel, f"{extent} >= 0")


def _with_tiles(form: NestForm, nest: LoopNest) -> NestForm:
    """Add tiles if the extent of the lanes is known only in a call."""
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


def _declare_buffer(writer: Writer, buffer: Buffer) -> lp.TemporaryVariable:
    """Declare a buffer: a private one, or one in the memory of each chunk."""
    array = writer.buffers[buffer.producer]
    n_rows = writer.nest.network.n_rows
    if is_private(buffer.indices, writer.dense, n_rows):
        return writer.declare_private_array(array)
    extents = {i: writer.access.extent(i) for i in buffer.indices}
    extents |= {i: str(n) for i, n in writer.dense.items()}
    extents |= {CHUNK: writer.access.n_chunks(), TILED: str(writer.form.tile)}
    extents |= {ROW: str(n_rows)}
    shape, tags = get_axes(array.indices, extents, writer.form)
    return lp.TemporaryVariable(
        array.name,
        writer.dtype,
        pad_chunks(shape) if CHUNK in array.indices else shape,
        dim_tags=tags,
        address_space=lp.AddressSpace.GLOBAL,
    )


class _GivenArrays(NestArrays):
    """The arrays of a given kernel, by its own names."""

    is_flat = True
    is_cleared = False

    def __init__(
        self, nest: Nest, form: NestForm, loop_nest: LoopNest, copies: str
    ) -> None:
        super().__init__(nest, form)
        assert loop_nest.tree is not None
        self.loop_nest, self.tree = loop_nest, loop_nest.tree
        # `out = out + sum` has its initial value in the result; other assignments need
        # a start
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
        """Return the known extents of indices that the tree does not have.

        Lanes of unknown extent count with the extent of a tile: buffers hold no more.
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
        return self._get_bounds(0, "0")

    def n_chunks(self) -> str:
        return str(cpu.N_COPIES if self.has_own else cpu.N_CHUNKS)

    def chunk(self, chunk: str) -> tuple[str, str]:
        # The first n % n_chunks chunks have one node more than the others.
        root_begin, root_end = self._get_bounds(0, "0")
        is_from_zero = root_begin == "0"
        n_nodes = f"({root_end})" if is_from_zero else f"({root_end} - ({root_begin}))"
        share, remainder = (
            f"({n_nodes} // {self.n_chunks()})",
            f"({n_nodes} % {self.n_chunks()})",
        )

        def first(k: str) -> str:
            n_larger = f"({k} if {k} < {remainder} else {remainder})"
            n_before = f"({k})*{share} + {n_larger}"
            return n_before if is_from_zero else f"{root_begin} + {n_before}"

        return first(chunk), first(f"({chunk} + 1)")

    def children(self, level: int, above: str) -> tuple[str, str]:
        return self._get_bounds(level, above)

    def _get_bounds(self, level: int, above: str) -> tuple[str, str]:
        bounds, names = self.tree.levels[level], {PARENT.name: above}
        return _format_expression(bounds.begin, names), _format_expression(
            bounds.end, names
        )

    def index(self, level: int, node: str) -> str:
        index = self.tree.levels[level].index
        return (
            node if index is None else _format_expression(index, {POSITION.name: node})
        )

    def value(self, leaf: str) -> str:
        rule = self._get_rule(0, self.nest.network.sparse or 0)
        return f"{rule}({leaf})"

    def _get_rule(self, row: int, position: int) -> str:
        return self.loop_nest.rules[self.loop_nest.einsum.rows[row][position].name]

    def operand(self, position: int, values: Mapping[str, str]) -> str:
        if position >= self.loop_nest.einsum.n_operands:
            return "1"
        term = self.nest.network.inputs[position]
        arguments = ", ".join(self._flatten_lanes(values)[index] for index in term)
        rule = self._get_rule(get_row(values), position)
        return f"{rule}({arguments})" if arguments else rule

    def result(self, values: Mapping[str, str]) -> str:
        if self.has_copies and CHUNK in values:
            return format_subscript(
                self.copies, self.list_result_axes(), self._flatten_lanes(values)
            )
        assignee = self.loop_nest.assignees[get_row(values)]
        return _format_expression(
            self.express_in_indices(assignee), self._flatten_lanes(values)
        )

    def shared(self, dtype: np.dtype[Any]) -> list[lp.TemporaryVariable]:
        """Return the array of all copies."""
        if not self.has_copies:
            return []
        extents = {CHUNK: self.n_chunks(), ROW: str(self.nest.network.n_rows)}
        shape = tuple(extents.get(i) or self.extent(i) for i in self.list_result_axes())
        space = lp.AddressSpace.GLOBAL
        return [lp.TemporaryVariable(self.copies, dtype, shape, address_space=space)]

    def scaled(self, value: str, values: Mapping[str, str]) -> str:
        row = get_row(values)
        is_plain = self.loop_nest.scales[row] == 1
        return value if is_plain else f"{_format_row_name(SCALE, row)}()*({value})"

    def start(self, values: Mapping[str, str]) -> str:
        arguments = ", ".join(
            self._flatten_lanes(values)[i] for i in self._list_start_arguments()
        )
        return f"{_format_row_name(START, get_row(values))}({arguments})"

    def extent(self, index: str) -> str:
        return str(self.loop_nest.extent(index))

    def _list_start_arguments(self) -> tuple[str, ...]:
        entry = (ENTRY,) if self.nest.network.has_sparse_output else ()
        return (*self.nest.network.output, *entry)

    def rules(self) -> list[lp.SubstitutionRule]:
        """Return rules for the scale and the initial value of each row."""
        names = {i: f"_{k}" for k, i in enumerate(self._list_start_arguments())}
        rules = []
        terms = zip(self.loop_nest.scales, self.loop_nest.shifts, strict=True)
        for row, (scale, shift) in enumerate(terms):
            start = rename(self.express_in_indices(shift), names)
            rules += [
                lp.SubstitutionRule(_format_row_name(SCALE, row), (), scale),
                lp.SubstitutionRule(
                    _format_row_name(START, row), tuple(names.values()), start
                ),
            ]
        return rules

    def _flatten_lanes(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Replace the vector and lane of the lanes' index by its value."""
        lane = self.form.lane
        return (
            {**values, lane: values[FLAT]}
            if lane in values and FLAT in values
            else values
        )

    def express_in_indices(self, expression: Any) -> Any:
        """Express points in the einsum's indices, and in the position of a leaf."""
        names = {point: var(i) for i, point in self.loop_nest.points.items()}
        if self.nest.network.has_sparse_output:
            names[var(self.tree.inames[-1])] = var(ENTRY)
        return SubstitutionMapper(names.get)(expression)


def _format_row_name(name: str, row: int) -> str:
    return f"{name}_{row}"


def _format_expression(expression: Any, values: Mapping[str, str]) -> str:
    """Format an expression of integers, with values for variables."""
    parsed = {name: parse(value) for name, value in values.items()}
    return str(substitute(expression, parsed))


def _merge(
    kernel: lp.LoopKernel, generated: lp.LoopKernel, nest: LoopNest
) -> lp.LoopKernel:
    """Replace a kernel's loops and instructions by those of a generated one."""
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
    # loops that only these instructions had are removed, too
    remaining = [
        d for domain in kernel.domains if (d := _without(domain, inames)) is not None
    ]
    return kernel.copy(
        domains=[*remaining, *generated.domains],
        instructions=generated.instructions,
        inames={
            **{name: i for name, i in kernel.inames.items() if name not in inames},
            **generated.inames,
        },
        temporary_variables={**temporaries, **generated.temporary_variables},
        loop_priority=generated.loop_priority,
        # chunks write disjoint entries, which Loopy cannot see
        options=kernel.options.copy(disable_global_barriers=True),
        silenced_warnings=frozenset({*kernel.silenced_warnings, *SILENCED}),
        linearization=None,
        state=lp.KernelState.INITIAL,
    )


def _without(domain: isl.BasicSet, inames: frozenset[str]) -> isl.BasicSet | None:
    """Remove loops from a domain; None if no loop is left."""
    names = domain.get_var_names(isl.dim_type.set)
    if {*names} <= inames:
        return None if names else domain
    for name in inames.intersection(names):
        _, axis = domain.get_var_dict()[name]
        domain = domain.project_out(isl.dim_type.set, axis, 1)
    return domain
