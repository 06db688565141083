"""Turns on a device: one at a time, and a wait is nobody's fault."""

from __future__ import annotations

import os
from threading import Event, Thread

import pytest

from feinsum.errors import MeasurementError
from feinsum.measure import open_device
from feinsum.tuning import IsolatedBench, make_problem
from feinsum.tuning.bench import lock_file, locked_device
from tests.tune.odd_transforms import odd_einsum, odd_spec

LIMIT_S = 20.0


def test_a_turn_begins_when_the_one_before_has_ended(tmp_path):
    """Who must wait says so before and after; who need not says nothing."""
    path, seen, is_waiting = tmp_path / "lock", [], Event()

    def say(is_waiting_now):
        seen.append(f"second {'waits' if is_waiting_now else 'goes on'}")
        is_waiting.set()

    def second():
        with locked_device(path, say):
            seen.append("second")

    thread = Thread(target=second)
    with locked_device(path, seen.append):
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
        locked_device(tmp_path / "lock", seen.append),
    ):
        1 / 0  # noqa: B018
    with locked_device(tmp_path / "lock", seen.append):
        assert seen == []


def test_a_file_that_is_a_link_is_refused(tmp_path):
    """Whoever else writes to the temporary folder cannot choose what is opened."""
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(MeasurementError, match="cannot lock the device"),
        locked_device(tmp_path / "lock", print),
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
        with locked_device(lock_file(open_device()), print):
            trial.start()
            trial.join(LIMIT_S + 2)
            assert outcomes == []
        trial.join()
    assert [outcome.status for outcome in outcomes] == ["ok"]
