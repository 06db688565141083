"""A kernel under transformation, with the einsum that it computes.

For ``ij,j->i``, operands ``A_0`` and ``x_1`` are read through the rules of the kernel::

    output  i         rows   (A_0, x_1)        inames  i -> i, j -> j
    spans   A_0 -> (i, j), x_1 -> (j,)         rules   A_0 -> A_rule, x_1 -> x_rule
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import islpy as isl
import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.kernel.tools import SetOperationCacheManager
from loopy.symbolic import Reduction
from pymbolic import primitives as p
from pymbolic import var

from feinsum.dtypes import get_sum_dtype
from feinsum.ir import Extent, IndexList, order_by_precision
from feinsum.raising import LoopNest
from feinsum.raising.expressions import make_product

Expression: TypeAlias = Any

Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Schedule:
    """The kernel that a family transforms; every primitive takes one and returns one.

    Operands are named per use: an array that an einsum reads with two index
    lists is two operands here.

    Attributes:
        output: the output indices.
        rows: for each row its operands, by name.
        extents: the extent of each index, in terms of the kernel.
        inames: the iname of each index.
        rules: the substitution rule of each operand.
        spans: the indices that each operand is a function of, one per argument.
        dtypes: the dtype of each operand.
        instructions: the instruction of each row.
        scales: the factor of the sum of each row.
        shifts: the summand of the scaled sum of each row, in inames.
    """

    t_unit: lp.TranslationUnit
    kernel_name: str
    output: IndexList
    rows: tuple[Names, ...]
    extents: Mapping[str, Extent]
    inames: Mapping[str, str]
    rules: Mapping[str, str]
    spans: Mapping[str, Names]
    dtypes: Mapping[str, np.dtype[Any]]
    instructions: Names
    scales: tuple[Expression, ...]
    shifts: tuple[Expression, ...]

    @property
    def kernel(self) -> lp.LoopKernel:
        return self.t_unit[self.kernel_name]

    @property
    def operands(self) -> Names:
        """The operands of all rows, each once."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def terms(self) -> tuple[Names, ...]:
        """The index list at each operand position."""
        return tuple(self.spans[name] for name in self.rows[0])

    @property
    def summed(self) -> Names:
        """The contraction indices that are still summed in the rows."""
        used = dict.fromkeys(i for term in self.terms for i in term)
        return tuple(index for index in used if index not in self.output)

    def fresh(self, stem: str) -> str:
        """Return a name that is unused in the kernel."""
        return str(self.kernel.get_var_name_generator()(stem))

    def generate_arguments(self, stems: Iterable[str]) -> Names:
        """Return arguments for a rule: names that cannot occur in its body."""
        unused = self.kernel.get_var_name_generator()
        return tuple(str(unused(f"_{stem}")) for stem in stems)

    def generate_id(self, stem: str) -> str:
        """Return an unused instruction id."""
        return str(self.kernel.get_instruction_id_generator()(stem))

    def with_unit(self, t_unit: lp.TranslationUnit) -> Schedule:
        return replace(self, t_unit=t_unit)

    def with_kernel(self, **changes: Any) -> Schedule:
        """Return the schedule with parts of its Loopy kernel replaced."""
        return self.with_unit(self.t_unit.with_kernel(self.kernel.copy(**changes)))

    def with_rule(self, name: str, arguments: Names, body: Expression) -> Schedule:
        rule = lp.SubstitutionRule(name, arguments, body)
        rules = {**self.kernel.substitutions, name: rule}
        return self.with_kernel(substitutions=constantdict(rules))

    def with_preamble(self, preamble: tuple[str, str]) -> Schedule:
        """Add a preamble to the code, given by its key and text."""
        preambles = self.kernel.preambles
        if preamble in preambles:
            return self
        return self.with_kernel(preambles=(*preambles, preamble))

    def is_shifted(self, instruction: str) -> bool:
        """Return whether an instruction is a row that adds something to its sum."""
        shifts = dict(zip(self.instructions, self.shifts, strict=True))
        shift = shifts.get(instruction, 0)
        return not (isinstance(shift, int) and shift == 0)

    def is_sum(self, k: int) -> bool:
        """Return whether a row assigns its sum as it is, everywhere."""
        statement = self.kernel.id_to_insn[self.instructions[k]]
        scale = self.scales[k]
        return (
            isinstance(scale, int)
            and scale == 1
            and not self.is_shifted(statement.id)
            and not statement.predicates
            and statement.within_inames == {self.inames[i] for i in self.output}
        )

    def get_row_dtype(self, k: int) -> np.dtype[Any]:
        return np.dtype(np.result_type(*(self.dtypes[name] for name in self.rows[k])))

    def get_sum_dtype(self, k: int) -> np.dtype[Any]:
        """Return the dtype in which a row is added up: single for half precision."""
        return get_sum_dtype(self.get_row_dtype(k))

    def multiply(
        self, operands: Sequence[str], points: Mapping[str, Expression]
    ) -> Expression:
        """Return the product of operands at ``points``, as calls of their rules."""
        # C multiplies from left to right, each product in the dtype of its two factors:
        # the most precise factor comes first
        order = order_by_precision(self.dtypes[name] for name in operands)
        return make_product(
            [
                var(self.rules[name])(*(points[index] for index in self.spans[name]))
                for name in (operands[k] for k in order)
            ]
        )

    def multiply_row(self, k: int, points: Mapping[str, Expression]) -> Expression:
        """Return the product of all operands of a row at ``points``."""
        return self.multiply(self.rows[k], points)


def begin(t_unit: lp.TranslationUnit, nest: LoopNest) -> Schedule:
    """Begin the schedule of an untransformed nest; each use of an array gets a rule."""
    einsum, kernel = nest.einsum, t_unit[nest.kernel_name]
    unused, substitutions = kernel.get_var_name_generator(), {**kernel.substitutions}
    names: dict[tuple[str, IndexList], str] = {}
    rules: dict[str, str] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    for row in einsum.rows:
        for operand, term in zip(row, einsum.inputs, strict=True):
            if (operand.name, term) in names:
                continue
            rule = nest.rules[operand.name]
            # ``precompute`` rewrites all calls of a rule: a family that stages one use
            # of an array would stage the others, too, if they shared the rule
            if rule in rules.values():
                shared, rule = substitutions[rule], str(unused(f"{rule}_copy"))
                # Loopy would merge two rules with equal text
                body = p.Product((shared.expression, 1))
                substitutions[rule] = lp.SubstitutionRule(rule, shared.arguments, body)
            name = f"{operand.name}_{len(names)}"
            names[operand.name, term] = name
            rules[name], dtypes[name] = rule, operand.dtype
    # Loopy warns that vector loops need its older scheduler
    silenced = frozenset({*kernel.silenced_warnings, "v1_scheduler_fallback"})
    kernel = kernel.copy(
        silenced_warnings=silenced, substitutions=constantdict(substitutions)
    )
    tell_sets_apart(kernel)
    schedule = Schedule(
        t_unit.with_kernel(kernel),
        nest.kernel_name,
        einsum.output,
        rows=tuple(
            tuple(
                names[op.name, term]
                for op, term in zip(row, einsum.inputs, strict=True)
            )
            for row in einsum.rows
        ),
        extents=constantdict({index: nest.extent(index) for index in einsum.indices}),
        inames=nest.inames,
        rules=constantdict(rules),
        spans=constantdict({name: term for (_, term), name in names.items()}),
        dtypes=constantdict(dtypes),
        instructions=nest.instructions,
        scales=nest.scales,
        shifts=nest.shifts,
    )
    return with_row_values(schedule)


def with_row_values(schedule: Schedule) -> Schedule:
    """Set the value of every row to ``shift + scale*sum(product of rule calls)``."""
    values = {
        insn_id: _make_row_value(schedule, k)
        for k, insn_id in enumerate(schedule.instructions)
    }
    return schedule.with_kernel(
        instructions=[
            insn.copy(expression=values[insn.id]) if insn.id in values else insn
            for insn in schedule.kernel.instructions
        ]
    )


def _make_row_value(schedule: Schedule, k: int) -> Expression:
    points = {index: var(iname) for index, iname in schedule.inames.items()}
    summed = tuple(schedule.inames[index] for index in schedule.summed)
    product = schedule.multiply_row(k, points)
    value = make_scaled_sum(schedule.scales[k], summed, product)
    if schedule.is_shifted(schedule.instructions[k]):
        return p.Sum((schedule.shifts[k], value))
    return value


def make_scaled_sum(scale: Expression, inames: Names, value: Expression) -> Expression:
    """Return ``scale * sum(inames, value)``, without trivial parts."""
    if inames:
        value = Reduction("sum", inames, value)
    return value if isinstance(scale, int) and scale == 1 else p.Product((scale, value))


StatementBuilder: TypeAlias = Callable[
    [str, Sequence[str], frozenset[str]], lp.InstructionBase
]
"""Makes a statement from its id, the loops around it, and the statements before it."""


def make_c_statement(
    code: str,
    insn_id: str,
    loops: Iterable[str],
    after: Iterable[str],
    **accesses: object,
) -> lp.CInstruction:
    """Make a statement of C code, whose accesses Loopy cannot infer.

    Args:
        code: the text of the statement.
        insn_id: id of the statement.
        loops: inames of the loops around it.
        after: ids of the statements before it.
        accesses: further arguments of :class:`loopy.CInstruction`: names that the code
            reads, arrays that it writes, tags.
    """
    return lp.CInstruction(
        [],
        code,
        id=insn_id,
        within_inames=frozenset(loops),
        depends_on=frozenset(after),
        **accesses,
    )


def add_offset(entry: tuple[str, str]) -> str:
    """Write a pointer to an entry in C: an array and the scalar with the offset."""
    return " + ".join(entry)


class CStatement(Protocol):
    """What a statement of C code does: a tag, as analyses of kernels cannot parse C.

    Attributes:
        code: the text of the statement.
        read_names: arrays and scalars that it reads.
        written_array: the array that it writes; empty for none.
    """

    @property
    def code(self) -> str: ...

    @property
    def read_names(self) -> frozenset[str]: ...

    @property
    def written_array(self) -> str: ...


def make_tagged_statement(
    statement: CStatement,
    insn_id: str,
    loops: Iterable[str],
    after: Iterable[str],
    *,
    n_axes: int = 0,
) -> lp.CInstruction:
    """Make a statement of C code that is tagged by what it does.

    Args:
        statement: what it does.
        insn_id: id of the statement.
        loops: inames of the loops around it.
        after: ids of the statements before it.
        n_axes: number of axes of the written array, if it is in global memory.
    """
    written = (var(statement.written_array),) if statement.written_array else ()
    return make_c_statement(
        statement.code, insn_id, loops, after,
        read_variables=statement.read_names,
        assignees=tuple(x[(0,) * n_axes] if n_axes else x for x in written),
        tags=frozenset({statement}),
    )  # fmt: skip


class NamedSetCache(SetOperationCacheManager):  # type: ignore[misc]
    """A cache that distinguishes ``{ [i, j] : ... }`` from ``{ [j, i] : ... }``.

    To isl, sets that differ only in the names of their dimensions are equal. All
    kernels derived from one share Loopy's own cache, which then returns the bounds of
    one loop for another one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of_names: dict[tuple[str, ...], SetOperationCacheManager] = {}

    def op(self, set_: Any, op: Callable[..., Any], *args: Any) -> Any:
        # Loopy compares keys with plain_is_equal, which ignores names
        names = tuple(set_.get_var_names(isl.dim_type.set))
        cache = self.of_names.setdefault(names, SetOperationCacheManager())
        return cache.op(set_, op, *args)


def tell_sets_apart(kernel: Any) -> None:
    """Give a new kernel a cache that compares names; copies of the kernel share it."""
    object.__setattr__(kernel, "_cache_manager", NamedSetCache())
