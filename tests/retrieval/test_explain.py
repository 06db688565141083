"""Explanations: what a kernel is, what is known about it, what would be done."""

from __future__ import annotations

import re

import numpy as np
import pytest

from feinsum import FeinsumWarning, call_einsum, explain, retrieve
from feinsum.canonical import canonicalize
from feinsum.errors import RecordNotFoundError, StoreUnavailableError
from feinsum.measure.own import mark_as_own
from feinsum.raising import raise_kernel
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.retrieval import look_up
from tests.retrieval.facts import fact, fact_of
from tests.retrieval.kernels import gradients, mixed, reduction, squares, two_nests
from tests.retrieval.support import given


def test_an_explanation_has_everything():
    """What was raised, from which instructions, what it is called, what is known."""
    example = gradients()
    form = canonicalize(example.einsum)
    known = fact_of(example)
    mark_as_own(known.id)
    alien = fact(example.einsum, TransformSpec("alien", 1, {}), speedup=50.0)
    text = explain(example.kernel, database=given(known, alien))
    lines = text.splitlines()
    (nest,) = raise_kernel(example.kernel).raised
    assert lines[0] == f"raised: {nest.einsum.subscripts}, 2 rows"
    assert f"instructions: {', '.join(nest.instructions)}" in lines
    assert len(nest.instructions) == 2
    operands = [line for line in lines if line.startswith("operand ")]
    assert len(operands) == 4
    assert "scaled by: 0.5, kappa" in lines
    for words in ("um", "up", "p[", "geo", "diff"):
        assert any(words in line.partition(": ")[2] for line in operands), words
    assert f"canonical: {form.text}" in lines
    assert f"key: {form.key}" in lines
    relabeling = ", ".join(x for x in lines if x.startswith("relabeling: "))
    for names in (
        nest.relabeling.indices,
        nest.relabeling.operands,
        nest.relabeling.size_params,
    ):
        assert all(f"{old} -> {new}" in relabeling for old, new in names.items())
    assert any(line.startswith("match: exact (") for line in lines)
    for record, ratio in ((known, "10.0"), (alien, "50.0")):
        low, high = record.measurement.speedup_interval
        expected = f"speed-up {ratio} ({low:.1f} to {high:.1f})"
        candidate = f"  candidate {record.spec}: 1.000 ms, {expected}"
        assert any(line.startswith(candidate) for line in lines)
        assert record.id[:12] in text
    assert f"  skipped {alien.spec}" not in text  # what was measured here comes first
    assert lines[-4].startswith(f"applied: {known.spec}")
    assert "    recorded by an unknown recorder on " in text
    assert f"    measured by this installation at {known.recorded_at}" in lines
    sizes = ", ".join(f"{k}={n}" for k, n in known.measurement.sizes.items())
    assert lines[-3] == (
        f"trusted: measured by this installation at {known.recorded_at}: 10.0 times "
        f"as fast as the kernel generated for the einsum at {sizes}"
    )
    assert lines[-2] == "policy: default"
    assert lines[-1] == "kernel: 1 of 1 nests transformed"
    assert str(look_up(example.kernel, database=given(known, alien))) == text


def test_why_a_candidate_is_the_first():
    """One alone is tied with none; of several that are, the first is named so."""
    example = gradients()
    known = fact_of(example)
    other = fact(example.einsum, TransformSpec("alien", 1, {}))
    for facts, reason in (
        ([known], "the only candidate"),
        ([known, other], "the first of those tied as fastest"),
    ):
        for record in facts:
            mark_as_own(record.id)
        text = explain(example.kernel, database=given(*facts), effort="recorded")
        (line,) = (x for x in text.splitlines() if x.startswith("applied: "))
        assert line.endswith(f" ({reason})")


def test_a_miss_is_explained():
    """Without a fact the kernel is still explained, and stays as it is."""
    example = reduction()
    lines = explain(example.kernel, database=InMemoryStore()).splitlines()
    assert lines[-3] == "match: miss (no fact is recorded for this workload)"
    assert lines[-1] == "kernel: unchanged"
    assert f"key: {canonicalize(example.einsum).key}" in lines


def test_the_layers_are_listed(tmp_path, monkeypatch):
    """Where facts were looked for, and which layer was passed over, and why."""
    path = tmp_path / "facts.sqlite"
    path.write_bytes(b"garbage" * 1000)
    monkeypatch.setenv("FEINSUM_DATABASE", str(path))
    monkeypatch.setenv("FEINSUM_LAYERS", "user,packaged")
    monkeypatch.setenv("FEINSUM_POLICY", "strict")
    *_, policy, user, packaged, end = explain(reduction().kernel).splitlines()
    assert policy == "policy: strict"
    assert user.startswith(f"layer user ({path}): skipped, because {path} is not")
    assert packaged == "layer packaged (this installation): queried"
    assert end == "kernel: unchanged"


@pytest.mark.parametrize("is_variable", [False, True])
def test_a_mistyped_database_is_named(is_variable, tmp_path, monkeypatch):
    """By the explanation, by the warning of a miss, and by ``on_miss="raise"``."""
    path, options = tmp_path / "typo.sqlite", {"effort": "recorded"}
    if is_variable:
        monkeypatch.setenv("FEINSUM_DATABASE", str(path))
        monkeypatch.setenv("FEINSUM_LAYERS", "user,packaged")
    else:
        options["database"] = str(path)
    missing = f"there is no database {path}: check the path"
    lines = explain(reduction().kernel, **options).splitlines()
    name = "user" if is_variable else "database"
    assert any(
        line.startswith(f"layer {name} ({path}): skipped, because {missing}")
        for line in lines
    )
    with pytest.warns(FeinsumWarning, match=missing):
        retrieve(reduction().kernel, **options)
    # the first tuning may create the one of the variable
    refusal = RecordNotFoundError if is_variable else StoreUnavailableError
    with pytest.raises(refusal, match=missing):
        retrieve(reduction().kernel, on_miss="raise", **options)
    for effort in () if is_variable else ("recorded", "estimate"):
        options["effort"] = effort
        arrays = np.ones((3, 4)), np.ones(4)
        with pytest.raises(refusal, match=missing):
            call_einsum("ij,j->i", *arrays, on_miss="raise", **options)


@pytest.mark.parametrize("variable", ["FEINSUM_POLICY", "FEINSUM_LAYERS"])
def test_a_setting_that_means_nothing_breaks_no_build(variable, monkeypatch):
    """It is explained; the kernel would come back unchanged."""
    monkeypatch.setenv(variable, "lax")
    text = explain(reduction().kernel)
    assert text.startswith("not looked up: ")
    assert f"{variable}" in text
    assert "'lax'" in text


def test_a_refusal_has_its_rule_and_its_instruction():
    """What is no einsum is explained by the rule that it breaks, with its text."""
    kernel = squares()
    (refused,) = raise_kernel(kernel).refused
    lines = explain(kernel, database=InMemoryStore()).splitlines()
    assert lines[0] == f"not raised: {refused.reason}"
    assert lines[1] == f"broken rule: {refused.rule}"
    assert lines[2].startswith(f"instruction {refused.instructions[0]}: ")
    assert "y[i]" in lines[2]
    assert lines[-1] == "kernel: unchanged"


@pytest.mark.parametrize(
    ("make", "raised", "refused"), [(two_nests, 2, 0), (mixed, 1, 1)]
)
def test_every_nest_is_listed(make, raised, refused):
    """A kernel of several nests, or of more than einsums, is explained whole."""
    text = explain(make(), database=InMemoryStore())
    assert len(re.findall(r"^raised: ", text, re.MULTILINE)) == raised
    assert len(re.findall(r"^not raised: ", text, re.MULTILINE)) == refused
    assert len(re.findall(r"^key: ", text, re.MULTILINE)) == raised
