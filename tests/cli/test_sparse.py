"""A sparse operand on the command line: a file says its extents and its profile."""

from __future__ import annotations

import json

import pytest

from feinsum.db import open_store
from feinsum.sparse import random_profile, to_coo, write_tns
from tests.sparse_facts import PROFILE, SHAPE, mttkrp, mttkrp_record

MTTKRP = "ijk,ja,ka->ia"


@pytest.fixture
def tensor(tmp_path):
    """A file of the profile, whose last entries have the largest indices."""
    tree = random_profile(SHAPE, PROFILE, seed=0)
    path = tmp_path / "T.tns"
    write_tns(path, to_coo(tree))
    return str(path)


def test_a_file_is_tuned(run, autotune, tensor):
    """With its extents and its profile."""
    seen = autotune()
    assert run("tune", MTTKRP, "--sparse", tensor, "--sizes", "a=8").exit_code == 0
    assert seen["target"].rows[0][0].storage == "csf"
    assert seen["target"].extents["a"] == 8
    nodes = tuple(seen["sizes"][f"nodes.{level}"] for level in range(3))
    assert nodes == PROFILE


def test_rows_share_the_tensor_of_a_file(run, autotune, tensor):
    """It is the first operand of each; of others, it is refused."""
    seen = autotune()
    given = ("tune", MTTKRP, "--sparse", tensor, "--rows")
    assert run(*given, "T,B,C;T,B,D").exit_code == 0
    assert [row[0].storage for row in seen["target"].rows] == ["csf", "csf"]
    assert "at most one may be" in run(*given, "T,B,C;U,B,D").stderr


def test_a_rank_that_is_not_given_is_32(run, autotune, tensor):
    """So that the subscripts and the file are enough."""
    seen = autotune()
    assert run("tune", MTTKRP, "--sparse", tensor).exit_code == 0
    assert seen["target"].extents["a"] == 32


def test_a_result_of_the_same_indices_has_the_pattern(run, autotune, tensor):
    """As in calls."""
    seen = autotune()
    run("tune", "ijk,ia,ja,ka->ijk", "--sparse", tensor)
    assert seen["target"].rows[0][0].storage == "csf="


def test_a_fact_is_found_by_the_profile_of_a_file(run, database, tensor):
    """And one of another profile is the nearest."""
    with open_store(database) as store:
        store.add(mttkrp_record("factorized"))
    asked = ("query", MTTKRP, "--sparse", tensor, "--sizes", "a=8", "--json")
    found = run(*asked)
    assert found.exit_code == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["level"] == "exact"
    assert answer["bound"] is None
    (candidate,) = answer["candidates"]
    assert "sparse_nest@2" in json.dumps(candidate)
    assert mttkrp().extents["a"] == 8


BAD = {
    "no such file": (("--sparse", "/nowhere/T.tns"), "cannot read"),
    "rows": (("--rows", "A,B,C;A,B"), "names 2 operands"),
    "an extent of the file": (("--sizes", "i=9,a=8"), "twice"),
}


def test_options_that_make_no_sense_are_refused(run, tensor):
    """With exit code 2, and in words."""
    for name in BAD:
        for command in ("tune", "query"):
            options, why = BAD[name]
            given = options if "--sparse" in options else ("--sparse", tensor, *options)
            found = run(command, MTTKRP, *given)
            assert found.exit_code == 2
            assert why in " ".join(found.stderr.split()).replace(" │ │ ", " ")


def test_another_order_is_refused(run, tensor):
    """The file has entries of three indices."""
    found = run("tune", "ij,j->i", "--sparse", tensor)
    assert found.exit_code == 2
    assert "indices" in found.stderr


def test_a_bad_file_is_refused_by_its_rule(run, tmp_path):
    """With the line."""
    path = tmp_path / "bad.tns"
    path.write_text("1 1 1 2.0\n1 1 2.0\n")
    found = run("tune", MTTKRP, "--sparse", str(path))
    assert found.exit_code != 0
    assert "line" in found.stderr
