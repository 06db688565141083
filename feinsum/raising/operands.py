"""Operands of an einsum: the factors of a product, as calls of substitution rules.

A product splits into operands as follows:

- A call of a rule is an operand, unchanged, if its arguments are inames.
- A subscript is an operand with these axes, if its indices are inames.
- Any other factor is an operand with one axis for each iname on which it depends. It
  must read a single array with all of these inames, except those in conditions;
  otherwise a sum of products could pass as one operand. The axes are first the inames
  that occur only in conditions, then those of that array. Of several such arrays, the
  one whose order is nearest to the output's decides.
- A factor that depends on no iname belongs to the scale.

For ``v[e, i] = sum(j, 2*D[i, j]*exp(u[e, j]))``::

    scale 2        D_rule(i, j) = D[i, j]        u_rule(e, j) = exp(u[e, j])

Equal functions over equal domains are one operand, even if their rules differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    get_dependencies,
)
from loopy.type_inference import TypeReader
from pymbolic import primitives as p

from feinsum.dtypes import is_inexact
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
    collect_nodes,
    has_reduction,
    rename,
    substitute,
)
from feinsum.raising.functions import (
    check_function,
    has_literal,
    unresolve,
    write_function,
)
from feinsum.raising.nest import AffineSize, LoopNest, RaisedNest, Tree, make_refusal
from feinsum.raising.trees import TreeLoop, find_compressed_levels


@dataclass(frozen=True)
class RuleUse:
    """An operand, which is named after its rule, and the inames of the call."""

    operand: Operand
    term: IndexList

    def call(self) -> Expression:
        arguments = tuple(p.Variable(iname) for iname in self.term)
        return p.Call(p.Variable(self.operand.name), arguments)


def align(
    accesses: Sequence[RuleUse], inputs: Sequence[IndexList]
) -> tuple[Operand, ...]:
    """Order the operands by their terms, as in ``inputs``."""
    remaining = list(accesses)
    row = []
    for term in inputs:
        match = next(access for access in remaining if access.term == term)
        remaining.remove(match)
        row.append(match.operand)
    return tuple(row)


@dataclass
class OperandTable:
    """The operands found in a kernel so far, and the rules made for them.

    Attributes:
        sizes: for each size parameter that is not one of the kernel, its expression.
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
        # how many rules have each text, since Loopy identifies rules by their text
        rules = self.kernel.substitutions.values()
        self._texts = Counter(
            _write_rule_text(rule.arguments, rule.expression) for rule in rules
        )

    @cached_property
    def levels(self) -> dict[str, TreeLoop]:
        """The loops over compressed rows."""
        return find_compressed_levels(self.kernel)

    def is_operand(self, factor: Expression) -> bool:
        """Return whether a factor depends on an iname, or is the call of a rule."""
        return self._find_rule(factor) is not None or bool(self.find_inames(factor))

    def note_sizes(self, extents: Iterable[Extent], instruction: str) -> None:
        """Record the expressions of size parameters that stand for affine extents.

        Raises:
            NotAnEinsumError: with the rule ``extent``, if the kernel has a variable
                with the name of such a parameter.
        """
        for extent in extents:
            if not isinstance(extent, AffineSize):
                continue
            if extent.name in self._used_names:
                raise make_refusal(
                    instruction,
                    "extent",
                    f"there is a variable {extent.name}, "
                    f"the name that the extent {extent.text} would have; rename it",
                )
            self.sizes[extent.name] = extent.text

    def reads(self, expression: Expression) -> frozenset[str]:
        """Return all names that ``expression`` reads, with rules expanded."""
        return frozenset(get_dependencies(self.expand(expression)))

    def find_inames(self, expression: Expression) -> frozenset[str]:
        """Return all inames on which ``expression`` depends, with rules expanded."""
        return self.reads(expression).intersection(self.kernel.all_inames())

    def check_function(self, expression: Expression, instruction: str) -> None:
        """Refuse an expression that is not a function of inames.

        Also refuse one whose value depends on the order in which rules are expanded.

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
        """Return the operand that ``factor`` reads, and the inames of the access.

        Args:
            factor: an expression of the instruction.
            output: the output indices, in order.
            extents: the extent of each index.
            instruction: the id of the instruction.
            along: inames along which the factor is repeated, though it does not depend
                on them.

        Raises:
            NotAnEinsumError: if the factor is not a function of its inames, or its
                dtype is unknown.
        """
        expanded = self.expand(factor)
        refuse_reduction(factor, expanded, instruction)
        self.check_function(factor, instruction)
        term = self._find_term(factor, output, instruction)
        # a diagonal, such as A[i,i], cannot get another axis
        if along and len(set(term)) == len(term):
            # other indices come after those of the output
            positions = {iname: k for k, iname in enumerate(output)}
            term = tuple(
                sorted({*along, *term}, key=lambda i: positions.get(i, len(positions)))
            )
        if outside := [iname for iname in term if iname not in extents]:
            raise make_refusal(
                instruction,
                "unbound-index",
                f"the factor {factor} depends on the iname {outside[0]!r}, which is "
                "neither summed nor an output index",
            )
        shape = tuple(extents[iname] for iname in term)
        parameters = self._name_parameters(len(term))
        body = self._write_body(factor, term, parameters)
        dtype = self.infer_computed_dtype(expanded, instruction)
        # equal functions over equal domains are one operand in all rows
        key = (shape, dtype, body)
        if key not in self._operands:
            name = self._choose_rule_name(
                factor, term, parameters, body, is_new=bool(along)
            )
            self._operands[key] = Operand(name, shape, dtype)
            self.functions[name] = OperandFunction(parameters, write_function(body))
        return RuleUse(self._operands[key], term)

    def infer_computed_dtype(
        self, expanded: Expression, instruction: str
    ) -> np.dtype[Any]:
        """Return the dtype in which the code computes a factor.

        Loopy writes literals in the precision of the assignee, but infers the narrowest
        dtype that holds them: it infers single precision for ``1/(j + 1.0)``.
        """
        dtype = self.dtype(expanded, instruction)
        if not is_inexact(dtype) or not has_literal(expanded):
            return dtype
        (name,) = self.kernel.id_to_insn[instruction].assignee_var_names()
        declared = self.kernel.get_var_descriptor(name).dtype
        assigned = getattr(declared, "numpy_dtype", dtype)
        return np.result_type(dtype, np.empty(0, assigned).real.dtype)

    def _write_body(
        self, factor: Expression, term: IndexList, parameters: IndexList
    ) -> Expression:
        """Write the function in terms of its parameters, with rules expanded.

        A repeated iname (a diagonal) gets a separate parameter for each occurrence.
        """
        if len(set(term)) == len(term):
            names = dict(zip(term, parameters, strict=True))
            return rename(unresolve(self.expand(factor)), names)
        arguments = tuple(p.Variable(name) for name in parameters)
        if isinstance(factor, p.Subscript):
            return p.Subscript(factor.aggregate, arguments)
        return unresolve(self.expand(p.Call(factor.function, arguments)))

    def _find_rule(self, factor: Expression) -> lp.SubstitutionRule | None:
        """Return the rule that ``factor`` calls, if all of its arguments are inames."""
        called, arguments = _read_call(factor)
        rule = self.kernel.substitutions.get(called)
        if rule is None or _get_inames(arguments, self.kernel) is None:
            return None
        parameters = tuple(map(p.Variable, self._name_parameters(len(arguments))))
        # a rule that reads other inames, too, is not a function of its arguments
        is_closed = not self.find_inames(p.Call(p.Variable(rule.name), parameters))
        return rule if is_closed else None

    def _name_parameters(self, n: int) -> IndexList:
        """Return names for ``n`` arguments of a rule that are unused in the kernel."""
        # expansion of the rule would capture a name that the kernel uses
        prefix = "_"
        while any(f"{prefix}{axis}" in self._used_names for axis in range(n)):
            prefix += "_"
        return tuple(f"{prefix}{axis}" for axis in range(n))

    def _find_term(
        self, factor: Expression, output: IndexList, instruction: str
    ) -> IndexList:
        if self._find_rule(factor) is not None:
            return tuple(arg.name for arg in _read_call(factor)[1])
        if isinstance(factor, p.Subscript):
            inames = _get_inames(factor.index_tuple, self.kernel)
            if inames is not None:
                return inames
        term = order_axes(self.expand(factor), self.kernel, output)
        if term is None:
            raise make_refusal(
                instruction,
                "sum-of-products",
                f"the factor {factor} reads no array with "
                "all of its inames, so it is not a single operand",
            )
        return term

    def _choose_rule_name(
        self,
        factor: Expression,
        term: IndexList,
        parameters: IndexList,
        body: Expression,
        *,
        is_new: bool,
    ) -> str:
        """Return the user's own rule if no other operand has it; else add a new one."""
        # the user's rule has no argument for an axis along which a function is constant
        rule = None if is_new else self._find_rule(factor)
        if rule is not None and rule.name not in self.functions:
            text = _write_rule_text(rule.arguments, rule.expression)
            # no other rule may have its text
            if self._texts[text] == 1:
                return str(rule.name)
        stem = getattr(getattr(factor, "aggregate", None), "name", "operand")
        return self.add_rule(f"{stem}_rule", parameters, body)

    def add_rule(self, stem: str, parameters: IndexList, body: Expression) -> str:
        """Add a rule with a name and a text that nothing in the kernel has.

        Loopy identifies rules by their text, even if their arguments differ.
        """
        name = str(self._unique(stem))
        while _write_rule_text(parameters, body) in self._texts:
            # another text with the same value
            body = p.Product((body, 1))
        self._texts[_write_rule_text(parameters, body)] += 1
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
        """Build the nest of an einsum; its long extents become size parameters.

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
            dtype = getattr(self._dtype_of(expanded), "numpy_dtype", None)
            problem = "it is not declared"
        except (lp.LoopyError, NotImplementedError, KeyError) as error:
            dtype, problem = None, str(error)
        if isinstance(dtype, np.dtype):
            return dtype
        raise make_refusal(
            instruction,
            "unknown-dtype",
            f"the dtype of the operand {expanded} is unknown ({problem}); give dtypes "
            "with loopy.add_dtypes or arguments=",
        )


def _read_call(factor: Expression) -> tuple[str | None, tuple[Expression, ...]]:
    """Return name and arguments of a call; without arguments, Loopy writes a name."""
    if isinstance(factor, p.Variable):
        return factor.name, ()
    if isinstance(factor, p.Call) and isinstance(factor.function, p.Variable):
        return factor.function.name, factor.parameters
    return None, ()


def _get_inames(
    indices: tuple[Expression, ...], kernel: lp.LoopKernel
) -> IndexList | None:
    names = tuple(i.name for i in indices if isinstance(i, p.Variable))
    is_plain = len(names) == len(indices) and set(names) <= kernel.all_inames()
    return names if is_plain else None


def _write_rule_text(parameters: Sequence[str], body: Expression) -> Expression:
    """Write the body of a rule independently of the names of its parameters."""
    return substitute(
        body, {name: RuleArgument(k) for k, name in enumerate(parameters)}
    )


class _Dtypes(TypeReader):  # type: ignore[misc]
    """Loopy's inference of dtypes, extended by casts."""

    def map_type_cast(self, expr: TypeCast, /) -> list[Any]:
        return [expr.type]


def refuse_reduction(
    factor: Expression, expanded: Expression, instruction: str
) -> None:
    """Refuse a factor that contains a reduction.

    Args:
        factor: the factor, as the kernel has it.
        expanded: the factor, perhaps with rules expanded.
        instruction: the id of the instruction.

    Raises:
        NotAnEinsumError: with the rule ``nested-reduction``.
    """
    if has_reduction(expanded):
        raise make_refusal(
            instruction,
            "nested-reduction",
            f"the factor {factor} contains a reduction, so it is not an operand "
            "function",
        )


def order_axes(
    expression: Expression, kernel: lp.LoopKernel, output: IndexList
) -> IndexList | None:
    """Order the inames of an expression without rules, independently of its spelling.

    Returns:
        The inames in order; None if no array is read with all inames that occur outside
        of conditions.
    """
    all_inames = kernel.all_inames()

    def list_inames(node: Expression) -> IndexList:
        """Return the inames in an expression, in order of appearance."""
        names = (variable.name for variable in collect_nodes(node, p.Variable))
        return tuple(name for name in names if name in all_inames)

    inames = list_inames(expression)
    conditions = [choice.condition for choice in collect_nodes(expression, p.If)]
    needed = {*inames}.difference(*map(list_inames, conditions))
    position = {iname: k for k, iname in enumerate(output)}

    def list_positions(term: IndexList) -> list[int]:
        return [position.get(iname, len(position)) for iname in term]

    arrays = collect_nodes(expression, p.Subscript)
    reads = [(str(array.aggregate), list_inames(array)) for array in arrays]
    reads = [(name, term) for name, term in reads if needed <= {*term}]
    # The array with the most inames decides; ties are broken by the output's order,
    # then by name, so that neither spelling nor the order of factors changes the axes.
    reads.sort(key=lambda read: (-len(read[1]), list_positions(read[1]), read[0]))
    # x[i]*y[j] reads no array with both inames: it consists of two operands
    if not reads and len(needed) > 1:
        return None
    first = reads[0][1] if reads else ()
    outer_inames = [iname for iname in inames if iname not in first]
    return (*sorted(outer_inames, key=lambda iname: list_positions((iname,))), *first)


def check_captures(
    expression: Expression, kernel: lp.LoopKernel, instruction: str
) -> None:
    """Refuse rules whose meaning depends on the order of expansion.

    A rule may read an iname that is not its argument; but no other rule behind the
    expression may have an argument with the same name.

    Raises:
        NotAnEinsumError: with the rule ``captured-iname``.
    """
    rules: dict[str, lp.SubstitutionRule] = {}
    todo = [expression]
    while todo:
        # names of called rules are variables, too
        names = {variable.name for variable in collect_nodes(todo.pop(), p.Variable)}
        names &= set(kernel.substitutions)
        called_rules = {n: kernel.substitutions[n] for n in names - set(rules)}
        rules |= called_rules
        todo += (rule.expression for rule in called_rules.values())
    # expansion may replace the iname by the argument of another rule
    arguments = {name for rule in rules.values() for name in rule.arguments}
    captured = {
        name
        for rule in rules.values()
        for name in get_dependencies(rule.expression) - set(rule.arguments)
    }
    if clash := arguments & captured & kernel.all_inames():
        raise make_refusal(
            instruction,
            "captured-iname",
            f"the rules behind {expression} both have "
            f"{sorted(clash)} as an argument and read the iname of that name",
        )
