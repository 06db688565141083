"""The pictures of the documentation show what the present code draws."""

from __future__ import annotations

import runpy
from xml.etree import ElementTree

import pytest

from feinsum.drawing import dot_text
from tests.docs.pages import DOCS, ROOT, page

FOLDER = ROOT / "docs" / "figures"
FIGURES = runpy.run_path(str(FOLDER / "induced_graph.py"))["FIGURES"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_shows_the_graph_of_its_einsum(name):
    """The graph in the SVG is that of the script; if not, run ``make figures``."""
    root = ElementTree.parse(FOLDER / f"{name}.svg")
    assert root.findtext(".//{*}description") == dot_text(FIGURES[name])


def test_every_picture_is_drawn_by_the_script():
    """No picture is left that nothing draws."""
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_every_picture_is_on_a_page(name):
    """Each is embedded somewhere."""
    assert any(f"(figures/{name}.svg)" in path.read_text() for path in DOCS)


def test_the_makefile_draws_the_pictures():
    """``make figures`` runs the script."""
    assert "docs/figures/induced_graph.py" in page("Makefile")
