"""Orders of multiplication: valid, within a limit, the same in every process."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.contraction.paths import MINIMIZED, find_path, list_path_outputs
from tests.children import run_python

METHODS = ("auto", "greedy", *MINIMIZED)


@st.composite
def products(draw, most=12):
    """Terms, a result and extents."""
    indices = "abcdefgh"[: draw(st.integers(1, 8))]
    extents = {i: draw(st.sampled_from([1, 2, 3, 7, 50, 2**31 - 1])) for i in indices}
    term = st.lists(st.sampled_from(indices), max_size=4)
    terms = draw(st.lists(term, min_size=1, max_size=most))
    used = sorted({i for one in terms for i in one})
    output = draw(st.lists(st.sampled_from(used), unique=True)) if used else []
    return terms, output, extents


@given(products(), st.sampled_from(METHODS), st.none() | st.integers(0, 10**6))
def test_a_path_leaves_the_result_and_keeps_to_the_limit(given_, method, limit):
    """Whatever is made small, and however small the limit: one array is left."""
    terms, output, extents = given_
    path = find_path(terms, output, extents, method=method, max_entries=limit)
    left = len(terms)
    for step in path:
        assert len(set(step)) == len(step)
        assert all(0 <= at < left for at in step)
        left += 1 - len(step)
    assert left == 1
    made = list_path_outputs(terms, output, path)
    assert made[-1] == frozenset(output)
    if limit is not None:
        assert all(prod(extents[i] for i in term) <= limit for term in made[:-1])


@pytest.mark.parametrize("method", METHODS)
def test_a_chain_of_many_operands_is_searched_under_a_limit(method):
    """Matrices and a vector: with room for vectors only, it goes from the vector on."""
    n = 40
    terms = [(f"i{k}", f"i{k + 1}") for k in range(n)] + [(f"i{n}",)]
    extents = {f"i{k}": 10 for k in range(n + 1)}
    path = find_path(terms, ["i0"], extents, method=method, max_entries=10)
    made = list_path_outputs(terms, ["i0"], path)
    assert {len(term) for term in made} == {1}
    assert len(path) == n


def test_a_path_is_the_same_in_every_process():
    """Sets of text have another order in each; here extents decide."""
    program = (
        "from feinsum.contraction.paths import find_path\n"
        "terms = ['ab', 'bc', 'cd', 'de', 'ea', 'ac', 'bd', 'ce']\n"
        "extents = dict.fromkeys('abcde', 4)\n"
        "for m in ('auto', 'greedy', 'flops'):\n"
        "    for limit in (None, 64):\n"
        "        print(find_path(terms, '', extents, method=m, max_entries=limit))\n"
    )
    found = {
        run_python("-c", program, PYTHONHASHSEED=seed).stdout for seed in ("0", "1")
    }
    assert len(found) == 1
