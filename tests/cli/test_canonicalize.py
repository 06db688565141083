"""``feinsum canonicalize``."""

from __future__ import annotations

import json
import sys

import pytest

from feinsum import array, canonicalize, einsum
from feinsum.drawing import SUFFIXES, dot_text
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


def test_json_is_one_document_that_reads_back(run):
    """The canonical text of the document is that of its key."""
    result = run(
        "canonicalize", "ij,j->i", "--sizes=i=9,j=4", "--rows=M,x;M,y", "--json"
    )
    document = json.loads(result.stdout)
    form = canonicalize(from_text(document["canonical"]))
    assert form.key == document["key"]
    assert form.einsum.batch_size == 2
    assert sorted(document["relabeling"]["rows"]) == [0, 1]
    assert set(document["relabeling"]["operands"]) == {"M", "x", "y"}


def test_isomorphic_einsums_have_one_key(run):
    """Names and the order of operands do not matter."""
    first = run("canonicalize", "ij,j->i", "--sizes", "i=n,j=4", "--json")
    second = run(
        "canonicalize", "{dof}, {cell}{dof} -> {cell}", "--sizes=cell=m,dof=4", "--json"
    )
    assert json.loads(first.stdout)["key"] == json.loads(second.stdout)["key"]


def test_the_key_is_that_of_look_ups(run):
    """A long literal extent is a size parameter, as in look-ups; the text says so."""
    literal = run("canonicalize", "ij,j->i", "--sizes", "i=100000,j=4", "--json")
    symbolic = run("canonicalize", "ij,j->i", "--sizes", "i=n,j=4", "--json")
    assert json.loads(literal.stdout)["key"] == json.loads(symbolic.stdout)["key"]
    text = run("canonicalize", "ij,j->i", "--sizes", "i=100000,j=4").stdout
    assert "extent 100000 is the size parameter n100000" in text


def test_what_is_printed_as_canonical_can_be_given_again(run):
    """The canonical text is an einsum of its own, with the same key, without sizes."""
    given = run("canonicalize", *MATVEC, "--rows", "M,x;M,y", "--json")
    first = json.loads(given.stdout)
    second = json.loads(run("canonicalize", first["canonical"], "--json").stdout)
    assert second["key"] == first["key"]
    assert second["canonical"] == first["canonical"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_graph_draws_the_induced_graph(run, tmp_path, suffix):
    """A file is written over whatever was there, and its name is printed."""
    path = tmp_path / f"graph{suffix}"
    path.write_text("old")
    result = run("canonicalize", *MATVEC, "--graph", str(path))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"graph: {path}"
    assert path.read_bytes() != b"old"
    assert json.loads(
        run("canonicalize", *MATVEC, "--graph", str(path), "--json").stdout
    )["graph"] == str(path)


def test_graph_is_that_of_the_general_einsum(run, tmp_path):
    """Names are those given; a long extent is drawn as a size parameter."""
    path = tmp_path / "graph.dot"
    run("canonicalize", "ij,j->i", "--sizes", "i=900,j=4", "--graph", str(path))
    A, x = array("A", ("n900", 4)), array("B", 4)
    assert path.read_text() == dot_text(einsum("ij,j->i", A, x))


def test_without_a_graph_the_document_says_so(run):
    """``graph`` is null."""
    assert json.loads(run("canonicalize", *MATVEC, "--json").stdout)["graph"] is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("graph.gif", [".svg, .png, .pdf, .dot"]),
        ("graph", [".svg, .png, .pdf, .dot"]),
        ("no-such-folder/graph.svg", ["there is no folder", "no-such-folder"]),
        ("folder.dot", ["cannot be written", "directory"]),
    ],
)
def test_a_file_that_cannot_be_written_is_bad_usage(run, tmp_path, name, words):
    """One line that names the option and the file; nothing is printed."""
    (tmp_path / "folder.dot").mkdir()
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
