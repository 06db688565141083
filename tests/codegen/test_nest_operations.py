"""Generated kernels do as many operations as the formulas say.

What is counted is the very text that Loopy gets, executed statement by statement in
Python. Lanes and threads change nothing of what is computed, so that loops over them
are loops.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from feinsum.codegen import (
    choose_nest_index_dtype,
    extract_nest_result,
    make_nest_arguments,
)
from feinsum.codegen.nest_arrays import TILED, get_axes
from feinsum.codegen.nest_writer import Writer
from feinsum.nests import (
    EstimatedTime,
    Nest,
    NestForm,
    Operations,
    build_path,
    build_unfactorized,
    evaluate_cost,
    find_best_nest,
    find_lane_indices,
    measure_sizes,
)
from feinsum.nests.form import is_apart, is_divisible, is_private
from tests.nests.networks import FORMULAS, KERNELS, expected, operands_of


def forms_of(nest):
    """Without lanes, with them, with tiles; each also by chunks."""
    lanes = sorted(find_lane_indices(nest))
    found = [NestForm()]
    found += [NestForm(i, 2, tile=t) for i in lanes for t in (0, 2, 4)]
    if is_divisible(nest):
        copies = not is_apart(nest.network)
        more = {"is_chunked": True, "has_copies": copies}
        found += [NestForm(f.lane, f.lanes, tile=f.tile, **more) for f in found]
    return found


@pytest.mark.parametrize(("name", "pairs", "orders", "formula"), FORMULAS)
def test_operations_are_those_of_the_formulas_in_every_form(
    name, pairs, orders, formula
):
    """Lanes that are filled up count as entries; nothing else is added."""
    net = KERNELS[name]
    operands = operands_of(net, extent=4, density=0.3)
    nest = Nest(net, build_path(net, pairs), tuple(map(tuple, orders)))
    sizes = measure_sizes(net, operands)
    for form in forms_of(nest):
        result, n_operations, _ = executed(nest, operands, form)
        assert np.allclose(result, expected(net, operands))
        assert n_operations == formula(sizes.nodes, form.filled(sizes.extents))


@pytest.mark.parametrize("name", ["mttkrp-3", "ttmc-3", "tttp", "tttc", "tucker"])
def test_the_best_nest_does_what_its_cost_says(name):
    """In scalars and in vectors; a product that is assigned needs no addition."""
    net = KERNELS[name]
    operands = operands_of(net, extent=2, density=0.5)
    sizes = measure_sizes(net, operands)
    nest = find_best_nest(net, EstimatedTime(net, sizes)).nest
    cost = evaluate_cost(Operations(net, sizes), nest.path, nest.orders)
    result, n_operations, _ = executed(nest, operands, NestForm())
    assert np.allclose(result, expected(net, operands))
    assert cost / 2 <= n_operations <= round(cost)


def test_the_unfactorized_nest_takes_three_operations_for_a_product():
    """Two multiplications and an addition: 3 nnz A for MTTKRP."""
    net = KERNELS["mttkrp-3"]
    operands = operands_of(net, extent=4, density=0.3)
    sizes = measure_sizes(net, operands)
    for form in forms_of(build_unfactorized(net)):
        result, n_operations, _ = executed(build_unfactorized(net), operands, form)
        assert np.allclose(result, expected(net, operands))
        rank = form.filled(sizes.extents)["a"]
        assert n_operations == 3 * sizes.nodes[-1] * rank


def test_each_tile_reads_the_tree_once():
    """The rank is cut, and not the work."""
    net = KERNELS["mttkrp-3"]
    operands = operands_of(net, extent=8, density=0.2)
    nest = Nest(net, build_path(net, [(0, 2), (3, 1)]), (tuple("ijka"), tuple("ija")))
    whole = executed(nest, operands, NestForm("a", 2))[1]
    assert executed(nest, operands, NestForm("a", 2, tile=4))[1] == whole


_DOMAIN = re.compile(r"\{\[(\w+)\]: (.*) <= \w+ < (.*)\}")
_ASSIGNED = re.compile(r"(\s*)(?:<\w*> )?(.*?) = (.*)")
_SUBSCRIPT = re.compile(r"\[[^\[\]]*\]")


def executed(nest, operands, form, *, n_chunks=3):
    """The result, and how many multiplications and additions of entries it took.

    Additions of copies, and of what is summed up by lanes or in registers to the
    result, are apart: they are no part of the nest.

    Returns:
        Result; operations of products; and other additions.
    """
    sizes = measure_sizes(nest.network, operands)
    arguments = make_nest_arguments(nest, operands, form=form, n_chunks=n_chunks)
    assert choose_nest_index_dtype(nest, sizes) == np.int32
    dense = {i: n for i, n in sizes.extents.items() if i not in nest.network.level_of}
    written = Writer(nest, form.filled(dense), form, np.dtype(np.float64))
    written.write()
    bounds = {}
    for domain in written.domains:
        iname, begin, end = _DOMAIN.fullmatch(domain).groups()
        bounds[iname] = f"range({begin}, {end})"
    lines, made = ["def kernel(count):"], dict(arguments)
    held = [(a.name, tuple(map(int, a.shape or ()))) for a in written.temporaries]
    held += _private(nest, form, written)
    for name, shape in held:
        made[name] = np.full(shape or (1,), np.nan)
    scalars = [name for name, shape in held if not shape]
    for line in written.lines:
        depth = " " * (1 + len(line) - len(line.lstrip()))
        text = line.strip()
        if text == "end":
            continue
        if text.startswith("for "):
            lines.append(f"{depth}for {text[4:]} in {bounds[text[4:]]}:")
            continue
        _, target, value = _ASSIGNED.fullmatch(text).groups()
        bare = value
        while _SUBSCRIPT.search(bare):
            bare = _SUBSCRIPT.sub("", bare)
        kind = "product" if "*" in bare else "other"
        n = bare.count("*") + bare.count(" + ")
        for name in scalars:
            value = re.sub(rf"\b{name}\b", f"{name}[0]", value)
            target = re.sub(rf"\b{name}\b", f"{name}[0]", target)
        lines.append(f"{depth}count['{kind}'] += {n}")
        lines.append(f"{depth}{target} = {value}")
    scope, count = dict(made), {"product": 0, "other": 0}
    exec("\n".join(lines), scope)
    scope["kernel"](count)
    out = extract_nest_result(nest, form, scope["out"], sizes)
    return out, count["product"], count["other"]


def _private(nest, form, written):
    """The buffers that are no arguments: their names and shapes."""
    extents = {i: str(n) for i, n in written.dense.items()} | {TILED: str(form.tile)}
    for buffer in nest.buffers:
        if is_private(buffer.indices, written.dense):
            place = written.buffers[buffer.producer]
            shape, _ = get_axes(place.indices, extents, form)
            yield place.name, tuple(map(int, shape))
