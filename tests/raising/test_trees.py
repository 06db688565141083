"""Loops over trees raise to the einsum of a sparse operand, and nothing else does.

Loops over rows of compressed arrays are recognized by their bounds, however they are
written.
"""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import array, canonicalize, einsum, raise_kernel, sparse_array
from feinsum.codegen import generate_nest
from feinsum.ir import list_profile_names
from feinsum.nests import (
    EstimatedTime,
    Sizes,
    build_unfactorized,
    find_best_nest,
    parse_network,
)
from feinsum.raising.trees import find_compressed_levels
from tests.raising.trees import (
    BOUNDS,
    C5,
    EINSUMS,
    EXTENTS,
    ROWS,
    VECTORS,
    WAYS,
    factored_mttkrp,
    made,
    over_rows,
    rows,
    rows_call,
    tree_kernel,
)


def symbolic(subscripts, dtype=np.float64):
    """The einsum whose sparse indices have size parameters, as a user makes it."""
    inputs, output = subscripts.split("->")
    tree, *dense = inputs.split(",")
    shape = {i: f"N_{i}" if i in tree else EXTENTS[i] for i in EXTENTS}
    stored = sparse_array(
        "T", tuple(shape[i] for i in tree), dtype, gives_pattern=output == tree
    )
    arrays = [
        array(f"D{k}", tuple(shape[i] for i in term), dtype)
        for k, term in enumerate(dense)
    ]
    return einsum(subscripts, stored, *arrays)


@pytest.mark.parametrize("name", EINSUMS)
def test_the_key_is_that_of_the_symbolic_einsum(name):
    """A kernel over a tree, and feinsum.sparse_array, have one workload."""
    dtype = np.complex64 if name == "SpMM" else np.float64
    raised = raise_kernel(tree_kernel(EINSUMS[name], dtype=dtype))
    assert not raised.refused
    (nest,) = raised.raised
    assert nest.key == canonicalize(symbolic(EINSUMS[name], dtype)).key


@pytest.mark.parametrize("name", ["SpMM", "SDDMM"])
def test_rows_of_a_matrix_are_nodes(name):
    """CSR and a tree of two levels are one workload: empty rows add nothing."""
    (nest,) = raise_kernel(tree_kernel(EINSUMS[name], has_dense_root=True)).raised
    assert nest.key == canonicalize(symbolic(EINSUMS[name])).key
    assert nest.einsum.operands[0].storage.startswith("csf")


def test_private_rows_of_sums_are_seen_through():
    """A factored nest has the key of the einsum that it computes."""
    (nest,) = raise_kernel(factored_mttkrp()).raised
    assert nest.key == canonicalize(symbolic(EINSUMS["MTTKRP-3"])).key


def test_a_nest_has_all_its_instructions():
    """Loads of bounds and indices, private values and zeros belong to it."""
    for unit, _ in (WAYS["accumulated from zero"], WAYS["a private sum"]):
        raised = raise_kernel(unit)
        (nest,) = raised.raised
        assert {*nest.instructions} == {*unit.default_entrypoint.id_to_insn}
        assert not raised.refused


def test_the_profile_comes_from_shapes():
    """Arrays of a call, or what stands for them, tell how many nodes there are."""
    unit, _ = WAYS["a sum"]
    given, _ = rows_call(unit, next(rows()), "A@x")
    (nest,) = raise_kernel(unit, arguments=given).raised
    names = list_profile_names(nest.einsum)
    assert [nest.generalized[name] for name in names] == [7, 7]  # 9 rows, 7 entries
    shapes = {name: (np.shape(x), np.asarray(x).dtype) for name, x in given.items()}
    (same,) = raise_kernel(unit, arguments={**given, **shapes}).raised
    assert {n: same.generalized[n] for n in names} == dict.fromkeys(names, 7)
    (unknown,) = raise_kernel(unit).raised
    assert not unknown.generalized.keys() & {*names}


@pytest.mark.parametrize(
    "way", ["a sum", "accumulated from zero", "a start and a length", "a rule"]
)
def test_csr_is_recognized(way):
    """By the bounds of its loop, with the scalars that hold them."""
    unit, _ = WAYS[way]
    (level,) = find_compressed_levels(unit.default_entrypoint).values()
    assert (level.iname, level.pointers, str(level.parent)) == ("p", "ptr1", "i")
    assert level.scalars >= {"b", "e"}
    assert not raise_kernel(unit).refused


@pytest.mark.parametrize(
    ("name", "is_best"),
    [("ijk,ja,ka->ia", True), ("ij,ia,ja->ij", True), ("ijk,jr,ks->irs", False)],
)
def test_kernels_of_nests_raise_to_what_they_compute(name, is_best):
    """Feinsum's own kernels that walk a tree once are among those that it reads."""
    is_kept = name == "ij,ia,ja->ij"
    net = parse_network(name, has_sparse_output=is_kept)
    extents = {"i": 9, "j": 8, "k": 7, "a": 5, "r": 4, "s": 6}
    sizes = Sizes({i: extents[i] for i in net.indices}, (5, 20, 60)[: len(net.levels)])
    best = find_best_nest(net, EstimatedTime(net, sizes))
    nest = best.nest if is_best else build_unfactorized(net)
    (found,) = raise_kernel(generate_nest(nest, extents)).raised
    shape = {i: f"n_{i}" if i in net.levels else extents[i] for i in net.indices}
    stored = sparse_array("T", [shape[i] for i in net.levels], gives_pattern=is_kept)
    arrays = [array(f"D{k}", tuple(shape[i] for i in term))
              for k, term in enumerate(net.inputs) if k != net.sparse]  # fmt: skip
    assert found.key == canonicalize(einsum(name, stored, *arrays)).key


def refusals(unit):
    """By instruction."""
    raised = raise_kernel(unit)
    return {i: one for one in raised.refused for i in one.instructions}


@pytest.mark.parametrize(
    ("old", "new"),
    [("i+1", "i+2"), ("ptr1[i+1]", "idx1[i+1]"), ("ptr1[i+1]", "2*ptr1[i+1]")],
)
def test_other_bounds_at_run_time_are_none(old, new):
    """Only from one entry to the next is a row."""
    row = "out[i] = sum(p, v[p]) {id=row,dep=b:e}"
    found = refusals(
        made(ROWS, f"for i\n{BOUNDS.replace(old, new)}{row}\nend", VECTORS)
    )
    assert "compressed" not in {one.rule for one in found.values()}
    assert found["row"].rule == "extent"


def test_what_is_no_einsum_in_a_row_has_the_rule_of_rows():
    """Ahead of those about races and boxes; loads of bounds, too."""
    text = "out[i] = sum(p, v[p]*x[p]) {id=row,dep=b:e}\nz[i] = b {id=z}"
    found = refusals(over_rows(text, {**VECTORS, "z": "n_i"}))
    assert {found[i].rule for i in ("b", "e", "row")} == {"compressed"}
    assert "shares 'b'" in found["row"].reason
    assert "bound or a coordinate" in found["b"].reason


ROW = "out[i] = sum(p, v[p]*x[idx1[p]]) {id=row,dep=b:e}"
REFUSED = {
    "an index that is moved": (ROW.replace("idx1[p]", "idx1[p+1]"), "'p'"),
    "the place itself": (ROW.replace("v[p]", "v[p]*p"), "'p'"),
    "a value and an index in one": (ROW.replace("x[idx1[p]]", "x[idx1[p]]**v[p]"),
                                    "has an entry for each node"),
    "two arrays of indices": (ROW.replace("v[p]", "v[p]*x[idx2[p]]"), "idx2"),
    "values of another axis": (ROW.replace("v[p]", "v[p]*w[p,i]"),
                               "has an entry for each node"),
    "another reduction": (ROW.replace("sum(", "max("), "not sum"),
    "a write in every iteration": ("for p\nout[i] = v[p] {id=row,dep=b:e}\nend",
                                   "every iteration of ['p']"),
    "its own output": (ROW.replace("x[idx1[p]]", "out[idx1[p]]"), "reads its output"),
    "a shared bound": (ROW + "\nz[i] = b", "shares 'b'"),
    "two einsums in one loop": (
        ROW + "\nz[i] = sum(p, v[p]) {id=two,dep=b:e}", "shares 'b'"
    ),
    "a private value under a condition": (
        "<> t = v[i] {id=t,if=i>2}\nout[i] = sum(p, v[p]*t) {id=row,dep=b:e:t}",
        "writes in the same loops",
    ),
    "an operand that changes": (
        "x[i] = 2 {id=x}\n" + ROW.replace("dep=", "dep=x:"), "writes in the same loops"
    ),
    "a predicate": (ROW.replace("{", "{if=i>2,"), "predicates"),
    "whole numbers": (ROW.replace("v[p]*x[idx1[p]]", "idx2[p]*idx3[idx1[p]]"),
                      "floating point"),
    "nothing that depends on a loop": (
        "for c\nout[i] = out[i] + sum(p, v[p]) {id=row,dep=b:e}\nend", "'c'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_such_einsum_is_refused_by_name(case):
    """The rule is that of loops over nodes, and the reason says what is wrong."""
    body, reason = REFUSED[case]
    shapes = {**VECTORS, "z": "n_i", "w": "nnz,n_i", "idx2": "nnz", "idx3": "n_j"}
    found = refusals(over_rows(body, shapes, domains=[C5]))
    assert found["row"].rule == "compressed"
    assert reason in found["row"].reason
    assert {found[i].rule for i in ("b", "e")} == {"compressed"}


def test_a_private_value_that_may_be_another_one_is_refused():
    """A reader has to depend on what it reads."""
    body = (
        "<> t = 0.0 {id=t0}\nfor p\nt = t + v[p] {id=t,dep=t0:b:e}\nend\n"
        "out[i] = t {id=row,dep=%s}"
    )
    assert raise_kernel(over_rows(body % "t")).raised
    row = refusals(over_rows(body % "t0"))["row"]
    assert "declare the dependency" in row.reason


def test_two_trees_in_one_nest_are_refused():
    """One operand is sparse: loops over nodes are one path."""
    unit = made(
        [*ROWS, "[f,g] -> {[q]: f<=q<g}"],
        f"for i\n{BOUNDS}for p\n<> f = ptr2[i] {{id=f}}\n<> g = ptr2[i+1] {{id=g}}\n"
        "for q\nout[i] = out[i] + v[p]*w[q] {id=row,dep=b:e:f:g}\nend\nend\nend",
        {**VECTORS, "ptr2": "n_i+1", "w": "nnz"},
    )
    row = refusals(unit)["row"]
    assert "do not form a path of a tree" in row.reason


def test_part_of_the_rows_is_refused():
    """The root is a whole range from zero."""
    unit = made(
        ["{[i]: 1<=i<n_i}", ROWS[1]],
        f"for i\n<> b = ptr1[i] {{id=b}}\n<> e = ptr1[i+1] {{id=e}}\n{ROW}\nend",
        VECTORS,
    )
    row = refusals(unit)["row"]
    assert row.rule == "compressed"
    assert "is not a node of its loops" in row.reason


def test_mixed_precision_is_refused():
    """A recipe rounds where the kernel does: there is one dtype."""
    unit = over_rows(ROW, {**VECTORS, "out": "n_i"}, dtype=np.float32)
    assert raise_kernel(unit).raised
    kernel = unit.default_entrypoint
    args = [a.copy(dtype=np.dtype("f8")) if a.name == "x" else a for a in kernel.args]
    row = refusals(unit.with_kernel(kernel.copy(args=args)))["row"]
    assert "expected one" in row.reason
