"""Kernels with several rows over one tree: it is read once for all of them."""

from __future__ import annotations

import numpy as np
import pytest

import feinsum
from feinsum import array, batched_einsum, canonicalize, raise_kernel, sparse_array
from feinsum.records import InMemoryStore
from feinsum.sparse import to_dense
from tests.portions import spread
from tests.raising.trees import C5, CSR_SHAPES, over_rows, rows, values_of
from tests.retrieval.runs import in_place
from tests.retrieval.tree_recipes import with_recipe

VECTORS = {**CSR_SHAPES, "x": "n_j", "w": "n_j", "y": "n_i", "z": "n_i"}
COLUMNS = {**CSR_SHAPES, "x": "n_i", "w": "n_i", "y": "n_j", "z": "n_j"}
MATRICES = {**CSR_SHAPES, "x": "n_j,5", "w": "n_j,5", "y": "n_i,5", "z": "n_i,5"}
SAMPLED = {**CSR_SHAPES, "x": "n_j", "w": "n_j", "y": "nnz", "z": "nnz", "u": "n_i"}
KERNELS = {
    "sums": (
        over_rows(
            "y[i] = sum(p, v[p]*x[idx1[p]]) {dep=b:e}\n"
            "z[i] = beta*z[i] + alpha*sum(p, v[p]*w[idx1[p]]) {dep=b:e}",
            VECTORS,
        ),
        ("A@x", "0.5*z + 3*(A@w)"),
    ),
    "accumulated": (
        over_rows(
            "y[i] = 0 {id=y0}\nfor p\ny[i] = y[i] + v[p]*x[idx1[p]] {id=y,dep=b:e:y0}\n"
            "z[i] = z[i] - v[p]*w[idx1[p]] {dep=b:e:y}\nend",
            VECTORS,
        ),
        ("A@x", "z - A@w"),
    ),
    "private sums": (
        over_rows(
            "<> s = 0.0 {id=s0}\n<> t = 0.0 {id=t0,dep=s0}\nfor p\n"
            "s = s + v[p]*x[idx1[p]] {id=s,dep=b:e:s0}\n"
            "t = t + v[p]*w[idx1[p]] {id=t,dep=b:e:t0:s}\nend\n"
            "y[i] = s {id=y,dep=s}\nz[i] = 2*t {dep=t:y}",
            VECTORS,
        ),
        ("A@x", "2*(A@w)"),
    ),
    "added in copies": (
        over_rows(
            "for p\ny[idx1[p]] = y[idx1[p]] + v[p]*x[i] {dep=b:e}\n"
            "z[idx1[p]] = z[idx1[p]] + 2*v[p]*w[i] {dep=b:e}\nend",
            COLUMNS,
        ),
        ("y + A.T@x", "z + 2*(A.T@w)"),
    ),
    "matrices": (
        over_rows(
            "y[i,c] = sum(p, v[p]*x[idx1[p],c]) {dep=b:e}\n"
            "z[i,c] = z[i,c] + sum(p, v[p]*w[idx1[p],c]) {dep=b:e}",
            MATRICES,
            domains=[C5],
        ),
        ("A@x", "z + A@w"),
    ),
    "results with the pattern": (
        over_rows(
            "for p\ny[p] = v[p]*u[i]*x[idx1[p]] {dep=b:e}\n"
            "z[p] = v[p]*w[idx1[p]]*u[i] {dep=b:e}\nend",
            SAMPLED,
        ),
        ("(A*u[:,None]*x)[A != 0]", "(A*u[:,None]*w)[A != 0]"),
    ),
}


def check(unit, given_kernel, formulas):
    """The results of a unit are those of numpy, for every pattern."""
    for matrix in rows():
        given = values_of(given_kernel, matrix)
        scope = {**given, "A": to_dense(matrix)}
        expected = [eval(formula, scope) for formula in formulas]
        found = in_place(unit, given)
        for name, right in zip("yz", expected, strict=True):
            np.testing.assert_allclose(found[name], right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", spread(KERNELS, 4))
def test_rows_over_one_tree_are_those_of_numpy(name):
    """However they are written; and the nodes of each level are visited by one loop."""
    unit, formulas = KERNELS[name]
    raised = raise_kernel(unit)
    (nest,) = raised.raised
    assert not raised.refused
    assert nest.einsum.batch_size == 2
    found = feinsum.retrieve(
        unit, database=InMemoryStore(), effort="estimate", on_miss="raise"
    )
    check(found, unit.default_entrypoint, formulas)
    loops = [i for i in found.default_entrypoint.all_inames() if i.startswith("node1")]
    assert len(loops) == 1


CHUNKED = {
    "chunks": KERNELS["matrices"],
    "copies": (
        over_rows(
            "for p,c\ny[idx1[p],c] = y[idx1[p],c] + v[p]*x[i,c] {dep=b:e}\n"
            "z[idx1[p],c] = z[idx1[p],c] + v[p]*w[i,c] {dep=b:e}\nend",
            {**CSR_SHAPES, "x": "n_i,5", "w": "n_i,5", "y": "n_j,5", "z": "n_j,5"},
            domains=[C5],
        ),
        ("y + A.T@x", "z + A.T@w"),
    ),
}


@pytest.mark.parametrize("threads", CHUNKED)
def test_recipes_with_lanes_and_chunks_are_right(threads):
    """Every row has sums, fetched vectors and copies of its own."""
    unit, formulas = CHUNKED[threads]
    made = with_recipe(unit, threads=threads, lanes=4)
    check(made, unit.default_entrypoint, formulas)


def test_the_key_is_that_of_the_symbolic_batch():
    """Facts that were tuned for a batch serve kernels with such rows."""
    (nest,) = raise_kernel(KERNELS["matrices"][0]).raised
    T = sparse_array("T", ("I", "J"))
    B, C = array("B", ("J", 5)), array("C", ("J", 5))
    assert nest.key == canonicalize(batched_einsum("ij,jc->ic", [[T, B], [T, C]])).key


APART = {
    "one reads the result of the other": (
        "y[i] = sum(p, v[p]*x[idx1[p]]) {id=y,dep=b:e}\n"
        "z[i] = sum(p, v[p]*y[idx1[p]]) {dep=b:e:y}"
    ),
    "both assign one entry": (
        "y[i] = sum(p, v[p]*x[idx1[p]]) {id=y,dep=b:e}\n"
        "y[i] = y[i] + sum(p, v[p]*w[idx1[p]]) {dep=b:e:y}"
    ),
    "another instruction runs between": (
        "y[i] = sum(p, v[p]*x[idx1[p]]) {id=y,dep=b:e}\n"
        "t[i] = 2*y[i] {id=t,dep=y}\n"
        "z[i] = sum(p, v[p]*w[idx1[p]]) + t[i] {dep=b:e:t}"
    ),
    "other values": (
        "y[i] = sum(p, v[p]*x[idx1[p]]) {dep=b:e}\n"
        "z[i] = sum(p, t[p]*w[idx1[p]]) {dep=b:e}"
    ),
}


@pytest.mark.parametrize("name", APART)
def test_instructions_that_are_no_rows_of_one_einsum_are_refused(name):
    """They share bounds, so that neither can be replaced alone."""
    unit = over_rows(APART[name], {**VECTORS, "t": "n_i"})
    raised = raise_kernel(unit)
    assert all(nest.nest.tree is None for nest in raised.raised)
    assert any(
        "shares" in one.reason or "reads" in one.reason for one in raised.refused
    )
