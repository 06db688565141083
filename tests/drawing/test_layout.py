"""Where vertices stand, and that nothing is drawn over anything else."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given

from feinsum.drawing.graph.figure import size_of
from feinsum.drawing.graph.layout import (
    PITCH,
    WAYPOINT,
    Box,
    boxes,
    layers_of,
    layout_of,
)
from feinsum.drawing.graph.picture import KINDS, Picture, picture_of
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum
from tests.strategies import einsums

PICTURES = einsums().map(picture_of)


@given(PICTURES)
def test_every_vertex_is_in_the_layer_of_its_kind(picture: Picture) -> None:
    """Layers hold all vertices, from the left in the order of their kinds."""
    layers = layers_of(picture)
    assert sorted(v for layer in layers for v in layer) == list(
        range(len(picture.vertices))
    )
    kinds = [{KINDS[picture.vertices[v].kind].layer for v in layer} for layer in layers]
    assert kinds == sorted(kinds, key=min)
    assert all(len(found) == 1 for found in kinds)


@given(PICTURES)
def test_vertices_of_a_layer_are_apart(picture: Picture) -> None:
    """By 1, and by less only where an edge passes."""
    layout = layout_of(picture)
    n = len(picture.vertices)
    for layer in layout.layers:
        for u, v in combinations(layer, 2):
            room = ((1 if u < n else WAYPOINT) + (1 if v < n else WAYPOINT)) / 2
            assert abs(layout.heights[u] - layout.heights[v]) >= room


@given(PICTURES)
def test_an_edge_leads_from_layer_to_layer(picture: Picture) -> None:
    """A route joins the ends of its edge and passes no layer without a waypoint."""
    layout = layout_of(picture)
    layer_of = {v: k for k, layer in enumerate(layout.layers) for v in layer}
    assert len(layout.routes) == len(picture.edges)
    for edge, route in zip(picture.edges, layout.routes, strict=True):
        assert {route[0], route[-1]} == set(edge)
        steps = [layer_of[v] for v in route]
        assert steps in ([steps[0]] * 2, list(range(steps[0], steps[0] + len(route))))


@given(PICTURES)
def test_axes_of_a_term_stand_under_each_other(picture: Picture) -> None:
    """In their order, with nothing between them."""
    heights = layout_of(picture).heights
    axes = picture.of_kind("axis")
    for u, v in picture.edges:
        if u in axes and v in axes:
            assert heights[v] - heights[u] == 1


@given(PICTURES)
def test_nothing_overlaps(picture: Picture) -> None:
    """Boxes of vertices are disjoint, and no edge passes through one."""
    found = boxes(picture, layout_of(picture), size_of)
    assert all(are_apart(one, other) for one, other in combinations(found.values(), 2))
    assert all(box.height < PITCH for box in found.values())


def test_long_names_widen_their_layer() -> None:
    """Also names of forty letters do not reach into the next layer."""
    name = "stiffness_of_the_reference_tetrahedron_"
    e = einsum(f"{{{name}}}j, j -> {{{name}}}", array(name, (name, 4)), array("x", 4))
    picture = picture_of(e)
    found = list(boxes(picture, layout_of(picture), size_of).values())
    assert all(are_apart(one, other) for one, other in combinations(found, 2))


def test_a_hundred_vertices_are_not_crowded() -> None:
    """The layout grows with the batch: nothing overlaps in one of forty rows."""
    picture = picture_of(large_batch(40))
    found = list(boxes(picture, layout_of(picture), size_of).values())
    assert len(picture.vertices) > 80
    assert all(are_apart(one, other) for one, other in combinations(found, 2))


def test_edges_of_a_plain_product_are_level() -> None:
    """What need not be bent is drawn straight."""
    picture = picture_of(einsum("i,j->ij", array("x", 4), array("y", 4)))
    heights = layout_of(picture).heights
    assert all(heights[u] == heights[v] for u, v in picture.edges)


def large_batch(n_rows: int) -> BatchedEinsum:
    A = array("A", ("n", 4))
    rows = [[A, array(f"x{k}", 4)] for k in range(n_rows)]
    return batched_einsum("ij,j->i", rows)


def are_apart(one: Box, other: Box) -> bool:
    across = abs(one.x - other.x) - (one.width + other.width) / 2
    down = abs(one.y - other.y) - (one.height + other.height) / 2
    return across > 1 or down > 1
