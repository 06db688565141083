"""What was not measured here is verified here, once, before its first use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from feinsum import generate_loopy, query
from feinsum.cache import DiskCache
from feinsum.measure.verifier import Verdict
from feinsum.memory import Memory, fresh_memory, remembered, use_memory
from feinsum.records import Level, from_json, to_json
from feinsum.retrieval import installation, look_up, trust
from feinsum.transforms import REGISTRY
from feinsum.transforms.plugins import VARIABLE
from tests.docs.pages import ROOT
from tests.retrieval.facts import fact, fact_of, here
from tests.retrieval.kernels import reduction
from tests.retrieval.support import assert_right, given, retrieved, why_unchanged
from tests.tune import odd_transforms
from tests.tune.odd_transforms import ODD, odd_einsum, odd_spec

NOTHING = ("false",)
"""A command in the place of the process that verifies: no answer comes from it."""


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Iterator[DiskCache]:
    """Verification is on; what it finds is kept for this test."""
    monkeypatch.setenv(trust.VERIFY_VARIABLE, "on")
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with fresh_memory():
        yield DiskCache(tmp_path / "cache")


@pytest.fixture
def odd(monkeypatch):
    """Odd transforms are registered, here and in the process that verifies."""
    monkeypatch.setenv(VARIABLE, odd_transforms.__name__)
    for name, transform in ODD.items():
        monkeypatch.setitem(REGISTRY, (name, 1), transform)


@pytest.fixture
def no_process(monkeypatch):
    """From now on a process that verifies gives no answer; nothing is in memory."""

    def forbid() -> None:
        monkeypatch.setattr(trust, "COMMAND", NOTHING)
        use_memory(Memory())

    return forbid


def elsewhere(**changes):
    """This machine with another driver, or what else is changed."""
    return replace(here(), **(changes or {"driver_version": "another"}))


def found(store, **options):
    (nest,) = look_up(reduction().kernel, database=store, **options).nests
    return nest


def test_a_recipe_from_elsewhere_is_verified_once(kept, no_process, monkeypatch):
    """The first look-up verifies it, later ones and those of other processes know; with
    another version of anything it is verified again.
    """
    example = reduction()
    store = given(fact_of(example, environment=elsewhere()))
    first = found(store)
    assert first.judgement.startswith("verified on this machine at 20")
    assert kept.info().n_entries == 1
    assert_right(example, retrieved(example.kernel, database=store))
    no_process()
    assert found(store).judgement == first.judgement
    monkeypatch.setattr(installation, "_versions", lambda: ("newer",))
    again = found(store)
    assert again.applied is None
    assert "trial-crashed" in again.why_unchanged


def test_the_same_for_other_extents_and_for_another_device(no_process):
    """Every level below exact is verified, a generic recipe as well."""
    no_process()
    device = replace(here().device, name="another")
    near = fact_of(reduction(), environment=elsewhere(device=device))
    assert "trial-crashed" in found(given(near)).why_unchanged
    generic = found(given(), policy="loose")
    assert generic.match.level == Level.GENERIC
    assert "it failed (trial-crashed)" in generic.why_unchanged


def test_what_was_measured_here_is_not_verified_again(no_process):
    """An exact fact, recorded with the versions of now, needs no process."""
    no_process()
    store = given(fact_of(reduction()))
    assert found(store).judgement == "verified where it was measured, which is here"
    software = {**here().software, "loopy": "1999.1"}
    older = given(fact_of(reduction(), environment=elsewhere(software=software)))
    assert found(older).match.level == Level.EXACT
    assert found(older).applied is None


def test_off_is_off(no_process, monkeypatch):
    """By argument or by variable nothing is verified; the argument goes first."""
    no_process()
    store = given(fact_of(reduction(), environment=elsewhere()))
    words = "not verified on this machine: verification is off"
    assert found(store, verify=False).judgement == words
    monkeypatch.setenv(trust.VERIFY_VARIABLE, "off")
    assert found(store).judgement == words
    assert found(store, verify=True).applied is None


def test_a_kept_kernel_that_was_not_verified_is_not_given_to_those_who_verify(
    no_process,
):
    """The switch is a part of what a retrieval is known by."""
    example = reduction()
    store = given(fact_of(example, environment=elsewhere()))
    assert retrieved(example.kernel, database=store, verify=False) != example.kernel
    no_process()
    assert "trial-crashed" in why_unchanged(example.kernel, database=store)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("odd_drop_last", "wrong-result"),
        ("odd_segfaults", "trial-crashed): its process ended with SIGSEGV"),
        ("odd_exits", "famous last words"),
    ],
)
@pytest.mark.usefixtures("odd")
def test_a_recipe_that_fails_is_passed_over(name, words):
    """A wrong or crashing recipe harms nobody: the next candidate is taken."""
    einsum = odd_einsum()
    bad = fact(einsum, odd_spec(name), speedup=99.0, environment=elsewhere())
    good = fact(einsum, odd_spec("odd_right"), speedup=2.0)
    kernel = generate_loopy(einsum)
    alone = look_up(kernel, database=given(bad))
    assert alone.t_unit is kernel
    assert words in alone.nests[0].why_unchanged
    both = look_up(kernel, database=given(bad, good))
    assert both.nests[0].applied == good.spec


@pytest.mark.usefixtures("odd")
def test_a_recipe_that_hangs_is_stopped(monkeypatch):
    """After the time limit the process and all that it started are ended."""
    monkeypatch.setattr(trust, "LIMIT_S", 1.0)
    hanging = fact(odd_einsum(), odd_spec("odd_sleeps"), environment=elsewhere())
    (nest,) = look_up(generate_loopy(odd_einsum()), database=given(hanging)).nests
    assert "no answer within 1 s" in nest.why_unchanged


def test_a_recipe_that_wants_too_much_memory_is_passed_over(monkeypatch):
    """The process may take so much and no more."""
    monkeypatch.setattr(trust, "MEMORY_BYTES", 2**24)
    store = given(fact_of(reduction(), environment=elsewhere()))
    assert found(store).applied is None


def test_without_time_the_rest_is_passed_over(no_process, monkeypatch):
    """One retrieval spends no more than its budget."""
    no_process()
    monkeypatch.setattr(trust, "BUDGET_S", 0.0)
    store = given(fact_of(reduction(), environment=elsewhere()))
    assert "verifying others took all" in found(store).why_unchanged


@pytest.mark.parametrize("age", [timedelta(hours=1), timedelta(days=2)])
@pytest.mark.parametrize("code", ["trial-timeout", "wrong-result", "ok"])
def test_what_may_pass_is_forgotten_after_a_day(kept, no_process, code, age):
    """A time-out may be the fault of the hour; a wrong result is not."""
    no_process()
    store = given(fact_of(reduction(), environment=elsewhere()))
    found(store)
    (path,) = kept.folder.glob("*.entry")
    key = path.name.removesuffix(".entry")
    stamp = (datetime.now(UTC) - age).isoformat(timespec="seconds")
    kept.write(key, to_json(Verdict(code, "as found", stamp)).encode())
    no_process()
    words = found(store).why_unchanged if code != "ok" else found(store).judgement
    is_forgotten = code == "trial-timeout" and age > timedelta(days=1)
    assert (stamp in words) != is_forgotten


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80pickle", b'{"code": "ok", '])
def test_a_damaged_memory_is_no_memory(kept, no_process, content):
    """What does not read as a verdict is found out anew."""
    no_process()
    store = given(fact_of(reduction(), environment=elsewhere()))
    found(store)
    (path,) = kept.folder.glob("*.entry")
    kept.write(path.name.removesuffix(".entry"), content)
    no_process()
    assert "trial-crashed" in found(store).why_unchanged
    (path,) = kept.folder.glob("*.entry")
    known = kept.read(path.name.removesuffix(".entry"))
    assert from_json(Verdict, known).code == "trial-crashed"


@pytest.mark.usefixtures("odd")
def test_a_recipe_of_others_is_remembered_by_this_process_alone(kept):
    """Their source may change under one name and version."""
    good = fact(odd_einsum(), odd_spec("odd_right"), environment=elsewhere())
    (nest,) = look_up(generate_loopy(odd_einsum()), database=given(good)).nests
    assert nest.judgement.startswith("verified on this machine")
    assert kept.info().n_entries == 0
    assert len(remembered(trust._Verdicts)) == 1


def test_a_loose_policy_has_a_recipe_for_everything(monkeypatch):
    """Where nothing was measured the family for every einsum serves, and says so; not
    if it is known to be of no use.
    """
    monkeypatch.setenv(trust.VERIFY_VARIABLE, "off")
    example = reduction()
    loose = found(given(), policy="loose")
    assert (loose.match.level, loose.match.ranking) == (Level.GENERIC, ())
    assert loose.applied.name == "generic"
    assert "was not measured" in loose.match.reason
    assert query(example.einsum, database=given(), policy="loose") == loose.match
    assert found(given()).match.level == Level.MISS
    slow = fact(example.einsum, loose.applied, speedup=0.5)
    assert found(given(slow), policy="loose").applied is None
    assert_right(example, retrieved(example.kernel, database=given(), policy="loose"))


PROGRAM = """
import sys
from feinsum.records import TuningRecord, best_match, from_json
from random import Random

lines = sys.stdin.read().splitlines()
Random(int(sys.argv[1])).shuffle(lines)
records = [from_json(TuningRecord, line) for line in lines]
match = best_match(records, records[0].environment, extents={"a text": {"N": 300}})
print(match.record.id, match.level, match.distance)
"""


def test_sixteen_processes_have_one_answer():
    """Whatever the order of the rows and of the sets of each."""
    from tests.strategies import make_record

    base = [
        make_record((0.2 + k / 100, 0.3, 0.4), spec=f"a@1(block={2**k}, lanes={9 - k})")
        for k in range(8)
    ]
    lines = "\n".join(map(to_json, base))
    command = [sys.executable, "-c", PROGRAM]
    children = [
        subprocess.Popen(
            [*command, str(seed)],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            cwd=Path(ROOT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(16)
    ]
    answers = {child.communicate(lines)[0] for child in children}
    assert len(answers) == 1
    assert "exact" in answers.pop()
