"""The steps that need no library of arrays, with a stand-in for the driver."""

from __future__ import annotations

import pytest

from benchmarks.gpu import smoke
from tests.targets.cuda.stand_in import needs_nvrtc, stand_in
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["stand_in"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]

WITHOUT_LIBRARIES = ("device", "retrieve", "families", "graph")


def steps(word):
    return [(name, step) for name, step in smoke.STEPS if name.startswith(word)]


@pytest.mark.parametrize("word", WITHOUT_LIBRARIES)
def test_steps_are_right_where_the_driver_is(stand_in, word):
    """They raise nothing."""
    ((_, step),) = steps(word)
    assert isinstance(step(), str)


def test_a_step_that_fails_is_told_and_the_next_is_tried(
    stand_in, monkeypatch, capsys, tmp_path
):
    """One line each; the exit code says so, and the log has the trace."""
    monkeypatch.setattr(
        "sys.argv", ["smoke", "--only", "of", "--log", str(tmp_path / "log")]
    )
    monkeypatch.setattr(
        smoke,
        "STEPS",
        [("of which", lambda: 1 / 0), ("of that", lambda: "fine"), ("not", None)],
    )
    assert smoke.main() == smoke.FAILED
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("failed")
    assert "ZeroDivisionError" in first
    assert second.startswith("ok")
    assert last == "1 failed, 1 ok"
    assert "ZeroDivisionError" in (tmp_path / "log").read_text()
