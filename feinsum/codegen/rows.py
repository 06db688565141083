"""The Loopy kernel of a functional batched einsum whose functions are given as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import loopy as lp
import numpy as np
from pymbolic import parse
from pymbolic import primitives as p

from feinsum.ir import Extent, IndexList, Operand, SizeParam
from feinsum.targets.host.code import HostCTarget

__all__ = ["Row", "generate_rows"]


@dataclass(frozen=True)
class Row:
    """``result[output] = shift + scale * sum over the other indices of the factors``.

    Attributes:
        result: its array.
        factors: expressions over arrays, which are subscripted, and indices.
        scale, shift: expressions, too, at the output indices.
    """

    result: Operand
    output: IndexList
    factors: tuple[str, ...]
    scale: str = "1"
    shift: str = "0"


def generate_rows(
    rows: Sequence[Row],
    arrays: Sequence[Operand],
    extents: Mapping[str, Extent],
    *,
    name: str = "feinsum_kernel",
) -> lp.TranslationUnit:
    """An unoptimized kernel with an instruction for each row.

    Args:
        arrays: the input arrays.
        extents: of every index. Names of indices and of arrays are distinct.

    >>> from feinsum.ir import array
    >>> row = Row(array("y", 3), ("i",), ("A[i, j]", "(x[j] + 1.0)"), shift="y0[i]")
    >>> arrays = [array("A", (3, 4)), array("x", 4), array("y0", 3)]
    >>> unit = generate_rows([row], arrays, {"i": 3, "j": 4})
    >>> print(unit.default_entrypoint.instructions[0])
    row_0: y[i] <- y0[i] + reduce(sum, [j], f0_0(i, j)*f0_1(j))
    """
    rules, body = [], []
    for k, row in enumerate(rows):
        own = [_rule(f"f{k}_{n}", text, extents) for n, text in enumerate(row.factors)]
        rules += own
        body.append(_instruction(k, row, own))
    params = sorted({x.name for x in extents.values() if isinstance(x, SizeParam)})
    bounds = " and ".join(f"0 <= {i} < {extent}" for i, extent in extents.items())
    domain = f"[{', '.join(params)}] -> {{ [{', '.join(extents)}] : {bounds} }}"
    return lp.make_kernel(
        [domain],
        [*rules, *body],
        [
            *(_array(row.result) for row in rows),
            *map(_array, arrays),
            *(lp.ValueArg(n, np.int32) for n in params),
        ],
        name=name,
        lang_version=(2018, 2),
        assumptions=" and ".join(f"{n} >= 1" for n in params),
        target=HostCTarget(),
    )


def _rule(name: str, text: str, extents: Mapping[str, Extent]) -> lp.SubstitutionRule:
    expression = parse(text)
    used = lp.symbolic.get_dependencies(expression)
    return lp.SubstitutionRule(name, tuple(i for i in extents if i in used), expression)


def _instruction(
    k: int, row: Row, rules: Sequence[lp.SubstitutionRule]
) -> lp.Assignment:
    calls = [
        p.Call(p.Variable(rule.name), tuple(map(p.Variable, rule.arguments)))
        for rule in rules
    ]
    value = calls[0] if len(calls) == 1 else p.Product(tuple(calls))
    used = dict.fromkeys(i for rule in rules for i in rule.arguments)
    summed = tuple(i for i in used if i not in row.output)
    if summed:
        value = lp.Reduction("sum", summed, value)
    if row.scale != "1":
        value = p.Product((parse(row.scale), value))
    if row.shift != "0":
        value = p.Sum((parse(row.shift), value))
    place = tuple(map(p.Variable, row.output))
    result = p.Variable(row.result.name)
    return lp.Assignment(
        p.Subscript(result, place) if place else result,
        value,
        id=f"row_{k}",
        within_inames=frozenset(row.output),
        # Loopy would add inames that it infers from the variables read
        within_inames_is_final=True,
    )


def _array(operand: Operand) -> lp.GlobalArg:
    shape = tuple(
        p.Variable(n.name) if isinstance(n, SizeParam) else n for n in operand.shape
    )
    return lp.GlobalArg(operand.name, operand.dtype, shape=shape)
