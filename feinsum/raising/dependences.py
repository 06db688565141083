"""Dependences between the instructions of a kernel, derived from subscripts.

Two accesses *meet* if some iterations of their loops reach one entry of an array. Of
the instructions ::

    for e, q:  t[e, q] = sum(j, D[q, j]*u[e, j])
    for e, i:  v[e, i] = sum(q, D[q, i]*t[e, q])
    for e:     w[e]    = 2*u[e, 0]

the first two exchange ``t``. No two iterations of the loop over ``e`` access the same
entry of ``t`` (:func:`have_own_entries`), so both may run in separate loops, one after
the other. The third one exchanges nothing with them: it reads ``u``, which nothing
writes. ``A[2*i]`` and ``A[2*j + 1]`` never meet (:func:`never_meet`).

Dependences decide three questions: whether the sum of a row may run in any order
(:class:`Hazards`); whether rows can run together as a batch (:func:`may_join`);
and whether parts of a kernel can run one after another, as phases (:class:`Exchanges`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, TypeAlias, TypeVar

import islpy as isl
import loopy as lp
import numpy as np
from loopy.diagnostic import UnableToDetermineAccessRangeError
from loopy.kernel.array import ArrayBase
from loopy.symbolic import SubstitutionRuleExpander, get_access_map, get_dependencies
from pymbolic import primitives as p
from pytools import memoize_on_first_arg
from pytools.graph import get_reachable_nodes

from feinsum.raising.expressions import (
    Expression,
    Subscripts,
    get_array_name,
    get_subscripts,
    list_accesses,
    list_accesses_of,
)
from feinsum.raising.functions import is_plain_array
from feinsum.raising.nest import make_refusal

T = TypeVar("T")


def get_storage(kernel: lp.LoopKernel, names: Iterable[str]) -> frozenset[str]:
    """Return the memory behind names, which several temporaries may share."""
    temporaries = kernel.temporary_variables
    return frozenset(
        (getattr(temporaries.get(name), "base_storage", None) or name) for name in names
    )


def has_distinct_entries(kernel: lp.LoopKernel, name: str) -> bool:
    """Return whether no known strides and extents make entries of an array overlap."""
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
        # all entries along this axis are the same
        if stride == 0:
            return False
        if _is_integer(extent):
            steps.append((abs(stride), int(extent)))
    # as in a positional number system, each step must exceed the reach of smaller ones
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
    """Return whether two sets of accesses have no entry of an array in common.

    For example, ``A[2*i]`` and ``A[2*j + 1]`` never meet, nor do ``A[i]`` with
    ``i < 12`` and ``A[12 + j]``.
    """
    second = [*theirs]
    return has_distinct_entries(kernel, name) and all(
        _are_apart(kernel, a, b) for a in mine for b in second
    )


def _are_apart(kernel: lp.LoopKernel, first: Subscripts, second: Subscripts) -> bool:
    # accesses of different rank view the memory differently; subscripts cannot tell
    if first == second or len(first) != len(second):
        return False
    if any(
        a != b
        for a, b in zip(first, second, strict=True)
        if _is_integer(a) and _is_integer(b)
    ):
        return True
    reached = _find_entries(kernel, first), _find_entries(kernel, second)
    if reached[0] is None or reached[1] is None:
        return False
    return bool(reached[0].intersect(reached[1]).is_empty())


@memoize_on_first_arg  # type: ignore[untyped-decorator]
def _find_entries(kernel: lp.LoopKernel, subscripts: Subscripts) -> isl.Set | None:
    """Return the set of entries that an access reaches; None if isl cannot tell."""
    inames = kernel.all_inames() & frozenset[str]().union(
        *map(get_dependencies, subscripts)
    )
    domain = kernel.get_inames_domain(inames).to_set()
    # a bound that the kernel computes may differ between iterations
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
    """Return whether no two iterations of loops access the same entry of an array.

    That is certain if each iname is the subscript at one position of all accesses; also
    if all accesses are equal, and address a different entry in every iteration.

    Args:
        accesses: the subscripts of all accesses of the array.
        inames: the loops whose iterations are compared.
        distinct: subscripts known to address a different entry in every iteration.
    """
    if len({*accesses} & {*distinct}) == len({*accesses}) == 1:
        (only,) = {*accesses}
        return {*inames} <= frozenset[str]().union(*map(get_dependencies, only))
    n_axes = min(map(len, accesses))
    return all(
        any(
            all(subscripts[axis] == p.Variable(iname) for subscripts in accesses)
            for axis in range(n_axes)
        )
        for iname in inames
    )


Part: TypeAlias = frozenset[str]
"""Ids of instructions that run together."""


class Exchanges:
    """The values that parts of a kernel exchange, and the subscripts of accesses."""

    def __init__(self, kernel: lp.LoopKernel) -> None:
        self.kernel = kernel
        expand = SubstitutionRuleExpander(kernel.substitutions)
        self._accesses: dict[str, list[tuple[str, Subscripts]]] = {}
        self._written: dict[str, frozenset[str]] = {}
        for insn in kernel.instructions:
            value = getattr(insn, "expression", 0)
            accesses = [
                (get_array_name(access), get_subscripts(access))
                for expression in (*insn.assignees, value, *insn.predicates)
                for access in list_accesses(expand(expression))
            ]
            self._written[insn.id] = frozenset(insn.assignee_var_names())
            # the subscripts in an instruction in C are unknown
            names = self._written[insn.id] | insn.read_dependency_names()
            unseen = names - {name for name, _ in accesses}
            self._accesses[insn.id] = [*accesses, *((name, ()) for name in unseen)]

    def groups(self, without: Part) -> list[Part]:
        """Partition the other instructions into parts that must stay together.

        Instructions of one part share a loop, or exchange values in an order that the
        kernel leaves to Loopy.
        """
        insns = [i for i in self.kernel.instructions if i.id not in without]
        before = self.kernel.recursive_insn_dep_map()
        neighbours: dict[object, set[object]] = {insn.id: set() for insn in insns}

        def connect(a: object, b: object) -> None:
            neighbours.setdefault(a, set()).add(b)
            neighbours.setdefault(b, set()).add(a)

        for insn in insns:
            for iname in insn.within_inames:
                connect(insn.id, ("loop", iname))
        for a, b in combinations([insn.id for insn in insns], 2):
            is_ordered = a in before[b] or b in before[a]
            if not is_ordered and self.find_conflicts(frozenset({a}), frozenset({b})):
                connect(a, b)
        connected = (get_reachable_nodes(neighbours, insn.id) for insn in insns)
        groups = (frozenset(v for v in x if isinstance(v, str)) for x in connected)
        return list(dict.fromkeys(groups))

    def find_conflicts(self, a: Part, b: Part) -> list[str]:
        """Return the variables that one part writes and the other accesses.

        Arrays without a common entry of both parts are left out.
        """
        names = (self._find_writes(a) & self._find_touched(b)) | (
            self._find_writes(b) & self._find_touched(a)
        )
        return sorted(
            name
            for name in names
            if not never_meet(
                self.kernel,
                name,
                self._list_subscripts(a, name),
                self._list_subscripts(b, name),
            )
        )

    def are_separable(self, a: Part, b: Part) -> bool:
        """Return whether the loops that two parts share can be duplicated.

        They can if no two iterations access the same entry of an exchanged array.

        Args:
            a: a nest; no two of its iterations assign the same entry.
            b: another part of the kernel.
        """
        shared = self._find_loops(a) & self._find_loops(b)
        if not shared:
            return True
        insns = [self.kernel.id_to_insn[i] for i in a]
        assigned = [get_subscripts(e) for insn in insns for e in insn.assignees]
        return all(
            have_own_entries(self._list_subscripts(a | b, name), shared, assigned)
            for name in self.find_conflicts(a, b)
        )

    def _find_loops(self, part: Part) -> frozenset[str]:
        inames = [self.kernel.id_to_insn[i].within_inames for i in part]
        return frozenset().union(*inames)

    def _find_writes(self, part: Part) -> frozenset[str]:
        return frozenset().union(*(self._written[i] for i in part))

    def _find_touched(self, part: Part) -> frozenset[str]:
        return frozenset(name for i in part for name, _ in self._accesses[i])

    def _list_subscripts(self, part: Part, name: str) -> list[Subscripts]:
        return [
            subscripts
            for i in part
            for array, subscripts in self._accesses[i]
            if array == name
        ]


Expand: TypeAlias = Callable[[Expression], Expression]


@dataclass(frozen=True)
class Hazards:
    """Checks of what else happens while the instruction of a nest runs.

    Attributes:
        insn: the instruction.
        expand: expands the substitution rules of the kernel.
        factors: its factors, and the scale.
    """

    insn: lp.Assignment
    kernel: lp.LoopKernel
    expand: Expand
    factors: tuple[Expression, ...]

    @cached_property
    def output(self) -> str:
        """The variable that the instruction assigns."""
        return str(self.insn.assignee_var_names()[0])

    @cached_property
    def expressions(self) -> list[Expression]:
        """The expressions in which the instruction accesses arrays."""
        values = (self.insn.expression, *self.factors)
        return [self.insn.assignee, *map(self.expand, values)]

    @cached_property
    def read(self) -> frozenset[str]:
        """All names that the instruction reads, except its output."""
        value, *factors = map(get_dependencies, self.expressions[1:])
        return frozenset(value - {self.output}).union(*factors)

    def check(self, inames: frozenset[str]) -> None:
        """Check that nothing changes the operands or touches the output.

        Args:
            inames: the loops of the instruction and of its sums.

        Raises:
            NotAnEinsumError: with the rule ``operand-written``, ``race`` or
                ``output-read``.
        """
        # if entries of the output overlap, iterations may write the same memory
        if not has_distinct_entries(self.kernel, self.output):
            raise make_refusal(
                self.insn.id, "race", f"entries of {self.output!r} overlap in memory"
            )
        self._check_written(self.insn)
        loops = self.insn.within_inames
        for other in self.kernel.instructions:
            if other.id == self.insn.id:
                continue
            # the sum will get separate loops, in which the other one does not run
            if (inames - loops) & other.within_inames:
                self._check_written(other)
            if loops & other.within_inames:
                self._check_exchange(other)

    def _check_written(self, other: lp.InstructionBase) -> None:
        if clash := self._find_shared(self.read, other.assignee_var_names()):
            raise make_refusal(
                self.insn.id,
                "operand-written",
                f"it reads {clash}, which instruction {other.id!r} writes "
                "in the same loops",
            )

    def _check_exchange(self, other: lp.InstructionBase) -> None:
        """Check that the other exchanges values within one iteration only."""
        theirs: list[Expression] = []
        if isinstance(other, lp.Assignment):
            all_of_other = (other.assignee, other.expression, *other.predicates)
            theirs = [*map(self.expand, all_of_other)]
        written = other.assignee_var_names()
        names = other.read_dependency_names().union(*map(get_dependencies, theirs))
        elsewhere = "in the same loops, at other points of them or in no stated order"

        def find_clash(mine: Iterable[str], their_names: Iterable[str]) -> str | None:
            for name in self._find_shared(mine, their_names):
                if not self._is_exchanged_in_place(name, other, theirs):
                    return name
            return None

        if name := find_clash(self.read, written):
            does = f"it reads {name!r}, which instruction {other.id!r} writes"
            raise make_refusal(self.insn.id, "operand-written", f"{does} {elsewhere}")
        if name := find_clash({self.output}, written):
            does = f"instruction {other.id!r} writes {name!r}"
            raise make_refusal(self.insn.id, "race", f"{does} {elsewhere}")
        if name := find_clash({self.output}, names):
            does = f"instruction {other.id!r} reads {name!r}"
            raise make_refusal(self.insn.id, "output-read", f"{does} {elsewhere}")

    def _find_shared(self, names: Iterable[str], others: Iterable[str]) -> list[str]:
        """Return the ``names`` that share memory with other names."""
        # temporaries with one base storage overwrite each other
        memory = get_storage(self.kernel, others)
        return sorted(n for n in names if get_storage(self.kernel, [n]) & memory)

    def _is_exchanged_in_place(
        self, name: str, other: lp.InstructionBase, expressions: list[Expression]
    ) -> bool:
        """Return whether no iteration accesses an entry that a different one writes.

        Within one iteration, the dependencies of the kernel order the accesses.
        """
        kernel, insn = self.kernel, self.insn
        mine, theirs = (
            [get_subscripts(x) for e in side for x in list_accesses_of(e, name)]
            for side in (self.expressions, expressions)
        )
        if not (mine and theirs) or get_storage(kernel, [name]) != {name}:
            return False
        if never_meet(kernel, name, mine, theirs):
            return True
        # without a declared order, Loopy may run either one first
        is_first = insn.id in find_ancestors(kernel, other.id)
        is_last = other.id in find_ancestors(kernel, insn.id)
        shared = insn.within_inames & other.within_inames
        distinct = [get_subscripts(insn.assignee)] if name == self.output else []
        are_own = have_own_entries([*mine, *theirs], shared, distinct)
        return is_first != is_last and are_own


def are_independent(
    first: lp.Assignment, second: lp.Assignment, kernel: lp.LoopKernel, expand: Expand
) -> bool:
    """Return whether neither assignment reads or overwrites the other one's result."""
    pairs = ((first, second), (second, first))
    if any(_may_read_output(expand(b.expression), a, kernel) for a, b in pairs):
        return False
    (name,), (other_name,) = first.assignee_var_names(), second.assignee_var_names()
    if name == other_name:
        subscripts = ([get_subscripts(insn.assignee)] for insn in (first, second))
        return never_meet(kernel, name, *subscripts)
    return not get_storage(kernel, [name]) & get_storage(kernel, [other_name])


def may_join(
    insn: lp.Assignment,
    batch: Iterable[lp.Assignment],
    kernel: lp.LoopKernel,
    expand: Expand,
    serving: Collection[str] = (),
) -> bool:
    """Return whether an assignment may join a batch: nothing has to run in between.

    Args:
        insn: the assignment to add.
        batch: the assignments that it may join.
        kernel: their kernel.
        expand: expands substitution rules.
        serving: instructions that only serve these, and will be replaced with them.
    """
    rows = list(batch)
    ids = {insn.id, *(other.id for other in rows)}
    before = frozenset[str]().union(*(find_ancestors(kernel, i) for i in ids)) - ids
    # an instruction that must run after one of them and before another
    between = before.difference(serving)
    is_interrupted = any(ids & find_ancestors(kernel, i) for i in between)
    return not is_interrupted and all(
        are_independent(insn, other, kernel, expand) for other in rows
    )


def group_in_batches(
    rows: Iterable[T],
    pattern: Callable[[T], Hashable],
    can_join: Callable[[T, list[T]], bool],
) -> list[list[T]]:
    """Group rows of equal patterns; each row joins the first batch that it can join."""
    batches: dict[Hashable, list[list[T]]] = {}
    for row in rows:
        alike = batches.setdefault(pattern(row), [])
        for batch in alike:
            if can_join(row, batch):
                batch.append(row)
                break
        else:
            alike.append([row])
    return [batch for alike in batches.values() for batch in alike]


def _may_read_output(
    expression: Expression, writer: lp.Assignment, kernel: lp.LoopKernel
) -> bool:
    """Return whether an expression may read an entry that ``writer`` assigns."""
    (name,) = writer.assignee_var_names()
    other_names = get_dependencies(expression) - {name}
    read = map(get_subscripts, list_accesses_of(expression, name))
    return bool(
        get_storage(kernel, other_names) & get_storage(kernel, [name])
    ) or not never_meet(kernel, name, read, [get_subscripts(writer.assignee)])


def find_ancestors(kernel: lp.LoopKernel, instruction: str) -> frozenset[str]:
    """Return all instructions that must run before an instruction."""
    before_it: set[str] = set()
    todo = [instruction]
    while todo:
        for before in kernel.id_to_insn[todo.pop()].depends_on - before_it:
            before_it.add(before)
            todo.append(before)
    return frozenset(before_it)
