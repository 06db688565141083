"""Factors of a product, as calls of substitution rules: the operands of an einsum.

How a product splits into operands:

- a call of a rule whose arguments are inames is an operand unchanged;
- a subscript whose indices are inames is an operand with these axes;
- any other factor is an operand with one axis per iname that it depends on; it must
  read an array with all of these inames at once (inames of conditions excepted), so
  that a sum of products is not taken for a single operand. The axes are those of that
  array, after the inames that are in conditions alone; where several arrays would do,
  those whose order is nearest to the output's;
- a factor that depends on no iname belongs to the scale.

Equal functions over equal domains are one operand, even if their rules differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.symbolic import (
    RuleArgument,
    SubstitutionRuleExpander,
    TypeCast,
    WalkMapper,
    get_dependencies,
)
from loopy.type_inference import TypeReader
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.ir import (
    BatchedEinsum,
    Extent,
    FunctionalBatchedEinsum,
    IndexList,
    Operand,
    OperandFunction,
    generalize,
)
from feinsum.raising.expressions import (
    Expression,
    has_reduction,
    nodes_of,
    rename,
    substitute,
)
from feinsum.raising.functions import (
    check_function,
    function_text,
    has_literal,
    unresolved,
)
from feinsum.raising.nest import AffineSize, LoopNest, RaisedNest, Tree, refusal
from feinsum.raising.trees import TreeLoop, compressed_levels


@dataclass(frozen=True)
class RuleUse:
    """An operand (named by its rule) and the inames it is called with."""

    operand: Operand
    term: IndexList

    def call(self) -> Expression:
        arguments = tuple(p.Variable(iname) for iname in self.term)
        return p.Call(p.Variable(self.operand.name), arguments)


def align(
    accesses: Sequence[RuleUse], inputs: Sequence[IndexList]
) -> tuple[Operand, ...]:
    """Return the operands in the order of ``inputs``, a permutation of their terms."""
    left = list(accesses)
    row = []
    for term in inputs:
        match = next(access for access in left if access.term == term)
        left.remove(match)
        row.append(match.operand)
    return tuple(row)


@dataclass
class OperandTable:
    """The operands of a kernel found so far, and the rules made for them.

    Attributes:
        sizes: the expressions of size parameters that the kernel does not have.
    """

    t_unit: lp.TranslationUnit
    kernel: lp.LoopKernel
    new_rules: dict[str, lp.SubstitutionRule] = field(default_factory=dict)
    functions: dict[str, OperandFunction] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    _operands: dict[tuple[Any, ...], Operand] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expand = SubstitutionRuleExpander(self.kernel.substitutions)
        self._dtype_of = _Dtypes(self.kernel, self.t_unit.callables_table)
        self._unique = self.kernel.get_var_name_generator()
        self._used_names = self.kernel.all_variable_names() | self.kernel.all_inames()
        # how many rules have a text, since Loopy takes rules of one text for one
        rules = self.kernel.substitutions.values()
        self._texts = Counter(_text(rule.arguments, rule.expression) for rule in rules)

    @cached_property
    def levels(self) -> dict[str, TreeLoop]:
        """The loops over compressed rows."""
        return compressed_levels(self.kernel)

    def is_operand(self, factor: Expression) -> bool:
        """Whether ``factor`` depends on an iname or is the call of a rule."""
        return self._rule_of(factor) is not None or bool(self.inames_of(factor))

    def note_sizes(self, extents: Iterable[Extent], instruction: str) -> None:
        """Remember which expressions size parameters stand for.

        Raises:
            NotAnEinsumError: with the rule ``extent``, if the kernel has a variable
                of the name of one.
        """
        for extent in extents:
            if not isinstance(extent, AffineSize):
                continue
            if extent.name in self._used_names:
                raise refusal(
                    instruction,
                    "extent",
                    f"there is a variable {extent.name}, "
                    f"the name that the extent {extent.text} would have; rename it",
                )
            self.sizes[extent.name] = extent.text

    def reads(self, expression: Expression) -> frozenset[str]:
        """Return every name that ``expression`` reads, rules expanded."""
        return frozenset(get_dependencies(self.expand(expression)))

    def inames_of(self, expression: Expression) -> frozenset[str]:
        """Return every iname that ``expression`` depends on, rules expanded."""
        return self.reads(expression).intersection(self.kernel.all_inames())

    def check_function(self, expression: Expression, instruction: str) -> None:
        """Refuse what is no function of inames, or depends on how rules expand.

        Raises:
            NotAnEinsumError: with the rule ``captured-iname`` or
                ``operand-function``.
        """
        check_captures(expression, self.kernel, instruction)
        check_function(
            self.expand(expression),
            self.kernel,
            lambda e: self.dtype(e, instruction),
            instruction,
        )

    def access(
        self,
        factor: Expression,
        output: IndexList,
        extents: Mapping[str, Extent],
        instruction: str,
        along: IndexList = (),
    ) -> RuleUse:
        """Return the operand that ``factor`` reads, and the inames it reads it with.

        Args:
            factor: an expression of the instruction.
            output: the output indices, in order.
            extents: the extent of each index.
            instruction: the id of the instruction.
            along: inames that it does not depend on, but along which it is repeated.

        Raises:
            NotAnEinsumError: if the factor is no function of its inames, or its
                dtype is not known.
        """
        expanded = self.expand(factor)
        if has_reduction(expanded):
            raise _inner_reduction(factor, instruction)
        self.check_function(factor, instruction)
        term = self._term(factor, output, instruction)
        # a diagonal, such as A[i,i], has no place for another axis
        if along and len(set(term)) == len(term):
            term = tuple(sorted({*along, *term}, key=_place_in(output)))
        _check_inside(factor, term, extents, instruction)
        shape = tuple(extents[iname] for iname in term)
        parameters = self._parameters(len(term))
        body = self._body(factor, term, parameters)
        dtype = self.computed_dtype(expanded, instruction)
        # equal functions over equal domains are one operand, in all rows of the kernel
        key = (shape, dtype, body)
        if key not in self._operands:
            name = self._rule_name(factor, term, parameters, body, is_new=bool(along))
            self._operands[key] = Operand(name, shape, dtype)
            self.functions[name] = OperandFunction(parameters, function_text(body))
        return RuleUse(self._operands[key], term)

    def computed_dtype(self, expanded: Expression, instruction: str) -> np.dtype[Any]:
        """Return the dtype in which the code computes a factor.

        Literals are written in the precision of what is assigned, though Loopy infers
        the least one that holds them: ``1/(j + 1.0)`` is single for it.
        """
        dtype = self.dtype(expanded, instruction)
        if dtype.kind not in "fc" or not has_literal(expanded):
            return dtype
        (name,) = self.kernel.id_to_insn[instruction].assignee_var_names()
        declared = self.kernel.get_var_descriptor(name).dtype
        assigned = getattr(declared, "numpy_dtype", dtype)
        return np.result_type(dtype, np.empty(0, assigned).real.dtype)

    def _body(
        self, factor: Expression, term: IndexList, parameters: IndexList
    ) -> Expression:
        """Write the function in terms of its parameters, with rules expanded.

        A repeated iname of a subscript or call (a diagonal) keeps its places apart.
        """
        if len(set(term)) == len(term):
            names = dict(zip(term, parameters, strict=True))
            return rename(unresolved(self.expand(factor)), names)
        arguments = tuple(p.Variable(name) for name in parameters)
        if isinstance(factor, p.Subscript):
            return p.Subscript(factor.aggregate, arguments)
        return unresolved(self.expand(p.Call(factor.function, arguments)))

    def _rule_of(self, factor: Expression) -> lp.SubstitutionRule | None:
        """Return the rule that ``factor`` calls with inames only, if there is one."""
        called, arguments = _called(factor)
        rule = self.kernel.substitutions.get(called)
        if rule is None or _inames_only(arguments, self.kernel) is None:
            return None
        parameters = tuple(map(p.Variable, self._parameters(len(arguments))))
        # a rule that reads inames besides its arguments is no function of these alone
        is_closed = not self.inames_of(p.Call(p.Variable(rule.name), parameters))
        return rule if is_closed else None

    def _parameters(self, n: int) -> IndexList:
        """Return names for ``n`` arguments of a rule, unused in the kernel."""
        # a name of the kernel would be captured when the rule is expanded
        prefix = "_"
        while any(f"{prefix}{axis}" in self._used_names for axis in range(n)):
            prefix += "_"
        return tuple(f"{prefix}{axis}" for axis in range(n))

    def _term(
        self, factor: Expression, output: IndexList, instruction: str
    ) -> IndexList:
        if self._rule_of(factor) is not None:
            return tuple(arg.name for arg in _called(factor)[1])
        if isinstance(factor, p.Subscript):
            inames = _inames_only(factor.index_tuple, self.kernel)
            if inames is not None:
                return inames
        term = axis_order(self.expand(factor), self.kernel, output)
        if term is None:
            raise refusal(
                instruction,
                "sum-of-products",
                f"the factor {factor} reads no array with "
                "all of its inames, so it is not a single operand",
            )
        return term

    def _rule_name(
        self,
        factor: Expression,
        term: IndexList,
        parameters: IndexList,
        body: Expression,
        *,
        is_new: bool,
    ) -> str:
        """Return the user's own rule if it is free, else add a new one."""
        # an axis along which a function is constant is no argument of the user's rule
        rule = None if is_new else self._rule_of(factor)
        if rule is not None and self._is_free(rule):
            return str(rule.name)
        stem = getattr(getattr(factor, "aggregate", None), "name", "operand")
        return self.add_rule(f"{stem}_rule", parameters, body)

    def _is_free(self, rule: lp.SubstitutionRule) -> bool:
        """Whether no other operand has the rule, and no other rule its text."""
        is_single = self._texts[_text(rule.arguments, rule.expression)] == 1
        return is_single and rule.name not in self.functions

    def add_rule(self, stem: str, parameters: IndexList, body: Expression) -> str:
        """Make a rule; its name and its text are those of nothing in the kernel.

        Loopy takes rules of one text for one, even if they have other arguments.
        """
        name = str(self._unique(stem))
        while _text(parameters, body) in self._texts:
            # the same value, as another text
            body = p.Product((body, 1))
        self._texts[_text(parameters, body)] += 1
        self.new_rules[name] = lp.SubstitutionRule(name, parameters, body)
        return name

    def raise_einsum(
        self,
        einsum: BatchedEinsum,
        rows: Iterable[tuple[str, Expression, Expression, Expression]],
        points: Mapping[str, Expression],
        long_extent: int,
        tree: Tree | None = None,
    ) -> RaisedNest:
        """Build the nest of an einsum, whose long extents become size parameters.

        Args:
            einsum: the einsum.
            rows: the instruction, assignee, scale and shift of each row.
            points: the values of indices in the kernel.
            long_extent: see :func:`feinsum.raise_kernel`.
            tree: the tree of the sparse operand, if there is one.
        """
        general, literal = generalize(einsum, long_extent)
        names = [param.name for param in general.size_params]
        operands = [operand.name for operand in general.operands]
        instructions, assignees, scales, shifts = zip(*rows, strict=True)
        nest = LoopNest(
            general,
            constantdict(points),
            constantdict({name: name for name in operands}),
            instructions,
            assignees,
            scales,
            shifts,
            self.kernel.name,
            constantdict({n: literal.get(n, self.sizes.get(n, n)) for n in names}),
            tree,
        )
        functions = constantdict({name: self.functions[name] for name in operands})
        return RaisedNest(nest, FunctionalBatchedEinsum(general, functions), literal)

    def dtype(self, expanded: Expression, instruction: str) -> np.dtype[Any]:
        """Infer the dtype of an expression without rules, as Loopy does."""
        try:
            result = self._dtype_of(expanded)
        except (lp.LoopyError, NotImplementedError, KeyError) as error:
            raise _unknown_dtype(expanded, instruction, str(error)) from None
        dtype = getattr(result, "numpy_dtype", None)
        if not isinstance(dtype, np.dtype):
            raise _unknown_dtype(expanded, instruction, "it is not declared")
        return dtype


def _place_in(output: IndexList) -> Callable[[str], int]:
    """Return a sort key: an index's position in the output; other indices come last."""
    positions = {iname: k for k, iname in enumerate(output)}
    return lambda iname: positions.get(iname, len(positions))


def _called(factor: Expression) -> tuple[str | None, tuple[Expression, ...]]:
    """Name and arguments of a call; Loopy writes a call of no arguments as a name."""
    if isinstance(factor, p.Variable):
        return factor.name, ()
    if isinstance(factor, p.Call) and isinstance(factor.function, p.Variable):
        return factor.function.name, factor.parameters
    return None, ()


def _inames_only(
    indices: tuple[Expression, ...], kernel: lp.LoopKernel
) -> IndexList | None:
    names = tuple(i.name for i in indices if isinstance(i, p.Variable))
    is_plain = len(names) == len(indices) and set(names) <= kernel.all_inames()
    return names if is_plain else None


def _check_inside(
    factor: Expression,
    term: IndexList,
    extents: Mapping[str, Extent],
    instruction: str,
) -> None:
    for iname in term:
        if iname not in extents:
            raise refusal(
                instruction,
                "unbound-index",
                f"the factor {factor} depends on the "
                f"iname {iname!r}, which is neither summed nor an output index",
            )


def _text(parameters: Sequence[str], body: Expression) -> Expression:
    """Write the body of a rule independently of its parameter names."""
    return substitute(
        body, {name: RuleArgument(k) for k, name in enumerate(parameters)}
    )


class _Dtypes(TypeReader):  # type: ignore[misc]
    """Loopy's reader of dtypes, which cannot read casts."""

    def map_type_cast(self, expr: TypeCast, /) -> list[Any]:
        return [expr.type]


def _inner_reduction(factor: Expression, instruction: str) -> NotAnEinsumError:
    return refusal(
        instruction,
        "nested-reduction",
        f"the factor {factor} contains a reduction, so it is not an operand function",
    )


def _unknown_dtype(
    expression: Expression, instruction: str, why: str
) -> NotAnEinsumError:
    return refusal(
        instruction,
        "unknown-dtype",
        f"the dtype of the operand {expression} is "
        f"unknown ({why}); give dtypes with loopy.add_dtypes or arguments=",
    )


def axis_order(
    expression: Expression, kernel: lp.LoopKernel, output: IndexList
) -> IndexList | None:
    """Order the inames of an expression without rules, independently of its spelling.

    Returns:
        None if nothing is read with all inames that are not in conditions.
    """
    finder = _ReadFinder(kernel.all_inames())
    finder(expression)
    inames = tuple(finder.inames)
    needed = set(inames) - finder.in_conditions
    position = {iname: k for k, iname in enumerate(output)}

    def positions_of(term: IndexList) -> list[int]:
        return [position.get(iname, len(position)) for iname in term]

    reads = [(name, term) for name, term in finder.reads if needed <= set(term)]
    # the widest array first; ties by the order of the output, then by name, so that
    # neither the spelling nor the order of factors changes the axes
    reads.sort(key=lambda read: (-len(read[1]), positions_of(read[1]), read[0]))
    # x[i]*y[j] depends on both, but reads nothing with both: two operands
    if not reads and len(needed) > 1:
        return None
    first = reads[0][1] if reads else ()
    others = [iname for iname in inames if iname not in first]
    return (*sorted(others, key=lambda iname: positions_of((iname,))), *first)


def check_captures(
    expression: Expression, kernel: lp.LoopKernel, instruction: str
) -> None:
    """Refuse rules whose meaning depends on the order of expansion.

    A rule may read an iname that is not its argument, but not one of a name
    that some rule on the way has as an argument.

    Raises:
        NotAnEinsumError: with the rule ``captured-iname``.
    """
    rules: dict[str, lp.SubstitutionRule] = {}
    todo = [expression]
    while todo:
        # called functions and rules are among the variables
        names = {variable.name for variable in nodes_of(todo.pop(), p.Variable)}
        names &= set(kernel.substitutions)
        new = {n: kernel.substitutions[n] for n in names - set(rules)}
        rules |= new
        todo += (rule.expression for rule in new.values())
    # expansion may put an argument of one rule where another rule reads the loop
    arguments = {name for rule in rules.values() for name in rule.arguments}
    captured = {
        name
        for rule in rules.values()
        for name in get_dependencies(rule.expression) - set(rule.arguments)
    }
    if clash := arguments & captured & kernel.all_inames():
        raise refusal(
            instruction,
            "captured-iname",
            f"the rules behind {expression} both have "
            f"{sorted(clash)} as an argument and read the iname of that name",
        )


class _InameFinder(WalkMapper):  # type: ignore[misc]
    """Collects inames in order of appearance."""

    def __init__(self, all_inames: frozenset[str]) -> None:
        super().__init__()
        self.all_inames = all_inames
        self.inames: dict[str, None] = {}

    def map_variable(self, expr: p.Variable, /) -> None:
        if expr.name in self.all_inames:
            self.inames[expr.name] = None


class _ReadFinder(_InameFinder):
    """Collects also the inames of each array read and of conditions."""

    def __init__(self, all_inames: frozenset[str]) -> None:
        super().__init__(all_inames)
        self.reads: list[tuple[str, IndexList]] = []
        self.in_conditions: set[str] = set()

    def map_subscript(self, expr: p.Subscript, /) -> None:
        self.reads.append((str(expr.aggregate), self._names(expr)))
        for index in expr.index_tuple:
            self.rec(index)

    def map_if(self, expr: p.If, /) -> None:
        self.in_conditions |= set(self._names(expr.condition))
        for part in (expr.condition, expr.then, expr.else_):
            self.rec(part)

    def _names(self, expr: Expression) -> IndexList:
        finder = _InameFinder(self.all_inames)
        finder(expr)
        return tuple(finder.inames)
