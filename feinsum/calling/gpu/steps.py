"""Paths on a GPU: the order of contractions, and the memory layout of their results.

The indices of an intermediate may be in any order. The order is chosen with regard to
the next step, since cuBLAS reads and writes only some orders in place::

    ij,jkl->ikl    written in place: k and l are one index of the result matrix
    ikl,lm->ikm    read in place: i and k are one index of the left matrix

In the order kil, the first of these steps would need a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, permutations, zip_longest
from math import prod
from typing import NamedTuple

from feinsum.calling.einsum_call import compute_c_steps
from feinsum.calling.gpu.products import Product, list_kinds, list_products
from feinsum.contraction import Step, find_steps
from feinsum.ir import IndexList
from feinsum.transforms.cost import Gpu
from feinsum.transforms.gpu.cost import (
    predict_copy_s,
    predict_product_s,
    predict_streamed_s,
)

MAX_OPERANDS = 4
"""Maximum operands for which all paths are tried: four have 18, five have 180."""
MAX_PLANS = 4
"""Paths for which orders are chosen: those that are the fastest without copies."""
MAX_BLOCKS = 4
"""Maximum blocks of indices for which all orders are tried."""

Path = tuple[tuple[int, ...], ...]
Strides = Sequence[int]
Value = tuple[IndexList, Strides]


@dataclass(frozen=True)
class Contraction:
    """An einsum to contract.

    Attributes:
        strides: strides of the operands, in entries.
    """

    terms: tuple[IndexList, ...]
    output: IndexList
    sizes: Mapping[str, int]
    strides: tuple[Strides, ...]
    itemsize: int
    gpu: Gpu

    @property
    def values(self) -> list[Value]:
        """The operands: indices and strides of each."""
        return [*zip(self.terms, self.strides, strict=True)]

    def n_bytes(self, *terms: IndexList) -> int:
        return self.itemsize * sum(self.n_points(term) for term in terms)

    def n_points(self, term: IndexList) -> int:
        return prod(self.sizes[index] for index in {*term})

    def c_steps(self, term: IndexList) -> Strides:
        return compute_c_steps([self.sizes[index] for index in term])


class PlannedSteps(NamedTuple):
    """Steps, and their predicted time.

    Attributes:
        steps: the steps; the output of each has the chosen order of indices.
    """

    seconds: float
    steps: tuple[Step, ...]


def plan_paths(problem: Contraction, path: Path) -> list[PlannedSteps]:
    """Plan contractions in several steps, the fastest first.

    Args:
        problem: the contraction.
        path: the only path that is tried if there are many operands.
    """
    n_operands = len(problem.terms)
    paths = {path} if n_operands > MAX_OPERANDS else {*_list_paths(n_operands)}
    # the steps sum over the indices that a single operand has before they multiply
    step_lists = {
        find_steps(problem.terms, problem.output, path, is_pairwise=False)
        for path in paths
    }
    # orders are chosen only for the best paths: there are up to 24 at each step
    unordered = [
        (_plan(problem, steps, is_ordered=False).seconds, steps)
        for steps in step_lists
        if len(steps) > 1
    ]
    best = sorted(unordered, key=lambda pair: pair[0])[:MAX_PLANS]
    ordered = [_plan(problem, steps) for _, steps in best]
    return sorted(ordered, key=lambda plan: plan.seconds)


def order_as_operands(problem: Contraction) -> IndexList:
    """Order the result's indices as in the largest operands, if nothing is summed.

    Then both reads and writes access adjacent entries.
    """
    # the largest operand first: its order counts most
    terms = sorted(problem.terms, key=lambda term: -problem.n_points(term))
    order = tuple(dict.fromkeys(index for term in terms for index in term))
    return order if {*order} == {*problem.output} else problem.output


def _list_paths(n: int) -> Iterator[Path]:
    """Yield all paths of steps that take two operands."""
    if n == 1:
        yield ()
    for pair in combinations(range(n), 2):
        yield from ((pair, *later_pairs) for later_pairs in _list_paths(n - 1))


def _plan(
    problem: Contraction, steps: Sequence[Step], *, is_ordered: bool = True
) -> PlannedSteps:
    """Plan the orders of the steps' results, and estimate their time.

    Args:
        problem: the contraction.
        steps: the steps in order.
        is_ordered: whether to choose orders, and to count copies.
    """
    values = problem.values
    planned, seconds = [], 0.0
    for step, next_step in zip_longest(steps, steps[1:]):
        chosen = [values[number] for number in step.operands]
        output = step.output
        # only the very next step is considered
        if is_ordered and next_step is not None and len(values) in next_step.operands:
            other_values = [values[n] for n in next_step.operands if n < len(values)]
            output = _choose_order(
                problem, chosen, output, other_values, next_step.output
            )
        is_last = next_step is None
        step_s, product = plan_step(problem, chosen, output, is_free=is_last)
        seconds += step_s - (
            0.0 if is_ordered else _predict_copies_s(problem, chosen, product)
        )
        terms = tuple(term for term, _ in chosen)
        planned.append(Step(step.operands, terms, output))
        values.append((output, problem.c_steps(output)))
    return PlannedSteps(seconds, tuple(planned))


def _choose_order(
    problem: Contraction,
    chosen: Sequence[Value],
    output: IndexList,
    other_values: Sequence[Value],
    result: IndexList,
) -> IndexList:
    """Order a result's indices so that this and the next step are fastest together.

    Args:
        problem: the contraction.
        chosen: operands of this step.
        output: indices of this step's result.
        other_values: further operands of the next step.
        result: indices of the next step's result.
    """

    def predict_s(order: IndexList) -> float:
        this_step_s, _ = plan_step(problem, chosen, order)
        values = [*other_values, (order, problem.c_steps(order))]
        return this_step_s + plan_step(problem, values, result, is_free=True)[0]

    return min(_list_orders(chosen, output, other_values), key=predict_s)


def _list_orders(
    chosen: Sequence[Value], output: IndexList, follows: Sequence[Value]
) -> Iterator[IndexList]:
    """Yield orders in which indices of the same operands stay together."""
    blocks: dict[tuple[bool, ...], list[str]] = {}
    for index in output:
        # indices of the same operands can be one index of a matrix
        key = tuple(index in term for term, _ in (*chosen, *follows))
        blocks.setdefault(key, []).append(index)
    if len(blocks) > MAX_BLOCKS:
        yield output
        return
    for order in permutations(blocks.values()):
        yield tuple(index for block in order for index in block)


def plan_step(
    problem: Contraction,
    chosen: Sequence[Value],
    output: IndexList,
    *,
    is_free: bool = False,
    is_whole: bool = False,
) -> tuple[float, Product | None]:
    """Predict the seconds of a step, and choose its product; None without BLAS.

    Args:
        problem: the contraction.
        chosen: operands of the step: their indices and strides.
        output: indices of the step's result.
        is_free: whether the result may be in any order.
        is_whole: whether to refuse products whose sum is split.
    """
    terms = [term for term, _ in chosen]
    strides = [of_operand for _, of_operand in chosen]
    n_bytes = problem.n_bytes(*terms, output)

    def predict_s(product: Product) -> float:
        time_s = predict_product_s(
            product.gemm.sizes, n_bytes, problem.itemsize, problem.gpu
        )
        if product.order is not None and not is_free:
            time_s += predict_copy_s(problem.n_bytes(output), problem.gpu)
        if product.n_parts > 1:
            n_added = product.n_parts * product.n_results
            moved = 2 * n_added * problem.itemsize
            time_s += predict_streamed_s(n_added, moved, problem.itemsize, problem.gpu)
        return time_s + _predict_copies_s(problem, chosen, product)

    fit = (
        product
        for product in list_products(terms, output, problem.sizes, strides)
        # BLAS is slow if no entry is reused
        if not product.is_pointwise and not (is_whole and product.n_parts > 1)
    )
    best = min(fit, key=predict_s, default=None)
    if best is not None:
        return predict_s(best), best
    # without a product, a kernel reads every operand once
    n_points = problem.n_points(tuple(index for term in terms for index in term))
    return predict_streamed_s(n_points, n_bytes, problem.itemsize, problem.gpu), None


def predict_contraction_s(problem: Contraction) -> float | None:
    """Predict the seconds of cuTENSOR, which reads and writes any strides in place.

    Return None for other einsums than products of two operands that add up terms or
    reuse entries, and for repeated entries, which it does not take.
    """
    kinds = list_kinds(problem.terms, problem.output, problem.sizes)
    if kinds is None or min(chain.from_iterable(problem.strides), default=1) < 1:
        return None
    sizes = [prod(problem.sizes[index] for index in kind) for kind in kinds]
    _, m, n, k = sizes
    if k == 1 and min(m, n) == 1:
        return None
    n_bytes = problem.n_bytes(*problem.terms, problem.output)
    return predict_product_s(sizes, n_bytes, problem.itemsize, problem.gpu)


def _predict_copies_s(
    problem: Contraction, chosen: Sequence[Value], product: Product | None
) -> float:
    """Predict the seconds of the copies of operands."""
    if product is None:
        return 0.0
    return sum(
        predict_copy_s(problem.n_bytes(term), problem.gpu)
        for (term, _), order in zip(chosen, product.orders, strict=True)
        if order is not None
    )
