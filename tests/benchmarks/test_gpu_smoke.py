"""The steps that need no library of arrays, with a stand-in for the driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import smoke
from feinsum import processes
from feinsum.memory import use_fresh_memory
from tests.calling.gpu.test_builder import COMMAND
from tests.calling.gpu.test_call import OnGpu
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


def test_a_later_process_has_the_call_at_once(stand_in, monkeypatch):
    """One step lets another process build it; the next one describes first calls."""
    library = smoke.Library("cupy", OnGpu, np.asarray)
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(smoke, "load_cupy_library", lambda: library)
    monkeypatch.setattr(smoke, "STORED", [])
    monkeypatch.setattr(smoke, "BUILD_S", 120.0)
    monkeypatch.setattr(processes, "make_python_command", lambda _: COMMAND)
    case = smoke.WAITED[0]
    with use_fresh_memory():
        ((_, step),) = steps(f"background build: {case}")
        assert step().startswith("calls of")
    (folder,) = smoke.STORED
    for path, is_built in ((folder.name, True), (f"{folder.name}/empty", False)):
        with use_fresh_memory(), smoke.use_folder(path):
            described = smoke.describe_first_call(library, case)
        assert (described["built"] is not None) == is_built
    folder.cleanup()
