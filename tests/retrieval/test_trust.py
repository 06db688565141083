"""What was not measured here is verified here, once, before its first use."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import loopy as lp
import pytest

from feinsum import canonicalize, generate_loopy, query
from feinsum.cache import DiskCache
from feinsum.errors import MeasurementError
from feinsum.measure import own
from feinsum.measure.own import mark_as_own
from feinsum.measure.verdicts import Verdict
from feinsum.memory import Memory, get_remembered, use_fresh_memory, use_memory
from feinsum.records import MatchLevel, Processor, TransformSpec, from_json, to_json
from feinsum.retrieval import (
    einsum_trials,
    generating,
    identity,
    kernel_trials,
    look_up,
    matching,
    request,
    search,
    verifiers,
)
from feinsum.retrieval.result import NO_FASTER_THAN_GENERATED, NOTHING_FASTER
from feinsum.transforms import REGISTRY, find_transform, list_configurations
from feinsum.transforms.plugins import VARIABLE
from tests.docs.pages import ROOT
from tests.retrieval.facts import fact, fact_of, here
from tests.retrieval.kernels import reduction
from tests.retrieval.oracle import Oracle
from tests.retrieval.support import assert_right, given, retrieved, why_unchanged
from tests.tune import odd_transforms
from tests.tune.odd_transforms import ODD, odd_einsum, odd_spec

SLOW = MeasurementError.code
NOTHING = ("false",)
"""A command in the place of the process that verifies: no answer comes from it."""


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Iterator[DiskCache]:
    """Verification is on; what it finds is kept for this test."""
    monkeypatch.setenv(request.VERIFY_VARIABLE, "on")
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(search, "LIMIT_S", 600.0)  # however busy the machine is
    monkeypatch.setattr(search, "BUDGET_S", 3600.0)
    monkeypatch.setattr(search, "SEARCH_S", 3600.0)
    with use_fresh_memory():
        yield DiskCache(tmp_path / "cache")


@pytest.fixture
def odd(monkeypatch):
    """Odd transforms are registered, here and in the process that verifies."""
    monkeypatch.setenv(VARIABLE, odd_transforms.__name__)
    for name, transform in ODD.items():
        monkeypatch.setitem(REGISTRY, (name, 1), transform)


@pytest.fixture
def oracle(tmp_path, monkeypatch) -> Oracle:
    """In the place of the process that verifies: right, and ten times as fast."""
    made = Oracle(tmp_path, monkeypatch)
    made.says(rowwise=(1e-3, 1e-2))
    return made


@pytest.fixture
def no_process(monkeypatch):
    """From now on a process that verifies gives no answer; nothing is in memory."""

    def forbid() -> None:
        monkeypatch.setattr(verifiers, "COMMAND", NOTHING)
        use_memory(Memory())

    return forbid


def elsewhere(**changes):
    """This machine with another driver, or what else is changed."""
    return replace(here(), **(changes or {"driver_version": "another"}))


def sent():
    """A store with a recipe that was measured elsewhere."""
    return given(fact_of(reduction(), environment=elsewhere()))


def odd_fact(name, speedup=10.0, size=4, **options):
    """A fact about an odd transform."""
    return fact(odd_einsum(), odd_spec(name, size), speedup=speedup, **options)


def look_up_odd(*facts):
    """What is found for the kernel of the odd einsum with these facts."""
    return look_up(generate_loopy(odd_einsum()), database=given(*facts))


def found(store, **options):
    (nest,) = look_up(reduction().kernel, database=store, **options).nests
    return nest


def test_a_recipe_from_elsewhere_is_verified_once(
    kept, oracle, no_process, monkeypatch
):
    """The first look-up verifies it, later ones and those of other processes know; with
    another version of anything it is verified again.
    """
    example = reduction()
    store = sent()
    first = found(store)
    assert first.judgement.startswith("verified and timed on this machine at 20")
    assert (len(oracle.asked), len(oracle.compared)) == (0, 1)
    assert kept.info().n_entries > 1
    assert_right(example, retrieved(example.kernel, database=store))
    no_process()
    assert found(store).judgement == first.judgement
    monkeypatch.setattr(identity, "_list_versions", lambda: ("newer",))
    again = found(store)
    assert again.applied is None
    assert "trial-crashed" in again.why_unchanged


def test_the_same_for_other_extents_and_for_another_device(no_process, monkeypatch):
    """Every level below exact is verified, a generic recipe as well."""
    no_process()
    device = replace(here().device, name="another")
    near = fact_of(reduction(), environment=elsewhere(device=device))
    assert "trial-crashed" in found(given(near)).why_unchanged
    monkeypatch.setattr(matching, "_list_predictions", lambda *_: ())
    generic = found(given(), policy="loose", effort="estimate")
    assert generic.match.level == MatchLevel.GENERIC
    assert "(trial-crashed)" in generic.why_unchanged


def test_what_this_installation_measured_is_not_verified_again(no_process):
    """A marked fact, recorded with the versions of now, needs no process."""
    no_process()
    record = fact_of(reduction())
    mark_as_own(record.id)
    assert found(given(record)).judgement.startswith("measured by this installation")
    software = {**here().software, "loopy": "1999.1"}
    older = fact_of(reduction(), environment=elsewhere(software=software))
    mark_as_own(older.id)
    assert found(given(older)).match.level == MatchLevel.EXACT
    assert found(given(older)).applied is None


def test_an_exact_fact_that_was_sent_is_no_fact_of_this_installation(no_process):
    """Device, driver and versions can be copied; the mark cannot."""
    no_process()
    sent = fact_of(reduction())
    mark_as_own(replace(sent, recorded_at="2026-01-01T00:00:00+00:00").id)
    nest = found(given(sent))
    assert nest.match.level == MatchLevel.EXACT
    assert "trial-crashed" in nest.why_unchanged


def test_a_mark_is_of_one_machine_and_outlives_the_process(no_process, monkeypatch):
    """It is kept in the user's cache, which no sender can write."""
    no_process()
    record = fact_of(reduction())
    mark_as_own(record.id)
    with use_fresh_memory():
        assert found(given(record)).applied == record.spec
    monkeypatch.setattr(own, "get_machine_id", lambda: "another")
    with use_fresh_memory():
        assert found(given(record)).applied is None


@pytest.mark.parametrize("times", [(1e-2, 1e-3), (1e-3, 1e-3)])
@pytest.mark.usefixtures("odd")
def test_what_is_no_faster_here_is_not_served_here(oracle, times):
    """However fast it was elsewhere; the next candidate is tried."""
    slow = odd_fact("odd_slow", 1e30)
    oracle.says(odd_slow=times, odd_right=(1e-3, 2e-3))
    good = odd_fact("odd_right", 2.0)
    kernel = generate_loopy(odd_einsum())
    alone = look_up(kernel, database=given(slow))
    assert alone.t_unit is kernel
    assert NOTHING_FASTER in alone.nests[0].why_unchanged
    both = look_up(kernel, database=given(slow, good))
    assert both.nests[0].applied == good.spec
    assert oracle.asked == [str(slow.spec), str(good.spec)]


def executable(**sizes):
    """A kernel for Loopy's C executor, with literal sizes or without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of codepy
        unit = reduction().kernel.copy(target=lp.ExecutableCTarget())
    return lp.fix_parameters(unit, **sizes)


def test_a_recipe_is_used_if_it_is_faster_than_the_given_kernel(oracle):
    """Be it slower than the kernel generated for the einsum; the gain that is told is
    that over what the user has.
    """
    oracle.says(rowwise=(1e-3, 2e-4), kernels=(1e-3, 3.6e-2))
    found = look_up(executable(), database=sent())
    assert found.is_changed
    words = "gain: 36 times as fast as the given kernel (36 ms, 1 ms) at rows=131072, "
    assert f"{words}timed on this" in str(found)


def test_the_given_kernel_comes_back_if_it_was_timed_and_won(oracle):
    """However much faster the recipe is than the kernel generated for the einsum."""
    oracle.says(rowwise=(1e-3, 1e-2), kernels=(1e-3, 5e-4))
    kernel = executable()
    found = look_up(kernel, database=sent())
    assert found.t_unit is kernel
    assert NOTHING_FASTER in found.nests[0].why_unchanged
    assert "gain: " not in str(found)
    ((_, why),) = found.nests[0].failures
    assert "0.5 ms as given, 1 ms with it, timed on this machine" in why


def test_the_kernels_that_are_compared_are_those_of_the_user(oracle):
    """The given one as its target compiles it and as we do, and the one that comes
    back; on arrays of the sizes of the kernel, however short those of a trial are.
    """
    n = 200_000
    kernel = executable(rows=n)
    assert look_up(kernel, database=sent()).is_changed
    (kernels,) = oracle.compared
    assert kernels.pairs == ((0, 2), (1, 2))
    assert kernels.pool
    sizes = {name: one.n_entries for name, one in kernels.arguments.items()}
    assert sizes == {"X": 17 * n, "Y": 17 * n, "total": n}
    written = [name for name, one in kernels.arguments.items() if one.is_written]
    assert set(written) == set(kernel.default_entrypoint.get_written_variables())


def test_functions_for_others_are_compared_as_others_compile_them(oracle):
    """As one plain function each, with each set of options."""
    kernel = reduction().kernel.copy(target=lp.CTarget())
    assert look_up(kernel, database=sent(), device="host").is_changed
    (kernels,) = oracle.compared
    assert kernels.pairs == ((0, 1), (2, 3))
    names = {program.function for program in kernels.programs}
    assert names == {kernel.default_entrypoint.name}
    assert not kernels.pool


def test_a_kernel_that_lost_is_not_built_again(oracle, no_process, monkeypatch):
    """The verdict is cached for other processes: the same answer, and no work."""
    store = sent()
    oracle.says(rowwise=(1e-3, 1e-2), kernels=(1e-3, 1e-3))
    first = look_up(executable(), database=store)
    assert not first.is_changed
    no_process()
    monkeypatch.setattr(generating, "with_shelf", None)  # a step of building
    again = look_up(executable(), database=store)
    assert again.nests[0].failures == first.nests[0].failures


@pytest.mark.parametrize("is_faster", [True, False])
def test_where_the_given_kernel_cannot_be_timed_the_generated_one_decides(
    oracle, is_faster
):
    """It says so, and nothing that is slower than that is served."""
    oracle.says(rowwise=(1e-3, 1e-2 if is_faster else 1e-3), kernels="trial-crashed")
    found = look_up(executable(), database=sent())
    assert found.is_changed == is_faster
    if not is_faster:
        ((_, why),) = found.nests[0].failures
        assert why.startswith(NO_FASTER_THAN_GENERATED)
        assert "the given kernel was not timed" in why


@pytest.mark.usefixtures("odd")
def test_a_promise_that_is_not_kept_ends_no_search(oracle):
    """The others are tried as well, and the best that was seen here is taken."""
    liar = odd_fact("odd_slow", 1e9)
    good = odd_fact("odd_right", 5.0)
    oracle.says(odd_slow=(4.5e6, 5e6), odd_right=(1e6, 5e6))
    found = look_up_odd(liar, good)
    (nest,) = found.nests
    assert nest.applied == good.spec
    assert nest.judgement.endswith("; 5 times were claimed")
    assert [spec for spec, _ in nest.seen] == [liar.spec]
    assert f"  seen here {liar.spec}: verified and timed" in str(found)
    assert "the fastest of 2 timed here" in str(found)


@pytest.mark.parametrize("times", [(1e-3, 9e-3), (2e-3, 1e-3)])
def test_the_kernel_has_the_recipe_that_was_judged_to_be_the_best(oracle, times):
    """Also where it was built with another one while that was being judged."""
    example = reduction()
    form = canonicalize(example.einsum).einsum
    specs = [*islice(list_configurations(find_transform("rowwise", 1), form), 2)]
    first, second = (
        fact(example.einsum, spec, speedup=speedup)
        for spec, speedup in zip(specs, (9.0, 3.0), strict=True)
    )
    oracle.says(**{str(specs[0]): times, str(specs[1]): (1e-3, 3e-3)})
    result = look_up(example.kernel, database=given(first, second))
    is_wrong = times[0] > times[1]
    assert result.applied == (specs[is_wrong],)
    expected = look_up(example.kernel, database=given((first, second)[is_wrong]))
    assert result.t_unit == expected.t_unit
    assert_right(example, result.t_unit)


@pytest.mark.parametrize(
    ("features", "share"), [(("avx2", "avx512f"), 1 / 2), (("avx2",), 1), ((), 1)]
)
def test_a_record_made_with_longer_vectors_promises_less_here(features, share):
    """A search ends with what is about as good as the vectors of this machine allow."""
    processor = Processor("", -1, -1, -1, "", ("avx2",), 1, {})
    mine = replace(here().device, processor=processor)
    there = replace(mine, processor=replace(processor, features=features))
    assert search._compute_share(mine, there) == share
    twice = replace(there, compute_units=2 * mine.compute_units)
    assert search._compute_share(mine, twice) == share / 2
    assert search._compute_share(mine, replace(there, processor=None)) == 1


@pytest.mark.usefixtures("odd")
def test_what_is_kept_displaces_no_better_one_that_is_known(oracle):
    """A fact that arrives later and promises more is tried, and is not taken if it is
    slower here than what was seen before. What was tuned here goes before what a
    verification timed: a tuning measures at the sizes in use.
    """
    good = odd_fact("odd_right", 5.0)
    own_one = odd_fact("odd_right", 4.0, size=8)
    liar = odd_fact("odd_slow", 7.0)
    oracle.says(odd_slow=(1e-3, 4e-3), odd_right=(1e-3, 5e-3))
    kernel = generate_loopy(odd_einsum())
    assert look_up(kernel, database=given(good)).applied == (good.spec,)
    assert look_up(kernel, database=given(good, liar)).applied == (good.spec,)
    mark_as_own(own_one.id)
    everything = given(good, liar, own_one)
    assert look_up(kernel, database=everything).applied == (own_one.spec,)


@pytest.mark.usefixtures("odd")
def test_one_retrieval_tries_few_and_the_next_one_goes_on(oracle, monkeypatch):
    """What was tried is remembered; nothing is kept before all that matters is."""
    monkeypatch.setattr(search, "N_NEW", 1)
    wrong = odd_fact("odd_double", 9.0)
    good = odd_fact("odd_right", 5.0)
    oracle.says(odd_double="wrong-result", odd_right=(1e-3, 5e-3))
    kernel, store = generate_loopy(odd_einsum()), given(wrong, good)
    first = look_up(kernel, database=store)
    assert first.applied == ()
    assert not first.is_settled
    assert "1 more recipes were not tried" in first.nests[0].why_unchanged
    second = look_up(kernel, database=store)
    assert second.applied == (good.spec,)
    assert second.is_settled
    assert len(oracle.asked) == 2


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize("is_near", [True, False])
def test_a_time_near_the_least_that_is_claimed_ends_the_search(oracle, is_near):
    """The given kernel may be ahead of the one that speed-ups are over. What is no
    faster than what others claim ends no search, be it as fast as itself claims.
    """
    first = odd_fact("odd_slow", 100.0)
    quick = replace(first.measurement, samples_s=(1e-30,), baseline_s=(5e-30,))
    other = odd_fact("odd_right", 5.0)
    if not is_near:
        other = replace(other, measurement=quick)
    oracle.says(odd_slow=(1e-9, 2e-9), odd_right=(1e-9, 3e-9))
    found = look_up_odd(first, other)
    assert len(oracle.compared) == (1 if is_near else 2)
    assert found.is_settled


@pytest.mark.usefixtures("odd")
def test_after_a_while_one_that_is_faster_is_enough(oracle, monkeypatch):
    """What claims more is tried by the next retrieval; a slow one is no result."""
    monkeypatch.setattr(search, "SEARCH_S", 0.0)
    slow = odd_fact("odd_slow", 90.0)
    good = odd_fact("odd_right", 30.0)
    last = odd_fact("odd_right", 7.0, size=8)
    oracle.says(odd_slow=(2e6, 1e6), odd_right=(1e6, 2e6))
    found = look_up_odd(slow, good, last)
    assert found.applied == (good.spec,)
    assert not found.is_settled
    assert len(oracle.asked) == 2


@pytest.mark.usefixtures("odd")
def test_the_log_is_told_once_of_many_that_fail(oracle, caplog):
    """Sixty recipes of a transform that is not installed are one line, and a short
    one; none of them is in the way of the good one.
    """
    form, alien = odd_einsum(), TransformSpec("alien", 1, {"x": "x" * 100_000})
    aliens = [
        fact(form, replace(alien, version=k), speedup=100.0 + k) for k in range(1, 61)
    ]
    good = fact(form, odd_spec("odd_right"), speedup=5.0)
    oracle.says(odd_right=(1e-3, 5e-3))
    with caplog.at_level("INFO", logger="feinsum"):
        found = look_up(generate_loopy(form), database=given(*aliens, good))
    assert found.applied == (good.spec,)
    skipped = [m for m in caplog.messages if "skipped" in m]
    assert len(skipped) == 1
    assert skipped[0].startswith("skipped 60 recipes; the first one: alien")
    assert max(map(len, caplog.messages)) < 2_000


def test_off_is_off(no_process, monkeypatch):
    """By argument or by variable nothing is verified; the argument goes first."""
    no_process()
    store = sent()
    words = "not verified on this machine: verification is off"
    assert found(store, verify=False).judgement == words
    monkeypatch.setenv(request.VERIFY_VARIABLE, "off")
    assert found(store).judgement == words
    assert found(store, verify=True).applied is None


def test_a_kept_kernel_that_was_not_verified_is_not_given_to_those_who_verify(
    no_process,
):
    """The switch is a part of what a retrieval is known by."""
    example = reduction()
    store = sent()
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
def test_a_recipe_that_fails_is_skipped(name, words):
    """A wrong or crashing recipe harms nobody: the next candidate is tried."""
    einsum = odd_einsum()
    bad = fact(einsum, odd_spec(name), speedup=99.0, environment=elsewhere())
    good = fact(einsum, odd_spec("odd_right"), speedup=2.0)
    mark_as_own(good.id)
    kernel = generate_loopy(einsum)
    alone = look_up(kernel, database=given(bad))
    assert alone.t_unit is kernel
    assert words in alone.nests[0].why_unchanged
    (nest,) = look_up(kernel, database=given(bad, good)).nests
    assert nest.failures[0][0] == bad.spec
    tried = nest.applied or nest.failures[1][0]  # by its speed on this machine
    assert tried == good.spec


@pytest.mark.usefixtures("odd")
def test_a_recipe_that_hangs_is_stopped(monkeypatch):
    """After the time limit the process and all that it started are ended."""
    monkeypatch.setattr(search, "LIMIT_S", 1.0)
    hanging = odd_fact("odd_sleeps", environment=elsewhere())
    (nest,) = look_up_odd(hanging).nests
    assert "no answer within 1 s" in nest.why_unchanged


def test_a_recipe_that_wants_too_much_memory_is_skipped(monkeypatch):
    """The process may take so much and no more."""
    for module in (einsum_trials, kernel_trials):
        monkeypatch.setattr(module, "MEMORY_BYTES", 2**24)
    assert found(sent()).applied is None


def test_without_time_the_rest_is_skipped(no_process, monkeypatch):
    """One retrieval spends no more than its budget."""
    no_process()
    monkeypatch.setattr(search, "BUDGET_S", 0.0)
    assert "1 more recipes were not tried" in found(sent()).why_unchanged


def verdicts_in(kept):
    """The keys of the verdicts in a cache; its other entries are compiled kernels."""
    keys = (path.name.removesuffix(".entry") for path in kept.folder.glob("*.entry"))
    return [key for key in keys if kept.read(key).startswith(b'{"')]


@pytest.mark.parametrize(
    ("code", "age"),
    [
        ("trial-timeout", timedelta(hours=1)),
        ("trial-timeout", timedelta(days=2)),
        (SLOW, timedelta(days=2)),
        ("wrong-result", timedelta(days=2)),
        ("ok", timedelta(days=2)),
    ],
)
def test_what_may_pass_is_forgotten_after_a_day(kept, no_process, code, age):
    """A time-out may be the fault of the hour, and so may be that a recipe is slow; a
    wrong result is not.
    """
    no_process()
    store = sent()
    found(store)
    keys = verdicts_in(kept)
    assert len(keys) == 2  # of the kernel, and of its einsum
    stamp = (datetime.now(UTC) - age).isoformat(timespec="seconds")
    baseline_s = 0.0 if code == "trial-timeout" else 1.0
    verdict = Verdict(code, "as found", stamp, least_s=0.5, baseline_s=baseline_s)
    for key in keys:
        kept.write(key, to_json(verdict).encode())
    no_process()
    nest = found(store)
    words = "; ".join([*(why for _, why in nest.failures), nest.judgement])
    is_forgotten = code in ("trial-timeout", SLOW) and age > timedelta(days=1)
    assert (stamp in words) != is_forgotten


@pytest.mark.parametrize("content", [b"{}", b"\x80pickle", b'{"code": "ok", '])
def test_a_damaged_memory_is_no_memory(kept, no_process, content):
    """What does not read as a verdict is found out anew."""
    no_process()
    store = sent()
    found(store)
    keys = verdicts_in(kept)
    for key in keys:
        kept.write(key, content)
    no_process()
    assert "trial-crashed" in found(store).why_unchanged
    codes = {from_json(Verdict, kept.read(key)).code for key in keys}
    assert codes == {SLOW, "trial-crashed"}


@pytest.mark.usefixtures("odd")
def test_a_recipe_of_others_is_remembered_by_this_process_alone(kept):
    """Their source may change under one name and version."""
    good = odd_fact("odd_right", environment=elsewhere())
    (nest,) = look_up_odd(good).nests
    assert "odd_right" in str(nest.applied or nest.failures[0][0])
    assert not verdicts_in(kept)
    assert (
        len(get_remembered(verifiers._Verdicts)) == 2
    )  # on the recipe, and on the kernel with it


def test_a_loose_policy_has_a_recipe_for_everything(monkeypatch):
    """Where nothing was measured or is predicted, the family for every einsum serves,
    and says so; not if it is known to be of no use, nor if only measured recipes may be
    used.
    """
    monkeypatch.setenv(request.VERIFY_VARIABLE, "off")
    monkeypatch.setattr(matching, "_list_predictions", lambda *_: ())
    example = reduction()
    loose = found(given(), policy="loose", effort="estimate")
    assert (
        found(given(), policy="loose", effort="recorded").match.level == MatchLevel.MISS
    )
    assert (loose.match.level, loose.match.ranking) == (MatchLevel.GENERIC, ())
    assert loose.applied.name == "generic"
    assert "was not measured" in loose.match.reason
    how = {"policy": "loose", "effort": "estimate"}
    assert query(example.einsum, database=given(), **how) == loose.match
    assert found(given()).match.level == MatchLevel.MISS
    slow = fact(example.einsum, loose.applied, speedup=0.5)
    assert found(given(slow), **how).applied is None
    assert_right(example, retrieved(example.kernel, database=given(), **how))


@pytest.mark.usefixtures("odd")
def test_a_recipe_is_timed_in_the_process_that_verifies_it():
    """One that is slow beyond doubt is not served, however fast it is said to be."""
    slow = odd_fact("odd_slow", 1e30)
    (nest,) = look_up_odd(slow).nests
    assert nest.applied is None
    assert "timed on this machine" in nest.failures[0][1]


PROGRAM = """
import sys
from feinsum.records import TuningRecord, find_best_match, from_json
from random import Random

lines = sys.stdin.read().splitlines()
Random(int(sys.argv[1])).shuffle(lines)
records = [from_json(TuningRecord, line) for line in lines]
match = find_best_match(records, records[0].environment, extents={"a text": {"N": 300}})
print(match.record.id, match.level, match.distance)
"""


def test_processes_have_one_answer():
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
        for seed in range(4)
    ]
    answers = {child.communicate(lines)[0] for child in children}
    assert len(answers) == 1
    assert "exact" in answers.pop()
