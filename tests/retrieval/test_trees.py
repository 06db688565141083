"""Kernels over trees come back in the caller's own arrays, and compute the same."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
import numpy as np
import pytest
from constantdict import constantdict

import feinsum
from feinsum import array, batched_einsum, canonicalize, raise_kernel, sparse_array
from feinsum.errors import TransformError
from feinsum.measure import compile_kernel
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.retrieval import look_up
from feinsum.sparse import to_csr, to_dense
from feinsum.transforms import apply_spec, list_configurations
from feinsum.transforms.nests import SPARSE_NEST
from tests.cpus import any_opencl
from tests.portions import spread
from tests.raising.trees import (
    C5,
    CSR_SHAPES,
    EINSUMS,
    EXTENTS,
    WAYS,
    factored_mttkrp,
    over_rows,
    patterns,
    rows,
    rows_call,
    tree_call,
    tree_kernel,
    values_of,
)
from tests.retrieval.facts import fact
from tests.retrieval.runs import in_place


def predicted(unit, **options):
    """What retrieve makes of a kernel of which nothing is recorded."""
    return feinsum.retrieve(
        unit, database=InMemoryStore(), effort="estimate", on_miss="raise", **options
    )


def run(unit, given):
    """The result, in place of what was given for it."""
    return in_place(unit, given)["out"]


def trees_of(name):
    """Patterns of the sparse operand of an einsum."""
    return patterns(tuple(EXTENTS[i] for i in EINSUMS[name].split(",")[0]))


def assert_product(unit, name, trees, **in_call):
    """The kernel of an einsum computes what numpy does."""
    for tree in trees:
        given, expected = tree_call(EINSUMS[name], tree, **in_call)
        np.testing.assert_allclose(run(unit, given), expected, rtol=1e-12)


@pytest.mark.parametrize("way", spread(WAYS, 5))
def test_products_with_rows_are_those_of_numpy(way):
    """However they are written, and whatever the pattern; other instructions stay."""
    unit, formula = WAYS[way]
    found = predicted(unit)
    assert found is not unit
    assert [a.name for a in found.default_entrypoint.args] == [
        a.name for a in unit.default_entrypoint.args
    ]
    for matrix in rows():
        given, expected = rows_call(unit, matrix, formula)
        np.testing.assert_allclose(run(found, given), expected, rtol=1e-13)


@pytest.mark.parametrize("name", spread(EINSUMS, 3))
def test_trees_of_every_order_are_those_of_numpy(name):
    """MTTKRP and TTMc of orders 3 and 4, and results in the pattern."""
    assert_product(predicted(tree_kernel(EINSUMS[name])), name, trees_of(name))


def test_a_complete_result_is_written_once():
    """Its zeros are not written first, and it is not read."""
    unit, _ = WAYS["many columns"]
    writers = [
        insn
        for insn in predicted(unit).default_entrypoint.instructions
        if "out" in insn.assignee_var_names()
    ]
    assert all("out" not in insn.read_dependency_names() for insn in writers)


def test_kernels_for_opencl_are_those_of_numpy():
    """With vectors, and chunks as work-groups."""
    opened, name = any_opencl(), "MTTKRP-3"
    unit = tree_kernel(EINSUMS[name]).copy(target=lp.PyOpenCLTarget())
    found = predicted(unit, device=opened.device.platform, verify=False)
    assert "__kernel void" in lp.generate_code_v2(found).device_code()
    for tree in trees_of(name):
        given, expected = tree_call(EINSUMS[name], tree)
        call = compile_kernel(found, opened).bind(given)
        call.run()
        np.testing.assert_allclose(call.read()["out"], expected, rtol=1e-12)


def test_a_factored_nest_is_that_of_numpy():
    found = predicted(factored_mttkrp())
    assert_product(found, "MTTKRP-3", trees_of("MTTKRP-3"))


@pytest.mark.parametrize("dtype", [np.float32, np.complex128], ids=["f4", "c16"])
def test_other_dtypes(dtype):
    unit = tree_kernel(EINSUMS["SpMM"], has_dense_root=True, dtype=dtype)
    found = predicted(unit)
    for matrix in rows():
        given, expected = tree_call(EINSUMS["SpMM"], matrix, dtype=dtype)
        np.testing.assert_allclose(run(found, given), expected, rtol=1e-5)


def recipes():
    """Recipes of einsums that have lanes, tiles and chunks; each with its einsum."""
    for name in ("SpMM", "MTTKRP-3", "TTMc-3", "SDDMM"):
        unit = tree_kernel(EINSUMS[name])
        (nest,) = raise_kernel(unit).raised
        for spec in list_configurations(SPARSE_NEST, nest.form.einsum):
            if spec.parameters["threads"] != "copies":
                yield name, spec


@pytest.mark.parametrize(("name", "spec"), spread(recipes(), 4), ids=str)
def test_every_recipe_is_right(name, spec):
    """Lanes that do not divide extents, tiles, chunks: in the arrays of the caller."""
    made = with_recipe(tree_kernel(EINSUMS[name]), spec)
    assert_product(made, name, [next(trees_of(name))])


def test_a_fact_of_the_symbolic_einsum_is_found():
    """What was tuned for a tree serves kernels; the profile decides which fact."""
    unit = tree_kernel(EINSUMS["SpMM"], has_dense_root=True)
    (nest,) = raise_kernel(unit).raised
    frame, store = nest.form, InMemoryStore()
    names = {x.name: 256 for x in frame.einsum.size_params}
    facts = {}
    for n_entries, lanes in ((1024, 4), (8192, 8)):
        spec = find_recipe(frame.einsum, lanes=lanes, threads="none")
        facts[n_entries] = spec
        made_up = fact(frame.einsum, spec)
        sizes = {**names, "nodes.0": 256, "nodes.1": n_entries}
        measured = replace(made_up.measurement, sizes=constantdict(sizes))
        store.add(replace(made_up, measurement=measured))
    given = dict.fromkeys(("D0", "out"), ((256, 5), "f8"))
    given["ptr1"] = ((257,), "i4")
    for n_entries, spec in facts.items():
        arrays = {"v": ((n_entries,), "f8"), "idx1": ((n_entries,), "i4")}
        found = look_up(unit, database=store, arguments={**given, **arrays})
        (one,) = found.nests
        assert one.applied == spec
        assert str(one.match.level) == "exact"


def test_copies_of_the_result_are_added_up():
    """Each chunk adds to one of its own; then all are added to what was there."""
    name = "MTTKRP of the last mode"
    made = with_recipe(tree_kernel(EINSUMS[name]), threads="copies", lanes=4)
    assert any(isinstance(insn, lp.BarrierInstruction)
               for insn in made.default_entrypoint.instructions)  # fmt: skip
    assert_product(made, name, trees_of(name))


def test_a_buffer_along_the_tree_has_memory_of_its_own():
    """Of as many rows as a call tells, in vectors; each chunk has a buffer."""
    text = "1 0, 3 2 | a c d b, a d b"
    parameters = {"nest": text, "lane": "b", "lanes": 4, "threads": "chunks", "tile": 0}
    made = with_recipe(tree_kernel(EINSUMS["MTTKRP-3"]), SPARSE_NEST.spec(parameters))
    temporaries = made.default_entrypoint.temporary_variables.values()
    assert any(x.address_space == lp.AddressSpace.GLOBAL for x in temporaries)
    assert_product(made, "MTTKRP-3", trees_of("MTTKRP-3"))


def test_copies_that_are_known_to_be_large_are_refused():
    """Before any code is generated."""
    columns = {**CSR_SHAPES, "x": "n_i,5000000", "out": "n_j,5000000"}
    unit = over_rows(
        "for p,c\nout[idx1[p],c] = out[idx1[p],c] + v[p]*x[i,c] {dep=b:e}\nend",
        columns,
        domains=["{[c]: 0<=c<5000000}"],
    )
    with pytest.raises(TransformError, match="expected at most 268 MB"):
        with_recipe(unit, long_extent=10**9, threads="copies")


@pytest.mark.parametrize(
    ("name", "lane"),
    [
        ("SpMM", "c"),
        ("MTTKRP of the last mode", "a"),
    ],
)
def test_lanes_of_an_extent_that_only_a_call_tells(name, lane):
    """By one kernel: whole tiles, whole vectors, and a last one that is partial. Of a
    matrix by rows without chunks, Loopy checks the bounds of the result.
    """
    lanes, is_matrix = 4, name == "SpMM"
    unit = tree_kernel(EINSUMS[name], in_call=lane, has_dense_root=is_matrix)
    made = with_recipe(unit, lanes=lanes, threads=lambda x: (x == "none") == is_matrix)
    tree = next(trees_of(name))
    tree = to_csr(tree) if is_matrix else tree
    for n in (1, lanes - 1, lanes, lanes + 1, 3 * lanes + 5, 5 * lanes + 1):
        assert_product(made, name, [tree], **{lane: n})


@pytest.mark.parametrize("n", [21, 35])
def test_tiles_need_not_divide_an_extent(n):
    """Of whole vectors, and of a partial one after a tile, or a tile and vectors."""
    shapes = {**CSR_SHAPES, "x": f"n_j,{n}", "out": f"n_i,{n}"}
    body = "out[i,c] = sum(p, v[p]*x[idx1[p],c]) {dep=b:e}"
    unit = over_rows(body, shapes, domains=[f"{{[c]: 0<=c<{n}}}"])
    given, expected = rows_call(unit, next(rows()), "A@x")
    made = with_recipe(unit, tile=16, lanes=4)
    np.testing.assert_allclose(run(made, given), expected, rtol=1e-12)


def test_columns_of_a_number_that_only_a_call_tells_are_in_vectors():
    """Of products with CSR, as users write them, without anything on record."""
    unit, _ = WAYS["a number of columns that a call tells"]
    code = lp.generate_code_v2(predicted(unit)).device_code()
    assert "vector_size" in code


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


@pytest.mark.parametrize("name", spread(KERNELS, 3))
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


def find_recipe(einsum, **parameters: object) -> TransformSpec:
    """The first one with these parameters; a condition is one on its value."""

    def fits(spec: TransformSpec) -> bool:
        return all(
            wanted(spec.parameters[name])
            if callable(wanted)
            else spec.parameters[name] == wanted
            for name, wanted in parameters.items()
        )

    return next(filter(fits, list_configurations(SPARSE_NEST, einsum)))


def with_recipe(
    unit: lp.TranslationUnit,
    spec: TransformSpec | None = None,
    long_extent: int | None = None,
    **parameters: object,
) -> lp.TranslationUnit:
    """The kernel whose only nest is transformed.

    Args:
        parameters: those by which a recipe is found where none is given.
    """
    options = {} if long_extent is None else {"long_extent": long_extent}
    raised = raise_kernel(unit, **options)
    (nest,) = raised.raised
    spec = spec or find_recipe(nest.form.einsum, **parameters)
    kernel = raised.t_unit[raised.kernel_name]
    rules = {**kernel.substitutions, **nest.new_rules}
    alone = raised.t_unit.with_kernel(kernel.copy(substitutions=rules))
    return lp.expand_subst(apply_spec(spec, alone, nest.canonical_nest))
