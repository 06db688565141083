"""Generated nests over sparse tensors compute what numpy computes."""

from __future__ import annotations

import re
from dataclasses import replace

import loopy as lp
import numpy as np
import pytest

from feinsum.codegen import choose_nest_index_dtype, generate_nest, make_nest_arguments
from feinsum.errors import InvalidEinsumError
from feinsum.measure import compile_kernel, open_device
from feinsum.nests import (
    EstimatedTime,
    Nest,
    NestForm,
    Sizes,
    find_best_nest,
    measure_sizes,
    parse_network,
)
from feinsum.sparse import CSF, random_profile, to_csf
from tests.nests.networks import (
    KERNELS,
    expected,
    operands_of,
    path_of,
    random_nest,
)


def nest_of(name, *orders):
    """The nest of a kernel with the orders of loops, which multiplies by the last
    operand first.
    """
    net = KERNELS[name]
    return Nest(net, path_of(net, (0, 2), (3, 1)), tuple(map(tuple, orders)))


MTTKRP = nest_of("mttkrp-3", "ijka", "ija")
LARGE = nest_of("ttmc-3", "ijks", "irsj")
"""Its buffer has the size of the tree's extents."""


def operands_for(name):
    return operands_of(KERNELS[name], extent=4)


def built(nest, extents, **options):
    return compile_kernel(generate_nest(nest, extents, **options), open_device("host"))


def result(kernel, nest, operands, dtype=np.float64):
    call = kernel.bind(make_nest_arguments(nest, operands, dtype=dtype))
    call.poison()
    call.run()
    return call.read()["out"]


def assert_right(kernel, nest, operands):
    found = result(kernel, nest, operands)
    wanted = expected(nest.network, operands)
    assert np.allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_the_result_is_read_only_where_others_add_to_it():
    """A row that a node completes is assigned; one that several nodes share is not."""
    for output, is_read in (("ia", False), ("ja", True)):
        factors = {"ia": "ja,ka", "ja": "ia,ka"}[output]
        net = parse_network(f"ijk,{factors}->{output}")
        sizes = Sizes(dict.fromkeys("ijka", 9), (5, 20, 50))
        nest = find_best_nest(net, EstimatedTime(net, sizes)).nest
        kernel = generate_nest(nest, sizes.extents).default_entrypoint
        read = {name for x in kernel.instructions for name in x.read_dependency_names()}
        assert ("out" in read) == is_read


def test_one_kernel_is_for_trees_of_every_size():
    """Extents and numbers of nodes are arguments."""
    kernel = built(MTTKRP, {"a": 5})
    rng = np.random.default_rng(0)
    for shape, profile in [((9, 8, 7), (5, 20, 60)), ((50, 3, 40), (40, 90, 900))]:
        tree = random_profile(shape, profile, seed=1, skew=1.0)
        operands = [tree, rng.random((shape[1], 5)), rng.random((shape[2], 5))]
        assert_right(kernel, MTTKRP, operands)


def test_a_large_buffer_is_an_argument():
    """One whose size is that of the tree's extents, or of many entries."""
    net = LARGE.network
    operands = operands_of(net)
    assert "X0" in make_nest_arguments(LARGE, operands)
    assert_right(built(LARGE, measure_sizes(net, operands).extents), LARGE, operands)
    private = nest_of("ttmc-3", "ijks", "ijrs")
    assert "X0" not in make_nest_arguments(private, operands)


@pytest.mark.parametrize(("dtype", "tolerance"), [("f4", 1e-5), ("c16", 1e-12)])
def test_other_dtypes_are_computed(dtype, tolerance):
    """Single precision, and complex numbers."""
    net = KERNELS["ttmc-3"]
    rng = np.random.default_rng(0)
    operands = operands_of(net)
    tree = operands[0]
    values = (tree.values * (1 + 1j if dtype[0] == "c" else 1)).astype(dtype)
    operands[0] = CSF(tree.shape, tree.axes, tree.indices, tree.pointers, values)
    operands[1:] = [
        (rng.random(o.shape) + (1j if dtype[0] == "c" else 0)).astype(dtype)
        for o in operands[1:]
    ]
    sizes = measure_sizes(net, operands)
    nest = find_best_nest(net, EstimatedTime(net, sizes)).nest
    found = result(built(nest, sizes.extents, dtype=dtype), nest, operands, dtype=dtype)
    assert found.dtype == dtype
    assert np.allclose(found, expected(net, operands), rtol=tolerance)


def test_indices_have_64_bits_where_the_tree_is_that_large():
    """By its nodes, or by an extent; other arrays do not matter."""
    nest = LARGE
    extents = dict.fromkeys("ijkrs", 10**6)
    assert choose_nest_index_dtype(nest, Sizes(extents, (9, 9, 9))) == np.int32
    assert choose_nest_index_dtype(nest, Sizes(extents, (9, 9, 2**31))) == np.int64
    large = extents | {"k": 2**31}
    assert choose_nest_index_dtype(nest, Sizes(large, (9, 9, 9))) == np.int64


@pytest.mark.parametrize("form", [NestForm(), NestForm("s", 4, True, True)])
def test_subscripts_have_64_bits(form):
    """Whatever the tree has: no number of the kernel is an int32."""
    nest = nest_of("ttmc-3", "ijks", "ijrs")
    unit = generate_nest(nest, dict.fromkeys("rs", 8), index_dtype=np.int32, form=form)
    code = lp.generate_code_v2(unit).device_code()
    _, body = code.split("{", 1)
    assert "int64_t" in body
    assert not re.findall(r"int32_t (?:const )?\w+(?= =|;)", body)


def test_the_tree_is_read_where_it_is():
    """No copy of indices, pointers and values of the right dtypes."""
    net = KERNELS["mttkrp-3"]
    operands = operands_of(net)
    arguments = make_nest_arguments(find_best_nest(net, EstimatedTime(
        net, measure_sizes(net, operands))).nest, operands)  # fmt: skip
    tree = to_csf(operands[0])
    assert arguments["values"] is tree.values
    assert arguments["indices2"] is tree.indices[2]
    assert arguments["pointers1"] is tree.pointers[1]


def test_a_missing_extent_is_refused_by_name():
    """With the rule ``size``."""
    net = KERNELS["mttkrp-3"]
    nest = random_nest(net, np.random.default_rng(0))
    with pytest.raises(InvalidEinsumError, match=r"\['a'\]") as caught:
        generate_nest(nest, {"i": 3, "j": 3, "k": 3})
    assert caught.value.rules == ("size",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: [*o, *o[:-1]], "5 operands for 2 rows"),
        (lambda o: [*o, *o[:-1], o[2][:, :-1]], "index 'a'"),
        (lambda o: [*o, to_csf(o[0], (1, 0, 2)), *o[1:]], "levels"),
        (lambda o: [*o, *operands_for("mttkrp-3")], "another tree"),
        (lambda o: [*o, o[0], *(x[:, :-1] for x in o[1:])], "other sizes"),
    ],
)
def test_rows_that_do_not_match_are_refused(change, message):
    """They have the tree and all extents in common; the rule is ``shape``."""
    nest = random_nest(replace(KERNELS["mttkrp-3"], n_rows=2), np.random.default_rng(0))
    with pytest.raises(InvalidEinsumError, match=message) as caught:
        make_nest_arguments(nest, change(operands_for("mttkrp-3")))
    assert caught.value.rules == ("shape",)
