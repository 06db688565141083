"""Values of private variables, to be substituted where these are read.

Kernels over trees load bounds, indices and partial sums into private scalars ::

    j = idx[k]
    t = val[k]*x[j]
    y[i] = y[i] + t

To raise the last instruction, raising reads its value as ``val[k]*x[idx[k]]``. The
instructions themselves do not change. A private variable may be assigned once; or it
may be set to zero, and summed up in further loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import loopy as lp
from loopy.symbolic import (
    Reduction,
    SubstitutionMapper,
    SubstitutionRuleExpander,
    get_dependencies,
)
from pymbolic import primitives as p

from feinsum.raising.dependences import find_ancestors
from feinsum.raising.expressions import (
    Expression,
    find_added_term,
    find_writers,
    get_array_name,
    get_subscripts,
    is_zero,
    substitute,
)
from feinsum.raising.nest import make_refusal
from feinsum.raising.rewriting import is_plain


@dataclass(frozen=True)
class Private:
    """The value of a private variable.

    Attributes:
        axes: the inames of its subscripts.
        value: the value in terms of these inames and of the enclosing loops.
        last: the instruction after which the variable has this value.
        writers: all instructions that assign the variable.
        around: the loops inside of which the value is valid.
        summed: the loops that sum it up; the value is valid after these.
    """

    axes: tuple[str, ...]
    value: Expression
    last: str
    writers: frozenset[str]
    around: frozenset[str]
    summed: frozenset[str] = frozenset()


@dataclass
class Privates:
    """The private variables of a kernel whose values are known.

    Attributes:
        used: for each instruction, the instructions whose values were substituted.
    """

    kernel: lp.LoopKernel
    used: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._expand = SubstitutionRuleExpander(self.kernel.substitutions)
        self._ancestors = cache(partial(find_ancestors, self.kernel))
        values = {
            name: self._find_private(name, [self.kernel.id_to_insn[i] for i in ids])
            for name, ids in find_writers(self.kernel).items()
            if name in self.kernel.temporary_variables
        }
        self.values = {name: x for name, x in values.items() if x is not None}
        self.writers = frozenset[str]().union(
            *(x.writers for x in self.values.values())
        )

    def value(self, insn: lp.InstructionBase, expression: Expression) -> Expression:
        """Expand rules and private variables in an expression of an instruction.

        Raises:
            NotAnEinsumError: with the rule ``compressed``, if a variable may have
                another value when the instruction reads it.
        """
        expanded = self._expand(expression)
        used = self.used.setdefault(insn.id, set())
        names = get_dependencies(expanded) & self.values.keys()
        for name in sorted(names):
            self._check(insn, name)
            used |= self.values[name].writers
        if not names:
            return expanded

        def replace_access(access: Expression) -> Expression | None:
            name = get_array_name(access)
            return self._substitute_at(insn, access, name) if name in names else None

        return SubstitutionMapper(replace_access)(expanded)

    def _substitute_at(
        self, insn: lp.InstructionBase, access: Expression, name: str
    ) -> Expression | None:
        """Return the value that an access of a variable reads; None for other ranks."""
        private = self.values[name]
        indices = get_subscripts(access)
        if len(indices) != len(private.axes):
            return None
        writer = self.kernel.id_to_insn[private.last]
        value = self.value(writer, private.value)
        self.used[insn.id] |= self.used[writer.id]
        points = [self.value(insn, index) for index in indices]
        names = dict(zip(private.axes, points, strict=True))
        return substitute(value, names)

    def _check(self, insn: lp.InstructionBase, name: str) -> None:
        private = self.values[name]
        inames = insn.within_inames
        is_seen = (
            private.writers <= self._ancestors(insn.id)
            and private.around <= inames
            and not private.summed & inames
        )
        if not is_seen:
            raise make_refusal(
                insn.id,
                "compressed",
                f"it may read {name!r} before or outside the loops that compute it; "
                "declare the dependency",
            )

    def _find_private(
        self, name: str, insns: Sequence[lp.Assignment]
    ) -> Private | None:
        """Find the value that a variable's writers give it; None if there is none."""
        axes = [_find_axes(insn) for insn in insns]
        first, last, inames = insns[0], insns[-1], axes[-1]
        if axes[0] is None or inames is None:
            return None
        writers = frozenset(insn.id for insn in insns)
        value = self._expand(last.expression)
        # loops over entries of the variable are not around the whole value
        around = first.within_inames - {*axes[0]}
        if len(insns) == 1:
            is_new = name not in get_dependencies(value)
            return Private(inames, value, last.id, writers, around) if is_new else None
        # of two writers, the first must assign zero, and the second add to it
        if len(insns) > 2 or not is_zero(first.expression):
            return None
        added = find_added_term(last.assignee, value)
        loops = around | {*inames}
        is_sum = (
            added is not None
            and name not in get_dependencies(added)
            and first.id in self._ancestors(last.id)
            and loops <= last.within_inames
            and not around & {*inames}
        )
        if not is_sum:
            return None
        summed = last.within_inames - loops
        if summed:
            added = Reduction("sum", tuple(sorted(summed)), added)
        return Private(inames, added, last.id, writers, around, summed)


def _find_axes(insn: lp.InstructionBase) -> tuple[str, ...] | None:
    """Return the inames that subscript an unconditional assignment.

    Return None if its subscripts are not distinct inames.
    """
    if not is_plain(insn):
        return None
    indices = get_subscripts(insn.assignee)
    names = tuple(index.name for index in indices if isinstance(index, p.Variable))
    is_distinct = len(set(names)) == len(indices) and insn.within_inames.issuperset(
        names
    )
    return names if is_distinct else None


def find_fill(
    insn: lp.Assignment, output: str, kernel: lp.LoopKernel
) -> lp.Assignment | None:
    """Find the instruction that always fills an output with zeros before ``insn``.

    Return None if other instructions write the output, or may read it before ``insn``
    does: then the fill cannot be moved.
    """
    users = [
        other
        for other in kernel.instructions
        if output in other.dependency_names() and other.id != insn.id
    ]
    writers = [o for o in users if output in o.assignee_var_names()]
    if len(writers) != 1:
        return None
    (first,) = writers
    is_fill = (
        isinstance(first, lp.Assignment)
        and not first.predicates
        and is_zero(first.expression)
        and first.id in find_ancestors(kernel, insn.id)
    )
    are_later = all(
        insn.id in find_ancestors(kernel, o.id) for o in users if o != first
    )
    return first if is_fill and are_later else None
