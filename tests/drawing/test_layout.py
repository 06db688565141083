"""Where vertices stand, and that nothing is drawn over anything else."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given

from feinsum.drawing.graph.figure import compute_size
from feinsum.drawing.graph.layout import (
    PITCH,
    WAYPOINT,
    Box,
    list_layers,
    place_boxes,
    place_vertices,
)
from feinsum.drawing.graph.picture import KINDS, Picture, make_picture
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum
from tests.strategies import counts, einsums

PICTURES = einsums().map(make_picture)


@counts(25, 5000)
@given(PICTURES)
def test_layers_are_those_of_kinds_and_edges_lead_from_one_to_the_next(
    picture: Picture,
) -> None:
    """Layers hold all vertices, from the left in the order of their kinds. A route
    joins the ends of its edge and passes no layer without a waypoint.
    """
    layers = list_layers(picture)
    assert sorted(v for layer in layers for v in layer) == list(
        range(len(picture.vertices))
    )
    kinds = [{KINDS[picture.vertices[v].kind].layer for v in layer} for layer in layers]
    assert kinds == sorted(kinds, key=min)
    assert all(len(found) == 1 for found in kinds)
    layout = place_vertices(picture)
    layer_of = {v: k for k, layer in enumerate(layout.layers) for v in layer}
    assert len(layout.routes) == len(picture.edges)
    for edge, route in zip(picture.edges, layout.routes, strict=True):
        assert {route[0], route[-1]} == set(edge)
        steps = [layer_of[v] for v in route]
        assert steps in ([steps[0]] * 2, list(range(steps[0], steps[0] + len(route))))


@counts(25, 5000)
@given(PICTURES)
def test_vertices_of_a_layer_are_apart_and_boxes_overlap_nothing(
    picture: Picture,
) -> None:
    """By 1, and by less only where an edge passes; axes of a term stand under each
    other, in their order; no edge passes through a box.
    """
    layout = place_vertices(picture)
    n, heights = len(picture.vertices), layout.heights
    for layer in layout.layers:
        for u, v in combinations(layer, 2):
            room = ((1 if u < n else WAYPOINT) + (1 if v < n else WAYPOINT)) / 2
            assert abs(heights[u] - heights[v]) >= room
    axes = picture.list_kind("axis")
    for u, v in picture.edges:
        if u in axes and v in axes:
            assert heights[v] - heights[u] == 1
    found = place_boxes(picture, layout, compute_size)
    assert all(are_apart(one, other) for one, other in combinations(found.values(), 2))
    assert all(box.height < PITCH for box in found.values())


def test_long_names_widen_their_layer() -> None:
    """Also names of forty letters do not reach into the next layer."""
    name = "stiffness_of_the_reference_tetrahedron_"
    e = einsum(f"{{{name}}}j, j -> {{{name}}}", array(name, (name, 4)), array("x", 4))
    picture = make_picture(e)
    found = list(place_boxes(picture, place_vertices(picture), compute_size).values())
    assert all(are_apart(one, other) for one, other in combinations(found, 2))


def test_a_hundred_vertices_are_not_crowded() -> None:
    """The layout grows with the batch: nothing overlaps in one of forty rows."""
    picture = make_picture(large_batch(40))
    found = list(place_boxes(picture, place_vertices(picture), compute_size).values())
    assert len(picture.vertices) > 80
    assert all(are_apart(one, other) for one, other in combinations(found, 2))


def test_edges_of_a_plain_product_are_level() -> None:
    """What need not be bent is drawn straight."""
    picture = make_picture(einsum("i,j->ij", array("x", 4), array("y", 4)))
    heights = place_vertices(picture).heights
    assert all(heights[u] == heights[v] for u, v in picture.edges)


def large_batch(n_rows: int) -> BatchedEinsum:
    A = array("A", ("n", 4))
    rows = [[A, array(f"x{k}", 4)] for k in range(n_rows)]
    return batched_einsum("ij,j->i", rows)


def are_apart(one: Box, other: Box) -> bool:
    across = abs(one.x - other.x) - (one.width + other.width) / 2
    down = abs(one.y - other.y) - (one.height + other.height) / 2
    return across > 1 or down > 1
