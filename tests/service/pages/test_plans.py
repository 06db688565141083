"""Pages of plans: lists, and one picture of the grid for every step."""

from __future__ import annotations

import subprocess
import sys

import pytest

import feinsum
from feinsum.distributed import rows_of
from feinsum.distributed.display import build_flow
from feinsum.records import to_json
from feinsum.service.pages.plan import make_title
from tests.db.factories import make_fleet, make_plan_record
from tests.distributed.cases import KERNELS
from tests.service.conftest import send, store_of
from tests.service.pages.conftest import PROGRAM
from tests.service.pages.documents import SVG, get, is_sound_page, links, text_of

PAPER = feinsum.plan(KERNELS["paper"], processes=8)
RECORD = make_plan_record(plan=PAPER, fleet=make_fleet(8))
OF_PROGRAM = make_plan_record(plan=PROGRAM, fleet=make_fleet(engine="local"))


@pytest.fixture
def shelf(client):
    """A service with a plan of an einsum and one of a program."""
    store_of(client).add_all([RECORD, OF_PROGRAM])
    return client


def squares(page):
    return [one for one in page.iter(f"{SVG}svg") if one.get("class") == "square"]


def test_a_plan_has_a_picture_for_every_tensor_of_every_step(shelf):
    """Blocks, by the ranks that have them; nothing overlaps the square."""
    page = get(shelf, f"/plans/{RECORD.id}")
    assert is_sound_page(page)
    rows = rows_of(PAPER)
    assert len(squares(page)) == sum(len(row.panels) for row in rows)
    panels = [panel for row in rows for panel in row.panels]
    for panel, square in zip(panels, squares(page), strict=True):
        tiles = list(square.iter(f"{SVG}rect"))
        assert len(tiles) == len(panel.blocks)
        area = sum(float(t.get("width")) * float(t.get("height")) for t in tiles)
        assert area == pytest.approx(132 * 132, rel=0.02)
    shown = text_of(page.find(".//main"))
    for group in PAPER.groups:
        assert str(group) in shown
    assert f"{PAPER.counts.moved:,}".replace(",", " ") in shown
    assert PAPER.to_json() in shown


def test_the_page_of_an_untrusted_plan_says_so(serve):
    """It is listed, and its page says that no trusted key sent it."""
    client = serve()
    send(client, to_json(RECORD), "/v1/plans")
    path = f"/plans/{RECORD.id}"
    assert links(get(client, "/plans"), "/plans/") == [path]
    page = get(client, path)
    assert is_sound_page(page)
    assert "No trusted key sent this fact" in text_of(page)
    store_of(client).add(RECORD)
    assert "No trusted key" not in text_of(get(client, path))


def test_a_plan_of_a_program_has_its_graph(shelf):
    """A node for every array and statement, a line for every reading."""
    page = get(shelf, f"/plans/{OF_PROGRAM.id}")
    nodes, arrows = build_flow(PROGRAM)
    classes = [one.get("class", "") for one in page.iter() if one.get("class")]
    assert classes.count("spot") == len(nodes)
    assert sum(one.split()[0] == "way" for one in classes) == len(arrows)
    shown = text_of(page.find(".//main"))
    assert "no times were recorded" in shown
    assert all(one.text in shown for one in arrows)


def test_plans_are_listed_by_workload(shelf):
    """All, or those of one einsum or program."""
    every = {f"/plans/{one.id}" for one in (RECORD, OF_PROGRAM)}
    assert set(links(get(shelf, "/plans"), "/plans/")) == every
    for one in (RECORD, OF_PROGRAM):
        page = get(shelf, f"/plans?workload={one.workload}")
        assert links(page, "/plans/") == [f"/plans/{one.id}"]
        assert make_title(one) in text_of(page)
    assert "No plan" in text_of(get(shelf, "/plans?workload=another"))
    get(shelf, f"/plans/{'0' * 64}", 404)


def test_a_plan_that_cannot_be_read_is_shown_as_it_is(client):
    """One that came around all checks, with markup in it."""
    from dataclasses import replace

    odd = replace(RECORD, plan='{"einsum": "<b>|<script>"}', workload="w")
    store_of(client).add(odd)
    page = get(client, f"/plans/{odd.id}")
    assert "cannot be read" in text_of(page)
    assert "<b>" in text_of(page)
    get(client, "/plans")


def test_many_ranks_are_not_drawn(client):
    """Where blocks too many processes to draw."""
    plan = feinsum.plan(KERNELS["1mm"], processes=100)
    record = make_plan_record(plan=plan, fleet=make_fleet(100))
    store_of(client).add(record)
    page = get(client, f"/plans/{record.id}")
    assert squares(page) == []
    assert "too many processes to draw" in text_of(page)


def test_many_steps_are_cut_short_and_counted(shelf, monkeypatch):
    """The first ones are drawn, and one of them always."""
    n_steps = len(PAPER.groups)
    for most, n_drawn in ((0, 1), (8, 1), (15, 1), (8 * n_steps, n_steps)):
        monkeypatch.setattr("feinsum.service.pages.plan.MAX_BLOCKS", most)
        page = get(shelf, f"/plans/{RECORD.id}")
        panels = [panel for row in rows_of(PAPER)[:n_drawn] for panel in row.panels]
        assert len(squares(page)) == len(panels)
        said = f"The first {n_drawn} of {n_steps} steps are drawn"
        assert (said in text_of(page)) == (n_drawn < n_steps)


def test_pictures_need_no_code_generator(tmp_path):
    """Nor OpenCL, MPI or matplotlib: a service draws what it never runs."""
    (tmp_path / "plan.json").write_text(to_json(OF_PROGRAM))
    code = """
import sys
from feinsum.records import PlanRecord, from_json
from feinsum.service.pages.plan import make_plan_view
view = make_plan_view(from_json(PlanRecord, open(sys.argv[1]).read()))
print(len(view.steps), view.flow is not None)
print({"loopy", "islpy", "pyopencl", "mpi4py", "matplotlib"} & set(sys.modules))
"""
    said = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "plan.json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{len(PROGRAM.plan.groups)} True\nset()\n"
