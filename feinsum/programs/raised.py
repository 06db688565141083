"""Conversion of the assignments of a Loopy kernel to the statements of a program.

A reduction inside an expression becomes a statement of its own::

    y[i] = exp(sum(j, A[i,j]*x[j])) + b[i]

    y_0[i] = sum x0*x1 : A[i,j], x[j]
    y[i] = map exp(x0) + x1 : y_0[i], b[i]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import loopy as lp
import numpy as np
from loopy.library import reduction as operations
from loopy.symbolic import IdentityMapper, Reduction, get_dependencies
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import ProgramError
from feinsum.ir import Extent, IndexList, Operand, SizeParam
from feinsum.ir.expressions import get_operand_name
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.raising.affine import find_box_extents
from feinsum.raising.dependences import find_ancestors
from feinsum.raising.functions import unresolve, write_function
from feinsum.raising.operands import OperandTable

Expression = Any

REDUCTIONS: Mapping[type, str] = {
    operations.SumReductionOperation: "sum",
    operations.ProductReductionOperation: "prod",
    operations.MaxReductionOperation: "max",
    operations.MinReductionOperation: "min",
    operations.AnyReductionOperation: "any",
    operations.AllReductionOperation: "all",
}


def raise_program(t_unit: lp.TranslationUnit, kernel_name: str | None) -> Program:
    """See :func:`feinsum.programs.program_from_kernel`."""
    name = _choose_kernel_name(t_unit, kernel_name)
    # substitutions are expanded first, because types are inferred from expressions
    typed = lp.infer_unknown_types(lp.expand_subst(t_unit), expect_completion=True)
    reading = _Reading(typed, name)
    for insn in _sort_instructions(typed[name]):
        reading.read(insn)
    return reading.program()


def _choose_kernel_name(t_unit: lp.TranslationUnit, name: str | None) -> str:
    names = sorted(t_unit.callables_table)
    if name is not None and name in names:
        return name
    if name is None and len(t_unit.entrypoints) == 1:
        return str(next(iter(t_unit.entrypoints)))
    raise ProgramError(
        f"the unit has the kernels {', '.join(names)}, but {name or 'one of them'} was "
        "requested; pass kernel_name=",
        rules=("kernel",),
    )


def _sort_instructions(kernel: lp.LoopKernel) -> list[lp.InstructionBase]:
    """Sort the instructions topologically."""
    remaining = [
        i for i in kernel.instructions if not isinstance(i, lp.NoOpInstruction)
    ]
    ordered: list[lp.InstructionBase] = []
    while remaining:
        waiting = {insn.id for insn in remaining}
        # Kahn's algorithm; ties keep the order of the kernel
        ready = [
            i
            for i in remaining
            if not find_ancestors(kernel, i.id) & (waiting - {i.id})
        ]
        if not ready:
            _refuse(remaining[0], "depends on itself")
        ordered += ready
        remaining = [insn for insn in remaining if insn not in ready]
    return ordered


class _Reading:
    """Converts instructions one by one, and collects their statements."""

    def __init__(self, t_unit: lp.TranslationUnit, name: str) -> None:
        self.kernel = t_unit[name]
        self.table = OperandTable(t_unit, self.kernel)
        self.writers: dict[str, str] = {}
        self.statements: list[Statement] = []
        self.written = {
            name
            for insn in self.kernel.instructions
            for name in insn.assignee_var_names()
        }

    def read(self, insn: lp.InstructionBase) -> None:
        """Add the statements of one instruction."""
        indices = self._check_assignee(insn)
        name = insn.assignee_var_names()[0]
        if name in self.writers:
            _refuse(insn, f"writes {name!r}, as {self.writers[name]!r} does")
        value = unresolve(insn.expression)
        self._check_extents(insn, name, indices)
        self._check_reads(insn, value)
        # functions are checked without reductions, which have statements of their own
        self.table.check_function(_Without()(insn.expression), insn.id)
        if isinstance(value, Reduction):
            self._reduce(insn, name, indices, value)
        else:
            self._add(insn, name, indices, _Extractor(self, insn)(value), "sum")
        self.writers[name] = insn.id

    def program(self) -> Program:
        """Return the program of all instructions."""
        kernel = self.kernel
        read = {name for x in self.statements for name in x.operands}
        results = {x.result for x in self.statements}
        inputs = [
            self._operand(arg) for arg in kernel.args if arg.name in read - results
        ]
        names = {operand.name for operand in inputs} | results
        # a temporary that no instruction writes
        if unset := sorted(read - names):
            raise ProgramError(
                f"kernel {kernel.name!r} reads {unset[0]!r}, which nothing writes",
                rules=("kernel",),
            )
        outputs = tuple(arg.name for arg in kernel.args if arg.name in results)
        program = Program(tuple(inputs), tuple(self.statements), outputs)
        self._check_dtypes(program)
        return program

    def _check_dtypes(self, program: Program) -> None:
        for name, insn in self.writers.items():
            stored = self.kernel.get_var_descriptor(name).dtype.numpy_dtype
            computed = program.arrays[name].dtype
            # Loopy casts silently when it stores
            if stored != computed:
                raise ProgramError(
                    f"instruction {insn!r} stores {name!r} as {stored}; its value has "
                    f"the dtype {computed}, and programs do not convert dtypes",
                    rules=("kernel",),
                )

    def _check_assignee(self, insn: lp.InstructionBase) -> IndexList:
        if not isinstance(insn, lp.Assignment) or insn.predicates or insn.atomicity:
            _refuse(insn, "is not a plain assignment")
        subscripts = getattr(insn.assignee, "index_tuple", ())
        names = tuple(
            subscript.name
            for subscript in subscripts
            if isinstance(subscript, p.Variable)
        )
        is_plain = len(set(names)) == len(subscripts)
        if not is_plain or set(names) != insn.within_inames:
            _refuse(
                insn,
                f"assigns to {insn.assignee} in loops over "
                f"{', '.join(sorted(insn.within_inames)) or 'nothing'}; expected every "
                "loop to be one subscript",
            )
        return names

    def _check_extents(
        self, insn: lp.InstructionBase, name: str, indices: IndexList
    ) -> None:
        """Check that an instruction writes the whole array."""
        inames = {*indices, *insn.reduction_inames()}
        extents = find_box_extents(self.kernel, inames, insn.id)
        shape = self._get_shape(self.kernel.get_var_descriptor(name))
        if shape != tuple(extents[index] for index in indices):
            _refuse(insn, f"writes only a part of {name!r}, whose shape is {shape}")

    def _check_reads(self, insn: lp.InstructionBase, value: Expression) -> None:
        """Check that every value was written by an instruction that this depends on."""
        earlier = find_ancestors(self.kernel, insn.id)
        for name in get_dependencies(value) & self.written:
            if self.writers.get(name) not in earlier:
                _refuse(insn, f"reads {name!r}, which is written later, or here")

    def _reduce(
        self, insn: lp.InstructionBase, name: str, output: IndexList, value: Reduction
    ) -> None:
        reduction = REDUCTIONS.get(type(value.operation))
        if reduction is None:
            _refuse(
                insn,
                f"reduces by {value.operation}; expected sum, max or a similar "
                "reduction",
            )
        inner = _Extractor(self, insn)(value.expr)
        if unused := sorted(set(value.inames) - get_dependencies(inner)):
            _refuse(insn, f"reduces over {unused[0]!r}, on which nothing depends")
        self._add(insn, name, output, inner, reduction)

    def extract(self, insn: lp.InstructionBase, value: Reduction) -> Expression:
        """Add a statement for a reduction inside an expression; return its result."""
        free = get_dependencies(value.expr) & self.kernel.all_inames()
        output = tuple(sorted(free - set(value.inames)))
        result = f"{insn.assignee_var_names()[0]}_{len(self.statements)}"
        # a name that is new in the kernel
        while result in self.kernel.all_variable_names():
            result += "_"
        self._reduce(insn, result, output, value)
        return var(result)[tuple(map(var, output))] if output else var(result)

    def _add(
        self,
        insn: lp.InstructionBase,
        name: str,
        output: IndexList,
        value: Expression,
        reduction: str,
    ) -> None:
        reader = _Reads(self, insn)
        body = write_function(reader(value))
        names = tuple(name for name, _ in reader.accesses)
        terms = tuple(term for _, term in reader.accesses)
        self.statements.append(Statement(name, output, terms, names, body, reduction))

    def _operand(self, arg: Any) -> Operand:
        if isinstance(arg, lp.ValueArg):
            return Operand(arg.name, (), np.dtype(arg.dtype.numpy_dtype))
        return Operand(arg.name, self._get_shape(arg), np.dtype(arg.dtype.numpy_dtype))

    def _get_shape(self, array: Any) -> tuple[Extent, ...]:
        shape = getattr(array, "shape", ())
        if not isinstance(shape, tuple):
            raise ProgramError(
                f"the shape of {array.name!r} is not known", rules=("kernel",)
            )
        return tuple(
            SizeParam(extent.name) if isinstance(extent, p.Variable) else int(extent)
            for extent in shape
        )


class _Extractor(IdentityMapper):  # type: ignore[misc]  # Loopy has no types
    """Replaces the reductions in an expression by the results of their statements."""

    def __init__(self, reading: _Reading, insn: lp.InstructionBase) -> None:
        super().__init__()
        self._reading, self._insn = reading, insn

    def map_reduction(self, expr: Reduction, /) -> Expression:
        return self._reading.extract(self._insn, expr)


class _Without(IdentityMapper):  # type: ignore[misc]
    """Replaces reductions by their operands, which is enough to check functions."""

    def map_reduction(self, expr: Reduction, /) -> Expression:
        return self.rec(expr.expr)


class _Reads(IdentityMapper):  # type: ignore[misc]
    """Replaces reads by ``x0``, ``x1`` and so on, and collects them as accesses."""

    def __init__(self, reading: _Reading, insn: lp.InstructionBase) -> None:
        super().__init__()
        self._inames = reading.kernel.all_inames()
        self._insn = insn
        self.accesses: list[tuple[str, IndexList]] = []

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        if not all(
            isinstance(subscript, p.Variable) and subscript.name in self._inames
            for subscript in expr.index_tuple
        ):
            _refuse(self._insn, f"reads {expr}; expected subscripts that are loops")
        return self._operand(
            expr.aggregate.name, tuple(subscript.name for subscript in expr.index_tuple)
        )

    def map_variable(self, expr: p.Variable, /) -> Expression:
        return expr if expr.name in self._inames else self._operand(expr.name, ())

    def map_call(self, expr: p.Call, /) -> Expression:
        return p.Call(expr.function, tuple(map(self.rec, expr.parameters)))

    def _operand(self, name: str, term: Sequence[str]) -> Expression:
        self.accesses.append((name, tuple(term)))
        return var(get_operand_name(len(self.accesses) - 1))


def _refuse(insn: lp.InstructionBase, problem: str) -> NoReturn:
    raise ProgramError(f"instruction {insn.id!r} {problem}", rules=("kernel",))
