"""``feinsum canonicalize``."""

from __future__ import annotations

import json
import sys

from feinsum import array, canonicalize, einsum
from feinsum.drawing import SUFFIXES, write_dot
from feinsum.ir import from_text

MATVEC = ("ij,j->i", "--sizes", "i=n,j=4")


def test_text_has_the_einsum_its_form_its_renaming_and_its_key(run):
    """What is printed is what the library computes."""
    result = run("canonicalize", "ij,j->i", "--sizes", "i=n,j=4", "--operands", "M,x")
    form = canonicalize(einsum("ij,j->i", array("M", ("n", 4)), array("x", 4)))
    assert result.exit_code == 0
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert lines["canonical"] == form.text
    assert lines["key"] == form.key
    assert "M[n,4]:<f8" in lines["einsum"]
    assert lines["size_params"] == "n -> N0"
    renaming = dict(pair.split(" -> ") for pair in lines["operands"].split(", "))
    assert renaming == form.relabeling.operands


def test_json_is_one_document_that_reads_back(ask):
    """The canonical text is an einsum of its own, with the same key, without sizes."""
    given = ("canonicalize", "ij,j->i", "--sizes=i=9,j=4", "--rows=M,x;M,y")
    document = ask(*given)
    form = canonicalize(from_text(document["canonical"]))
    assert form.key == document["key"]
    assert form.einsum.batch_size == 2
    assert sorted(document["relabeling"]["rows"]) == [0, 1]
    assert set(document["relabeling"]["operands"]) == {"M", "x", "y"}
    assert document["graph"] is None
    again = ask("canonicalize", document["canonical"])
    assert again["key"] == document["key"]
    assert again["canonical"] == document["canonical"]


def test_isomorphic_einsums_have_one_key(run, ask):
    """That of look-ups: names and the order of operands do not matter, and a long
    literal extent is a size parameter; the text says so.
    """
    keys = {
        ask("canonicalize", *given)["key"]
        for given in (
            MATVEC,
            ("{dof}, {cell}{dof} -> {cell}", "--sizes=cell=m,dof=4"),
            ("ij,j->i", "--sizes", "i=100000,j=4"),
        )
    }
    assert len(keys) == 1
    text = run("canonicalize", "ij,j->i", "--sizes", "i=100000,j=4").stdout
    assert "extent 100000 is the size parameter n100000" in text


def test_graph_draws_the_induced_graph(run, tmp_path):
    """A file is written over whatever was there, and its name is printed."""
    for suffix in SUFFIXES:
        path = tmp_path / f"graph{suffix}"
        path.write_text("old")
        given = ("canonicalize", *MATVEC, "--graph", str(path))
        result = run(*given, *["--json"] * (suffix != ".dot"))
        assert result.exit_code == 0
        assert path.read_bytes() != b"old"
        if suffix == ".dot":
            assert result.stdout.splitlines()[-1] == f"graph: {path}"
        else:
            assert json.loads(result.stdout)["graph"] == str(path)


def test_graph_is_that_of_the_general_einsum(run, tmp_path):
    """Names are those given; a long extent is drawn as a size parameter."""
    path = tmp_path / "graph.dot"
    run("canonicalize", "ij,j->i", "--sizes", "i=900,j=4", "--graph", str(path))
    A, x = array("A", ("n900", 4)), array("B", 4)
    assert path.read_text() == write_dot(einsum("ij,j->i", A, x))


def test_a_file_that_cannot_be_written_is_bad_usage(run, tmp_path):
    """One line that names the option and the file; nothing is printed."""
    for name, words in (
        ("graph.gif", [".svg, .png, .pdf, .dot"]),
        ("graph", [".svg, .png, .pdf, .dot"]),
        ("no-such-folder/graph.svg", ["there is no folder", "no-such-folder"]),
        ("folder.dot", ["cannot be written", "directory"]),
    ):
        (tmp_path / "folder.dot").mkdir(exist_ok=True)
        result = run("canonicalize", *MATVEC, "--graph", str(tmp_path / name))
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert all(word in line for word in ["[usage]", "--graph", name, *words])


def test_without_matplotlib_the_error_says_what_to_install(run, tmp_path, monkeypatch):
    """A figure fails with one line; text for Graphviz is written all the same."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "feinsum.drawing.graph.figure", raising=False)
    result = run("canonicalize", *MATVEC, "--graph", str(tmp_path / "graph.svg"))
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "pip install 'feinsum[plots]'" in line
    result = run("canonicalize", *MATVEC, "--graph", str(tmp_path / "graph.dot"))
    assert result.exit_code == 0
