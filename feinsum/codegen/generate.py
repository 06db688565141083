"""Untransformed Loopy translation units of batched and functional batched einsums.

``ij,j->i`` becomes ``out[i] = sum(j, A_rule(i, j)*x_rule(j))``. Each operand is read
through its own substitution rule, so that a transform can rewrite its reads.

Source: paper, section 7 (idealized functional batched einsums) and appendix A.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from pymbolic import parse
from pymbolic import primitives as p
from pytools import UniqueNameGenerator

from feinsum.contraction import find_steps
from feinsum.contraction.paths import Path, check_path, find_path, find_path_within
from feinsum.ir import (
    BatchedEinsum,
    Extent,
    IndexList,
    Operand,
    SizeParam,
    order_by_precision,
    require_dense,
    require_einsum,
)
from feinsum.targets.host.code import HostCTarget

Strides: TypeAlias = Sequence[int | str]
"""Strides of an array's axes, in entries: numbers, or names of arguments."""


def generate_loopy(
    einsum: BatchedEinsum,
    *,
    path: ContractionPath | None = None,
    strides: Mapping[str, Strides] | None = None,
    name: str = "feinsum_kernel",
    target: Any = None,
) -> lp.TranslationUnit:
    """Generate an unoptimized Loopy kernel that evaluates ``einsum``.

    Every operand is read through its own substitution rule, so that a transform can
    rewrite the reads. Row ``k`` is one instruction that writes ``out`` (``out_k`` for
    several rows).

    Args:
        einsum: the dense einsum to evaluate.
        path: contract pairwise in this order, through arrays in global memory; by
            default a row is a single sum over one product. See
            :func:`feinsum.codegen.find_contraction_path`.
        strides: for operands and outputs that are not in C order, the distance of
            neighbours along each axis, in entries: a number, or the name of a new
            64-bit argument.
        name: name of the kernel.
        target: a target of Loopy; by default that of the host.

    >>> from feinsum.ir import array, einsum
    >>> e = einsum("ij,j->i", array("A", ("N", 4)), array("x", 4))
    >>> print(generate_loopy(e).default_entrypoint.instructions[0])
    row_0: out[i] <- reduce(sum, [j], A_rule(i, j)*x_rule(j))
    """
    # loops over the nodes of a sparse operand are written by generate_nest
    require_dense(require_einsum(einsum))
    generator = _Generator(einsum, name, strides or {}, target)
    return generator.generate(path)


@dataclass(frozen=True)
class _Array:
    """An input of a step: a function that subscripts it, its indices and its dtype."""

    access: Any
    indices: IndexList
    dtype: np.dtype[Any]

    def read(self, inames: dict[str, str]) -> Any:
        return self.access(tuple(p.Variable(inames[i]) for i in self.indices))


@dataclass
class _Generator:
    """Collects the parts of a kernel, and the names in use."""

    einsum: BatchedEinsum
    name: str
    strides: Mapping[str, Strides]
    target: Any
    unique: UniqueNameGenerator = field(init=False)
    inames: dict[str, str] = field(init=False)
    rules: dict[str, lp.SubstitutionRule] = field(default_factory=dict)
    body: list[Any] = field(default_factory=list)
    temporaries: list[Any] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        einsum = self.einsum
        used_names = {op.name for op in einsum.operands}
        used_names |= {param.name for param in einsum.size_params}
        used_names |= set(self._named_strides)
        self.unique = UniqueNameGenerator(used_names)
        # names of indices that are not valid in C are replaced
        self.inames = {
            i: self.unique(i if i.isascii() and i.isidentifier() else "i")
            for i in einsum.indices
        }
        for op in einsum.operands:
            self.rules[op.name] = self._make_rule(op)

    def generate(self, path: ContractionPath | None) -> lp.TranslationUnit:
        if path is not None:
            check_path(path, self.einsum.n_operands)
        outputs = [self._generate_row(k, path) for k in range(self.einsum.batch_size)]
        # a path has a domain for each step instead
        sizes = [x.name for x in self.einsum.size_params]
        if not self.domains:
            extents = {self.inames[i]: x for i, x in self.einsum.extents.items()}
            self.domains.append(_format_domain(sizes, extents))
        arrays = [
            self._make_global_arg(op.name, op.shape, op.dtype)
            for op in self.einsum.operands
        ]
        strides = [lp.ValueArg(name, np.int64) for name in self._named_strides]
        return _make_unit(
            self.domains,
            [*self.rules.values(), *self.body],
            [*outputs, *arrays],
            sizes,
            [*strides, *self.temporaries],
            name=self.name,
            # a strided array of a user may reach beyond 2**31 entries
            index_dtype=np.int64 if self.strides else np.int32,
            target=self.target or HostCTarget(),
        )

    @property
    def _named_strides(self) -> dict[str, None]:
        """The names of strides, each once."""
        steps = (step for steps in self.strides.values() for step in steps)
        return dict.fromkeys(step for step in steps if isinstance(step, str))

    def _generate_row(self, k: int, path: ContractionPath | None) -> lp.GlobalArg:
        einsum = self.einsum
        suffix = "" if einsum.batch_size == 1 else f"_{k}"
        output = self.unique(f"out{suffix}")
        row = [
            _Array(_make_call(self.rules[op.name].name), term, op.dtype)
            for op, term in zip(einsum.rows[k], einsum.inputs, strict=True)
        ]
        if path is None:
            self._store(output, einsum.output, row, f"row_{k}", self.inames)
        else:
            self._contract(k, row, path, output)
        return self._make_global_arg(
            output, einsum.output_shape, einsum.output_dtypes[k]
        )

    def _make_global_arg(
        self, name: str, shape: tuple[Extent, ...], dtype: np.dtype[Any]
    ) -> lp.GlobalArg:
        layout = {}
        if (steps := self.strides.get(name)) is not None:
            layout["strides"] = tuple(
                p.Variable(step) if isinstance(step, str) else step for step in steps
            )
        return lp.GlobalArg(
            name, dtype, shape=tuple(map(_express_extent, shape)), **layout
        )

    def _contract(
        self, k: int, arrays: list[_Array], path: ContractionPath, output: str
    ) -> None:
        """Add one instruction per step, each with its own inames."""
        before: frozenset[str] = frozenset()
        terms, output_indices = self.einsum.inputs, self.einsum.output
        sizes = [x.name for x in self.einsum.size_params]
        steps = find_steps(
            terms, output_indices, path, is_pairwise=False, has_sums_first=False
        )
        for number, step in enumerate(steps):
            chosen = [arrays[operand] for operand in step.operands]
            is_last = number == len(steps) - 1
            # own inames: families tile each step separately
            inames = {
                i: self.unique(f"{i}_{k}_{number}")
                for i in _list_used(chosen, step.output)
            }
            extents = self.einsum.extents
            box = {inames[i]: extents[i] for i in inames}
            self.domains.append(_format_domain(sizes, box))
            dtype = np.result_type(*(a.dtype for a in chosen))
            target = output if is_last else str(self.unique("tmp"))
            if not is_last:
                temporary = lp.TemporaryVariable(
                    target,
                    dtype,
                    shape=tuple(_express_extent(extents[i]) for i in step.output),
                    address_space=lp.AddressSpace.GLOBAL,
                )
                self.temporaries.append(temporary)
            insn = f"row_{k}" if is_last else f"row_{k}_step_{number}"
            self._store(target, step.output, chosen, insn, inames, before)
            before = frozenset([insn])
            arrays.append(_Array(_make_subscript(target), step.output, dtype))

    def _store(
        self,
        target: str,
        indices: IndexList,
        arrays: list[_Array],
        insn_id: str,
        inames: dict[str, str],
        depends_on: frozenset[str] = frozenset(),
    ) -> None:
        # C multiplies from left to right: a product of the less precise operands first
        # would round
        order = order_by_precision(array.dtype for array in arrays)
        factors = tuple(arrays[k].read(inames) for k in order)
        summed = tuple(inames[i] for i in _list_used(arrays, ()) if i not in indices)
        value = _make_sum_of_products(factors, summed)
        result = _make_subscript(target)(tuple(p.Variable(inames[i]) for i in indices))
        within = frozenset(inames[i] for i in indices)
        self.body.append(_make_assignment(result, value, within, insn_id, depends_on))

    def _make_rule(self, operand: Operand) -> lp.SubstitutionRule:
        parameters = tuple(f"_{axis}" for axis in range(operand.rank))
        arguments = tuple(p.Variable(name) for name in parameters)
        body = _make_subscript(operand.name)(arguments)
        return lp.SubstitutionRule(
            self.unique(f"{operand.name}_rule"), parameters, body
        )


def _format_domain(sizes: Sequence[str], extents: Mapping[str, Extent]) -> str:
    """Format the box of inames with these extents, in isl's syntax."""
    bounds = " and ".join(f"0 <= {iname} < {n}" for iname, n in extents.items())
    return f"[{', '.join(sizes)}] -> {{ [{', '.join(extents)}] : {bounds} }}"


def _make_unit(
    domains: Sequence[str],
    statements: Sequence[Any],
    arrays: Sequence[lp.GlobalArg],
    sizes: Sequence[str],
    more: Sequence[Any] = (),
    **options: Any,
) -> lp.TranslationUnit:
    """Make a kernel; its sizes are positive 32-bit integers."""
    return lp.make_kernel(
        domains,
        statements,
        [*arrays, *(lp.ValueArg(name, np.int32) for name in sizes), *more],
        lang_version=(2018, 2),
        assumptions=" and ".join(f"{name} >= 1" for name in sizes),
        **options,
    )


def _list_used(arrays: list[_Array], first: IndexList) -> Iterator[str]:
    return iter(dict.fromkeys((*first, *(i for a in arrays for i in a.indices))))


def _make_call(rule: str) -> Any:
    return lambda arguments: p.Call(p.Variable(rule), arguments)


def _make_subscript(name: str) -> Any:
    return lambda indices: (
        p.Subscript(p.Variable(name), indices) if indices else p.Variable(name)
    )


def _make_sum_of_products(factors: tuple[Any, ...], summed: tuple[str, ...]) -> Any:
    value = factors[0] if len(factors) == 1 else p.Product(factors)
    return lp.Reduction("sum", summed, value) if summed else value


def _make_assignment(
    result: Any,
    value: Any,
    inames: frozenset[str],
    insn_id: str,
    depends_on: frozenset[str] = frozenset(),
) -> lp.Assignment:
    return lp.Assignment(
        result,
        value,
        id=insn_id,
        depends_on=depends_on,
        within_inames=inames,
        # Loopy would add the inames of whatever writes the temporaries it reads
        within_inames_is_final=True,
    )


def _express_extent(extent: Extent) -> Any:
    return p.Variable(extent.name) if isinstance(extent, SizeParam) else extent


ContractionPath: TypeAlias = Path

TYPICAL_LONG_EXTENT = 10_000
"""The assumed value of a size parameter in estimates of a path's cost."""


def find_contraction_path(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    max_bytes: int | None = None,
) -> ContractionPath:
    """Find the contraction order with the fewest operations.

    See :func:`feinsum.contraction.paths.find_path`.

    Args:
        einsum: the computation; its rows share the path.
        sizes: values of size parameters; missing ones count as long.
        max_bytes: limit on all intermediates together. A step may then take more than
            two arrays, and the last one all that are left.

    >>> from feinsum.ir import array, einsum
    >>> J, D = array("J", (3, 3, "Nel")), array("D", (3, 20, 20))
    >>> e = einsum("xre,rij,ej->xei", J, D, array("u", ("Nel", 20)))
    >>> find_contraction_path(e)
    ((1, 2), (0, 1))
    >>> find_contraction_path(e, {"Nel": 100}, max_bytes=1000)
    ((0, 1, 2),)
    """
    extents = {
        index: (sizes or {}).get(x.name, TYPICAL_LONG_EXTENT)
        if isinstance(x, SizeParam)
        else x
        for index, x in einsum.extents.items()
    }
    if max_bytes is None:
        return find_path(einsum.inputs, einsum.output, extents)
    # each row has intermediates of its own
    itemsize = np.result_type(*(op.dtype for op in einsum.operands)).itemsize
    most_entries = max_bytes // (einsum.batch_size * itemsize)
    return find_path_within(einsum.inputs, einsum.output, extents, most_entries)


@dataclass(frozen=True)
class ScaledSum:
    """``result[output] = shift + scale * sum over the other indices of the factors``.

    Attributes:
        result: the array of the results.
        output: the output indices.
        factors: expressions in subscripted arrays and indices.
        scale, shift: expressions in subscripted arrays and output indices.
    """

    result: Operand
    output: IndexList
    factors: tuple[str, ...]
    scale: str = "1"
    shift: str = "0"


def generate_rows(
    rows: Sequence[ScaledSum],
    arrays: Sequence[Operand],
    extents: Mapping[str, Extent],
) -> lp.TranslationUnit:
    """Generate an unoptimized kernel with an instruction for each row.

    Args:
        rows: the scaled sum that each row computes.
        arrays: the input arrays.
        extents: extent of every index. Names of indices and of arrays are distinct.

    >>> from feinsum.ir import array
    >>> factors = "A[i, j]", "(x[j] + 1.0)"
    >>> row = ScaledSum(array("y", 3), ("i",), factors, shift="y0[i]")
    >>> arrays = [array("A", (3, 4)), array("x", 4), array("y0", 3)]
    >>> unit = generate_rows([row], arrays, {"i": 3, "j": 4})
    >>> print(unit.default_entrypoint.instructions[0])
    row_0: y[i] <- y0[i] + reduce(sum, [j], f0_0(i, j)*f0_1(j))
    """
    rules, body = [], []
    for k, row in enumerate(rows):
        row_rules = [
            _make_rule(f"f{k}_{n}", text, extents) for n, text in enumerate(row.factors)
        ]
        rules += row_rules
        body.append(_make_instruction(k, row, row_rules))
    sizes = sorted({x.name for x in extents.values() if isinstance(x, SizeParam)})
    return _make_unit(
        [_format_domain(sizes, extents)],
        [*rules, *body],
        [*(_make_array(row.result) for row in rows), *map(_make_array, arrays)],
        sizes,
        name="feinsum_kernel",
        target=HostCTarget(),
    )


def _make_rule(
    name: str, text: str, extents: Mapping[str, Extent]
) -> lp.SubstitutionRule:
    expression = parse(text)
    used = lp.symbolic.get_dependencies(expression)
    return lp.SubstitutionRule(name, tuple(i for i in extents if i in used), expression)


def _make_instruction(
    k: int, row: ScaledSum, rules: Sequence[lp.SubstitutionRule]
) -> lp.Assignment:
    calls = tuple(
        _make_call(rule.name)(tuple(map(p.Variable, rule.arguments))) for rule in rules
    )
    used = dict.fromkeys(i for rule in rules for i in rule.arguments)
    summed = tuple(i for i in used if i not in row.output)
    value = _make_sum_of_products(calls, summed)
    if row.scale != "1":
        value = p.Product((parse(row.scale), value))
    if row.shift != "0":
        value = p.Sum((parse(row.shift), value))
    result = _make_subscript(row.result.name)(tuple(map(p.Variable, row.output)))
    return _make_assignment(result, value, frozenset(row.output), f"row_{k}")


def _make_array(operand: Operand) -> lp.GlobalArg:
    shape = tuple(map(_express_extent, operand.shape))
    return lp.GlobalArg(operand.name, operand.dtype, shape=shape)
