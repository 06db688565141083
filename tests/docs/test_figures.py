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
    text = "".join(path.read_text() for path in tables["PAGES"])
    assert tables["render_page"](text) == text
    for name in (*tables["TABLES"], "gpu"):
        assert f"<!-- table: {name} -->" in text


GPU = """# command: benchmarks/gpu.sh gpu-pack
# processor: NVIDIA Made-up (CUDA 13.0, cupy 14.2.0)
# date: 2026-11-26
| suite | entry | feinsum | jax | cupy | MB | MFLOP |
|---|---|---|---|---|---|---|
| tccg | abc-bda-dc | 10 | 20 | 40 | 30 | 100 |
| tccg | abc-dca-bd | 10 | - | 5 | 30 | 400 |
| tccg | abc-adc-bd | - | 8 | 5 | 30 | 100 |
abc-adc-bd: why it has none
"""


def test_a_result_of_a_gpu_becomes_its_table(monkeypatch, tmp_path):
    """One command copies the file, and writes the page: rivals side by side."""
    for path in ("benchmarks/results", "docs/explanation", "docs/how-to"):
        (tmp_path / path).mkdir(parents=True)
    page = tmp_path / "docs/how-to/gpu.md"
    page.write_text("before\n<!-- table: gpu -->\nold\n<!-- end -->\nafter\n")
    (tmp_path / "docs/explanation/performance.md").write_text("")
    script = tmp_path / "docs/figures/tables.py"
    script.parent.mkdir()
    script.write_text((FOLDER / "tables.py").read_text())
    (tmp_path / "gpu-made-up.txt").write_text(GPU)
    monkeypatch.setattr("sys.argv", ["tables", str(tmp_path / "gpu-made-up.txt")])
    runpy.run_path(str(script), run_name="__main__")
    text = page.read_text()
    assert "NVIDIA Made-up (CUDA 13.0, cupy 14.2.0), 2026-11-26:" in text
    assert "| tccg | 2 of 3 | 1.00 | 0.50 | 2.00 | 2.00 | 1.41 | 3.00 | 20.00 |" in text
    assert "old" not in text
    assert text.endswith("<!-- end -->\nafter\n")
    runpy.run_path(str(script), run_name="__main__")
    assert page.read_text() == text


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
