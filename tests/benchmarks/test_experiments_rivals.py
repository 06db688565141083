"""Every rival that is installed computes what the entry says."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks.experiments import contest
from benchmarks.experiments.contender import Called
from benchmarks.experiments.contest import Task, run_contest
from benchmarks.experiments.entries import Entry
from benchmarks.experiments.ours import OURS
from benchmarks.experiments.rivals import RIVALS
from tests.benchmarks.test_experiments_entries import KINDS

pytestmark = pytest.mark.filterwarnings("ignore")  # of the rivals, who warn much

QUICK = [rival for rival in RIVALS if rival.name != "torch.compile"]


def outcome(entry: Entry, name: str):
    task = Task(entry.suite, entry.name, entry.sizes, [name], rounds=3, warmup=0)
    return run_contest(task)[name]


def check_rival(entry: Entry, rival) -> None:
    if find_spec(rival.package) is None:
        pytest.skip(f"{rival.package} is not installed; it is of the extra bench")
    found = outcome(entry, rival.name)
    assert found.is_ok, found.why
    assert len(found.samples_s) == 3


@pytest.mark.parametrize(
    ("entry", "rival"),
    [(KINDS[k % len(KINDS)], rival) for k, rival in enumerate([*QUICK, *QUICK[1:]])],
    ids=lambda value: getattr(value, "group", "") or value.name,
)
def test_a_rival_is_right(entry: Entry, rival) -> None:
    """At two kinds of operand functions; checked before it is timed."""
    check_rival(entry, rival)


@pytest.mark.long
@pytest.mark.parametrize("entry", KINDS, ids=lambda e: e.group)
def test_the_compiler_of_torch_is_right(entry: Entry) -> None:
    """As the others; to compile takes long."""
    (rival,) = [rival for rival in RIVALS if rival not in QUICK]
    check_rival(entry, rival)


class Zeros:
    """A contender that is fast and wrong."""

    name, package = "zeros", "numpy"

    def prepare(self, entry, values):
        return Called(lambda: [np.zeros(entry.get_shape(entry.output))])


def test_a_wrong_result_is_reported_and_not_timed(monkeypatch) -> None:
    """Right before fast."""
    monkeypatch.setattr(contest, "list_contenders", lambda task: {"zeros": Zeros()})
    found = outcome(KINDS[0], "zeros")
    assert found.status == "wrong"
    assert not found.samples_s
    assert found.error == pytest.approx(1.0)


def test_without_a_recipe_ours_does_not_take_part(tmp_path) -> None:
    """The outcome says what the miss is."""
    entry = KINDS[0]
    path = str(tmp_path / "facts.sqlite")
    task = Task(entry.suite, entry.name, entry.sizes, [OURS], database=path)
    found = run_contest(task)[OURS]
    assert found.status == "left out"
    assert found.why.startswith("no recipe: miss")


def test_a_slow_kernel_is_left_out() -> None:
    """No run of the untransformed kernel that is judged to pass the limit."""
    entry = KINDS[2]
    task = Task(entry.suite, entry.name, entry.sizes, ["untransformed"],
                untransformed_limit_s=0.0)  # fmt: skip
    assert run_contest(task)["untransformed"].status == "left out"
