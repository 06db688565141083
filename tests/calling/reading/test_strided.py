"""Simpler einsums of the same memory: fewer axes, the same results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.calling import prepare_call
from feinsum.calling.einsum_call import StridedTerm, compute_c_steps, normalize_terms
from tests.calling.comparing import NO_FACTS, assert_as_numpy


def strided(term, array):
    steps = tuple(step // array.itemsize for step in array.strides)
    return StridedTerm(tuple(term), array.shape, steps)


def evaluated(inputs, output, arrays):
    """The einsum of some memory as it lies, by numpy."""
    number = {
        index: k
        for k, index in enumerate(dict.fromkeys(i for x in inputs for i in x.term))
    }
    given_ = []
    for array, x in zip(arrays, inputs, strict=True):
        strides = [step * array.itemsize for step in x.steps]
        shown = np.lib.stride_tricks.as_strided(array, x.extents, strides)
        given_ += [shown, [number[i] for i in x.term]]
    return np.einsum(*given_, [number[i] for i in output.term])


@st.composite
def problems(draw):
    """Terms over few indices, and arrays that are views of all kinds."""
    extents = {i: draw(st.integers(1, 3)) for i in "abcd"}
    terms = [
        draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
        for _ in range(draw(st.integers(1, 3)))
    ]
    arrays = []
    for term in terms:
        shape = tuple(extents[i] for i in term)
        order = draw(st.permutations(range(len(shape))))
        flat = np.arange(1.0, 1 + np.prod(shape)).reshape([shape[k] for k in order])
        array = flat.transpose(np.argsort(order))
        if draw(st.booleans()):
            axis = draw(st.integers(0, len(shape) - 1))
            first = array.take([0], axis)
            array = np.broadcast_to(first, shape)
        arrays.append(array)
    bound = sorted({i for term in terms for i in term})
    output = draw(st.lists(st.sampled_from(bound), unique=True))
    return terms, output, arrays, extents


@given(problems())
def test_the_simpler_einsum_computes_the_same(problem):
    """Of the same memory, entry for entry, in no more axes."""
    terms, output, arrays, extents = problem
    shape = tuple(extents[i] for i in output)
    inputs = [strided(term, array) for term, array in zip(terms, arrays, strict=True)]
    result = StridedTerm(tuple(output), shape, compute_c_steps(shape))
    simple, simple_result, _ = normalize_terms(inputs, result)
    subscripts = ",".join(map("".join, terms)) + "->" + "".join(output)
    expected = np.einsum(subscripts, *arrays)
    found = evaluated(simple, simple_result, arrays)
    # the result lies in C's order, whatever its axes are
    assert np.array_equal(found.reshape(-1), expected.reshape(-1))
    for before, after in zip(inputs, simple, strict=True):
        assert len(after.term) <= len(before.term)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "expected"),
    [
        ("bijk,b->bijk", [(2, 3, 4, 5), (2,)], "ab,a->ab"),
        ("Lij,Lkl->ijkl", [(2, 3, 4), (2, 3, 4)], "ca,cb->ab"),
        ("ij,ij->", [(3, 4), (3, 4)], "a,a->"),
        ("ijk,jk->ik", [(2, 3, 4), (3, 4)], "acb,cb->ab"),
    ],
)
def test_axes_that_stand_together_everywhere_are_one(subscripts, shapes, expected):
    """And only these."""
    arrays = [np.ones(shape) for shape in shapes]
    call = prepare_call(subscripts, *arrays, database=NO_FACTS, device="host")
    kernel = call.kernel.compiled.t_unit.default_entrypoint
    ranks = [len(kernel.arg_dict[name].shape) for name in ("A0", "A1", "out")]
    terms = expected.replace("->", ",").split(",")
    assert sorted(ranks) == sorted(map(len, terms))


def test_an_order_of_axes_is_that_of_memory():
    """Transposed arrays have the kernels of arrays in C's order."""
    A, B = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(5, 4)
    plain = prepare_call("ij,kj->ik", A, B, database=NO_FACTS, device="host")
    turned = prepare_call(
        "ji,kj->ik",
        A.T.copy(order="K"),
        np.asfortranarray(B),
        database=NO_FACTS,
        device="host",
    )
    names = [a.name for a in turned.kernel.compiled.t_unit.default_entrypoint.args]
    assert not [name for name in names if "step" in name]
    assert plain.kernel is not None
    assert_as_numpy("ji,kj->ik", A.T.copy(order="K"), np.asfortranarray(B))
