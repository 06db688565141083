"""Trials in processes of their own: nothing that they do harms the tuner."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from feinsum.errors import MeasurementError
from feinsum.measure import open_device
from feinsum.records import to_json
from feinsum.tuning import IsolatedBench, make_problem
from feinsum.tuning.bench import lock_device, lock_file
from feinsum.tuning.trials import TrialRequest
from tests.tune.conftest import living_in_session
from tests.tune.odd_transforms import TUNED_SIZE, odd_einsum, odd_spec

PATIENT_S = 120.0


@pytest.fixture(scope="module")
def bench() -> Iterator[IsolatedBench]:
    """One bench for all tests; each must leave it fit for the next."""
    problem = make_problem(odd_einsum(), {"N": TUNED_SIZE})
    with IsolatedBench(problem, PATIENT_S) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("odd_double", "wrong-result", "expected"),
        ("odd_exits", "trial-crashed", "code 3: famous last words"),
        ("odd_segfaults", "trial-crashed", "SIGSEGV"),
        ("odd_sleeps", "trial-timeout", "trial limit of 1 s"),
        ("odd_loses_device", "device-lost", "the device is lost"),
    ],
)
def test_a_bad_trial_is_an_outcome_and_the_next_one_works(bench, name, status, words):
    """A wrong, crashed or hanging trial has a status and words; the next is timed."""
    bench.time_limit_s = 1.0 if name == "odd_sleeps" else PATIENT_S
    bench.start()
    session = bench._worker.pid
    bad = bench.trial(odd_spec(name))
    assert (bad.status, bad.measurement) == (status, None)
    assert words in bad.message
    bench.time_limit_s = PATIENT_S
    good = bench.trial(odd_spec("odd_right"))
    assert good.is_ok, good.message
    if status != "wrong-result":
        assert living_in_session(session) == []


def test_a_process_killed_between_trials_is_an_outcome(bench):
    """A process that dies while nobody asks it is a crash, never a broken pipe."""
    bench.start()
    os.kill(bench._worker.pid, signal.SIGKILL)
    bench._worker._process.wait()
    outcome = bench.trial(odd_spec("odd_right"))
    assert outcome.status == "trial-crashed"
    assert "SIGKILL" in outcome.message


def test_the_end_of_the_tuner_ends_a_hanging_trial(bench):
    """If the tuner vanishes, a trial that hangs ends too, with all it started."""
    bench.start()
    session = bench._worker.pid
    request = TrialRequest(specs=(odd_spec("odd_sleeps"),))
    bench._worker._socket.sendall(to_json(request).encode() + b"\n")
    bench._worker._socket.close()  # as the system does for a tuner that vanishes
    deadline = time.monotonic() + PATIENT_S
    while living_in_session(session) and time.monotonic() < deadline:
        time.sleep(0.05)  # what was killed takes a moment to end
    assert living_in_session(session) == []
    bench.close()


def test_closing_leaves_no_process_and_no_folder():
    """After the end, by an error too, neither process nor cache is left."""
    problem = make_problem(odd_einsum(), {"N": TUNED_SIZE})
    bench = IsolatedBench(problem)
    session, folder = None, None

    def work():
        nonlocal session, folder
        with bench:
            bench.start()
            session, folder = bench._worker.pid, Path(bench._worker.folder)
            assert folder.is_dir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert not folder.exists()
    assert living_in_session(session) == []
    bench.close()


def test_a_problem_that_cannot_be_set_up_is_an_error():
    """No device, no trials: the error of the device, and nothing left behind."""
    problem = make_problem(odd_einsum(), {"N": TUNED_SIZE}, device="Cray-1")
    with (
        IsolatedBench(problem) as bench,
        pytest.raises(MeasurementError, match="Cray-1") as caught,
    ):
        bench.start()
    assert caught.value.code == "device-unavailable"
    assert bench._worker is None


LIMIT_S = 20.0


def test_a_turn_begins_when_the_one_before_has_ended(tmp_path):
    """Who must wait says so before and after; who need not says nothing."""
    path, seen, is_waiting = tmp_path / "lock", [], Event()

    def say(is_waiting_now):
        seen.append(f"second {'waits' if is_waiting_now else 'goes on'}")
        is_waiting.set()

    def second():
        with lock_device(path, say):
            seen.append("second")

    thread = Thread(target=second)
    with lock_device(path, seen.append):
        thread.start()
        assert is_waiting.wait(60)
        seen.append("first ends")
    thread.join()
    assert seen == ["second waits", "first ends", "second goes on", "second"]


def test_a_turn_ends_with_its_body_by_an_error_too(tmp_path):
    """The next one does not wait."""
    seen = []
    with (
        pytest.raises(ZeroDivisionError),
        lock_device(tmp_path / "lock", seen.append),
    ):
        1 / 0  # noqa: B018
    with lock_device(tmp_path / "lock", seen.append):
        assert seen == []


def test_a_file_that_is_a_link_is_refused(tmp_path):
    """Whoever else writes to the temporary folder cannot choose what is opened."""
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(MeasurementError, match="cannot lock the device"),
        lock_device(tmp_path / "lock", print),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_device_has_one_file_of_this_user(monkeypatch, tmp_path):
    """In the temporary folder, named after the user and the device."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = lock_file(open_device())
    assert path.parent == tmp_path
    assert path == lock_file(open_device())
    assert path.name.startswith(
        f"feinsum-{os.geteuid()}-{open_device().device.id[:16]}"
    )


@pytest.mark.long
def test_a_wait_for_the_device_is_not_counted(monkeypatch, tmp_path):
    """A trial whose turn comes after its time limit is timed all the same."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    problem = make_problem(odd_einsum(50))
    outcomes = []
    with IsolatedBench(problem, LIMIT_S, is_shared=True) as bench:
        bench.start()
        trial = Thread(
            target=lambda: outcomes.append(bench.trial(odd_spec("odd_right")))
        )
        with lock_device(lock_file(open_device()), print):
            trial.start()
            trial.join(LIMIT_S + 2)
            assert outcomes == []
        trial.join()
    assert [outcome.status for outcome in outcomes] == ["ok"]
