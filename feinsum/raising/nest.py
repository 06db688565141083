"""Results of raising: the einsums in a kernel, and the refused instructions.

A nest has an einsum in its own names, and maps each name to the kernel's. For
``v[e, i] = 2*sum(j, A_rule(i, j)*u_rule(e, j))`` with the canonical einsum
``a c, b c -> a b`` of ``A0`` and ``A1``, the maps are ::

    points  a -> e, b -> i, c -> j       scales  2
    rules   A0 -> u_rule, A1 -> A_rule   shifts  0

A recipe refers to the names on the left; a transform changes those on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import loopy as lp
from constantdict import constantdict
from loopy.symbolic import get_dependencies
from pymbolic import parse, var
from pymbolic import primitives as p

from feinsum.canonical import CanonicalForm, Relabeling, WorkloadKey, canonicalize
from feinsum.errors import NotAnEinsumError, TransformError
from feinsum.ir import (
    BatchedEinsum,
    Extent,
    FunctionalBatchedEinsum,
    OperandFunction,
    SizeParam,
    from_text,
    generalize_each,
)
from feinsum.raising.expressions import Expression
from feinsum.words import format_brief

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class AffineSize(SizeParam):
    """A size parameter that stands for an expression of a kernel's parameters.

    Attributes:
        text: the expression, in parentheses, as isl and Loopy parse it.
    """

    text: str


def express_in_kernel(extent: Extent) -> Extent:
    """Express an extent in terms of the kernel's parameters.

    >>> express_in_kernel(AffineSize("size_2_n", "(2*n)"))
    SizeParam(name='(2*n)')
    """
    return SizeParam(extent.text) if isinstance(extent, AffineSize) else extent


def names_of(extent: Extent) -> frozenset[str]:
    """Return the parameters in an extent that is expressed in kernel terms.

    >>> sorted(names_of(SizeParam("(2*n + m)")))
    ['m', 'n']
    """
    return frozenset(get_dependencies(value_of(extent)))


def value_of(extent: Extent) -> Expression:
    """Return an extent that is in kernel terms as an expression.

    >>> print(value_of(SizeParam("(2*n + 1)")))
    2*n + 1
    """
    return extent if isinstance(extent, int) else parse(extent.name)


def points_of(inames: Mapping[str, str]) -> constantdict[str, Expression]:
    """Return the values of indices, each of which has a loop.

    >>> points_of({"i": "i_outer"})["i"]
    Variable('i_outer')
    """
    return constantdict({index: var(iname) for index, iname in inames.items()})


PARENT, POSITION = var("_parent"), var("_position")
"""The position of a node's parent in the arrays of its level, and that of the node."""


@dataclass(frozen=True)
class TreeLevel:
    """The nodes of a level of a tree, as a kernel's arrays store them.

    Attributes:
        begin, end: the range of positions of the children of the node at ``PARENT``.
        index: the index of the node at ``POSITION``; None if nothing reads it.
    """

    begin: Expression
    end: Expression
    index: Expression | None


@dataclass(frozen=True)
class Tree:
    """The sparse operand of a nest, as a kernel stores it.

    Attributes:
        inames: the loop over the nodes of each level. In expressions of the nest, its
            values are positions of nodes, even if it counts from 0 in the kernel.
        loads: the other instructions of the nest: those that load bounds and indices,
            compute private values, or set the initial value of a sum.
    """

    inames: tuple[str, ...]
    levels: tuple[TreeLevel, ...]
    loads: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoopNest:
    """An einsum in a Loopy kernel, with the kernel's name for each of its names.

    Row ``k`` is the instruction ``instructions[k]``, which assigns
    ``shifts[k] + scales[k] * sum(product of rule calls)`` to ``assignees[k]``.

    Attributes:
        einsum: the computation, in its own names.
        points: for each index of the einsum, its value in the loops of the kernel: an
            iname; or an entry such as ``idx[p]``, for a loop over nodes of a tree.
        rules: for each operand of the einsum, the substitution rule of the kernel.
        sizes: for each size parameter of the einsum, a parameter of the kernel, an
            expression of these in parentheses, or a literal extent.
        tree: the storage of the sparse operand, if there is one. Its rule has one
            argument, the position of a leaf.
    """

    einsum: BatchedEinsum
    points: constantdict[str, Expression]
    rules: constantdict[str, str]
    instructions: tuple[str, ...]
    assignees: tuple[Expression, ...]
    scales: tuple[Expression, ...]
    shifts: tuple[Expression, ...]
    kernel_name: str
    sizes: constantdict[str, str | int]
    tree: Tree | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The variable that each row assigns."""
        return tuple(str(getattr(a, "aggregate", a)) for a in self.assignees)

    @property
    def inames(self) -> constantdict[str, str]:
        """The iname of each index of the einsum.

        Raises:
            TransformError: if an index is not an iname, as in a loop over a tree.
        """
        return constantdict({i: self._get_iname(i) for i in self.points})

    def _get_iname(self, index: str) -> str:
        point = self.points[index]
        # a loop over the nodes of a tree does not run over an index
        if isinstance(point, p.Variable):
            return str(point.name)
        raise TransformError(
            f"the index {index!r} of kernel {self.kernel_name!r} is {point}, which no "
            "loop runs over; transforms of dense loops need an iname"
        )

    @property
    def loops(self) -> frozenset[str]:
        """All names in the values of indices, including all inames of the nest."""
        return frozenset().union(*map(get_dependencies, self.points.values()))

    def extent(self, index: str) -> Extent:
        """Return the extent of an index in kernel terms; see :func:`value_of`."""
        extent = self.einsum.extents[index]
        if isinstance(extent, int):
            return extent
        size = self.sizes[extent.name]
        return size if isinstance(size, int) else SizeParam(size)

    def relabel(self, relabeling: Relabeling) -> LoopNest:
        """Rename and reorder the nest to match another einsum."""
        # rows of a batch are reordered, and all attributes of rows with them
        rows = relabeling.rows
        return replace(
            self,
            einsum=relabeling.apply(self.einsum),
            points=_rename_keys(self.points, relabeling.indices),
            rules=_rename_keys(self.rules, relabeling.operands),
            instructions=tuple(self.instructions[k] for k in rows),
            assignees=tuple(self.assignees[k] for k in rows),
            scales=tuple(self.scales[k] for k in rows),
            shifts=tuple(self.shifts[k] for k in rows),
            sizes=_rename_keys(self.sizes, relabeling.size_params),
        )


@dataclass(frozen=True)
class RaisedNest:
    """Instructions of a kernel that together are one functional batched einsum.

    The indices of :attr:`einsum` are inames and its operands are substitution
    rules of the kernel.

    Attributes:
        nest: the einsum, with the kernel's name for each of its names.
        functional: the einsum and the functions of its operands.
        generalized: literal extents that were replaced by size parameters, by the name
            of the parameter.
        new_rules: substitution rules that the kernel does not have yet.
    """

    nest: LoopNest
    functional: FunctionalBatchedEinsum
    generalized: Mapping[str, int] = field(default_factory=constantdict)
    new_rules: Mapping[str, lp.SubstitutionRule] = field(default_factory=constantdict)

    @property
    def einsum(self) -> BatchedEinsum:
        return self.functional.einsum

    @property
    def functions(self) -> Mapping[str, OperandFunction]:
        """The function of each operand, by its name."""
        return self.functional.functions

    @property
    def instructions(self) -> tuple[str, ...]:
        """The instructions of the rows, followed by those that only serve them."""
        tree = self.nest.tree
        return (*self.nest.instructions, *(tree.loads if tree else ()))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The variable that each row assigns."""
        return self.nest.outputs

    @property
    def scale(self) -> tuple[Expression, ...]:
        """The factor of each row's sum."""
        return self.nest.scales

    @property
    def shift(self) -> tuple[Expression, ...]:
        """The term added to each row's scaled sum; 0 for none.

        It depends on output inames only, and may read the assigned entry.
        """
        return self.nest.shifts

    def generalize_each(self) -> Iterator[RaisedNest]:
        """Yield the nest with each literal extent in turn as a size parameter."""
        for general, literal in generalize_each(self.einsum):
            sizes = constantdict({**self.nest.sizes, **literal})
            yield replace(
                self,
                nest=replace(self.nest, einsum=general, sizes=sizes),
                functional=FunctionalBatchedEinsum(general, self.functional.functions),
                generalized=constantdict({**self.generalized, **literal}),
            )

    @cached_property
    def form(self) -> CanonicalForm:
        return canonicalize(self.einsum)

    @property
    def relabeling(self) -> Relabeling:
        """The bijections from the kernel's names to those of the canonical einsum."""
        return self.form.relabeling

    @property
    def key(self) -> WorkloadKey:
        return self.form.key

    @cached_property
    def canonical_nest(self) -> LoopNest:
        """The nest in terms of the canonical einsum, as recipes expect it."""
        return self.nest.relabel(self.relabeling)

    def in_frame(self, text: str) -> LoopNest:
        """Express the nest in the names and order of the workload ``text``.

        Args:
            text: the canonical text, or the text that an older canonicalizer gave
                the same workload, with other names and another order.
        """
        if text == self.form.text:
            return self.canonical_nest
        # an older text has other names: map both to today's canonical names
        to_canonical = canonicalize(from_text(text)).relabeling
        return self.canonical_nest.relabel(to_canonical.inverse())


@dataclass(frozen=True)
class RefusedNest:
    """Instructions that are not einsums, and why.

    Attributes:
        rule: stable code of the broken rule of the grammar.
    """

    instructions: tuple[str, ...]
    rule: str
    reason: str


def make_refusal(insn_id: str, rule: str, reason: str) -> NotAnEinsumError:
    """Build the error for an instruction that is not an einsum.

    Args:
        insn_id: the id of the instruction.
        rule: see :class:`RefusedNest`.
        reason: what the instruction does; the words follow its name in the message.
    """
    # Loopy underlines the names of functions with a combining character, which logs and
    # searches do not cope with
    plain = reason.replace("\N{COMBINING LOW LINE}", "")
    return NotAnEinsumError(
        f"instruction {insn_id!r}: {plain}", rule=rule, instructions=(insn_id,)
    )


@dataclass(frozen=True)
class RaisedKernel:
    """A kernel in which every operand of a raised nest is a substitution rule."""

    t_unit: lp.TranslationUnit
    kernel_name: str
    raised: tuple[RaisedNest, ...]
    refused: tuple[RefusedNest, ...]

    @property
    def first_refusal(self) -> NotAnEinsumError | None:
        """The error of the first instruction that was refused, if there is one."""
        for refused in self.refused:
            return NotAnEinsumError(
                refused.reason, rule=refused.rule, instructions=refused.instructions
            )
        return None

    def __repr__(self) -> str:
        einsums = "; ".join(str(nest.einsum) for nest in self.raised) or "no einsum"
        refused = f"; {len(self.refused)} nests refused" if self.refused else ""
        return format_brief(self, f"{self.kernel_name}: {einsums}{refused}")


def _rename_keys(
    names: Mapping[str, T], relabeling: Mapping[str, str]
) -> constantdict[str, T]:
    return constantdict({relabeling[name]: value for name, value in names.items()})
