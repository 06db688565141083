"""Counts: exact, minimal, by dtype; bytes once each."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feinsum.errors import MeasurementError
from feinsum.ir import array, batched_einsum, einsum, evaluate
from feinsum.measure import (
    count_footprint_bytes,
    count_operations,
    count_terms,
)

EXTENTS = {"a": 2, "b": 3, "c": 2, "d": 4, "e": 1}


class Tally:
    """Contracts dictionaries of entries in plain loops, counting operations."""

    def __init__(self):
        self.n_operations = 0

    def reduce(self, factors, term, keep):
        """Sum the product of the factors over the indices that are not kept."""
        result = {}
        for values in product(*(range(EXTENTS[i]) for i in term)):
            at = dict(zip(term, values, strict=True))
            entries = [entry[tuple(at[i] for i in t)] for t, entry in factors]
            self.n_operations += len(entries) - 1
            place = tuple(at[i] for i in keep)
            self.n_operations += place in result
            result[place] = result.get(place, 0) + np.prod(entries)
        return keep, result


def unique(*terms):
    return tuple(dict.fromkeys(i for term in terms for i in term))


def evaluate_in_every_order(factors, output, tally_so_far=0):
    """All (operations, result) that pairwise orders of a product give."""
    if len(factors) == 1:
        term, entries = factors[0]
        return [
            (tally_so_far, {place_of(term, k, output): entries[k] for k in entries})
        ]
    outcomes = []
    for left, right in combinations(range(len(factors)), 2):
        pair = [factors[left], factors[right]]
        rest = [f for k, f in enumerate(factors) if k not in (left, right)]
        needed = unique(output, *(term for term, _ in rest))
        together = unique(*(term for term, _ in pair))
        tally = Tally()
        made = tally.reduce(pair, together, tuple(i for i in together if i in needed))
        outcomes += evaluate_in_every_order(
            [*rest, made], output, tally_so_far + tally.n_operations
        )
    return outcomes


def place_of(term, place, output):
    return tuple(dict(zip(term, place, strict=True))[i] for i in output)


def count_by_brute_force(e, arrays):
    """Least number of operations over all orders, and all the results."""
    tally = Tally()
    factors = []
    for p, term in enumerate(e.inputs):
        others = unique(e.output, *(t for q, t in enumerate(e.inputs) if q != p))
        entries = dict(np.ndenumerate(arrays[e.rows[0][p].name]))
        keep = tuple(i for i in unique(term) if i in others)
        factors.append(tally.reduce([(term, entries)], unique(term), keep))
    outcomes = evaluate_in_every_order(factors, e.output, tally.n_operations)
    return min(n for n, _ in outcomes), [result for _, result in outcomes]


def einsum_of(subscripts, dtype="float64"):
    terms = subscripts.split("->")[0].split(",")
    return einsum(
        subscripts,
        *(
            array(f"A{k}", tuple(EXTENTS[i] for i in term), dtype)
            for k, term in enumerate(terms)
        ),
    )


@st.composite
def small_subscripts(draw):
    terms = draw(
        st.lists(st.text("abcde", min_size=1, max_size=3), min_size=1, max_size=4)
    )
    used = sorted(set("".join(terms)))
    output = draw(st.lists(st.sampled_from(used), unique=True, max_size=3))
    return f"{','.join(terms)}->{''.join(output)}"


@given(subscripts=small_subscripts())
@settings(max_examples=25, deadline=None)
def test_counts_are_the_least_that_loops_do(subscripts):
    """The count is the least number of operations that plain loops perform over
    all pairwise orders; and all those loops compute the einsum.
    """
    e = einsum_of(subscripts, "int64")
    rng = np.random.default_rng(0)
    arrays = {op.name: rng.integers(-4, 5, op.shape) for op in e.operands}
    n_least, results = count_by_brute_force(e, arrays)
    assert sum(count_operations(e, {}).values()) == n_least
    (expected,) = evaluate(e, arrays)
    for result in results:
        assert result == dict(np.ndenumerate(expected))


def test_order_is_chosen_by_extents():
    """A chain of matrices is contracted from its thin end."""
    e = einsum(
        "ij,jk,k->i", array("A", ("N", "N")), array("B", ("N", "N")), array("x", "N")
    )
    n = 100
    assert count_operations(e, {"N": n}) == {"<f8": 2 * (2 * n * n - n)}


def test_large_extents_are_exact():
    """Counts are integers of any size, and take no time."""
    n = 10**9
    e = einsum("ik,kj->ij", array("A", ("N", "N")), array("B", ("N", "N")))
    assert count_operations(e, {"N": n}) == {"<f8": 2 * n**3 - n**2}


def test_many_operands():
    """Above eight operands the order is greedy: a chain of vectors' factors."""
    subscripts = ",".join("i" * 10) + "->i"
    e = einsum(subscripts, *(array(f"x{k}", 6) for k in range(10)))
    assert count_operations(e, {}) == {"<f8": 9 * 6}


def test_empty_extent():
    """Where there are no entries, there is nothing to do."""
    e = einsum("ij,j->i", array("A", (3, "N")), array("x", "N"))
    assert count_operations(e, {"N": 0}) == {}


def test_rows_add_up_by_dtype():
    """Rows are counted each, under the result type of the operands of a step."""
    A, x = array("A", (3, 4), "float32"), array("x", 4, "float32")
    z, y = array("z", 4, "complex128"), array("y", 4)
    e = batched_einsum("ij,j->i", [[A, x], [A, y], [A, z], [A, x]])
    one = 2 * 12 - 3
    assert count_operations(e, {}) == {"<f4": 2 * one, "<f8": one, "<c16": one}


def test_dtype_of_each_step():
    """A step in single precision before one in double is counted as single."""
    e = einsum(
        "ij,j,i->i", array("A", (3, 4), "f4"), array("x", 4, "f4"), array("y", 3, "f8")
    )
    assert count_operations(e, {}) == {"<f4": 2 * 12 - 3, "<f8": 3}


def test_footprint_counts_each_array_once():
    """Distinct operands and all results, once each, in their dtypes."""
    A, x = array("A", ("N", 4), "float32"), array("x", 4, "float32")
    y = array("y", 4)
    e = batched_einsum("ij,j->i", [[A, x], [A, y]])
    n = 10
    assert (
        count_footprint_bytes(e, {"N": n}) == 4 * n * 4 + 4 * 4 + 8 * 4 + n * 4 + n * 8
    )


def test_terms_of_a_sum():
    """The number of terms is the product of the summed extents."""
    assert count_terms(einsum_of("abd,bd->a"), {}) == 12
    assert count_terms(einsum_of("a->a"), {}) == 1


def test_missing_size():
    """A size without a value is refused by name."""
    e = einsum("i,i->", array("x", "Nel"), array("y", "Nel"))
    with pytest.raises(MeasurementError, match="'Nel'"):
        count_operations(e, {"N": 3})
