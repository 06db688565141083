"""The steps of an einsum give its result, along any path."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from feinsum.contraction import find_steps, run_steps, steps
from feinsum.contraction.paths import find_path

LETTERS = "abcdef"


@st.composite
def networks(draw):
    """Terms, a result, and operands of small whole numbers."""
    extents = {i: draw(st.sampled_from((1, 2, 3, 4))) for i in LETTERS}
    term = st.lists(st.sampled_from(LETTERS), max_size=3).map(tuple)
    inputs = tuple(draw(st.lists(term, min_size=1, max_size=5)))
    used = sorted({index for term in inputs for index in term})
    output = tuple(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    dtype = draw(st.sampled_from(("f4", "f8", "c8", "c16", "i4", "i8")))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    operands = [
        np.asarray(rng.integers(-2, 3, [extents[i] for i in term])).astype(dtype)
        for term in inputs
    ]
    return inputs, output, extents, operands


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(network=networks(), is_searched=st.booleans(), is_built=st.booleans())
def test_the_steps_give_the_result(network, is_searched, is_built):
    """Exactly, for whole numbers, with the kernel and without."""
    inputs, output, extents, operands = network
    path = find_path(inputs, output, extents) if is_searched else None
    text = ",".join(map("".join, inputs)) + "->" + "".join(output)
    expected = np.einsum(text, *operands)
    with pytest.MonkeyPatch.context() as patch:
        if not is_built:
            patch.setattr(steps, "IS_BUILT", False)
        found = run_steps(find_steps(inputs, output, path), operands)
    assert isinstance(found, np.ndarray)
    assert (found.shape, found.dtype) == (np.shape(expected), expected.dtype)
    np.testing.assert_array_equal(found, expected)


def test_sums_of_one_operand_come_first():
    """They make it smaller before it is multiplied, and each array is used once."""
    made = find_steps(("abx", "bcy", "cd"), "ad")
    assert [(step.operands, "".join(step.output)) for step in made] == [
        ((0,), "ab"),
        ((1,), "bc"),
        ((3, 4), "ac"),
        ((2, 5), "ad"),
    ]


@pytest.mark.skipif(not steps.IS_BUILT, reason="installed without a compiler")
def test_sums_of_one_operand_are_the_kernels():
    """Of its dtypes; a view is none, and integers are added up by numpy."""
    for text, dtype, is_kernels in (
        ("ijk->j", "f8", True), ("iij->j", "f8", True), ("ijk->kij", "f8", False),
        ("ijk->j", "i8", False), ("ii->i", "f8", False),
    ):  # fmt: skip
        inputs, output = text.split("->")
        array = np.arange(3.0 ** len(inputs), dtype=dtype).reshape([3] * len(inputs))
        (step,) = steps.plan_steps(find_steps([inputs], output), [array])
        assert (step.indices is not None) == is_kernels
        result = steps.run_plan([step], [array])
        np.testing.assert_array_equal(result, np.einsum(text, array))


def test_a_chain_of_more_indices_than_an_array_has_axes():
    """Each step has few of them."""
    n = 40
    chain = [np.eye(n) for _ in range(30)]
    terms = [(f"i{k}", f"i{k + 1}") for k in range(30)]
    result = run_steps(find_steps(terms, ("i0", "i30")), chain)
    np.testing.assert_array_equal(result, np.eye(n))


@pytest.mark.parametrize("dtype", ["i8", "f8", "c16", "f2"])
@pytest.mark.parametrize("text", ["ij,ij->ij", "ij,jk->ik", "ij,jk,kl->il", "ijk->ij"])
def test_results_are_in_c_order(text, dtype):
    """Also where those of numpy would lie as the operands do."""
    inputs = text.split("->")[0].split(",")
    operands = [np.ones((4,) * len(term), dtype, order="F") for term in inputs]
    result = run_steps(find_steps(inputs, text.split("->")[1]), operands)
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, np.einsum(text, *operands))


def test_a_view_stays_one():
    """Of a single operand without a sum, as in numpy."""
    a = np.ones((2, 3))
    assert np.shares_memory(run_steps(find_steps(("ij",), "ji"), [a]), a)
