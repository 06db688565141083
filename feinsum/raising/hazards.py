"""Hazards between a row and others in its loops, and where arrays lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias

import islpy as isl
import loopy as lp
import numpy as np
from loopy.diagnostic import UnableToDetermineAccessRangeError
from loopy.kernel.array import ArrayBase
from loopy.symbolic import WalkMapper, get_access_map, get_dependencies
from pymbolic import primitives as p
from pymbolic.mapper import Mapper
from pytools import memoize_on_first_arg

from feinsum.errors import NotAnEinsumError
from feinsum.raising.functions import is_plain_array
from feinsum.raising.nest import Expression


class EveryNode(WalkMapper):  # type: ignore[misc]
    """A walk through all nodes. Loopy's ``UncachedWalkMapper`` remembers, in spite of
    its name, and visits the two ``x`` of ``x*x`` once.
    """

    def __call__(self, expr: Any, /) -> None:
        Mapper.__call__(self, expr)

    rec = __call__


Expand: TypeAlias = Callable[[Expression], Expression]


def check_hazards(
    insn: lp.Assignment,
    kernel: lp.LoopKernel,
    inames: frozenset[str],
    expand: Expand,
    expressions: Iterable[Expression],
) -> None:
    """No operand changes while the nest runs, and nobody interferes with its output.

    Args:
        inames: the loops of the instruction and of its sums.
        expand: expands substitution rules.
        expressions: the factors and the scale.

    Raises:
        NotAnEinsumError: with the rule ``operand-written``, ``race`` or
            ``output-read``.
    """
    (name,) = insn.assignee_var_names()
    if not has_distinct_entries(kernel, name):
        raise _refuse(insn, "race", f"entries of {name!r} overlap in memory")
    values = [expand(e) for e in expressions]
    read = get_dependencies(expand(insn.expression)) - {name}
    read = read.union(*map(get_dependencies, values))
    _check_written(insn, insn, kernel, read)
    sums = inames - insn.within_inames
    own = [insn.assignee, expand(insn.expression), *values]
    for other in kernel.instructions:
        if other.id == insn.id:
            continue
        if sums & other.within_inames:
            _check_written(insn, other, kernel, read)
        if insn.within_inames & other.within_inames:
            _check_exchange(insn, other, kernel, read, own, expand)


def _check_written(
    insn: lp.Assignment,
    other: lp.InstructionBase,
    kernel: lp.LoopKernel,
    read: frozenset[str],
) -> None:
    if clash := _shared(kernel, read, other.assignee_var_names()):
        raise _refuse(
            insn,
            "operand-written",
            f"it reads {clash}, which instruction {other.id!r} writes "
            "in the same loops",
        )


def _check_exchange(
    insn: lp.Assignment,
    other: lp.InstructionBase,
    kernel: lp.LoopKernel,
    read: frozenset[str],
    own: list[Expression],
    expand: Expand,
) -> None:
    """Require that two instructions exchange values within one iteration only.

    Args:
        read: all names that ``insn`` reads, except its output.
        own: the expressions with its accesses.
    """
    theirs = [expand(e) for e in _expressions(other)]
    written = other.assignee_var_names()
    names = other.read_dependency_names().union(*map(get_dependencies, theirs))
    (output,) = insn.assignee_var_names()

    def first_clash(mine: Iterable[str], others: Iterable[str]) -> str | None:
        clashes = (
            name
            for name in _shared(kernel, mine, others)
            if not _is_kept(name, insn, other, kernel, (own, theirs))
        )
        return next(clashes, None)

    where = "in the same loops, at other points of them or in no stated order"
    if name := first_clash(read, written):
        what = f"it reads {name!r}, which instruction {other.id!r} writes {where}"
        raise _refuse(insn, "operand-written", what)
    if name := first_clash({output}, written):
        raise _refuse(insn, "race", f"instruction {other.id!r} writes {name!r} {where}")
    if name := first_clash({output}, names):
        what = f"instruction {other.id!r} reads {name!r} {where}"
        raise _refuse(insn, "output-read", what)


def _shared(
    kernel: lp.LoopKernel, names: Iterable[str], others: Iterable[str]
) -> list[str]:
    """Those of ``names`` that lie in the memory of ``others``."""
    memory = storage(kernel, others)
    return sorted(name for name in names if storage(kernel, [name]) & memory)


def _is_kept(
    name: str,
    insn: lp.Assignment,
    other: lp.InstructionBase,
    kernel: lp.LoopKernel,
    expressions: tuple[list[Expression], list[Expression]],
) -> bool:
    """Whether no iteration of shared loops meets entries that another one writes.

    In one iteration, the dependencies of the kernel say who comes first.
    """
    mine, theirs = (
        [subscripts_of(access) for e in side for access in accesses_of(e, name)]
        for side in expressions
    )
    if not (mine and theirs) or storage(kernel, [name]) != {name}:
        return False
    if never_meet(kernel, name, mine, theirs):
        return True
    is_first = insn.id in ancestors(kernel, other.id)
    is_last = other.id in ancestors(kernel, insn.id)
    shared = insn.within_inames & other.within_inames
    own = [subscripts_of(insn.assignee)] if name in insn.assignee_var_names() else []
    return is_first != is_last and have_own_entries([*mine, *theirs], shared, own)


def reads_exactly(expression: Expression, assignee: Expression) -> bool:
    """Whether ``expression`` reads the assigned array at the assigned place only."""
    name = getattr(getattr(assignee, "aggregate", assignee), "name", "")
    return all(
        subscripts_of(access) == subscripts_of(assignee)
        for access in accesses_of(expression, name)
    )


def are_independent(
    first: lp.Assignment, second: lp.Assignment, kernel: lp.LoopKernel, expand: Expand
) -> bool:
    """Whether neither assignment reads or overwrites what the other one assigns."""
    pairs = ((first, second), (second, first))
    if any(_reads_output(expand(b.expression), a, kernel) for a, b in pairs):
        return False
    (name,), (other_name,) = first.assignee_var_names(), second.assignee_var_names()
    if name == other_name:
        places = ([subscripts_of(one.assignee)] for one in (first, second))
        return never_meet(kernel, name, *places)
    return not storage(kernel, [name]) & storage(kernel, [other_name])


def may_join(
    insn: lp.Assignment,
    batch: Iterable[lp.Assignment],
    kernel: lp.LoopKernel,
    expand: Expand,
    serving: Collection[str] = (),
) -> bool:
    """Whether an assignment may run with others: nothing has to run between them.

    Args:
        serving: instructions that only serve these, and are replaced with them.
    """
    others = list(batch)
    ids = {insn.id, *(other.id for other in others)}
    before = frozenset[str]().union(*(ancestors(kernel, i) for i in ids)) - ids
    between = before.difference(serving)
    is_interrupted = any(ids & ancestors(kernel, i) for i in between)
    return not is_interrupted and all(
        are_independent(insn, other, kernel, expand) for other in others
    )


def _reads_output(
    expression: Expression, writer: lp.Assignment, kernel: lp.LoopKernel
) -> bool:
    """Whether an expression may read what ``writer`` assigns."""
    (name,) = writer.assignee_var_names()
    others = get_dependencies(expression) - {name}
    read = map(subscripts_of, accesses_of(expression, name))
    return bool(storage(kernel, others) & storage(kernel, [name])) or not never_meet(
        kernel, name, read, [subscripts_of(writer.assignee)]
    )


def ancestors(kernel: lp.LoopKernel, instruction: str) -> frozenset[str]:
    """All instructions that must run before one."""
    found: set[str] = set()
    todo = [instruction]
    while todo:
        for before in kernel.id_to_insn[todo.pop()].depends_on - found:
            found.add(before)
            todo.append(before)
    return frozenset(found)


def accesses_of(expression: Expression, name: str) -> list[Expression]:
    """Every read of an array or scalar in an expression without rules."""
    finder = _AccessFinder(name)
    finder(expression)
    return finder.found


def _expressions(insn: lp.InstructionBase) -> Iterator[Expression]:
    """Expressions that an instruction accesses; none if it hides them."""
    if isinstance(insn, lp.Assignment):
        yield insn.assignee
        yield insn.expression
        yield from insn.predicates


class _AccessFinder(EveryNode):
    """Collects the accesses of one name, each as often as it stands there."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.found: list[Expression] = []

    def map_variable(self, expr: p.Variable, /) -> None:
        if expr.name == self.name:
            self.found.append(expr)

    def map_subscript(self, expr: p.Subscript, /) -> None:
        if getattr(expr.aggregate, "name", None) == self.name:
            self.found.append(expr)
        else:
            self.rec(expr.aggregate)
        for index in expr.index_tuple:
            self.rec(index)


def _refuse(insn: lp.InstructionBase, rule: str, what: str) -> NotAnEinsumError:
    return NotAnEinsumError(
        f"instruction {insn.id!r}: {what}", rule=rule, instructions=(insn.id,)
    )


Subscripts: TypeAlias = tuple[Expression, ...]
"""Those of one access; none for a scalar."""


def storage(kernel: lp.LoopKernel, names: Iterable[str]) -> frozenset[str]:
    """The memory behind names; temporaries may share some."""
    known = kernel.temporary_variables
    return frozenset(
        (getattr(known.get(name), "base_storage", None) or name) for name in names
    )


def has_distinct_entries(kernel: lp.LoopKernel, name: str) -> bool:
    """Whether no two entries of an array share a place, as far as numbers tell."""
    array = kernel.get_var_descriptor(name)
    if not isinstance(array, ArrayBase):
        return True
    if not is_plain_array(array):
        return False
    if not isinstance(array.shape, tuple):
        return True
    strides: list[Any] = [getattr(tag, "stride", None) for tag in array.dim_tags or ()]
    steps = []
    for stride, extent in zip(strides, array.shape, strict=False):
        if not _is_integer(stride) or (_is_integer(extent) and extent <= 1):
            continue
        if stride == 0:
            return False
        if _is_integer(extent):
            steps.append((abs(stride), int(extent)))
    reach = 0
    for stride, extent in sorted(steps):
        if stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer))


def never_meet(
    kernel: lp.LoopKernel,
    name: str,
    mine: Iterable[Subscripts],
    theirs: Iterable[Subscripts],
) -> bool:
    """Whether two sets of accesses have no entry of an array in common.

    That is so if no iterations of any loops reach one entry: ``A[2*i]`` and
    ``A[2*j + 1]`` never meet, nor do ``A[i]`` with ``i < 12`` and ``A[12 + j]``.
    """
    others = [*theirs]
    return has_distinct_entries(kernel, name) and all(
        _are_apart(kernel, a, b) for a in mine for b in others
    )


def _are_apart(kernel: lp.LoopKernel, first: Subscripts, second: Subscripts) -> bool:
    if first == second or len(first) != len(second):
        return False
    if any(
        a != b
        for a, b in zip(first, second, strict=True)
        if _is_integer(a) and _is_integer(b)
    ):
        return True
    reached = _entries(kernel, first), _entries(kernel, second)
    if reached[0] is None or reached[1] is None:
        return False
    return bool(reached[0].intersect(reached[1]).is_empty())


@memoize_on_first_arg  # type: ignore[untyped-decorator]
def _entries(kernel: lp.LoopKernel, subscripts: Subscripts) -> isl.Set | None:
    """All entries that an access reaches; None if isl cannot tell.

    Bounds that the kernel computes differ from one iteration to the next.
    """
    inames = kernel.all_inames() & frozenset[str]().union(
        *map(get_dependencies, subscripts)
    )
    domain = kernel.get_inames_domain(inames).to_set()
    sizes = kernel.get_unwritten_value_args()
    if not sizes >= {*domain.get_var_names(isl.dim_type.param)}:
        return None
    try:
        return get_access_map(
            domain, subscripts, kernel.assumptions, allowed_constant_names=sizes
        ).range()
    except UnableToDetermineAccessRangeError:
        return None


def have_own_entries(
    accesses: Collection[Subscripts],
    inames: Collection[str],
    distinct: Collection[Subscripts] = (),
) -> bool:
    """Whether no two iterations of loops access the same entry of an array.

    That is so if each iname is a subscript at one place of all accesses, or if all
    accesses are one that is known to be another entry in every iteration.

    Args:
        distinct: subscripts of such accesses.
    """
    if len({*accesses} & {*distinct}) == len({*accesses}) == 1:
        (only,) = {*accesses}
        return {*inames} <= frozenset[str]().union(*map(get_dependencies, only))
    n_axes = min(map(len, accesses))
    return all(
        any(
            all(_is_iname(subscripts[axis], iname) for subscripts in accesses)
            for axis in range(n_axes)
        )
        for iname in inames
    )


def _is_iname(subscript: Expression, iname: str) -> bool:
    return isinstance(subscript, p.Variable) and subscript.name == iname


def subscripts_of(access: Expression) -> Subscripts:
    """The subscripts of a read or of an assignee; none for a scalar."""
    return access.index_tuple if isinstance(access, p.Subscript) else ()
