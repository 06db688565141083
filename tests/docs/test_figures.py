"""The pictures of the documentation show what the present code draws."""

from __future__ import annotations

import runpy
from collections import Counter
from statistics import geometric_mean
from xml.etree import ElementTree

import pytest

from feinsum.drawing import write_dot
from tests.docs.pages import DOCS, ROOT, page

FOLDER = ROOT / "docs" / "figures"
FIGURES = runpy.run_path(str(FOLDER / "induced_graph.py"))["FIGURES"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_shows_the_graph_of_its_einsum(name):
    """The graph in the SVG is that of the script; if not, run ``make figures``."""
    root = ElementTree.parse(FOLDER / f"{name}.svg")
    assert root.findtext(".//{*}description") == write_dot(FIGURES[name])


def test_every_picture_is_drawn_by_the_script_and_on_a_page():
    """No picture is left that nothing draws."""
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(FIGURES)
    pages = "".join(path.read_text() for path in DOCS)
    assert not [name for name in FIGURES if f"/figures/{name}.svg)" not in pages]


def test_the_makefile_draws_the_pictures():
    """``make figures`` runs each script."""
    for name in ("induced_graph", "bounds", "gain", "plans", "tables"):
        assert f"docs/figures/{name}.py" in page("Makefile")


def test_the_tables_of_performance_are_of_the_result_files():
    """Every result has its table, with command and processor; run ``make figures``."""
    tables = runpy.run_path(str(FOLDER / "tables.py"))
    text = page("docs/explanation/performance.md")
    assert tables["render_page"](text) == text
    for name in tables["TABLES"]:
        assert f"<!-- table: {name} -->" in text


def test_the_picture_of_the_readme_is_of_the_whole_table():
    """Every operator, and the mean that the page states."""
    ratios = runpy.run_path(str(FOLDER / "gain.py"))["ratios"]()
    assert Counter(kind for kind, _ in ratios) == {
        "face mass": 16,
        "divergence": 12,
        "gradient": 12,
    }
    mean = geometric_mean(ratio for _, ratio in ratios)
    assert f"geometric mean is {mean:.2f}" in page("docs/explanation/performance.md")
    assert "(docs/figures/gain.png)" in page("README.md")


def test_the_picture_of_levels_is_of_what_the_page_says():
    """A product is bound by the arithmetic, TCCG and MTTKRP by the memory alone."""
    script = runpy.run_path(str(FOLDER / "bounds.py"))
    peak = script["PEAK"] * 1e-9
    groups = {}
    for dot in script["chart"]().dots:
        groups.setdefault(dot.group, []).append(dot.rate)
    assert groups["ij,jk->ik"] == [peak] * 4
    assert max(groups["ij,j->i"]) < peak
    for group in ("bda,dc->abc", "ijk,ja,ka->ia"):
        *nearer, memory = groups[group]
        assert nearer == [peak] * 3
        assert memory < peak
    assert (FOLDER / "bounds.png").is_file()
