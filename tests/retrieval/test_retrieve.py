"""Retrieval: a user's kernel comes back faster and right, or it comes back itself."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
import numpy as np
import pytest

from feinsum import array, autotune, einsum, explain, record_facts, retrieve
from feinsum.canonical import canonicalize
from feinsum.db import open_store
from feinsum.errors import (
    InvalidOptionError,
    RecordNotFoundError,
)
from feinsum.records import InMemoryStore, MatchLevel
from feinsum.retrieval import look_up, query
from tests.retrieval.facts import fact_of, recipe, surely_faster
from tests.retrieval.kernels import (
    contraction,
    gradients,
    reduction,
    squares,
)
from tests.retrieval.support import (
    assert_right,
    given,
    n_inames,
    retrieved,
    why_unchanged,
)

EXAMPLES = (gradients, contraction, reduction)


# nothing is known


def test_a_miss_gives_the_very_same_kernel_and_one_warning():
    """The warning has the reason, the workload as text, its key, and what to do."""
    example = reduction()
    form = canonicalize(example.einsum)
    text = why_unchanged(example.kernel, database=InMemoryStore())
    assert "no fact is recorded for this workload" in text
    assert form.text in text
    assert form.key in text
    assert "feinsum tune" in text


def test_a_miss_can_be_silent_or_an_error():
    """``return`` says nothing; ``raise`` raises what the warning says."""
    kernel = reduction().kernel
    assert retrieved(kernel, database=InMemoryStore(), on_miss="return") is kernel
    with pytest.raises(RecordNotFoundError, match="no fact is recorded"):
        retrieve(kernel, database=InMemoryStore(), on_miss="raise")


@pytest.mark.parametrize(
    "options",
    [{"on_miss": "ignore"}, {"on_miss": None}, {"policy": "lax"}, {"effort": "much"}],
)
def test_a_wrong_option_is_refused(options):
    """A choice that does not exist is an error of the caller, whatever is known."""
    (name,) = options
    calls = {retrieve: reduction().kernel}
    if name == "policy":
        calls |= {explain: reduction().kernel, query: reduction().einsum}
    for call, subject in calls.items():
        with pytest.raises(InvalidOptionError, match=f"{name} is .*expected one of"):
            call(subject, database=InMemoryStore(), **options)


@pytest.mark.parametrize("call", [explain, look_up])
def test_an_unknown_option_is_refused(call):
    """By its name, with the names of those that exist."""
    with pytest.raises(InvalidOptionError, match=r"option is 'polcy'; .* policy,"):
        call(reduction().kernel, polcy="strict")


# something is known


@pytest.mark.parametrize("make", EXAMPLES)
def test_a_kernel_spelled_differently_is_transformed_and_right(make):
    """Other names, operands that are functions, another order: the recipe of the
    idealized einsum is applied, and the results are those of numpy at all sizes. Name,
    arguments, their dtypes and shapes are what the caller knows.
    """
    example = make()
    result = retrieved(example.kernel, database=given(fact_of(example)))
    assert n_inames(result) > n_inames(example.kernel)
    assert_right(example, result)
    before, kernel = (x.default_entrypoint for x in (example.kernel, result))
    assert kernel.name == before.name
    assert [arg.name for arg in kernel.args] == [arg.name for arg in before.args]
    for old, new in zip(before.args, kernel.args, strict=True):
        assert old.dtype == new.dtype
        assert getattr(old, "shape", None) == getattr(new, "shape", None)


@pytest.mark.usefixtures("trials_here")
def test_measured_facts_are_found_again(tmp_path):
    """Record a fact, then retrieve it for another spelling: the kernel is right."""
    example = gradients()
    path = tmp_path / "facts.sqlite"
    sizes = {"E": 600}
    record = record_facts(example.einsum, recipe(example), sizes=sizes, database=path)
    with open_store(path) as store:
        store.add(surely_faster(record))
    found = look_up(example.kernel, database=path)
    assert (found.nests[0].applied, found.nests[0].match.level) == (
        record.spec,
        MatchLevel.EXACT,
    )
    assert_right(example, retrieved(example.kernel, database=path))


@pytest.mark.usefixtures("trials_here")
def test_a_tuned_kernel_is_found_again(tmp_path):
    """Tune the user's own kernel, then retrieve: the kernel is right."""
    example = reduction()
    path = tmp_path / "facts.sqlite"
    report = autotune(
        example.kernel, sizes={"rows": 5000}, database=path, n_trials=2, strategy="tpe"
    )
    assert report.problem.form.key == canonicalize(example.einsum).key
    with open_store(path) as store:
        for record in report.records:
            store.add(surely_faster(record))
    result = retrieved(example.kernel, database=path)
    assert n_inames(result) > n_inames(example.kernel)
    assert_right(example, result)


def test_long_literal_extents_find_the_fact_of_the_parameter():
    """A kernel of literal extents from 500 on is the einsum of a size parameter."""
    long = contraction(501)
    record = fact_of(contraction())
    assert query(contraction().einsum, database=given(record)).record == record
    result = retrieved(long.kernel, database=given(record))
    assert n_inames(result) > n_inames(long.kernel)
    assert_right(long, result)


@pytest.mark.parametrize("extent", [499, 17])
def test_short_literal_extents_find_it_through_the_level(extent):
    """384 elements and 100,000 of one operator get one recipe; the match says that it
    was measured at other extents, and a strict policy does not take it.
    """
    record = fact_of(contraction())
    store, short = given(record), contraction(extent)
    found = [
        look_up(kernel, database=store)
        for kernel in (contraction(100_000).kernel, short.kernel)
    ]
    assert [f.applied for f in found] == [(record.spec,)] * 2
    levels = [f.nests[0].match.level for f in found]
    assert levels == [MatchLevel.EXACT, MatchLevel.NEAREST_EXTENTS]
    assert_right(short, found[1].t_unit)
    literal = einsum("ik,kj->ji", array("A", (extent, 20)), array("B", (20, 24)))
    known = query(literal, database=store)
    assert (known.level, known.record) == (MatchLevel.NEAREST_EXTENTS, record)
    assert "no fact" in why_unchanged(short.kernel, database=store, policy="strict")
    assert query(literal, database=store, policy="strict").record is None


def test_other_extents_here_go_before_other_devices():
    """A policy that accepts any device prefers what was measured on this one."""
    extent = 384
    literal = einsum("ik,kj->ji", array("A", (extent, 20)), array("B", (20, 24)))
    near = fact_of(contraction())
    form = canonicalize(literal)
    far_away = replace(
        near.environment,
        device=replace(near.environment.device, kind="gpu", architecture="far"),
    )
    far = replace(
        near, workload=form.key, workload_text=form.text, environment=far_away
    )
    for store, level in (
        (given(far), MatchLevel.GENERIC),
        (given(far, near), MatchLevel.NEAREST_EXTENTS),
    ):
        match = query(literal, database=store, policy="loose")
        assert match.level == level
        found = look_up(contraction(extent).kernel, database=store, policy="loose")
        assert found.nests[0].match.level == level


def test_arguments_close_what_a_kernel_leaves_open():
    """Dtypes that a kernel does not know are those of the arguments of the call."""
    example = reduction()
    untyped = lp.make_kernel(
        "{[r,c]: 0<=r<rows and 0<=c<17}",
        "total[r] = sum(c, X[r,c] - 2*Y[r,c])",
        [
            lp.GlobalArg("X,Y", None, shape="rows,17"),
            lp.GlobalArg("total", None, shape="rows"),
            lp.ValueArg("rows", np.int32),
        ],
        name="reduction",
        lang_version=(2018, 2),
    )
    store = given(fact_of(example))
    arrays = {name: np.zeros((600, 17)) for name in "XY"}
    result = retrieved(untyped, arguments=arrays, database=store)
    assert_right(example, result)
    assert "bool" not in why_unchanged(untyped, database=store)


def test_a_nest_is_chosen_by_its_kernel():
    """Of several kernels in one unit, the named one is transformed, the other kept."""
    example = reduction()
    both = lp.merge([example.kernel, squares()])
    store = given(fact_of(example))
    assert "entry points" in why_unchanged(both, database=store)
    result = retrieved(both, kernel_name="reduction", database=store)
    assert result["squares"] == both["squares"]
    assert result["reduction"] != both["reduction"]


# where facts come from


def test_a_database_is_a_store_a_path_a_url_or_the_default(tmp_path, monkeypatch):
    """All name the same facts; a store that is given stays open."""
    example = reduction()
    path = tmp_path / "facts.sqlite"
    with open_store(path) as store:
        store.add(fact_of(example))
        expected = retrieved(example.kernel, database=store)
        assert len(store) == 1
    for database in (path, str(path), f"sqlite:///{path}"):
        assert retrieved(example.kernel, database=database) == expected
    monkeypatch.setenv("FEINSUM_DATABASE", str(path))
    assert retrieved(example.kernel) == expected
    assert retrieved(example.kernel, database=None) == expected
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "other.sqlite"))
    assert "no fact" in why_unchanged(example.kernel)
