"""Trials are kept as they end; what is known is never tried again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from feinsum import query
from feinsum.db import open_store
from feinsum.db.exchange.rekeying import rekey
from feinsum.measure import open_device
from feinsum.records import InMemoryStore, MatchLevel
from feinsum.tuning import IsolatedBench, TrialOutcome, make_problem, tune_einsum
from feinsum.tuning.recording import find_trials, make_trial
from feinsum.tuning.search import ConfigurationSearch
from feinsum.tuning.tuning import Session
from tests.db.factories import make_environment, make_measurement
from tests.older import older_key
from tests.tune.bench_here import BenchHere
from tests.tune.odd_transforms import odd_einsum, odd_spec

LITERAL = odd_einsum(50)
RESPELLED = "b a, a -> b | A0[50,13]:<f8 A1[13]:<f8 | A0 A1"
PATIENCE_S = 300.0

TUNES_AND_HANGS = """
import sys, time
from feinsum.transforms import REGISTRY
from feinsum.tuning import tune_einsum
from tests.tune.odd_transforms import odd_einsum

for name, version in [*REGISTRY]:
    if name not in ("odd_double", "odd_right"):
        del REGISTRY[name, version]

def hang(progress):
    if progress.n_done == 2:
        time.sleep(3600)

path = sys.argv[1]
tune_einsum(odd_einsum(50), database=path, strategy="exhaustive", on_progress=hang)
"""

pytestmark = pytest.mark.filterwarnings(  # Loopy's own use of islpy
    "ignore:.*with implicit conversion:DeprecationWarning"
)


def environment():
    """The environment in which a bench here would measure."""
    return open_device().environment({"rounds": 20, "warmup": 3, "max_total_s": 3.0})


def trial_of(name, size, status="ok", cost=0.5, problem=None, where=None):
    measured = make_measurement() if status == "ok" else None
    outcome = TrialOutcome(odd_spec(name, size), status, "", measured)
    known = cost if status == "ok" else None
    return make_trial(
        problem or make_problem(LITERAL), where or environment(), outcome, known
    )


def specs_of(trials):
    return [trial.spec for trial in trials]


def wait_for_trials(path, n, process):
    """The trials in a database, when there are that many."""
    key = make_problem(LITERAL).form.key
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        with open_store(path) as store:
            if len(trials := store.trials(key)) >= n:
                return trials
        time.sleep(0.2)
    raise AssertionError(f"no {n} trials; exit code {process.poll()}")


@pytest.mark.usefixtures("trials_here")
def test_a_killed_tuning_goes_on(registered, tmp_path):
    """After SIGKILL nothing is lost, nothing is tried twice, and the best is a fact."""
    registered("odd_double", "odd_right")
    path = tmp_path / "facts.sqlite"
    with subprocess.Popen([sys.executable, "-c", TUNES_AND_HANGS, str(path)]) as killed:
        before = wait_for_trials(path, 2, killed)
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
    assert [t.status for t in before] == ["wrong-result", "ok"]
    report = tune_einsum(LITERAL, database=path, strategy="exhaustive")
    assert report.trials[: report.n_known] == before
    assert len(specs_of(report.trials)) == len(set(specs_of(report.trials))) == 4
    right = {odd_spec("odd_right", 4), odd_spec("odd_right", 8)}
    assert {f.spec for f in report.finalists} == right
    with open_store(path) as store:
        assert store.trials(report.problem.form.key) == report.trials
        assert set(store.records()) == set(report.records)


@pytest.fixture
def no_trial(monkeypatch, trials_here):
    """Fails a test that tries a recipe; comparisons are allowed."""

    def refuse(bench, spec, reference=None):
        raise AssertionError(f"{spec} was tried")

    monkeypatch.setattr(BenchHere, "trial", refuse)


@pytest.mark.usefixtures("no_trial")
def test_what_is_known_is_not_tried_again(registered):
    """Neither what passed nor what failed, a timeout included; the best are facts."""
    registered("odd_right", "odd_sleeps")
    store = InMemoryStore()
    for size in (4, 8):
        store.add(trial_of("odd_right", size))
        store.add(trial_of("odd_sleeps", size, "trial-timeout"))
    report = tune_einsum(LITERAL, database=store)
    assert report.n_known == len(report.trials) == 4
    assert {record.spec.name for record in report.records} == {"odd_right"}


@pytest.mark.usefixtures("no_trial")
def test_known_trials_count(registered):
    """A wish for as many trials as are known already is met."""
    registered("odd_right")
    store = InMemoryStore()
    store.add(trial_of("odd_right", 8))
    report = tune_einsum(LITERAL, database=store, n_trials=1)
    assert specs_of(report.trials) == [odd_spec("odd_right", 8)]


@pytest.mark.usefixtures("trials_here")
def test_a_fresh_tuning_tries_everything(registered):
    """With ``resume=False`` what is known counts for nothing, and is kept."""
    registered("odd_right")
    store = InMemoryStore()
    for size in (4, 8):
        store.add(trial_of("odd_right", size, "trial-crashed"))
    report = tune_einsum(LITERAL, database=store, resume=False)
    assert report.n_known == 0
    assert [trial.status for trial in report.trials] == ["ok", "ok"]
    assert len(store.trials(report.problem.form.key)) == 4
    assert find_trials(store, report.problem, report.environment) == list(report.trials)


def test_only_trials_of_this_problem_and_machine_are_known():
    """Other sizes, devices, drivers and texts are other trials; the latest counts."""
    problem, here = make_problem(odd_einsum(), {"N": 64}), environment()
    store = InMemoryStore()
    others = [
        trial_of("odd_right", 4, problem=make_problem(odd_einsum(), {"N": 65})),
        trial_of("odd_right", 4, problem=problem, where=make_environment()),
        trial_of(
            "odd_right", 4, problem=problem, where=replace(here, driver_version="0")
        ),
        replace(trial_of("odd_right", 4, problem=problem), workload_text="another"),
    ]
    old = trial_of("odd_right", 8, "trial-crashed", problem=problem)
    new = trial_of("odd_right", 8, problem=problem)
    for trial in (*others, old, new):
        assert store.add(trial)
    assert find_trials(store, problem, replace(here, policy={})) == [new]


def test_a_failed_trial_is_never_served():
    """Nor is one that passed: a look-up knows facts alone."""
    store = InMemoryStore()
    store.add(trial_of("odd_right", 4, cost=0.01))
    store.add(trial_of("odd_right", 8, "wrong-result"))
    assert query(LITERAL, database=store, policy="loose").level == MatchLevel.MISS


def test_a_long_message_is_cut():
    """What a compiler says is kept to a length."""
    outcome = TrialOutcome(odd_spec("odd_right"), "build-failed", "x" * 10**6)
    trial = make_trial(make_problem(LITERAL), environment(), outcome, None)
    assert len(trial.message) == 2000
    assert InMemoryStore().add(trial)


class ScriptedBench:
    """Stands in for a bench whose machine slows down by a half with every trial."""

    problem = make_problem(LITERAL)

    def __init__(self, truth):
        self.truth, self.load, self.references = truth, 1.0, []

    def start(self):
        return environment()

    outcomes = IsolatedBench.outcomes

    def trial(self, spec, reference=None):
        self.load *= 1.5
        self.references.append(reference)
        seconds = self.truth[spec] * self.load
        ratio = seconds / (self.truth.get(reference, 1.0) * self.load)
        measured = make_measurement(seconds)
        return TrialOutcome(spec, "ok", "", measured, ratio, reference)


class PairBench(ScriptedBench):
    """One with two machines; of two trials the one that began last ends first."""

    def outcomes(self, ask):
        pending = []
        while True:
            while len(pending) < 2 and (wanted := ask()) is not None:
                pending.append(wanted)
            if not pending:
                return
            yield self.trial(*pending.pop())


COSTS = [0.5, 0.8, 0.25, 0.4, 0.1]
TRUTH = {odd_spec("odd_right", k): cost for k, cost in enumerate(COSTS)}


def session_of(bench, specs=TRUTH, n_trials=5, budget_s=None):
    """A search that has nothing to learn, on a bench that is scripted."""
    search = ConfigurationSearch([*specs])
    return Session(bench, search, InMemoryStore(), n_trials, budget_s, None)


def test_costs_are_on_one_scale_whatever_the_load():
    """The chain of ratios gives back the true ratios; the reference is the best."""
    session = session_of(bench := ScriptedBench(TRUTH), n_trials=99)
    progress = list(session.run())
    assert [t.cost for t in session.trials] == pytest.approx(COSTS)
    best = [odd_spec("odd_right", k) for k in (0, 0, 2, 2)]
    assert bench.references == [None, *best]
    assert progress[-1].best.spec == odd_spec("odd_right", 4)
    seconds = [trial.median_s for trial in session.trials]
    assert sorted(seconds) != [s for _, s in sorted(zip(COSTS, seconds, strict=True))]


def test_costs_are_on_one_scale_when_several_trials_are_under_way():
    """The reference is the best when a trial begins; the true ratios come back."""
    session = session_of(bench := PairBench(TRUTH), n_trials=4)
    assert len(list(session.run())) == 4
    assert bench.references[:2] == [None, odd_spec("odd_right", 1)]
    found = {trial.spec: trial.cost for trial in session.trials}
    assert found == pytest.approx(dict([*TRUTH.items()][:4]))


def test_what_is_pruned_is_not_tried():
    """The search is told, and asked for another one."""
    session = session_of(ScriptedBench(TRUTH), n_trials=3)
    session.is_pruned = lambda spec: spec in [*TRUTH][:2]
    list(session.run())
    assert specs_of(session.trials) == [*TRUTH][2:]


def test_a_search_that_has_nothing_else_ends():
    """However many pruned recipes it could go on to propose."""
    truth = {odd_spec("odd_right", k): 0.5 for k in range(500)}
    session = session_of(ScriptedBench(truth), truth, n_trials=9)
    session.is_pruned = lambda spec: spec != next(iter(truth))
    assert len(list(session.run())) == 1
    assert len(session.search.left) > 400


def test_a_spent_budget_begins_one_trial_however_many_machines_there_are():
    """No second one is asked for beside it."""
    assert len(list(session_of(PairBench(TRUTH), budget_s=0.0).run())) == 1


def test_trials_of_an_older_version_are_known_after_rekeying(tmp_path):
    """Where the einsum has the same text now; not before, and not by another text."""
    problem = make_problem(LITERAL)
    present = trial_of("odd_right", 4)
    store = open_store(tmp_path / "facts.sqlite")
    store.add(replace(present, workload=older_key(present.workload_text)))
    store.add(
        replace(
            trial_of("odd_right", 8),
            workload=older_key(RESPELLED),
            workload_text=RESPELLED,
        )
    )
    assert find_trials(store, problem, environment()) == []
    rekey(store)
    assert len(store.trials(problem.form.key)) == 2
    assert find_trials(store, problem, environment()) == [present]
