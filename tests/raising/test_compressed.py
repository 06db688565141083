"""Loops over rows of compressed arrays are recognized, however they are written."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum import array, canonicalize, einsum, raise_kernel, sparse_array
from feinsum.codegen import generate_nest
from feinsum.nests import EstimatedTime, Sizes, best_nest, network, unfactorized
from feinsum.raising.trees import compressed_levels

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
    shapes = {"ptr": "n+1", "idx": "nnz", "v": "nnz", "x": "m", "y": "n", "z": "n"}
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
    """By the bounds of its loop, with the scalars that hold them."""
    kernel = made(*WAYS[way]).default_entrypoint
    (level,) = compressed_levels(kernel).values()
    assert (level.iname, level.pointers, str(level.parent)) == ("k", "ptr", "i")
    assert level.scalars >= {"a", "b"}
    assert not refusals(made(*WAYS[way]))


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


def test_what_is_no_einsum_in_a_row_has_the_rule_of_rows():
    """Ahead of those about races and boxes; loads of bounds, too."""
    text = CSR + "y[i] = sum(k, v[k]*x[k]) {id=row,dep=a:b}\nz[i] = a {id=z}"
    found = refusals(made(BOUNDS, text))
    assert {found[i].rule for i in ("a", "b", "row")} == {"compressed"}
    assert "shares 'a'" in found["row"].reason
    assert "bound or a coordinate" in found["a"].reason


@pytest.mark.parametrize(
    ("name", "is_best"),
    [("ijk,ja,ka->ia", True), ("ij,ia,ja->ij", True), ("ijk,jr,ks->irs", False)],
)
def test_kernels_of_nests_raise_to_what_they_compute(name, is_best):
    """Feinsum's own kernels that walk a tree once are among those that it reads."""
    is_kept = name == "ij,ia,ja->ij"
    net = network(name, has_sparse_output=is_kept)
    extents = {"i": 9, "j": 8, "k": 7, "a": 5, "r": 4, "s": 6}
    sizes = Sizes({i: extents[i] for i in net.indices}, (5, 20, 60)[: len(net.levels)])
    best = best_nest(net, EstimatedTime(net, sizes))
    nest = best.nest if is_best else unfactorized(net)
    (found,) = raise_kernel(generate_nest(nest, extents)).raised
    shape = {i: f"n_{i}" if i in net.levels else extents[i] for i in net.indices}
    stored = sparse_array("T", [shape[i] for i in net.levels], gives_pattern=is_kept)
    arrays = [array(f"D{k}", tuple(shape[i] for i in term))
              for k, term in enumerate(net.inputs) if k != net.sparse]  # fmt: skip
    assert found.key == canonicalize(einsum(name, stored, *arrays)).key
