"""Charts: every mark is where its value is; graphs are those of the einsums."""

from __future__ import annotations

from dataclasses import replace
from math import log10
from statistics import median

from hypothesis import example, given
from hypothesis import strategies as st

from feinsum.canonical import build_induced_graph
from feinsum.ir import from_text, to_text
from feinsum.service.pages.charts import (
    MARGIN,
    WIDTH,
    make_axis,
    make_history,
    make_marks,
    make_marks_by_id,
    make_ranking,
)
from feinsum.service.pages.graph import MAX_VERTICES, draw_graph
from feinsum.service.pages.roofline import HEIGHT, make_roofline_chart
from feinsum.service.pages.words import make_notation
from tests.bounds.test_facts import CPU, PEAKS
from tests.bounds.test_facts import fact as level_fact
from tests.db.factories import make_device
from tests.service.pages.facts import make_fact, make_limits
from tests.strategies import counts, einsums

FLOATS = st.floats(1e-12, 1e12)


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_an_axis_keeps_the_order_of_values(values):
    """Marks are on the sheet and in order; ticks are round values where they say."""
    axis = make_axis(values, repr)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(MARGIN <= place <= WIDTH - MARGIN for place in places)
    assert 1 <= len(axis.ticks) <= 6
    assert all(axis.within(value) for value in axis.ticks)
    assert list(axis.ticks.values()) == list(map(repr, axis.ticks))


@given(FLOATS, FLOATS, FLOATS)
def test_an_axis_is_logarithmic(low, factor, share):
    """Equal ratios are equally far apart."""
    high = low * max(factor, 4.0)
    axis = make_axis([low, high], repr)
    middle = 10 ** ((log10(low) + log10(high)) / 2)
    assert abs(axis.at(middle) - WIDTH / 2) < 1e-3 * WIDTH


@example([1.5e308])
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8))
def test_an_axis_of_anything_is_an_axis(values):
    """What is not above 0 and finite is left out, and put at an end."""
    axis = make_axis(values, repr)
    assert 0 < axis.low < axis.high < float("inf")
    assert all(MARGIN <= axis.at(v) <= WIDTH - MARGIN for v in [*values, 1.0])


@counts(40, 2000)
@given(einsums())
def test_a_drawing_is_the_induced_graph(einsum):
    """A node for every vertex, a line for every edge; the same in every call."""
    drawing = draw_graph(to_text(einsum))
    graph = build_induced_graph(einsum)
    if not drawing.nodes:
        assert len(graph.colors) > MAX_VERTICES
        return
    assert len(drawing.nodes) == len(graph.colors)
    assert len(drawing.edges) == len(list(graph.edges))
    assert all(
        0 < box.x < drawing.width and 0 < box.y < drawing.height
        for _, box, _ in drawing.nodes
    )
    assert draw_graph.__wrapped__(to_text(einsum)) == drawing


@counts(40, 2000)
@given(einsums())
def test_words_of_an_einsum_name_all_of_it(einsum):
    """Every array is listed, and every index of the output stands in a formula."""
    words = make_notation(to_text(einsum))
    assert [array.name for array in words.arrays] == [o.name for o in einsum.operands]
    assert all(index in words.formulas[0] for index in einsum.indices)


def test_large_graphs_are_not_drawn():
    """Nobody could read them."""
    rows = "; ".join(f"A{k}" for k in range(MAX_VERTICES))
    operands = " ".join(f"A{k}[4]:<f8" for k in range(MAX_VERTICES))
    text = f"i -> i | {operands} | {rows}"
    assert from_text(text).batch_size == MAX_VERTICES
    assert not draw_graph(text).nodes


def test_dots_are_under_the_roof_that_limits_them():
    """A kernel at half of the roofline is below its level, at its intensity."""
    limits = make_limits(make_device())
    chart = make_roofline_chart([make_fact(1e-3), make_fact(4e-3)], limits)
    assert chart is not None
    (dot,) = chart.dots
    level = next(roof.y for roof in chart.roofs if "float64" in roof.label)
    assert (dot.fraction, dot.intensity, dot.rate) == (0.5, 2.0, 8e9)
    assert HEIGHT - chart.y_axis.at(dot.rate) > level
    assert make_roofline_chart([], limits) is None
    assert chart.slopes == ()


def test_caches_have_slopes_above_that_of_the_memory():
    """From the left up to the roof; none that is slower, or no bandwidth at all."""
    rates = {"L1": 2.2e11, "L2": 1.2e11, "L3": 1e10, "odd": -1.0, "L0": 1e15}
    limits = replace(make_limits(make_device()), cache_bytes_per_s=rates)
    chart = make_roofline_chart([make_fact(1e-3), make_fact(4e-3)], limits)
    assert chart is not None
    assert [line.label.split(":")[0] for line in chart.slopes] == ["L1", "L2"]
    near, far = (line.y for line in chart.slopes)
    assert near < far
    top = min(roof.y for roof in chart.roofs)
    assert all(line.path.endswith(f",{top}") for line in chart.slopes)


def test_rankings_and_histories_have_the_same_limits():
    """As speed-ups over the untransformed kernel in one, as times in the other; the
    slowest one is on the axis, and all are in the words.
    """
    fact = level_fact(0.6)
    seconds = {mark.level: mark.seconds for mark in make_marks(fact, PEAKS)}
    baseline_s = median(fact.measurement.baseline_s)
    for chart, values in (
        (
            make_ranking([fact], {CPU: PEAKS}),
            {level: baseline_s / s for level, s in seconds.items()},
        ),
        (make_history(fact, [fact], {CPU: PEAKS}), seconds),
    ):
        (row,) = chart.rows
        assert row.strip.levels == values
        slowest = values[max(seconds, key=seconds.__getitem__)]
        assert chart.axis.within(slowest)
        assert not all(map(chart.axis.within, values.values()))
        assert all(f"; {name} allows " in row.strip.words for name in values)
    (row,) = make_ranking([fact], {CPU: None}).rows
    assert not row.strip.levels


def test_bounds_are_looked_for_at_few_sizes(monkeypatch):
    """A page is not slower for all that somebody sent."""
    asked = []
    monkeypatch.setattr(
        "feinsum.service.pages.charts.bound_record",
        lambda record, peaks: asked.append(record),
    )
    facts = [
        replace(one, measurement=replace(one.measurement, sizes={"n": n}))
        for one in [level_fact(0.6), level_fact(0.7)]
        for n in range(1, 9)
    ]
    found = make_marks_by_id(facts, PEAKS)
    assert len(asked) == 3
    assert set(found) == {fact.id for fact in facts}
