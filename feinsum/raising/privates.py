"""Private values of a kernel, in place of the variables that hold them.

Kernels over trees load bounds, indices and partial sums into private scalars ::

    j = idx[k]
    t = val[k]*x[j]
    y[i] = y[i] + t

To raise the last instruction, its value is read as ``val[k]*x[idx[k]]``. Only for that:
instructions stay as they are. A private variable may be assigned once, or begin as zero
and be summed up in further loops.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import loopy as lp
from loopy.symbolic import (
    Reduction,
    SubstitutionMapper,
    SubstitutionRuleExpander,
    get_dependencies,
)
from pymbolic import primitives as p

from feinsum.raising.dependences import ancestors
from feinsum.raising.expressions import Expression, add, array_of, is_zero, substitute
from feinsum.raising.nest import refusal


@dataclass(frozen=True)
class Private:
    """The value of a private variable.

    Attributes:
        axes: the inames of its subscripts.
        value: in terms of these and of the enclosing loops.
        last: the instruction after which it holds this value.
        writers: all that assign it.
        around: the loops in which the value counts.
        summed: the loops in which it is summed up, after which it counts.
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
        used: by instruction, the instructions whose values its value has in it.
    """

    kernel: lp.LoopKernel
    used: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._expand = SubstitutionRuleExpander(self.kernel.substitutions)
        self._before: dict[str, frozenset[str]] = {}
        self.values = _private_values(self.kernel, self._expand)
        self.writers = frozenset[str]().union(
            *(x.writers for x in self.values.values())
        )

    def value(self, insn: lp.InstructionBase, expression: Expression) -> Expression:
        """An expression of an instruction, without rules and private variables.

        Raises:
            NotAnEinsumError: with the rule ``compressed``, if the instruction may read
                another value.
        """
        expanded = self._expand(expression)
        used = self.used.setdefault(insn.id, set())
        names = get_dependencies(expanded) & self.values.keys()
        for name in sorted(names):
            self._check(insn, name)
            used |= self.values[name].writers
        if not names:
            return expanded

        def replaced(part: Expression) -> Expression | None:
            name = array_of(part)
            return self._at(insn, part, name) if name in names else None

        return SubstitutionMapper(replaced)(expanded)

    def _at(
        self, insn: lp.InstructionBase, part: Expression, name: str
    ) -> Expression | None:
        """The value of a variable, at the subscripts with which it is read."""
        private = self.values[name]
        indices = getattr(part, "index_tuple", ())
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
        if insn.id not in self._before:
            self._before[insn.id] = ancestors(self.kernel, insn.id)
        inames = insn.within_inames
        is_seen = (
            private.writers <= self._before[insn.id]
            and private.around <= inames
            and not private.summed & inames
        )
        if not is_seen:
            raise refusal(
                insn.id,
                "compressed",
                f"it may read {name!r} before or outside the loops that compute it; "
                "declare the dependency",
            )


def update_of(insn: lp.Assignment, value: Expression) -> Expression | None:
    """The term that an instruction adds to its assignee; None if it does not add."""
    terms = value.children if isinstance(value, p.Sum) else ()
    others = [term for term in terms if term != insn.assignee]
    if len(others) != len(terms) - 1:
        return None
    return add(others)


def _private_values(
    kernel: lp.LoopKernel, expand: SubstitutionRuleExpander
) -> dict[str, Private]:
    writers: dict[str, list[lp.InstructionBase]] = {}
    for insn in kernel.instructions:
        for name in insn.assignee_var_names():
            if name in kernel.temporary_variables:
                writers.setdefault(name, []).append(insn)
    values = {}
    for name, insns in writers.items():
        if all(_is_plain(insn) for insn in insns):
            private = _private(name, insns, kernel, expand)
            if private is not None:
                values[name] = private
    return values


def _is_plain(insn: lp.InstructionBase) -> bool:
    """Whether it always assigns a value, at subscripts that are distinct inames."""
    if not isinstance(insn, lp.Assignment) or insn.predicates or insn.atomicity:
        return False
    indices = getattr(insn.assignee, "index_tuple", ())
    names = [index.name for index in indices if isinstance(index, p.Variable)]
    return len(set(names)) == len(indices) and set(names) <= insn.within_inames


def _axes(insn: lp.Assignment) -> tuple[str, ...]:
    return tuple(index.name for index in getattr(insn.assignee, "index_tuple", ()))


def _private(
    name: str,
    insns: list[lp.Assignment],
    kernel: lp.LoopKernel,
    expand: SubstitutionRuleExpander,
) -> Private | None:
    last, writers = insns[-1], frozenset(insn.id for insn in insns)
    value = expand(last.expression)
    if len(insns) == 1:
        # loops over entries of the variable end with the value; those around it go on
        around = last.within_inames - set(_axes(last))
        if name in get_dependencies(value):
            return None
        return Private(_axes(last), value, last.id, writers, around)
    first = insns[0]
    # two instructions are a zero and what adds to it; no other pair has a value
    if len(insns) > 2 or not is_zero(first.expression):
        return None
    added = update_of(last, value)
    around = first.within_inames - set(_axes(first))
    loops = around | set(_axes(last))
    is_sum = (
        added is not None
        and name not in get_dependencies(added)
        and first.id in ancestors(kernel, last.id)
        and loops <= last.within_inames
        and not around & set(_axes(last))
    )
    if not is_sum:
        return None
    summed = last.within_inames - loops
    if summed:
        added = Reduction("sum", tuple(sorted(summed)), added)
    return Private(_axes(last), added, last.id, writers, around, summed)


def find_fill(
    insn: lp.Assignment, output: str, kernel: lp.LoopKernel
) -> lp.Assignment | None:
    """Who fills the output of an instruction with zeros, always and before it.

    None if others write it, too, or if others may read it before the instruction: then
    zeros have to be where they are.
    """
    others = [
        other
        for other in kernel.instructions
        if output in other.dependency_names() and other.id != insn.id
    ]
    writers = [o for o in others if output in o.assignee_var_names()]
    if len(writers) != 1:
        return None
    (first,) = writers
    is_fill = (
        isinstance(first, lp.Assignment)
        and not first.predicates
        and is_zero(first.expression)
        and first.id in ancestors(kernel, insn.id)
    )
    are_later = all(insn.id in ancestors(kernel, o.id) for o in others if o != first)
    return first if is_fill and are_later else None
