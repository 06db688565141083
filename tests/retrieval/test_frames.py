"""Facts in the names of an older canonicalizer: found, and applied in those names."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from feinsum import explain
from feinsum.canonical import canonicalize
from feinsum.db import open_store
from feinsum.db.exchange.rekeying import rekey, rekey_record
from feinsum.ir import array, einsum, to_text
from feinsum.records import MatchLevel, TransformSpec
from feinsum.retrieval import look_up, query
from tests.loopy_kernels import build_kernel
from tests.older import respelled, under_older_key
from tests.retrieval.facts import fact, fact_of
from tests.retrieval.kernels import contraction, gradients, reduction
from tests.retrieval.support import (
    assert_right,
    given,
    n_inames,
    retrieved,
    why_unchanged,
)

EXAMPLES = (gradients, contraction, reduction)


def in_other_frame(record):
    """The fact under the key of today, in the names of an older canonicalizer."""
    other = rekey_record(respelled(record), record.workload)
    assert other.workload_text != record.workload_text
    assert other.spec != record.spec
    return other


@pytest.mark.parametrize(
    ("make", "older"),
    [(gradients, respelled), (contraction, under_older_key), (reduction, respelled)],
)
def test_an_older_fact_is_found_once_it_is_rekeyed(make, older, tmp_path):
    """Not before; then its recipe is applied, and the kernel computes what it did."""
    example = make()
    path = tmp_path / "facts.sqlite"
    record = older(fact_of(example))
    with open_store(path) as store:
        store.add(record)
        assert "no fact is recorded" in why_unchanged(example.kernel, database=store)
        assert rekey(store).n_new["record"] == 1
    found = look_up(example.kernel, database=path)
    assert (found.nests[0].match.level, found.nests[0].applied) == (
        MatchLevel.EXACT,
        record.spec,
    )
    assert found.nests[0].failures == ()
    assert n_inames(found.t_unit) > n_inames(example.kernel)
    assert_right(example, found.t_unit)


TABLE = einsum("ij,j->ij", array("X", ("N", "M")), array("w", "M"))


def table():
    """A kernel of which both loops can be distributed."""
    return build_kernel(
        "{[p,q]: 0<=p<n and 0<=q<m}",
        "out[p,q] = X[p,q]*w[q]",
        {"X,out": "n,m", "w": "m"},
        name="table",
    )


def distributed(record):
    """The loop of the table that the recipe of a fact distributes."""
    kernel = retrieved(table(), database=given(record)).default_entrypoint
    (loop,) = {"p", "q"} - kernel.all_inames()
    return loop


@pytest.mark.parametrize(("index", "loop", "other"), [("i", "p", "q"), ("j", "q", "p")])
def test_a_recipe_speaks_of_the_names_of_its_own_text(index, loop, other):
    """A name that is an index in both frames is that of the record's own."""
    name = canonicalize(TABLE).relabeling.indices[index]
    today = fact(TABLE, TransformSpec("rowwise", 1, {"index": name, "block": 8}))
    older = in_other_frame(today)
    assert distributed(today) == distributed(older) == loop
    assert distributed(replace(older, spec=today.spec)) == other


def test_one_spec_in_two_frames_is_two_recipes():
    """The one that cannot be applied does not hide the other one."""
    example = reduction()
    good = fact_of(example)
    bad = replace(in_other_frame(fact_of(example, speedup=100.0)), spec=good.spec)
    found = look_up(example.kernel, database=given(bad, good))
    assert found.nests[0].match.ranking == (bad, good)
    assert found.nests[0].applied == good.spec
    assert [spec for spec, _ in found.nests[0].failures] == [good.spec]
    assert_right(example, found.t_unit)


def test_where_neither_recipe_can_be_applied_both_reasons_are_given():
    """Even if the specs are equal, and also from machines that fit less well."""
    example = reduction()
    alien = fact(example.einsum, TransformSpec("alien", 1, {}))
    older = rekey_record(respelled(alien), alien.workload)
    found = look_up(example.kernel, database=given(alien, older))
    assert (found.nests[0].applied, found.t_unit) == (None, example.kernel)
    assert [spec for spec, _ in found.nests[0].failures] == [alien.spec] * 2


@pytest.mark.parametrize(
    "text",
    [
        canonicalize(TABLE).text,
        "",
        "no text",
        "a -> b | A0[3]:<f8 | A0",
        "a -> a | A0[3]:(f8 | A0",
        f"a -> a | A0[{'9' * 5000}]:<f8 | A0",
    ],
    ids=["another workload", "empty", "no einsum", "ill-formed", "dtype", "extent"],
)
def test_a_wrong_text_under_the_right_key_is_a_miss(text, caplog):
    """It is logged as an error, hides no other fact, and never gives a kernel."""
    example = reduction()
    good = in_other_frame(fact_of(example))
    bad = replace(fact_of(example, speedup=100.0), workload_text=text)
    with caplog.at_level(logging.ERROR, "feinsum.retrieval"):
        assert "no fact is" in why_unchanged(example.kernel, database=given(bad))
    assert bad.id in caplog.text
    assert query(example.einsum, database=given(bad)).level == MatchLevel.MISS
    found = look_up(example.kernel, database=given(bad, good))
    assert found.nests[0].match.ranking == (good,)
    assert found.nests[0].applied == good.spec


def test_a_text_of_today_is_not_canonicalized(monkeypatch):
    """Comparing it is enough; that of an older frame is, once for all its facts."""
    example = reduction()
    texts = []

    def counted(e):
        texts.append(to_text(e))
        return canonicalize(e)

    monkeypatch.setattr("feinsum.retrieval.matching.canonicalize", counted)
    today = [fact_of(example, speedup=10.0 + k) for k in range(3)]
    look_up(example.kernel, database=given(*today))
    assert texts == []
    older = [in_other_frame(record) for record in today]
    look_up(example.kernel, database=given(*today, *older))
    assert texts == [older[0].workload_text]


def test_an_explanation_names_the_frame():
    """A candidate in other names is followed by the text that has these."""
    example = reduction()
    today = fact_of(example)
    older = in_other_frame(today)
    line = f"    in the names of {older.workload_text}"
    lines = explain(example.kernel, database=given(older)).splitlines()
    assert lines[lines.index(line) - 2].startswith(f"  candidate {older.spec}: ")
    assert line not in explain(example.kernel, database=given(today)).splitlines()
