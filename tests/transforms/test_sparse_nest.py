"""The family of nests over a sparse operand: its space, and what recipes compute."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest

from feinsum import array, batched_einsum, canonicalize, sparse_array
from feinsum.errors import InvalidParameterError, TransformError, WrongResultError
from feinsum.ir import Workload, generalize, get_nodes
from feinsum.measure import open_device, verify
from feinsum.measure.sparse_cases import (
    PART_ENTRIES,
    _split_entries,
    compute_sparse_reference,
    make_ragged_sparse_cases,
    make_sparse_case,
)
from feinsum.memory import use_fresh_memory
from feinsum.nests import (
    EstimatedTime,
    build_network,
    build_unfactorized,
    find_best_nest,
    format_nest,
    get_sizes,
    parse_nest,
)
from feinsum.records import TransformSpec
from feinsum.threads import THREADS_VARIABLE
from feinsum.transforms import (
    REGISTRY,
    apply_spec,
    check_spec,
    find_applicable_transforms,
    list_configurations,
)
from feinsum.transforms.nests import SPARSE_NEST
from tests.nests.networks import KERNELS, expected, operands_of
from tests.portions import spread
from tests.sparse_facts import SPECS, mttkrp


def canonical(subscripts, *operands):
    return canonical_batch(subscripts, operands)


def canonical_batch(subscripts, *rows):
    return canonicalize(generalize(batched_einsum(subscripts, rows))[0]).einsum


T3, T2 = sparse_array("T", ("I", "J", "K")), sparse_array("T", ("I", "J"))
PATTERN = sparse_array("T", ("I", "J"), gives_pattern=True)
EINSUMS = {
    "mttkrp": canonical(
        "ijk,ja,ka->ia", T3, array("B", ("J", 6)), array("C", ("K", 6))
    ),
    "mttkrp of the last mode": canonical(
        "ijk,ia,ja->ka", T3, array("A", ("I", 6)), array("B", ("J", 6))
    ),
    "ttmc": canonical("ijk,jr,ks->irs", T3, array("B", ("J", 3)), array("C", ("K", 5))),
    "spmv": canonical("ij,j->i", T2, array("x", "J")),
    "spmm in single precision": canonical(
        "ij,jk->ik", sparse_array("T", ("I", "J"), "f4"), array("B", ("J", 9), "f4")
    ),
    "complex": canonical(
        "ij,jk->ik", sparse_array("T", ("I", "J"), "c16"), array("B", ("J", 3), "c16")
    ),
    "sddmm": canonical(
        "ij,ir,jr->ij", PATTERN, array("u", ("I", 6)), array("v", ("J", 6))
    ),
    "sums of rows": canonical("ij->i", T2),
    "rows that share an operand": canonical_batch(
        "ijk,ja,ka->ia",
        *([T3, array("B", ("J", 6)), array(name, ("K", 6))] for name in "CD"),
    ),
}


@pytest.mark.parametrize(
    "name", spread((name for name in EINSUMS if name != "mttkrp"), 4)
)
def test_recipes_are_right_for_ragged_trees(name):
    """Empty slices, one entry, every entry, extents of 1: the first recipes, one each
    without lanes and with tiles. Those of MTTKRP are among those of its rows.
    """
    host, e = open_device("host"), EINSUMS[name]
    left = [*islice(list_configurations(SPARSE_NEST, e), 40)]
    specs = left[:2]
    plain = next(s for s in left if not s.parameters["lane"])
    for case in make_ragged_sparse_cases(e):
        for kernel in (
            case.untransformed(host),
            *(case.kernel(spec, host) for spec in (*specs, plain)),
        ):
            error = verify(kernel, case.expected, tolerance=case.tolerance)
            assert error <= case.tolerance


def test_ragged_trees_are_what_they_are_called():
    """One entry, rows without any, and each entry."""
    *_, ragged, dense = make_ragged_sparse_cases(EINSUMS["mttkrp"])
    profiles = [
        case.tree.profile for case in make_ragged_sparse_cases(EINSUMS["mttkrp"])
    ]
    assert profiles[:2] == [(1, 1, 1)] * 2
    assert ragged.tree.profile[1] < np.prod(ragged.tree.shape[:2])
    assert dense.tree.profile[-1] == np.prod(dense.tree.shape)


@pytest.mark.parametrize("name", ["spmv", "sddmm", "mttkrp-4", "tucker", "full sum"])
def test_the_reference_computes_what_numpy_computes(name):
    """Entry by entry, for every kernel."""
    net = KERNELS[name]
    operands = operands_of(net)
    assert np.allclose(compute_sparse_reference(net, operands), expected(net, operands))


def test_a_wrong_nest_is_found_out(monkeypatch):
    """One that never sets its buffer to zero adds what it should not."""
    from feinsum.codegen import nest_writer

    class Kept(nest_writer.Writer):
        def _zero(self, array, scope):
            if not array.name.startswith("X"):
                super()._zero(array, scope)

    monkeypatch.setattr("feinsum.codegen.nests.Writer", Kept)
    case = make_ragged_sparse_cases(EINSUMS["mttkrp"])[2]
    with use_fresh_memory(), pytest.raises(WrongResultError):
        verify(
            case.kernel(SPECS["in short vectors"], open_device("host")),
            case.expected,
            tolerance=case.tolerance,
        )


def test_the_family_is_for_one_sparse_operand():
    """Dense families have no recipe for it, and it has none for dense operands."""
    e = EINSUMS["mttkrp"]
    assert find_applicable_transforms(e, "cpu") == (SPARSE_NEST,)
    assert not find_applicable_transforms(e, "gpu")
    dense = canonical("ij,j->i", array("A", (4, 5)), array("x", 5))
    assert SPARSE_NEST not in find_applicable_transforms(dense, "cpu")
    rowwise = REGISTRY["rowwise", 1]
    assert rowwise.get_space(e) is None
    for einsum_, why in (
        (canonical("ij,jj->i", T2, array("B", ("J", "J"))), "an index is repeated"),
        (canonical("ij,j->i", sparse_array("T", ("I", "J"), "i8"),
                   array("x", "J", "i8")), "integers"),
        (canonical_batch("ij,j->i", *([T2, array(f"x{k}", "J")] for k in range(17))),
         "too many rows"),
        (canonical_batch("ij,j->i", [T2, array("x", "J")],
                         [T2, array("y", "J", "c16")]), "rows of two dtypes"),
    ):  # fmt: skip
        assert not SPARSE_NEST.fits(einsum_), why


def test_the_space_has_unfactorized_nests_tiles_and_threads():
    """Beside the nests that are estimated to be fast at these sizes."""
    e = canonical("ijk,ja,ka->ia", T3, array("B", ("J", 64)), array("C", ("K", 64)))
    sizes = {"N0": 40, "N1": 30, "N2": 20, "nodes.0": 38, "nodes.1": 300}
    workload = Workload(e, {**sizes, "nodes.2": 2000})
    assert workload.nodes == (38, 300, 2000) == get_nodes(e, workload.sizes)
    space = SPARSE_NEST.get_space(workload)
    nests = [parse_nest(build_network(e), text) for text in space["nest"]]
    assert build_unfactorized(build_network(e)) in nests
    assert {"chunks", "none"} == set(space["threads"])
    assert {0, 16, 32} < set(space["tile"])
    last = EINSUMS["mttkrp of the last mode"]
    assert SPARSE_NEST.get_space(last)["threads"] == ("copies", "none")
    found = [*list_configurations(SPARSE_NEST, workload)]
    assert {spec.parameters["tile"] for spec in found} == {0, 16, 32}
    assert all(check_spec(spec, e) for spec in found)


def test_the_first_nest_is_that_of_the_estimate_at_these_sizes():
    """Of a large tree, and of a small one that is nearly full."""
    e = EINSUMS["ttmc"]
    net, names = build_network(e), [x.name for x in e.size_params]
    seen = set()
    for extent, nodes in ((4000, (4000, 100_000, 900_000)), (8, (8, 60, 300))):
        sizes = dict.fromkeys(names, extent)
        sizes |= {f"nodes.{level}": n for level, n in enumerate(nodes)}
        cost = EstimatedTime(net, get_sizes(e, sizes), n_threads=2)
        space = SPARSE_NEST.get_space(Workload(e, sizes))
        assert space["nest"][0] == format_nest(find_best_nest(net, cost).nest)
        seen.add(space["nest"][0])
    assert len(seen) == 2


REFUSED = {
    "nest": "sparse_nest@2(lane='b', lanes=4, nest='0 0 | a', threads='none', tile=0)",
    "lane": str(SPECS["factorized"]).replace("lane='b'", "lane='a'"),
    "lanes": str(SPECS["factorized"]).replace("lanes=4", "lanes=3"),
    "lanes without an index": str(SPECS["factorized"]).replace("lane='b'", "lane=''"),
    "lanes longer than the index": str(SPECS["factorized"]).replace("lanes=4",
                                                                    "lanes=16"),
    "tile": str(SPECS["factorized"]).replace("tile=0", "tile=32"),
    "threads": str(SPECS["factorized"]).replace("'chunks'", "'copies'"),
    "another parameter": str(SPECS["factorized"]).replace("tile=0", "tile=0, x=1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_recipes_that_make_no_sense_are_refused(name):
    """Whatever somebody recorded."""
    e = canonicalize(generalize(mttkrp())[0]).einsum
    with pytest.raises(InvalidParameterError):
        check_spec(TransformSpec.parse(REFUSED[name]), e)


def test_a_nest_found_at_other_sizes_is_admitted():
    """A recipe on record may have any nest of the einsum."""
    e = canonicalize(generalize(mttkrp())[0]).einsum
    known = SPARSE_NEST.get_space(e)["nest"]
    other = next(
        text
        for text in ("1 2, 3 0 | a c d b, a c b", "2 1, 0 3 | a c d b, a c b")
        if text not in known
    )
    text = re.sub("nest='[^']*'", f"nest='{other}'", str(SPECS["factorized"]))
    assert check_spec(TransformSpec.parse(text), e) is SPARSE_NEST


def test_copies_beyond_the_memory_are_refused(monkeypatch):
    """Before they are made; there is one for each thread."""
    monkeypatch.setenv(THREADS_VARIABLE, "4")
    e = EINSUMS["mttkrp of the last mode"]
    sizes = {x.name: 3_000_000 for x in e.size_params}
    nodes = dict.fromkeys(("nodes.0", "nodes.1", "nodes.2"), 10_000)
    case = make_sparse_case(e, sizes | nodes)
    spec = next(
        spec
        for spec in list_configurations(SPARSE_NEST, e)
        if spec.parameters["threads"] == "copies"
    )
    with pytest.raises(TransformError, match="MB"):
        case.kernel(spec, open_device("host"))


def test_a_kernel_of_dense_operands_is_not_rewritten():
    """The family rewrites loops over trees, and no others."""
    from feinsum.codegen import generate_loopy
    from feinsum.raising import identify_as_einsum

    dense = batched_einsum("ij,j->i", [[array("A", (4, 5)), array("x", 5)]])
    t_unit, nest = identify_as_einsum(generate_loopy(dense), dense)
    with pytest.raises(InvalidParameterError, match="does not fit"):
        apply_spec(SPECS["factorized"], t_unit, nest)
    with pytest.raises(TransformError, match="dense"):
        SPARSE_NEST.apply(t_unit, nest, {})


def test_the_reference_makes_products_that_fit_the_memory():
    """Of as many entries at once as have few products with all dense indices."""
    terms, extents = [("j", "r"), ("k", "s")], {"j": 9, "k": 9, "r": 64, "s": 64}
    places = {"j": np.zeros(1), "k": np.zeros(1)}
    parts = list(_split_entries(10_000, terms, extents, places))
    assert parts[0].stop * 64 * 64 <= PART_ENTRIES
    assert parts[-1].stop >= 10_000
