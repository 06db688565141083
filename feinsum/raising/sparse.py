"""Einsums of a sparse operand: instructions in loops over the nodes of a tree.

The loops over nodes form a path from the root: each runs over the children of a node of
the previous one. An index has the name of its loop. For a matrix in CSR ::

    for i, for k in ptr[i] .. ptr[i+1], for j:  C[i, j] = C[i, j] + val[k]*B[idx[k], j]

is ``ik,kj->ij``. The factor with an entry for each leaf is the tree. The other factors
are dense, and are read at the indices of nodes and of other loops. Instructions that
multiply the same tree by different dense operands form a batch. Instructions that load
bounds and indices, compute private values or fill the result with zeros belong to the
nest, too; a recipe replaces all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from loopy.symbolic import IdentityMapper, Reduction, get_dependencies
from pymbolic import primitives as p

from feinsum.errors import FeinsumError, NotAnEinsumError
from feinsum.ir import (
    BatchedEinsum,
    Extent,
    IndexList,
    Operand,
    OperandFunction,
    SizeParam,
)
from feinsum.raising.affine import are_distinct_places, find_box_extents, find_parameter
from feinsum.raising.dependences import group_in_batches, may_join
from feinsum.raising.expressions import (
    Expression,
    collect_loops,
    collect_nodes,
    make_product,
    rename,
)
from feinsum.raising.functions import unresolve, write_function
from feinsum.raising.nest import RaisedNest, express_in_kernel, value_of
from feinsum.raising.operands import OperandTable, RuleUse, align
from feinsum.raising.privates import Privates, find_fill
from feinsum.raising.row import ShiftedSum, get_output_strides, take_apart
from feinsum.raising.trees import (
    ENTRY,
    INDEX,
    Nodes,
    list_subscripts,
    make_tree_refusal,
)


@dataclass(frozen=True)
class TreeTerms:
    """The factors of an instruction over a tree, and its indices.

    Attributes:
        stored: the factors with entries of leaves, marked.
        accesses: the dense factors.
        extents: the extents of all indices.
        dtype: the dtype of all factors and of the result.
    """

    stored: tuple[Expression, ...]
    accesses: tuple[RuleUse, ...]
    output: IndexList
    extents: Mapping[str, Extent]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class TreeRow:
    """An instruction in loops over nodes; private variables are substituted.

    Attributes:
        parts: its value, taken apart.
        assigned: its assignee.
    """

    insn: lp.Assignment
    table: OperandTable
    privates: Privates
    parts: ShiftedSum
    assigned: Expression
    nodes: Nodes

    @classmethod
    def of(
        cls, insn: lp.Assignment, table: OperandTable, privates: Privates
    ) -> TreeRow | None:
        """Build the row of an instruction; None if it is not in a loop over nodes.

        Raises:
            NotAnEinsumError: if it is, but its loops are not those of a tree.
        """
        # substitute coordinates and entries that the kernel keeps in scalars
        value = privates.value(insn, insn.expression)
        (output,) = insn.assignee_var_names()
        sums = (sum_.inames for sum_ in collect_nodes(value, Reduction))
        if insn.within_inames.union(*sums).isdisjoint(table.levels):
            return None
        if insn.predicates or insn.atomicity:
            raise make_tree_refusal(insn, "it has predicates, or is atomic")
        parts = take_apart(
            value, table.is_operand, lambda e: output in get_dependencies(e), insn.id
        )
        assignee = privates.value(insn, insn.assignee)
        values = (*parts.factors, parts.shift, assignee)
        inames = insn.within_inames | set(parts.inames)
        nodes = Nodes.of(insn, inames, table.levels, values)
        return cls(insn, table, privates, parts, assignee, nodes)

    def _refuse(self, reason: str) -> NotAnEinsumError:
        return make_tree_refusal(self.insn, reason)

    @property
    def output(self) -> str:
        """The variable that it assigns."""
        return str(self.insn.assignee_var_names()[0])

    @property
    def inames(self) -> frozenset[str]:
        return frozenset(self.insn.within_inames | set(self.parts.inames))

    @cached_property
    def flat(self) -> lp.LoopKernel:
        """The kernel without loops over nodes, whose other loops isl can analyze."""
        return _without(self.table.kernel, self.table.levels)

    @cached_property
    def boxes(self) -> dict[str, Extent]:
        """The extents of loops with known bounds."""
        names = self.inames - self.table.levels.keys()
        return find_box_extents(self.flat, names, self.insn.id)

    @cached_property
    def assignee(self) -> Expression:
        return self.nodes.marked(self.insn, self.assigned)

    @cached_property
    def gives_pattern(self) -> bool:
        """Whether the result is sparse: it has an entry for each leaf."""
        return self.nodes.is_leaf_of(self.output, self.assignee)

    @cached_property
    def terms(self) -> TreeTerms:
        """The factors and indices of the row.

        Raises:
            NotAnEinsumError: if it is not an einsum of a sparse operand.
        """
        insn, table, nodes = self.insn, self.table, self.nodes
        stored, dense = self._split_factors()
        output = self._find_output()
        extents = self._find_extents(dense)
        table.note_sizes(extents.values(), insn.id)
        # operands are functions of indices, even if loops run over positions
        accesses = [
            table.access(nodes.by_index(factor), output, extents, insn.id)
            for factor in dense
        ]
        self._check_indices(output, accesses, extents)
        dtype = self._find_dtype(stored, accesses)
        return TreeTerms(tuple(stored), tuple(accesses), output, extents, dtype)

    @property
    def kind(self) -> Hashable:
        """A key that is equal for rows that can form a batch."""
        terms = self.terms
        return (
            self.nodes.inames,
            terms.stored,
            self.gives_pattern,
            terms.output,
            tuple(sorted(access.term for access in terms.accesses)),
            frozenset(terms.extents.items()),
            terms.dtype,
        )

    @property
    def scale(self) -> Expression:
        return make_product(self.parts.scale)

    def _split_factors(self) -> tuple[list[Expression], list[Expression]]:
        """Return the factors with leaf entries and the dense factors, marked."""
        if not self.parts.factors:
            raise self._refuse("its value depends on no operand")
        stored, dense = [], []
        for factor in self.parts.factors:
            marked = self.nodes.marked(self.insn, factor)
            at_nodes = self.nodes.marks(marked, ENTRY)
            if not at_nodes:
                dense.append(marked)
                continue
            dense_loops = self.nodes.marks(marked, INDEX)
            dense_loops |= get_dependencies(marked) & self.table.kernel.all_inames()
            if at_nodes != {self.nodes.inames[-1]} or dense_loops:
                raise self._refuse(
                    f"the factor {factor} has an entry for each node of "
                    f"{sorted(at_nodes)}; expected values of "
                    f"{self.nodes.inames[-1]!r} alone, and dense arrays at the indices "
                    "of nodes",
                )
            stored.append(marked)
        return stored, dense

    def _find_output(self) -> IndexList:
        if self.gives_pattern:
            return self.nodes.inames
        subscripts = get_output_strides(
            self.nodes.by_index(self.assignee), self.table.kernel
        )
        if self.nodes.marks(self.assignee, ENTRY) or subscripts is None:
            raise self._refuse(
                f"it assigns to {self.insn.assignee}; expected an entry for each leaf "
                "of the tree, or one at distinct indices",
            )
        return tuple(name for subscript in subscripts for name in subscript.inames)

    def _find_extents(self, dense: Sequence[Expression]) -> dict[str, Extent]:
        """Return the extents of all indices; those of nodes come from array axes."""
        stored = self.nodes.stored
        extents = {i: extent for i, extent in self.boxes.items() if i not in stored}
        for iname in self.nodes.inames:
            if iname not in extents:
                extents[iname] = self._find_axis_extent(iname, [*dense, self.assignee])
        return extents

    def _find_axis_extent(self, iname: str, marked: Sequence[Expression]) -> Extent:
        """Return the extent of an axis that a node indexes, or a new parameter."""
        kernel, index = self.table.kernel, p.Variable(iname + INDEX)
        for entry in (e for expression in marked for e in list_subscripts(expression)):
            shape = kernel.get_var_descriptor(entry.aggregate.name).shape
            axes = entry.index_tuple
            if not isinstance(shape, tuple) or index not in axes:
                continue
            extent = shape[axes.index(index)]
            if isinstance(extent, (int, np.integer)):
                return int(extent)
            if parameter := find_parameter(extent, kernel):
                return parameter
        unique = kernel.get_var_name_generator()
        return SizeParam(str(unique(f"extent_{iname}")))

    def _check_indices(
        self,
        output: IndexList,
        accesses: Sequence[RuleUse],
        extents: Mapping[str, Extent],
    ) -> None:
        insn, kernel = self.insn, self.table.kernel
        bound = {i for access in accesses for i in access.term} | {*self.nodes.inames}
        if unbound := sorted((self.inames | {*output}) - bound):
            raise self._refuse(f"no factor depends on its loop {unbound[0]!r}")
        if twice := sorted(set(self.parts.inames) & insn.within_inames):
            raise self._refuse(f"it sums over its own loop {twice[0]!r}")
        if self.gives_pattern:
            return
        for subscript in (
            get_output_strides(self.nodes.by_index(self.assignee), kernel) or ()
        ):
            if not are_distinct_places(subscript, extents):
                raise self._refuse(f"points of its output {insn.assignee} meet")

    def _find_dtype(
        self, stored: Sequence[Expression], accesses: Sequence[RuleUse]
    ) -> np.dtype[Any]:
        """Return the dtype of all accesses, which must be equal for recipes."""
        table, insn = self.table, self.insn
        read = [self.nodes.drop_marks(make_product(tuple(stored)))] if stored else []
        read += [*self.parts.scale, self.parts.shift]
        dtypes = {access.operand.dtype for access in accesses}
        dtypes |= {
            table.infer_computed_dtype(table.expand(e), insn.id)
            for e in read
            if not isinstance(e, (int, float))
        }
        declared = table.kernel.get_var_descriptor(self.output).dtype
        dtypes |= {getattr(declared, "numpy_dtype", dtype) for dtype in dtypes}
        dtypes |= self._list_private_dtypes()
        if len(dtypes) != 1 or next(iter(dtypes)).kind not in "fc":
            raise self._refuse(
                f"its values have the dtypes {sorted(map(str, dtypes))}; expected one "
                "of floating point",
            )
        return next(iter(dtypes))

    def _list_private_dtypes(self) -> set[np.dtype[Any]]:
        """Return the floating point dtypes of private variables.

        Raises:
            NotAnEinsumError: if an integer variable holds a value that is not integer.
        """
        dtypes = set()
        for name, private in self.privates.values.items():
            if private.last not in self.privates.used[self.insn.id]:
                continue
            dtype = self.table.kernel.temporary_variables[name].dtype.numpy_dtype
            value = self.table.dtype(private.value, private.last)
            if dtype.kind in "iu" and value.kind not in "iu":
                raise self._refuse(f"{name!r} rounds its value to a whole number")
            dtypes |= {dtype} if dtype.kind in "fc" else set()
        return dtypes

    def stored(self) -> Operand:
        """Build the tree operand: its rule takes a leaf, its function takes indices."""
        terms, inames = self.terms, self.nodes.inames
        value = make_product(terms.stored)
        arrays = [entry.aggregate.name for entry in list_subscripts(value)]
        body = unresolve(rename(value, {inames[-1] + ENTRY: "_0"}))
        stem = f"{arrays[0] if arrays else 'pattern'}_rule"
        name = self.table.add_rule(stem, ("_0",), body)
        parameters = tuple(f"_{axis}" for axis in range(len(inames)))
        text = write_function(_Entries(parameters)(body))
        self.table.functions[name] = OperandFunction(parameters, text)
        shape = tuple(terms.extents[i] for i in inames)
        kind = "csf=" if self.gives_pattern else "csf"
        return Operand(name, shape, terms.dtype, kind)

    @cached_property
    def shift(self) -> Expression:
        """The shift, marked."""
        return self._begin[0]

    @cached_property
    def _begin(self) -> tuple[Expression, str | None]:
        """The shift, marked; and the instruction that fills the output with zeros.

        Raises:
            NotAnEinsumError: if it assigns one entry several times.
        """
        insn, assignee, output = self.insn, self.assignee, self.terms.output
        shift = self.nodes.marked(insn, self.parts.shift)
        # y[i] = y[i] + ...: the initial value is the old one, or a zero that another
        # instruction of the nest assigns
        if shift == assignee:
            start = self._find_start(output, self.terms.extents)
            return (shift, None) if start is None else (0, start)
        if several := sorted(insn.within_inames - {*output}):
            raise self._refuse(
                f"it writes {insn.assignee} in every iteration of {several}, and adds "
                "nothing to it",
            )
        self.table.check_function(self.nodes.drop_marks(shift), insn.id)
        reads = [e for e in list_subscripts(shift) if e.aggregate.name == self.output]
        loops = get_dependencies(shift) & self.table.kernel.all_inames()
        loops |= self.nodes.marks(shift, INDEX)
        if any(e != assignee for e in reads) or loops - {*output}:
            raise self._refuse(f"its shift {self.parts.shift} is of another entry")
        return shift, None

    def _find_start(
        self, output: IndexList, extents: Mapping[str, Extent]
    ) -> str | None:
        """Find the instruction that sets exactly the entries of the nest to zero."""
        stored = [i for i in self.nodes.inames if i in output]
        # entries at deeper nodes are visited several times, or not at all: then a nest
        # would not fill the same entries
        if {*stored} != {*self.nodes.inames[: len(stored)]}:
            return None
        # the fill belongs to the nest only if it fills the same entries
        first = find_fill(self.insn, self.output, self.table.kernel)
        if first is None:
            return None
        filled = self.nodes.marked(
            self.insn, self.privates.value(first, first.assignee)
        )
        loops_needed = set(stored) & first.within_inames
        loops = first.within_inames - self.table.levels.keys()
        sides = find_box_extents(self.flat, loops, first.id)
        axes = (getattr(e, "index_tuple", ()) for e in (filled, self.assignee))
        for mine, theirs in zip(*axes, strict=True):
            names = [getattr(axis, "name", "") for axis in (mine, theirs)]
            if mine != theirs and sides.get(names[0]) != extents.get(names[1], -1):
                return None
            loops_needed |= get_dependencies(mine) & self.flat.all_inames()
        return str(first.id) if first.within_inames == loops_needed else None

    @cached_property
    def loads(self) -> set[str]:
        """The other instructions of the nest: loads, private values, zeros."""
        _, start = self._begin
        levels = self.table.levels.items()
        scalars = frozenset[str]().union(
            *(level.scalars for i, level in levels if i in self.nodes.inames)
        )
        loads = set(self.privates.used[self.insn.id])
        loads |= {
            insn.id
            for insn in self.table.kernel.instructions
            if scalars.intersection(insn.assignee_var_names())
        }
        loads |= set() if start is None else {start}
        return loads - {self.insn.id}

    def check_apart(self, ids: Collection[str], outputs: Collection[str]) -> None:
        """Check that no other instruction uses private values of the nest.

        Also check that the row does not read an output or a value that changes.

        Args:
            ids: all instructions of the nest.
            outputs: the variables that its rows assign.
        """
        kernel = self.table.kernel
        hidden = {
            name
            for i in ids
            for name in kernel.id_to_insn[i].assignee_var_names()
            if name in kernel.temporary_variables and name not in outputs
        }
        for other in kernel.instructions:
            if other.id in ids:
                continue
            bounds = kernel.get_inames_domain(collect_loops(other))
            names = {*bounds.get_var_names(isl.dim_type.param)}
            if shared := sorted(hidden & (names | other.dependency_names())):
                raise self._refuse(
                    f"it shares {shared[0]!r} with instruction {other.id!r}, which is "
                    "not another row of the same einsum; give each einsum loops of "
                    "its own",
                )
        read = get_dependencies(make_product((*self.parts.factors, self.scale)))
        read |= {level.pointers for level in self.table.levels.values()}
        read |= {*self.nodes.arrays.values()}
        if self.output in read:
            raise self._refuse(f"it reads its output {self.output!r}")
        read |= get_dependencies(self.parts.shift) | get_dependencies(self.assigned)
        self._check_unchanged(ids, read - {self.output})

    def _check_unchanged(self, ids: Collection[str], read: Collection[str]) -> None:
        """Check that the loops write nothing that the row reads."""
        kernel = self.table.kernel
        loops = frozenset[str]().union(
            *(kernel.id_to_insn[i].within_inames for i in ids)
        )
        for other in kernel.instructions:
            written = {*other.assignee_var_names()}.intersection(read)
            if other.id not in ids and written and loops & other.within_inames:
                raise self._refuse(
                    f"it reads {min(written)!r}, which instruction {other.id!r} writes "
                    "in the same loops",
                )
        for insn_id in ids:
            written = {*kernel.id_to_insn[insn_id].assignee_var_names()}
            if changed := sorted(written.intersection(read)):
                raise self._refuse(
                    f"it reads {changed[0]!r}, which instruction {insn_id!r} may not "
                    "have written",
                )


def _without(kernel: lp.LoopKernel, levels: Collection[str]) -> lp.LoopKernel:
    """Project out some loops, and the scalars in the bounds of other loops."""
    gone = [
        (isl.dim_type.set, {*levels}),
        (isl.dim_type.param, {*kernel.temporary_variables}),
    ]
    domains = []
    for domain in kernel.domains:
        for kind, names in gone:
            for name in names.intersection(domain.get_var_names(kind)):
                _, axis = domain.get_var_dict()[name]
                domain = domain.project_out(kind, axis, 1)
        domains.append(domain)
    return kernel.copy(domains=domains)


class _Entries(IdentityMapper):  # type: ignore[misc]
    """Turns entries at the position of a leaf into entries at all of its indices."""

    def __init__(self, indices: IndexList) -> None:
        super().__init__()
        self.indices = tuple(map(p.Variable, indices))

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        indices = self.indices
        return expr.aggregate[indices[0] if len(indices) == 1 else indices]


def raise_trees(
    table: OperandTable,
    instructions: Iterable[lp.InstructionBase],
    long_extent: int,
) -> tuple[list[RaisedNest], dict[str, NotAnEinsumError]]:
    """Find the einsums of a kernel with a sparse operand.

    Args:
        table: the operands of the kernel.
        instructions: the candidates.
        long_extent: see :func:`feinsum.raise_kernel`.

    Returns:
        The einsums; and for every other instruction in loops over nodes, the reason why
        it is refused.
    """
    if not table.levels:
        return [], {}
    rows, reasons = _raise_rows(table, instructions)
    batches = group_in_batches(rows, lambda row: row.kind, _can_join)
    nests: list[RaisedNest] = []
    while batches:
        batch = batches.pop(0)
        try:
            nests.append(_raise_batch(batch, long_extent))
        except FeinsumError as error:
            # rows that fail as a batch may be raised alone
            if len(batch) > 1:
                batches += [[row] for row in batch]
                continue
            reasons[batch[0].insn.id] = _refuse_with_reason(batch[0].insn, error)
    raised_ids = {insn_id for nest in nests for insn_id in nest.instructions}
    return nests, {i: error for i, error in reasons.items() if i not in raised_ids}


def _raise_rows(
    table: OperandTable, instructions: Iterable[lp.InstructionBase]
) -> tuple[list[TreeRow], dict[str, NotAnEinsumError]]:
    """Raise instructions as rows; explain refusals of those in loops over nodes."""
    privates = Privates(table.kernel)
    rows: list[TreeRow] = []
    reasons: dict[str, NotAnEinsumError] = {}
    for insn in instructions:
        if insn.id in privates.writers or not isinstance(insn, lp.Assignment):
            continue
        try:
            row = TreeRow.of(insn, table, privates)
            if row is not None:
                _ = row.kind, row.shift  # computed here, to raise their refusals now
                rows.append(row)
        except FeinsumError as error:
            reasons[insn.id] = _refuse_with_reason(insn, error)
    return rows, reasons


def _can_join(row: TreeRow, batch: Sequence[TreeRow]) -> bool:
    insns = [other.insn for other in batch]
    kernel, expand = row.table.kernel, row.table.expand
    return may_join(row.insn, insns, kernel, expand, _list_loads([*batch, row]))


def _list_loads(batch: Sequence[TreeRow]) -> set[str]:
    """Return the instructions that only serve these rows."""
    return {i for row in batch for i in row.loads}


def _refuse_with_reason(
    insn: lp.InstructionBase, error: FeinsumError
) -> NotAnEinsumError:
    """Refuse an instruction with an error's reason under the rule ``compressed``."""
    text = str(error).removeprefix(f"instruction {insn.id!r}: ")
    return make_tree_refusal(insn, text)


def _raise_batch(batch: Sequence[TreeRow], long_extent: int) -> RaisedNest:
    """Build the nest of rows over one tree.

    Raises:
        NotAnEinsumError: if the rows are not an einsum.
    """
    table, nodes, loads = batch[0].table, batch[0].nodes, _list_loads(batch)
    ids = {row.insn.id for row in batch}
    for row in batch:
        table.check_function(row.scale, row.insn.id)
        row.check_apart(ids | loads, {other.output for other in batch})
    einsum = _build_einsum(batch)
    rows = [
        (
            row.insn.id,
            nodes.in_kernel(row.assignee),
            unresolve(table.expand(row.scale)),
            unresolve(nodes.in_kernel(row.shift)),
        )
        for row in batch
    ]
    root = batch[0].boxes.get(nodes.inames[0])
    root_end = 0 if root is None else value_of(express_in_kernel(root))
    points = {index: nodes.point(index) for index in einsum.indices}
    tree = nodes.tree(root_end, loads)
    return table.raise_einsum(einsum, rows, points, long_extent, tree)


def _build_einsum(batch: Sequence[TreeRow]) -> BatchedEinsum:
    """Build the einsum of the rows, with the tree as their first operand."""
    first, tree = batch[0], batch[0].stored()
    terms = [access.term for access in first.terms.accesses]
    return BatchedEinsum(
        first.terms.output,
        (first.nodes.inames, *terms),
        tuple((tree, *align(row.terms.accesses, terms)) for row in batch),
    )
