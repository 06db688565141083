"""Every way to write an einsum in Loopy that raising must see through."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import loopy as lp
import numpy as np
from hypothesis import strategies as st
from loopy.symbolic import Reduction, TaggedVariable
from pymbolic import primitives as p
from pymbolic import var
from pytools.tag import Tag

from feinsum.ir import BatchedEinsum, Operand, SizeParam
from tests.strategies import sketches

__all__ = ["Foreign", "Spelling", "einsums_in_one_dtype", "spellings"]


class Foreign(Tag):
    """A tag that means something to somebody else."""


@dataclass(frozen=True)
class Spelling:
    """An einsum written as a kernel.

    Attributes:
        inames: the iname of each index.
    """

    einsum: BatchedEinsum
    t_unit: lp.TranslationUnit
    inames: dict[str, str]


@st.composite
def einsums_in_one_dtype(draw: st.DrawFn) -> BatchedEinsum:
    """Einsums that C computes in the dtype of their operands."""
    sketch = draw(sketches(n_indices=4, n_terms=3, n_rows=3))
    dtype = draw(st.sampled_from(["<f8", "<f8", "<f4", "<c16", "<i8"]))
    return replace(sketch, dtypes=(dtype,) * 3).build()


@st.composite
def spellings(draw: st.DrawFn) -> Spelling:
    """A random einsum, in a random spelling."""
    einsum = draw(einsums_in_one_dtype())
    pool = draw(st.permutations(["i0", "e", "dof", "_pt_dim0", "q_7", "r", "z9"]))
    inames = dict(zip(einsum.indices, pool, strict=False))
    writer = _Writer(draw, einsum, inames)
    rows = [writer.row(k) for k in range(einsum.batch_size)]
    unit = lp.make_kernel(
        writer.domains(),
        [*writer.rules.values(), *draw(st.permutations(rows))],
        writer.arguments(),
        lang_version=(2018, 2),
        assumptions=" and ".join(f"{x} >= 1" for x in einsum.size_params),
    )
    tagged = draw(st.lists(st.sampled_from(pool), unique=True, max_size=2))
    tags = {iname: Foreign() for iname in tagged if iname in inames.values()}
    return Spelling(einsum, lp.tag_inames(unit, tags), inames)


class _Writer:
    """Writes rows, and collects the rules that they call."""

    def __init__(
        self, draw: st.DrawFn, einsum: BatchedEinsum, inames: dict[str, str]
    ) -> None:
        self.draw, self.einsum, self.inames = draw, einsum, inames
        self.rules: dict[str, lp.SubstitutionRule] = {}

    def chance(self) -> bool:
        return self.draw(st.booleans())

    def row(self, k: int) -> lp.Assignment:
        """One row; sums and factors in any order, scaled, or added to something."""
        einsum = self.einsum
        pairs = zip(einsum.rows[k], einsum.inputs, strict=True)
        factors = [self.access(operand, term) for operand, term in pairs]
        if self.chance():
            factors.insert(self.draw(st.integers(0, len(factors))), 1)
        if self.chance():
            factors.append(self.draw(st.sampled_from([2, -1, var("alpha")])))
        summed = self.draw(st.permutations(einsum.summation_indices))
        value = self.sums([self.inames[i] for i in summed], self.product(factors))
        if self.chance():
            value = p.Product((self.draw(st.sampled_from([1, 3])), value))
        free = tuple(var(self.inames[i]) for i in einsum.output)
        target = var(f"out{k}")[free] if free else var(f"out{k}")
        others = [1, var("alpha")] if summed else []
        shift = self.draw(st.sampled_from([0, 0, target, *others]))
        return lp.Assignment(
            target,
            value if shift == 0 else p.Sum((shift, value)),
            id=f"store_{k}",
            within_inames=frozenset(self.inames[i] for i in einsum.output),
            within_inames_is_final=True,
            depends_on=frozenset(),
        )

    def sums(self, inames: list[str], value: Any) -> Any:
        """One reduction, or one inside of another."""
        if not inames:
            return value
        at = self.draw(st.integers(0, len(inames) - 1))
        outer, inner = tuple(inames[:at]), tuple(inames[at:])
        value = Reduction("sum", inner, value)
        return Reduction("sum", outer, value) if outer else value

    def product(self, factors: list[Any]) -> Any:
        """The product in any order, grouped in any way."""
        left = list(self.draw(st.permutations(factors)))
        while len(left) > 1:
            at = self.draw(st.integers(0, len(left) - 2))
            left[at : at + 2] = [p.Product((left[at], left[at + 1]))]
        return left[0]

    def access(self, operand: Operand, term: tuple[str, ...]) -> Any:
        """A read of an array, plain, tagged or behind one or two rules."""
        place = tuple(var(self.inames[index]) for index in term)
        kind = self.draw(st.sampled_from(["plain", "tagged", "rule", "two rules"]))
        if kind == "rule" or not place:
            return var(self.rule(operand))(*place)
        if kind == "two rules":
            return var(self.rule_of_rule(operand))(*place)
        tags = frozenset({Foreign()})
        name = TaggedVariable(operand.name, tags) if kind == "tagged" else None
        return (name or var(operand.name))[place]

    def rule(self, operand: Operand) -> str:
        parameters = tuple(f"a{axis}" for axis in range(operand.rank))
        place = tuple(map(var, parameters))
        body = var(operand.name)[place] if place else var(operand.name)
        return self.add_rule(f"read_{operand.name}", parameters, body)

    def rule_of_rule(self, operand: Operand) -> str:
        parameters = tuple(f"b{axis}" for axis in range(operand.rank))
        body = var(self.rule(operand))(*map(var, parameters))
        return self.add_rule(f"again_{operand.name}", parameters, body)

    def add_rule(self, name: str, parameters: tuple[str, ...], body: Any) -> str:
        self.rules[name] = lp.SubstitutionRule(name, parameters, body)
        return name

    def domains(self) -> list[str]:
        """One domain for all inames, or one for each, and an empty one."""
        bounds = {
            self.inames[index]: str(extent)
            for index, extent in self.einsum.extents.items()
        }
        groups = [[iname] for iname in bounds] if self.chance() else [list(bounds)]
        params = ", ".join(x.name for x in self.einsum.size_params)
        empty = ["{ : }"] if self.chance() else []
        return empty + [
            f"[{params}] -> {{ [{', '.join(group)}] : "
            + " and ".join(f"0 <= {iname} < {bounds[iname]}" for iname in group)
            + " }"
            for group in groups
            if group
        ] or ["{ : }"]

    def arguments(self) -> list[Any]:
        einsum = self.einsum
        alpha = np.result_type(*einsum.output_dtypes)
        return [
            *(_array(op.name, op.shape, op.dtype) for op in einsum.operands),
            *(
                _array(f"out{k}", einsum.output_shape, dtype)
                for k, dtype in enumerate(einsum.output_dtypes)
            ),
            lp.ValueArg("alpha", alpha),
            *(lp.ValueArg(x.name, np.int32) for x in einsum.size_params),
        ]


def _array(name: str, shape: Any, dtype: Any) -> lp.GlobalArg:
    extents = tuple(var(x.name) if isinstance(x, SizeParam) else x for x in shape)
    return lp.GlobalArg(name, dtype, shape=extents, tags=frozenset({Foreign()}))
