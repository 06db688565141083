"""``feinsum canonicalize A B``."""

from __future__ import annotations

import json

from constantdict import constantdict

from feinsum.canonical import Relabeling
from feinsum.ir import from_text

OURS = "i j, j -> i | A[n,4]:<f8 x[4]:<f8 y[4]:<f8 | A x; A y"
THEIRS = "q, p q -> p | w[4]:<f8 M[m,4]:<f8 v[4]:<f8 | w M; v M"
SHORTER = "i j, j -> i | A[n,3]:<f8 x[3]:<f8 y[3]:<f8 | A x; A y"
RING = "a b, b c, c d, d e, e f, f a ->  | {} | A B C D E F"
TRIANGLES = "a b, b c, c a, d e, e f, f d ->  | {} | A B C D E F"
SIX = " ".join(f"{name}[4,4]:<f8" for name in "ABCDEF")


def lines(result):
    return dict(line.split(": ", 1) for line in result.stdout.splitlines())


def test_one_workload_is_exit_code_0_and_a_bijection(run, ask):
    """The text says what every name, row and operand of A is in B."""
    result = run("canonicalize", OURS, THEIRS)
    assert (result.exit_code, result.stderr) == (0, "")
    said = lines(result)
    assert said["same workload"] == "yes"
    assert said["indices"] == "i -> p, j -> q"
    assert said["size_params"] == "n -> m"
    assert said["operands"].startswith("A -> M, x -> ")
    assert said["rows"] in ("0 -> 0, 1 -> 1", "0 -> 1, 1 -> 0")
    assert said["operands of row 0"] == "0 -> 1, 1 -> 0"
    assert said["operands of row 1"] == "0 -> 1, 1 -> 0"
    assert said["key"] == ask("canonicalize", OURS)["key"]


def test_the_bijection_of_the_document_leads_from_a_to_b(run):
    """Applied to A it gives B."""
    result = run("canonicalize", OURS, THEIRS, "--json")
    document = json.loads(result.stdout)
    assert document["is_same"] is True
    assert document["difference"] is None
    assert document["a"]["key"] == document["b"]["key"]
    found = document["bijection"]
    bijection = Relabeling(
        constantdict(found["indices"]),
        constantdict(found["operands"]),
        constantdict(found["size_params"]),
        tuple(found["rows"]),
        tuple(map(tuple, found["positions"])),
    )
    assert bijection.apply(from_text(OURS)) == from_text(THEIRS)


def test_two_workloads_are_exit_code_1_and_a_difference(run):
    """Text and document name the first invariant that differs; there is no bijection,
    and nothing is on stderr.
    """
    result = run("canonicalize", OURS, SHORTER)
    assert (result.exit_code, result.stderr) == (1, "")
    said = lines(result)
    assert said["same workload"] == "no"
    assert said["difference"] == (
        "extents of the summation indices: A has {4} where B has {3}"
    )
    result = run("canonicalize", OURS, SHORTER, "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    document = json.loads(result.stdout)
    assert (document["is_same"], document["bijection"]) == (False, None)
    assert document["difference"] == {
        "invariant": "extents of the summation indices",
        "a": "{4}",
        "b": "{3}",
    }
    assert document["a"]["key"] != document["b"]["key"]


def test_einsums_that_only_the_canonical_forms_tell_apart(run):
    """A ring of six and two triangles agree in every simple invariant."""
    for is_json in (False, True):
        pair = RING.format(SIX), TRIANGLES.format(SIX)
        result = run("canonicalize", *pair, *["--json"] * is_json)
        assert result.exit_code == 1
        if is_json:
            document = json.loads(result.stdout)
            assert (document["bijection"], document["difference"]) == (None, None)
        else:
            said = lines(result)["difference"]
            assert (
                said == "only the canonical forms differ; all simple invariants agree"
            )


def test_sizes_hold_for_both(run):
    """The indices of both are in ``--sizes``, letters beside words."""
    result = run(
        "canonicalize",
        "ij,j->i",
        "{dof}, {cell}{dof} -> {cell}",
        "--sizes=i=n,j=4,cell=m,dof=4",
    )
    assert result.exit_code == 0
    assert lines(result)["indices"] == "i -> cell, j -> dof"


def test_names_rows_and_dtype_hold_for_both(run):
    """Rows and dtype describe either einsum."""
    result = run(
        "canonicalize",
        "ij,j->i",
        "ij,j->i",
        "--sizes=i=n,j=4",
        "--rows=A,x;A,y",
        "--dtype=float32",
        "--json",
    )
    document = json.loads(result.stdout)
    assert document["is_same"] is True
    assert document["a"] == document["b"]
    assert "A[n,4]:<f4" in document["a"]["einsum"]
    assert len(document["bijection"]["rows"]) == 2


def test_subscripts_and_text_can_be_compared(run):
    """The sizes are those of the subscripts, also where the text has such names."""
    text = "j i, i -> j | A[N,4]:<f8 x[4]:<f8 | A x"
    for pair in (("ij,j->i", text), (text, "ij,j->i")):
        assert run("canonicalize", *pair, "--sizes", "i=n,j=4").exit_code == 0


def test_long_extents_are_size_parameters_in_both(run):
    """A literal extent of 900 and one of 800 are one workload, as in look-ups."""
    result = run("canonicalize", "ij->i", "pj->p", "--sizes", "i=900,p=800,j=4")
    assert result.exit_code == 0
    assert lines(result)["size_params"] == "n900 -> n800"
    assert "extent 800 is the size parameter n800" in result.stdout


def test_bad_usage(run):
    """One line on stderr names the option; this is exit code 2, not 1."""
    for arguments, words in (
        (["ij->i", "pj->p", "--sizes", "i=3,j=4"], ["--sizes", "'p'"]),
        (["ij->i", "ij->j", "--sizes", "i=3,j=4,k=5"], ["--sizes", "'k'"]),
        (["i->i", "i,i->i", "--sizes=i=3", "--operands=x"], ["--operands", "2 terms"]),
        (["i->i", "j->j", "--sizes=i=3,j=3", "--graph=g.svg"], ["--graph", "one"]),
        ([OURS, THEIRS, "--sizes", "j=5"], ["--sizes", "j=5", "j=4"]),
    ):
        result = run("canonicalize", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert all(word in line for word in words)
