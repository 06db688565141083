"""Pictures in files: SVG, PNG, PDF."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from feinsum.drawing import SUFFIXES, draw, write_dot
from feinsum.drawing.graph import figure
from feinsum.errors import FeinsumError, InvalidEinsumError
from feinsum.ir import array, batched_einsum, einsum

A, x = array("A", ("n", 4)), array("x", 4)
BATCH = batched_einsum("ij,j->i", [[A, x], [A, array("y", 4)]])
BEGINNINGS = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF", ".dot": b"graph"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_says_the_format(tmp_path: Path, suffix: str) -> None:
    """In any case; the bytes of two files of one einsum are equal: no date, no random
    ids.
    """
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix.upper()}"
    draw(BATCH, first)
    second.write_text("to be overwritten")
    draw(BATCH, second)
    assert first.read_bytes().startswith(BEGINNINGS[suffix])
    assert first.read_bytes() == second.read_bytes()


DRAW = """
import sys
from feinsum.drawing.graph import draw
from feinsum.ir import array, batched_einsum
x, y, z = (array(name, ("N", "M")) for name in "xyz")
draw(batched_einsum("ij,ij,kj->ik", [[x, y, z], [z, z, y]]), sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules
"""


def test_svg_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Bytes depend on no hash seed and no clock; pyplot is not loaded."""
    files = []
    for seed in ("0", "12345"):
        files.append(tmp_path / f"{seed}.svg")
        subprocess.run(
            [sys.executable, "-W", "error", "-c", DRAW, str(files[-1])],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        )
    assert len({file.read_bytes() for file in files}) == 1


def test_svg_says_what_it_shows(tmp_path: Path) -> None:
    """Its title is the einsum, its description the graph as DOT text."""
    draw(BATCH, tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg")
    assert root.findtext(".//{*}title") == str(BATCH)
    assert root.findtext(".//{*}description") == write_dot(BATCH)


@pytest.mark.filterwarnings("error")
def test_names_of_other_scripts_do_no_harm(tmp_path: Path) -> None:
    """A name that the font lacks is drawn without a warning."""
    e = einsum("指 ä, ä -> 指", array("矩阵", ("数", 4)), array("x", 4))
    for suffix in SUFFIXES:
        draw(e, tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").stat().st_size > 1000


def test_the_settings_of_the_user_are_left_as_they_are(tmp_path: Path) -> None:
    """Drawing changes no setting of matplotlib, and obeys none."""
    import matplotlib as mpl

    draw(BATCH, tmp_path / "plain.svg")
    with mpl.rc_context(
        {"svg.hashsalt": "other", "savefig.bbox": "tight", "figure.facecolor": "red"}
    ):
        before = dict(mpl.rcParams)
        draw(BATCH, tmp_path / "set.svg")
        assert dict(mpl.rcParams) == before
    plain, other = tmp_path / "plain.svg", tmp_path / "set.svg"
    assert plain.read_bytes() == other.read_bytes()


def test_a_png_has_a_longest_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger figure gets fewer dots per inch."""
    monkeypatch.setattr(figure, "MOST_DOTS", 300)
    draw(BATCH, tmp_path / "a.png")
    sides = struct.unpack(">II", (tmp_path / "a.png").read_bytes()[16:24])
    assert 290 <= max(sides) <= 301


def test_without_matplotlib_only_dot_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install; no file is left."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "feinsum.drawing.graph.figure")
    for suffix in (".svg", ".png", ".pdf"):
        path = tmp_path / f"a{suffix}"
        with pytest.raises(FeinsumError, match=r"pip install 'feinsum\[plots\]'"):
            draw(BATCH, path)
        assert not path.exists()
    draw(BATCH, tmp_path / "a.dot")
    assert (tmp_path / "a.dot").exists()


def test_importing_the_package_does_not_load_matplotlib() -> None:
    """It is loaded when a figure is drawn."""
    code = (
        "import sys, feinsum.drawing, feinsum.canonical\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    """The error lists the suffixes; nothing is written."""
    for name in ("graph", "graph.gif", ".svg"):
        with pytest.raises(FeinsumError, match=r"\.svg, \.png, \.pdf, \.dot"):
            draw(BATCH, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_einsum_is_refused(tmp_path: Path) -> None:
    """Text in the place of an einsum is named."""
    for suffix in SUFFIXES:
        with pytest.raises(InvalidEinsumError, match=r"feinsum\.einsum"):
            draw("ij->i", tmp_path / f"a{suffix}")
