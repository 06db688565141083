"""``feinsum canonicalize``."""

from __future__ import annotations

import json

from feinsum import array, canonicalize, einsum
from feinsum.ir import from_text


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
        "canonicalize", "dof, cell dof -> cell", "--sizes=cell=m,dof=4", "--json"
    )
    assert json.loads(first.stdout)["key"] == json.loads(second.stdout)["key"]


def test_the_key_is_that_of_look_ups(run):
    """A long literal extent is a size parameter, as in look-ups; the text says so."""
    literal = run("canonicalize", "ij,j->i", "--sizes", "i=100000,j=4", "--json")
    symbolic = run("canonicalize", "ij,j->i", "--sizes", "i=n,j=4", "--json")
    assert json.loads(literal.stdout)["key"] == json.loads(symbolic.stdout)["key"]
    text = run("canonicalize", "ij,j->i", "--sizes", "i=100000,j=4").stdout
    assert "extent 100000 is the size parameter n100000" in text
