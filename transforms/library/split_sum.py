"""Long sums with few results: parts in parallel, and then the sum of the parts.

For ``ij->j`` with 40,000 rows of 7 entries, threads cannot share the work by output
entries: there are too few. With 16 parts, each thread sums 2,500 rows at a time::

    A  rows     0 ..  2499  -->  partial[0,:]   --+
             2500 ..  4999  -->  partial[1,:]   --+-->  out[:]
                  ...              ...            |
            37500 .. 39999  -->  partial[15,:]  --+
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import loopy as lp
from constantdict import constantdict
from pymbolic import var

from feinsum.ir import BatchedEinsum, Extent, IndexList, Operand, Workload
from feinsum.machine import TYPICAL
from feinsum.raising import LoopNest, points_of
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.library.contraction_path import PathStep
from feinsum.transforms.library.generic import GENERIC
from feinsum.transforms.library.steps import (
    BEST,
    apply_recipes,
    find_misfit,
    list_recipes,
    predict_steps_s,
    split_nest,
)
from feinsum.transforms.registry import (
    NestSteps,
    Parameters,
    Space,
    Transform,
    register,
)
from feinsum.transforms.roles import count_points

FAMILIES = (GENERIC,)
"""The family of both nests: one that writes new loops."""


def apply(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Divide a summed index into equal parts that are summed in parallel.

    Rewrite, for ``ij->j`` with the index i and parts of n entries::

        for j:  out[j] = sum(i, A[i,j])

        for part, j in parallel:  partial[part,j] = sum(i' < n, A[n*part + i', j])
        (wait for all work-groups)
        for j:  out[j] = sum(part, partial[part,j])

    Both nests are those of ``generic``.

    Parameters:
        index: the summed index that is divided.
        parts: number of parts, which divides the extent.
        steps: the recipes of both nests, as in facts, or ``best`` for the cheapest
            ones.
    """
    index, n_parts = parameters["index"], parameters["parts"]
    t_unit, cut = _cut(t_unit, nest, index, n_parts)
    einsum = cut.einsum
    # the partial sums are one step of a path: a product of all operands that keeps the
    # index of the parts
    step = PathStep(
        tuple(range(einsum.n_operands)),
        einsum.inputs,
        (_name_part(index), *einsum.output),
        product=einsum.n_operands,
        n_products=einsum.batch_size,
    )
    t_unit, nests = split_nest(t_unit, cut, [step])
    steps = _list_steps(nest.einsum, parameters)
    t_unit = apply_recipes(t_unit, nests, steps.recipes())
    return lp.remove_unused_inames(t_unit, nest.loops)


def _cut(
    t_unit: lp.TranslationUnit, nest: LoopNest, index: str, n_parts: int
) -> tuple[lp.TranslationUnit, LoopNest]:
    """Return the nest with an index cut in two.

    Each use of an array gets a rule of its own, in which ``i`` is ``n*part + i'``.
    """
    kernel, einsum_before = t_unit[nest.kernel_name], nest.einsum
    einsum = _cut_einsum(einsum_before, index, n_parts)
    size = einsum.extents[_name_inside(index)]
    unused = kernel.get_var_name_generator()
    rules, rule_of = dict(kernel.substitutions), {}
    for row, new_row in zip(einsum_before.rows, einsum.rows, strict=True):
        for read, cut_operand, term in zip(
            row, new_row, einsum_before.inputs, strict=True
        ):
            rule = str(unused(f"{read.name}_cut"))
            arguments = [str(unused(f"_{i}")) for i in _cut_term(term, index)]
            variables = map(var, arguments)
            points = [
                size * next(variables) + next(variables)
                if i == index
                else next(variables)
                for i in term
            ]
            body = var(nest.rules[read.name])(*points)
            rules[rule] = lp.SubstitutionRule(rule, tuple(arguments), body)
            rule_of[cut_operand.name] = rule
    points_of_all = {i: point for i, point in nest.points.items() if i != index}
    points_of_all |= points_of(
        {i: str(unused(i)) for i in (_name_part(index), _name_inside(index))}
    )
    changed = replace(
        nest,
        einsum=einsum,
        points=constantdict(points_of_all),
        rules=constantdict(rule_of),
    )
    kernel = kernel.copy(substitutions=constantdict(rules))
    return t_unit.with_kernel(kernel), changed


def _cut_einsum(einsum: BatchedEinsum, index: str, n_parts: int) -> BatchedEinsum:
    """Return the einsum with an index cut in two; each use of an array gets a name."""
    extent = einsum.extents[index]
    assert isinstance(extent, int)
    extents: dict[str, Extent] = {**einsum.extents}
    extents |= {_name_part(index): n_parts, _name_inside(index): extent // n_parts}
    inputs = tuple(_cut_term(term, index) for term in einsum.inputs)
    rows = tuple(
        tuple(
            replace(
                operand,
                name=f"{operand.name}_{row}_{k}",
                shape=tuple(extents[i] for i in inputs[k]),
            )
            for k, operand in enumerate(operands)
        )
        for row, operands in enumerate(einsum.rows)
    )
    return BatchedEinsum(einsum.output, inputs, rows)


def _name_part(index: str) -> str:
    return f"{index}_part"


def _name_inside(index: str) -> str:
    return f"{index}_inside"


def _cut_term(term: IndexList, index: str) -> IndexList:
    """Replace an index by its two parts.

    >>> _cut_term(("i", "j"), "i")
    ('i_part', 'i_inside', 'j')
    """
    pairs = ((_name_part(i), _name_inside(i)) if i == index else (i,) for i in term)
    return tuple(i for pair in pairs for i in pair)


def space(workload: Workload) -> Space | None:
    """Offer long sums of known extents, with few results."""
    einsum = workload.einsum
    n_results = count_points(einsum, einsum.output)
    length = count_points(einsum, einsum.summation_indices)
    if n_results > cpu.MAX_RESULTS or length < cpu.MIN_SUM_LENGTH:
        return None
    if n_results * length < cpu.GROUP_POINTS:
        return None
    choices = {i: tuple(_list_divisors(einsum, i)) for i in einsum.summation_indices}
    indices = [i for i, part_counts in choices.items() if part_counts]
    # outer indices first: their parts are contiguous pieces of the arrays
    indices.sort(key=lambda index: _sum_positions(einsum, index))
    part_counts = dict.fromkeys(n for index in indices for n in choices[index])
    if not indices:
        return None

    def find_problem(parameters: Parameters) -> str | None:
        index, n_parts = parameters["index"], parameters["parts"]
        if n_parts not in choices[index]:
            return f"{index!r} has no {n_parts} equal parts"
        nests = _make_nests(einsum, parameters)
        return find_misfit(parameters["steps"], nests, FAMILIES)

    return Space(
        {"index": tuple(indices), "parts": tuple(part_counts), "steps": (BEST,)},
        find_problem,
        open=frozenset({"steps"}),
    )


def _list_divisors(einsum: BatchedEinsum, index: str) -> Iterator[int]:
    """Yield numbers of equal parts, those nearest to sixteen first."""
    extent = einsum.extents[index]
    if not isinstance(extent, int):
        return
    divisors = [
        n
        for n in range(cpu.MIN_PARTS, min(extent, cpu.MAX_PARTS) + 1)
        if extent % n == 0
    ]
    # sixteen parts keep the cores of most processors busy, and are quick to add up
    yield from sorted(divisors, key=lambda n: max(n / 16, 16 / n))[
        : cpu.N_PARTS_OFFERED
    ]


def _sum_positions(einsum: BatchedEinsum, index: str) -> int:
    """Sum the positions of an index in all terms; it is small for outer indices."""
    return sum(term.index(index) for term in einsum.inputs if index in term)


def _list_steps(einsum: BatchedEinsum, parameters: Parameters) -> NestSteps:
    """Return both nests, and their recipes.

    The cheapest ones are chosen for a typical machine, so that a recipe means the same
    kernel on every machine.
    """
    nests = _make_nests(einsum, parameters)
    steps = parameters["steps"]
    return NestSteps(nests, partial(list_recipes, steps, nests, FAMILIES, TYPICAL))


def _make_nests(
    einsum: BatchedEinsum, parameters: Parameters
) -> tuple[BatchedEinsum, BatchedEinsum]:
    """Return the einsum of the partial sums, and the one that adds them."""
    index, n_parts = parameters["index"], parameters["parts"]
    cut = _cut_einsum(einsum, index, n_parts)
    first = replace(cut, output=(_name_part(index), *einsum.output))
    shape = tuple(first.extents[i] for i in first.output)
    rows = tuple(
        (Operand(f"partial{k}", shape, dtype),)
        for k, dtype in enumerate(einsum.output_dtypes)
    )
    return first, BatchedEinsum(einsum.output, (first.output,), rows)


SPLIT_SUM = register(
    Transform(
        "split_sum",
        2,
        "long sums with few results: parts in parallel, then their sum",
        space,
        apply,
        partial(predict_steps_s, _list_steps),
        devices=frozenset({"cpu"}),
        steps=_list_steps,
    )
)
