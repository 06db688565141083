"""Nests in vectors and by threads compute what numpy computes, whatever the pattern."""

from __future__ import annotations

import re
from itertools import permutations

import loopy as lp
import numpy as np
import pytest

from feinsum.codegen import (
    choose_nest_index_dtype,
    extract_nest_result,
    generate_nest,
    make_nest_arguments,
    split_root,
)
from feinsum.errors import InvalidEinsumError
from feinsum.measure import compile_kernel, open_device
from feinsum.nests import (
    EstimatedTime,
    Nest,
    NestForm,
    Sizes,
    choose_form,
    find_best_nest,
    find_lane_indices,
    measure_sizes,
    parse_network,
)
from feinsum.nests.form import choose_n_chunks
from feinsum.sparse import COO, random_profile, random_uniform, to_csf
from tests.codegen.test_nests import LARGE, MTTKRP, nest_of
from tests.nests.networks import KERNELS, expected, operands_of, path_of, random_nest
from tests.portions import spread

SMALL = {"tttc": 2, "tucker": 2, "mttkrp-5": 2}


def computed(nest, operands, form, *, n_chunks=3, dtype=np.float64, kernel=None):
    sizes = measure_sizes(nest.network, operands)
    if kernel is None:
        kernel = built(nest, sizes, form, n_chunks=n_chunks, dtype=dtype)
    arguments = make_nest_arguments(
        nest, operands, dtype=dtype, form=form, n_chunks=n_chunks
    )
    arguments["out"][...] = np.nan  # the kernel says what it begins with
    kernel.built.run(arguments, kernel.timer)
    return extract_nest_result(nest, form, arguments["out"], sizes)


def built(nest, sizes, form, *, n_chunks=3, dtype=np.float64):
    index_dtype = choose_nest_index_dtype(nest, sizes)
    made = generate_nest(
        nest, sizes.extents, dtype=dtype, index_dtype=index_dtype, form=form
    )
    return compile_kernel(made, open_device("host"))


def assert_right(nest, operands, form, rtol=1e-12, **options):
    """A nest computes in a form what numpy does."""
    found = computed(nest, operands, form, **options)
    wanted = expected(nest.network, operands)
    assert (found.shape, found.dtype) == (wanted.shape, options.get("dtype", "float64"))
    assert np.allclose(found, wanted, rtol=rtol, atol=rtol), (str(nest), form)


def forms_of(nest, sizes, **options):
    """Plain nests, threads alone, lanes alone, and more lanes with threads."""
    return {NestForm()} | {
        choose_form(nest, sizes, vector_bytes=size, n_threads=n, **options)
        for size, n in ((0, 2), (16, 1), (32, 2))
    }


def best(net, operands, **options):
    cost = EstimatedTime(net, measure_sizes(net, operands), **options)
    return find_best_nest(net, cost).nest


@pytest.mark.parametrize("name", spread(KERNELS, 9))
def test_every_form_computes_what_numpy_computes(name):
    """Vectors of two and four, threads, and both; extents that are no multiples."""
    net = KERNELS[name]
    operands = operands_of(net, extent=SMALL.get(name, 5))
    nest = best(net, operands)
    for form in forms_of(nest, measure_sizes(net, operands)):
        assert_right(nest, operands, form)


@pytest.mark.parametrize("name", ["ttmc-3", "tttp", "mttkrp-4"])
def test_any_nest_has_right_forms(name):
    """Also one that nobody would choose: random paths and orders."""
    net = KERNELS[name]
    operands = operands_of(net, extent=4)
    sizes = measure_sizes(net, operands)
    rng = np.random.default_rng(7)
    for _ in range(2):
        nest = random_nest(net, rng)
        forms = {choose_form(nest, sizes, vector_bytes=32, n_threads=2), NestForm(), *(
            NestForm(index, 2) for index in find_lane_indices(nest)
        )}  # fmt: skip
        for form in forms:
            assert_right(nest, operands, form)


def ragged_patterns():
    """Empty slices, one slice that holds nearly all, one entry, none, and all."""
    shape = (7, 6, 5)
    first = np.array([0, 0, 0, 6]), np.array([0, 1, 5, 2]), np.array([4, 0, 1, 3])
    heavy = [np.array([3] * 30 + [6]), np.tile(np.arange(6), 6)[:31],
             np.repeat(np.arange(5), 7)[:31]]  # fmt: skip
    yield "empty slices", to_csf(COO(shape, first, np.arange(1.0, 5.0)))
    yield "one slice", to_csf(COO(shape, tuple(heavy), np.arange(1.0, 32.0)))
    for nnz in (0, 1, 210):
        yield f"{nnz} entries", to_csf(random_uniform(shape, nnz, seed=nnz))


@pytest.mark.parametrize(
    "subscripts", ["ijk,ja,ka->ia", "ijk,ia,ja->ka", "ijk,ir,jr,kr->ijk"]
)
def test_ragged_patterns_are_right(subscripts):
    """By one kernel for all of them, in as many chunks as there are nodes, and more."""
    is_sparse = subscripts.endswith("->ijk")
    net = parse_network(subscripts, has_sparse_output=is_sparse)
    extents = {"i": 7, "j": 6, "k": 5, "a": 6, "r": 6, "s": 6}
    rng = np.random.default_rng(0)
    dense = [rng.uniform(0.5, 1.5, [extents[i] for i in t]) for t in net.inputs[1:]]
    nest = best(net, [next(tree for _, tree in ragged_patterns()), *dense])
    chunked = choose_form(nest, Sizes(extents, (7, 99, 9999)), n_threads=3)
    assert (chunked.lanes, chunked.is_chunked) == (4, True)
    sizes = Sizes(extents, (7, 99, 9999))
    kernel = built(nest, sizes, chunked, n_chunks=9)
    for _, tree in ragged_patterns():
        assert_right(nest, [tree, *dense], chunked, n_chunks=9, kernel=kernel)


@pytest.mark.parametrize("order", [3, pytest.param(5, marks=pytest.mark.long)])
def test_mttkrp_of_all_modes_is_right(order):
    """From one tree, by lanes and threads, for ranks from 1 to 33."""
    indices = "ijklm"[:order]
    shape = (6, 5, 4, 3, 3)[:order]
    tree = random_profile(shape, tuple(min(6 * 3**k, 150) for k in range(order)),
                          seed=1, skew=1.0)  # fmt: skip
    rng = np.random.default_rng(order)
    for mode, rank in zip(indices, (1, 2, 7, 32, 33), strict=False):
        others = [i for i in indices if i != mode]
        net = parse_network(
            f"{','.join([indices, *(f'{i}a' for i in others)])}->{mode}a"
        )
        factors = [rng.random((shape[indices.index(i)], rank)) for i in others]
        operands = [tree, *factors]
        nest = best(net, operands)
        form = choose_form(nest, measure_sizes(net, operands), n_threads=2)
        assert form.lanes == min(4, 1 << (rank - 1).bit_length())
        assert_right(nest, operands, form)


def test_single_precision_has_twice_the_lanes():
    """And is as exact as it can be."""
    net = KERNELS["mttkrp-3"]
    operands = operands_of(net, extent=9)
    nest, sizes = best(net, operands), measure_sizes(net, operands)
    form = choose_form(nest, sizes, item_bytes=4, n_threads=2)
    assert form.lanes == 8
    assert_right(nest, operands, form, rtol=1e-5, dtype=np.float32)


def test_indices_of_64_bits_are_right():
    """Indices and chunks in the width that the kernel has."""
    net = KERNELS["mttkrp-3"]
    operands = operands_of(net, extent=5)
    nest, sizes = best(net, operands), measure_sizes(net, operands)
    form = choose_form(nest, sizes, n_threads=2)
    made = generate_nest(nest, sizes.extents, index_dtype=np.int64, form=form)
    kernel = compile_kernel(made, open_device("host"))
    arguments = make_nest_arguments(nest, operands, form=form, n_chunks=2)
    wide = {
        name: np.asarray(value, np.int64)
        if name.startswith(("ind", "poi", "chu", "row")) else value
        for name, value in arguments.items()
    }  # fmt: skip
    kernel.built.run(wide, kernel.timer)
    found = extract_nest_result(nest, form, wide["out"], sizes)
    assert np.allclose(found, expected(net, operands), rtol=1e-12)


def test_chunks_hold_about_equally_many_entries():
    """No chunk has more than its part and the largest node."""
    tree = random_profile((400, 90, 80), (300, 3000, 20_000), seed=0, skew=1.0)
    begins = tree.pointers[1][tree.pointers[0]]
    for n_chunks in (1, 2, 7, 64, 1000):
        chunks = split_root(tree, n_chunks)
        assert chunks[0] == 0
        assert chunks[-1] == 300
        assert np.all(np.diff(chunks) > 0)
        assert len(chunks) <= n_chunks + 1
        largest = np.diff(begins).max()
        assert np.diff(begins[chunks]).max() <= tree.nnz / n_chunks + largest


def test_chunks_never_write_what_others_write():
    """Chunks in any order, one alone, and none: rows of others stay as they are.

    Rows without entries are each a chunk's, too.
    """
    nest, net = MTTKRP, MTTKRP.network
    operands = operands_of(net, extent=12, nnz=12)
    sizes = measure_sizes(net, operands)
    form = choose_form(nest, sizes, n_threads=2)
    assert form.is_chunked
    assert not form.has_copies
    kernel = built(nest, sizes, form)
    whole = make_nest_arguments(nest, operands, form=form, n_chunks=3)
    cuts, rows = whole["chunks"], whole["rows"]
    assert len(cuts) == 4
    assert operands[0].profile[0] < len(whole["out"])
    wanted = expected(net, operands)
    for order in permutations(range(3)):
        out = np.full_like(whole["out"], np.nan)
        for number in order:
            before, own = out.copy(), slice(number, number + 2)
            one = {**whole, "out": out, "chunks": cuts[own].copy(),
                   "rows": rows[own].copy(), "n_chunks": 1}  # fmt: skip
            kernel.built.run(one, kernel.timer)
            others = np.ones(len(out), bool)
            others[slice(*rows[own])] = False
            assert np.array_equal(out[others], before[others], equal_nan=True)
        assert np.allclose(
            extract_nest_result(nest, form, out, sizes), wanted, rtol=1e-12
        )


@pytest.mark.parametrize(
    ("output", "is_chunked"), [("i", False), ("ir", True), ("ij", False)]
)
def test_tiles_of_an_index_add_up(output, is_chunked):
    """Whether the lanes' index is summed over, or one of the result's."""
    net = parse_network(f"ij,ir,jr->{output}", has_sparse_output=output == "ij")
    tree = to_csf(random_uniform((9, 7), 20, seed=0))
    rng = np.random.default_rng(0)
    operands = [tree, rng.random((9, 11)), rng.random((7, 11))]
    nest = Nest(net, path_of(net, (0, 1), (3, 2)), (tuple("ijr"), tuple("ijr")))
    assert_right(nest, operands, NestForm("r", 2, is_chunked, tile=4))


def test_loops_nest_as_in_the_nest():
    """Also dense ones, whose bounds leave the order to Loopy."""
    net = KERNELS["ttmc-3"]
    path = path_of(net, (0, 1), (3, 2))
    for inner in ("krs", "rks"):
        nest = Nest(net, path, (tuple("ijkr"), ("i", *inner)))
        made = generate_nest(nest, {"r": 5, "s": 8}, form=NestForm("s", 4, True))
        code = lp.generate_code_v2(made).device_code()
        last = code[: code.rindex("T2[")]
        loops = [name[0] for name in re.findall(r"for \(int64_t (\w+)", last)]
        assert "".join(loops[-2:]) == inner[:2]


def test_copies_are_bounded_by_memory_and_by_work():
    """Else one thread does it."""
    net = parse_network("ijk,ia,ja->ka")
    nest = Nest(net, path_of(net, (1, 2), (3, 0)), (tuple("ija"), tuple("ijka")))
    extents = {"i": 100, "j": 100, "k": 1000, "a": 32}
    many, few = (100, 9000, 10**6), (100, 200, 300)
    assert choose_form(nest, Sizes(extents, many), n_threads=4).has_copies
    assert not choose_form(nest, Sizes(extents, few), n_threads=4).is_chunked
    bounded = choose_form(nest, Sizes(extents, many), n_threads=4, copies_bytes=10**6)
    assert not bounded.is_chunked


def test_large_buffers_are_there_for_each_chunk_within_the_memory():
    """One of the size of the tree's extents; results are right."""
    nest = LARGE
    sizes = Sizes(dict.fromkeys("ijkrs", 40), (40, 900, 9000))
    form = choose_form(nest, sizes, n_threads=4)
    assert form.is_chunked
    assert choose_n_chunks(nest, form, sizes, 4) == 4
    n_bytes = 4 * 40 * 40 * 8
    for room, is_chunked in ((n_bytes, True), (n_bytes - 1, False)):
        found = choose_form(nest, sizes, n_threads=4, copies_bytes=room)
        assert found.is_chunked == is_chunked
    for nest in (LARGE, nest_of("ttmc-3", "ijks", "irjs")):
        operands = operands_of(nest.network, extent=5)
        form = choose_form(nest, measure_sizes(nest.network, operands), n_threads=3)
        assert form.is_chunked
        assert_right(nest, operands, form)


def test_chunks_that_need_no_memory_are_several_for_a_thread():
    """And one if there are none, or if there is little to compute."""
    nest = MTTKRP
    sizes = Sizes(dict.fromkeys("ijka", 40), (40, 900, 9000))
    form = choose_form(nest, sizes, n_threads=4)
    assert choose_n_chunks(nest, form, sizes, 4) == 32
    assert choose_n_chunks(nest, NestForm(), sizes, 4) == 1
    few = Sizes(dict.fromkeys("ijka", 40), (40, 90, 200))
    assert choose_n_chunks(nest, form, few, 4) == 1


def test_threads_decide_about_the_nest():
    """One thread multiplies dense operands first; four share the loop over the root."""
    net = KERNELS["mttkrp-4"]
    extents = {"i": 7, "j": 6, "k": 7, "l": 6, "a": 6}
    sizes = Sizes(extents, (7, 42, 291, 1058))
    alone, shared = (
        find_best_nest(net, EstimatedTime(net, sizes, n_threads=n)) for n in (1, 4)
    )
    assert not choose_form(alone.nest, sizes, n_threads=4).is_chunked
    assert choose_form(shared.nest, sizes, n_threads=4).is_chunked
    assert shared.cost < alone.cost


def test_forms_that_a_nest_does_not_have_are_refused():
    """With the rule ``nest``."""
    net = KERNELS["ttmc-3"]
    nest = nest_of("ttmc-3", "ijks", "ijrs")
    last = parse_network("ijk,ia,ja->ka")
    shared = Nest(last, path_of(last, (1, 2), (3, 0)), (tuple("ija"), tuple("ijka")))
    apart = Nest(net, path_of(net, (1, 2), (3, 0)), (tuple("jrks"), tuple("ijkrs")))
    refused = [
        (nest, NestForm("r", 2)),
        (nest, NestForm("k", 2)),
        (shared, NestForm(is_chunked=True)),
        (apart, NestForm(is_chunked=True)),
    ]
    for given, form in refused:
        with pytest.raises(InvalidEinsumError) as caught:
            generate_nest(given, dict.fromkeys("ijkrsa", 4), form=form)
        assert caught.value.rules == ("nest",)
    for options in (
        {"lane": "a", "lanes": 3},
        {"lane": "a"},
        {"lanes": 4},
        {"has_copies": True},
    ):
        with pytest.raises(InvalidEinsumError) as caught:
            NestForm(**options)
        assert caught.value.rules == ("nest",)


def test_sums_are_kept_in_vectors():
    """The code has vectors for the sums; after zeros, one store of them."""
    made = generate_nest(MTTKRP, {"a": 32}, form=NestForm("a", 4))
    kernel = made.default_entrypoint
    vectors = {
        name: kernel.get_var_descriptor(name).vector_length()
        for name in ("X0", "total", "T1", "T2", "out")
    }
    assert set(vectors.values()) == {4}
    stores = [i for i in kernel.instructions if i.assignee_var_names() == ("out",)]
    zeros, *stores = stores
    assert zeros.expression == 0
    assert len(stores) == 1
    assert not any("node1" in str(name) for name in stores[0].within_inames)


@pytest.mark.parametrize(
    ("dtype", "lanes"),
    [("float64", 2), ("float64", 8), ("float32", 4), ("float32", 16)],
)
def test_the_lanes_of_a_sum_are_added_by_halves(dtype, lanes):
    """One call of a function for each sum: three additions instead of eight."""
    net = KERNELS["tttp"]
    operands = operands_of(net, extent=5)
    nest, form = best(net, operands), NestForm("r", lanes)
    sizes = measure_sizes(net, operands)
    unit = generate_nest(nest, sizes.extents, dtype=dtype, form=form)
    code = lp.generate_code_v2(unit).device_code()
    assert code.count(f"= feinsum_sum_lanes_{dtype}x{lanes}(") == 1
    assert code.count("union {") == lanes.bit_length() - 2
    rtol = 1e-12 if dtype == "float64" else 1e-5
    assert_right(nest, operands, form, rtol, dtype=dtype)
