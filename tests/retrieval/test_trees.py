"""Kernels over trees come back in the caller's own arrays, and compute the same."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
import numpy as np
import pytest
from constantdict import constantdict

import feinsum
from feinsum import raise_kernel
from feinsum.errors import TransformError
from feinsum.measure import compile_kernel
from feinsum.records import InMemoryStore
from feinsum.retrieval import look_up
from feinsum.sparse import to_csr
from feinsum.transforms import configurations
from feinsum.transforms.nests import SPARSE_NEST
from tests.cpus import any_opencl
from tests.portions import spread
from tests.raising.trees import (
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
)
from tests.retrieval.facts import fact
from tests.retrieval.runs import in_place
from tests.retrieval.tree_recipes import find_recipe, with_recipe


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


@pytest.mark.parametrize("way", spread(WAYS, 9))
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


@pytest.mark.parametrize("name", spread(EINSUMS, 5))
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
        for spec in configurations(SPARSE_NEST, nest.form.einsum):
            if spec.parameters["threads"] != "copies":
                yield name, spec


@pytest.mark.parametrize(("name", "spec"), spread(recipes(), 6), ids=str)
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


@pytest.mark.parametrize("lanes", [1, 4])
def test_copies_of_the_result_are_added_up(lanes):
    """Each chunk adds to one of its own; then all are added to what was there."""
    name = "MTTKRP of the last mode"
    made = with_recipe(tree_kernel(EINSUMS[name]), threads="copies", lanes=lanes)
    assert any(isinstance(insn, lp.BarrierInstruction)
               for insn in made.default_entrypoint.instructions)  # fmt: skip
    assert_product(made, name, trees_of(name))


@pytest.mark.parametrize("threads", ["none", "chunks"])
def test_a_buffer_along_the_tree_has_memory_of_its_own(threads):
    """Of as many rows as a call tells, in vectors; each chunk has a buffer."""
    text = "1 0, 3 2 | a c d b, a d b"
    parameters = {"nest": text, "lane": "b", "lanes": 4, "threads": threads, "tile": 0}
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
        ("SDDMM", "c"),
        ("MTTKRP-3", "a"),
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


@pytest.mark.parametrize("n", [20, 21, 35])
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
