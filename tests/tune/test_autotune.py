"""Tuning: what is right and fast is recorded, and nothing else ever is."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from feinsum.calling import tune
from feinsum.canonical import canonicalize
from feinsum.codegen import generate_loopy
from feinsum.db import open_store
from feinsum.errors import (
    BuildError,
    FeinsumError,
    InvalidEinsumError,
    InvalidParameterError,
    InvalidRecordError,
    NotAnEinsumError,
    StoreUnavailableError,
    TransformError,
    UnknownTransformError,
    WrongResultError,
)
from feinsum.ir import array, einsum
from feinsum.measure import open_device
from feinsum.measure.cases import make_ragged_cases
from feinsum.processes import Worker
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.tuning import make_problem, record_facts, tune_einsum
from tests.db.conftest import unprivileged
from tests.db.factories import make_record
from tests.tune.conftest import living_in_session
from tests.tune.odd_transforms import (
    COUNTER,
    TUNED_SIZE,
    odd_einsum,
    odd_spec,
)

SIZES = {"N": TUNED_SIZE}
LITERAL = odd_einsum(50)
"""No transform of the library but the generic one fits it: its output is short."""

pytestmark = pytest.mark.filterwarnings(  # Loopy's own use of islpy
    "ignore:.*with implicit conversion:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def trials(monkeypatch):
    """The processes and folders of all trials; none of them outlives a test."""
    seen = []
    before = psutil.Process().children(recursive=True)
    start = Worker.isolated

    def spy(*arguments):
        worker = start(*arguments)
        seen.append((worker.pid, Path(worker.folder)))
        return worker

    monkeypatch.setattr(Worker, "isolated", spy)
    yield seen
    for pid, folder in seen:
        assert not folder.exists()
        assert living_in_session(pid) == []
    assert set(psutil.Process().children(recursive=True)) <= set(before)


@pytest.fixture
def no_trials(monkeypatch):
    """Fails a test that starts a process."""

    def refuse(*_):
        raise AssertionError("a trial was started")

    monkeypatch.setattr(Worker, "isolated", refuse)


class Watch:
    """Keeps what is said on the way."""

    def __init__(self, after=None):
        self.seen = []
        self.after = after

    def __call__(self, progress):
        self.seen.append(progress)
        if self.after is not None:
            self.after(progress)


def test_only_bad_candidates_record_nothing(registered, tmp_path, caplog):
    """Wrong, broken and crashing recipes leave the facts alone, and it is said."""
    registered(*("odd_double", "odd_exits", "odd_raises", "odd_unbuildable"))
    with open_store(tmp_path / "facts.sqlite") as store:
        known = make_record(workload=canonicalize(LITERAL).key)
        store.add(known)
        with caplog.at_level(logging.WARNING, "feinsum.tuning"):
            report = tune_einsum(LITERAL, database=store, n_trials=4)
        assert tuple(store.records()) == (known,)
    assert report.records == ()
    assert [(o.spec.name, o.status) for o in report.trials] == [
        ("odd_double", "wrong-result"),
        ("odd_exits", "trial-crashed"),
        ("odd_raises", "transform-failed"),
        ("odd_unbuildable", "build-failed"),
    ]
    assert not any(outcome.is_ok for outcome in report.trials)
    assert all(outcome.message for outcome in report.trials)
    assert "nothing was recorded: none of 4 trials passed" in caplog.text


def test_what_is_wrong_at_other_sizes_is_not_recorded(registered, caplog, tmp_path):
    """It passes its trial and drops out of the finals; the next best one is kept."""
    registered("odd_crooked", "odd_right")
    with open_store(tmp_path / "facts.sqlite") as store:
        report = tune_einsum(LITERAL, database=store, n_trials=2)
        assert [fact.spec.name for fact in store.records()] == ["odd_right"]
    assert all(trial.is_ok for trial in report.trials)
    assert "not recorded: odd_crooked" in caplog.text
    assert "at the run-time sizes" in caplog.text


def test_what_is_right_is_recorded(registered, tmp_path):
    """Among wrong recipes the right ones are recorded, the fastest first."""
    registered("odd_drop_last", "odd_right")
    watch = Watch()
    path = tmp_path / "facts.sqlite"
    report = tune_einsum(LITERAL, database=path, n_trials=50, on_progress=watch)
    assert {o.spec for o in report.trials if o.is_ok} == {
        odd_spec("odd_right", 4),
        odd_spec("odd_right", 8),
    }
    with open_store(path) as store:
        assert set(store.records()) == set(report.records)
    assert {record.spec.name for record in report.records} == {"odd_right"}
    assert [f.spec for f in report.finalists] == [r.spec for r in report.records]
    ratios = [finalist.ratio for finalist in report.finalists]
    assert ratios == sorted(ratios)
    assert len({record.measurement.baseline_s for record in report.records}) == 1
    # four configurations exist, however many were asked for
    assert [(p.n_done, p.n_trials) for p in watch.seen] == [
        (k, 4) for k in (1, 2, 3, 4)
    ]
    assert tuple(p.trial for p in watch.seen) == report.trials
    good = [o for o in report.trials if o.is_ok]
    assert watch.seen[-1].best == min(good, key=lambda o: o.cost)


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_exact_einsums_are_tuned(dtype):
    """Their tolerance is 0, and facts about them can be recorded."""
    left, right = array("A", ("n", 4), dtype), array("B", (4, 5), dtype)
    store = InMemoryStore()
    report = tune(
        einsum("ij,jk->ik", left, right), sizes={"n": 5000}, n_trials=1, database=store
    )
    (record,) = store.records()
    assert report.records == (record,)
    assert record.measurement.verification.tolerance == 0


def test_an_interrupt_between_trials_keeps_what_was_found(registered):
    """The best so far is compared and recorded, then the interrupt goes on."""
    registered("odd_right")
    store = InMemoryStore()

    def end(progress):
        raise KeyboardInterrupt

    reports = []
    with pytest.raises(KeyboardInterrupt):
        tune_einsum(LITERAL, database=store, on_progress=end, on_stop=reports.append)
    (record,) = store.records()
    assert record.spec.name == "odd_right"
    (report,) = reports
    assert (report.records, len(report.trials)) == ((record,), 1)
    assert [finalist.spec for finalist in report.finalists] == [record.spec]
    assert report.environment == record.environment
    assert len(record.measurement.baseline_s) >= 20


def test_an_interrupt_of_a_trial_keeps_what_was_found(registered, trials):
    """Control-C while a trial hangs: the facts before it are compared and recorded."""
    registered("odd_right", "odd_sleeps")
    store = InMemoryStore()
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    watch = Watch(lambda _: interrupt.start())
    with pytest.raises(KeyboardInterrupt):
        tune_einsum(LITERAL, database=store, strategy="exhaustive", on_progress=watch)
    interrupt.join()
    assert len(watch.seen) == 1
    assert [record.spec.name for record in store.records()] == ["odd_right"]
    assert len(trials) == 2


@pytest.mark.usefixtures("trials_here")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize(("name", "n_facts"), [("odd_right", 1), ("odd_double", 0)])
def test_an_error_of_the_caller_keeps_what_was_found(registered, error, name, n_facts):
    """What ``on_progress`` raises goes on, after the best so far, if any, is kept."""
    registered(name)
    store = InMemoryStore()

    def stop(progress):
        raise error

    with pytest.raises(error):
        tune_einsum(LITERAL, database=store, on_progress=stop)
    assert [record.spec.name for record in store.records()] == [name] * n_facts


@pytest.mark.usefixtures("trials_here")
def test_a_stop_after_the_trials_has_them_in_the_report(registered):
    """Also where the finals were not recorded any more."""
    registered("odd_right")
    reports = []
    with pytest.raises(ZeroDivisionError):
        tune_einsum(
            LITERAL,
            database=InMemoryStore(),
            on_final=lambda _: 1 / 0,
            on_stop=reports.append,
        )
    (report,) = reports
    assert (len(report.trials), len(report.finalists)) == (2, 2)
    assert report.records == ()


@pytest.mark.usefixtures("trials_here")
def test_a_spent_budget_keeps_what_was_found(registered):
    """With no time left, one trial is made, and recorded."""
    registered("odd_right")
    store = InMemoryStore()
    report = tune_einsum(LITERAL, database=store, budget_s=0.0)
    assert len(report.trials) == 1
    assert tuple(store.records()) == report.records
    assert len(report.records) == 1


def test_a_finalist_that_fails_spoils_no_other(
    registered, monkeypatch, tmp_path, caplog
):
    """A recipe that fails when it is compared is left out; the others are recorded.

    It is built anew there, since the last trial ended the process.
    """
    registered("odd_right", "odd_tires", "odd_vanishes")
    monkeypatch.setenv(COUNTER, str(tmp_path / "counter"))
    store = InMemoryStore()
    with caplog.at_level(logging.WARNING, "feinsum.tuning"):
        report = tune_einsum(LITERAL, database=store, strategy="exhaustive", n_trials=3)
    assert [o.is_ok for o in report.trials] == [True, True, False]
    assert {record.spec.name for record in store.records()} == {"odd_right"}
    assert len(report.records) == 1
    assert "not recorded: odd_tires@1" in caplog.text


@pytest.mark.parametrize("is_open", [False, True])
def test_an_unwritable_database_fails_before_any_trial(
    tmp_path, registered, no_trials, is_open
):
    """What cannot be recorded is not searched for."""
    registered("odd_right")
    path = tmp_path / "facts.sqlite"
    open_store(path).close()
    with open_store(path, is_read_only=True) as store:
        database = store if is_open else f"sqlite:///file:{path}?mode=ro"
        with pytest.raises(StoreUnavailableError, match="read-only"):
            tune_einsum(LITERAL, database=database)
        with pytest.raises(StoreUnavailableError, match="read-only"):
            record_facts(LITERAL, odd_spec("odd_right"), database=database)


def test_a_database_without_permission_fails_before_any_trial(
    public_folder, registered, no_trials, tmp_path
):
    """Permission bits count as much as a wish; so does a file that is no database."""
    registered("odd_right")
    path = public_folder / "facts.sqlite"
    open_store(path).close()
    public_folder.chmod(0o555)
    path.chmod(0o444)
    with unprivileged(), pytest.raises(StoreUnavailableError):
        tune_einsum(LITERAL, database=path)
    (tmp_path / "garbage").write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreUnavailableError, match="is not an SQLite database"):
        tune_einsum(LITERAL, database=tmp_path / "garbage")


def test_what_cannot_be_tuned_is_refused(no_trials):
    """No transform, einsum, size, strategy, or trial: an error before any trial."""
    store = InMemoryStore()
    tiny = einsum("ij->ij", array("A", (3, 3)))
    with pytest.raises(TransformError, match="no registered transform fits"):
        tune_einsum(tiny, database=store)
    with pytest.raises(InvalidEinsumError, match="expected positive values"):
        tune_einsum(odd_einsum(), sizes={"M": 3}, database=store)
    with pytest.raises(FeinsumError, match="strategy is 'none'"):
        tune_einsum(odd_einsum(), strategy="none", database=store)
    for n_trials in (0, -1, "3", 2.5):
        with pytest.raises(FeinsumError, match="n_trials"):
            tune_einsum(odd_einsum(), database=store, n_trials=n_trials)
    kernel = generate_loopy(odd_einsum())
    twice = kernel.with_kernel(
        kernel.default_entrypoint.copy(
            instructions=[
                insn.copy(expression=insn.expression**2)
                for insn in kernel.default_entrypoint.instructions
            ]
        )
    )
    with pytest.raises(NotAnEinsumError):
        tune_einsum(twice, database=store)


@pytest.mark.usefixtures("trials_here")
def test_a_kernel_is_tuned_as_the_einsum_that_it_is(registered, tmp_path):
    """A kernel and its einsum share their facts; a missing device is an error."""
    registered("odd_right")
    store = InMemoryStore()
    report = tune_einsum(generate_loopy(LITERAL), database=store, n_trials=1)
    assert report.problem == make_problem(LITERAL)
    assert {r.workload for r in report.records} == {canonicalize(LITERAL).key}
    with pytest.raises(FeinsumError, match="Cray-1"):
        tune_einsum(LITERAL, device="Cray-1", database=store)


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ("rowise@1(index='a', block=8)", UnknownTransformError, "mean rowwise@1"),
        ("odd_right@1(size=5)", InvalidParameterError, "outside its space"),
        ("odd_right@1()", InvalidParameterError, "expected the parameters"),
        ("odd_right(size=4)", InvalidRecordError, "expected name@version"),
    ],
)
def test_a_bad_spec_is_refused(registered, no_trials, spec, kind, words):
    """An unknown transform, or parameters outside its space: an error at once."""
    registered("odd_right")
    with pytest.raises(kind, match=words):
        record_facts(odd_einsum(), spec, sizes=SIZES, database=InMemoryStore())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("odd_double", WrongResultError),
        ("odd_raises", TransformError),
        ("odd_unbuildable", BuildError),
    ],
)
@pytest.mark.usefixtures("trials_here")
def test_a_failing_recipe_is_no_fact(registered, name, kind):
    """A failing trial is the error of its code, names it once, records nothing."""
    registered(name)
    store = InMemoryStore()
    with pytest.raises(kind, match=f"{name}@1") as caught:
        record_facts(odd_einsum(), odd_spec(name), sizes=SIZES, database=store)
    assert type(caught.value) is kind
    assert str(caught.value).count(f"{odd_spec(name)}") == 1
    assert len(store) == 0


def test_a_fact_reads_back_with_everything(registered, tmp_path):
    """What is recorded says what ran where, how it was verified, and how fast."""
    registered("odd_right")
    path = tmp_path / "facts.sqlite"
    spec = str(odd_spec("odd_right", 8))
    record = record_facts(odd_einsum(), spec, sizes=SIZES, database=path)
    with open_store(path) as store:
        assert store.get(record.id) == record
        assert tuple(store.query(canonicalize(odd_einsum()).key)) == (record,)
    measured = record.measurement
    (size,) = canonicalize(odd_einsum()).relabeling.size_params.values()
    _, ragged = make_ragged_cases(canonicalize(odd_einsum()).einsum)
    assert record.spec == TransformSpec.parse(spec)
    assert record.workload_text == canonicalize(odd_einsum()).text
    assert min(len(measured.samples_s), len(measured.baseline_s)) >= 20
    assert measured.sizes == {size: TUNED_SIZE}
    assert measured.verification.sizes == ({size: TUNED_SIZE}, *ragged)
    assert measured.verification.largest_error <= measured.verification.tolerance
    here = open_device().environment(record.environment.policy)
    assert record.environment == here
    assert record.provenance == {"recorded_by": "feinsum.tune", "strategy": "given"}
