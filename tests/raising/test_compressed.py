"""Loops over rows of compressed arrays are recognized, however they are written."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum import raise_kernel
from feinsum.codegen import generate_nest
from feinsum.nests import Operations, Sizes, best_nest, network, postorders

BOUNDS = "[a,b] -> {[k]: a<=k<b}"
CSR = "<> a = ptr[i] {id=a}\n<> b = ptr[i+1] {id=b}\n"
LENGTH = "<> a = ptr[i] {id=a}\n<> b = ptr[i+1] - a {id=b,dep=a}\n"
WAYS = {
    "a sum": (BOUNDS, CSR + "y[i] = sum(k, v[k]*x[idx[k]]) {id=row,dep=a:b}"),
    "an accumulation": (
        BOUNDS,
        CSR + "y[i] = 0 {id=zero}\n"
        "for k\ny[i] = y[i] + v[k]*x[idx[k]] {id=row,dep=a:b:zero}\nend",
    ),
    "a start and a length": (
        "[b] -> {[k]: 0<=k<b}",
        LENGTH + "y[i] = sum(k, v[a+k]*x[idx[a+k]]) {id=row,dep=a:b}",
    ),
    "a rule": (
        BOUNDS,
        "X(e) := x[idx[e]]\n" + CSR + "y[i] = sum(k, v[k]*X(k)) {id=row,dep=a:b}",
    ),
}


def made(domain, text):
    before, _, rest = text.partition("<>")
    shapes = {"ptr": "n+1", "idx": "nnz", "v": "nnz", "x": "m", "y": "n"}
    ints = ("ptr", "idx")
    args = [
        lp.GlobalArg(name, np.int32 if name in ints else np.float64, shape=shape)
        for name, shape in shapes.items()
    ]
    return lp.make_kernel(
        ["{[i]: 0<=i<n}", domain],
        f"{before}\nfor i\n<>{rest}\nend",
        [*args, lp.ValueArg("n,m,nnz", np.int32)],
        lang_version=(2018, 2),
    )


def refusals(unit):
    raised = raise_kernel(unit)
    return {i: one for one in raised.refused for i in one.instructions}


@pytest.mark.parametrize("way", WAYS)
def test_csr_is_recognized(way):
    """By its own rule, ahead of those about races and boxes, with its einsum."""
    found = refusals(made(*WAYS[way]))
    assert {found[i].rule for i in ("a", "b", "row")} == {"compressed"}
    assert "the sparse einsum ik,k->i with v csf" in found["row"].reason
    assert "ptr[i]" in found["row"].reason


@pytest.mark.parametrize(
    "text",
    [
        CSR.replace("i+1", "i+2") + "y[i] = sum(k, v[k]) {id=row,dep=a:b}",
        CSR.replace("ptr[i+1]", "idx[i+1]") + "y[i] = sum(k, v[k]) {id=row,dep=a:b}",
        CSR.replace("ptr[i+1]", "2*ptr[i+1]") + "y[i] = sum(k, v[k]) {id=row,dep=a:b}",
    ],
)
def test_other_bounds_at_run_time_are_none(text):
    """Only from one entry to the next is a row."""
    found = refusals(made(BOUNDS, text))
    assert "compressed" not in {one.rule for one in found.values()}
    assert found["row"].rule == "extent"


def test_an_einsum_that_cannot_be_read_is_still_a_loop_over_rows():
    """The rule is the same; the message leaves the einsum out."""
    text = CSR + "y[i] = sum(k, v[k]*x[3*idx[k]]) {id=row,dep=a:b}"
    row = refusals(made(BOUNDS, text))["row"]
    assert row.rule == "compressed"
    assert "sparse einsum" not in row.reason


def test_trees_of_several_levels_are_recognized():
    """The nest of MTTKRP for a tree, as feinsum writes it: no loop is a mere race."""
    net = network("ijk,ja,ka->ia")
    extents = {"i": 9, "j": 8, "k": 7, "a": 5}
    sizes = Sizes(extents, (5, 20, 60))
    nest = best_nest(net, Operations(net, sizes), paths=list(postorders(net))).nest
    found = refusals(generate_nest(nest, extents))
    rules = {one.rule for one in found.values()}
    assert "extent" not in rules
    assert "operand-written" not in rules
    reasons = " ".join(one.reason for one in found.values())
    assert "pointers0" in reasons
    assert "with values csf" in reasons
