"""A tuning that does not fit is refused by name, and none can take all the memory."""

from __future__ import annotations

from itertools import pairwise

import pytest

from feinsum import free_memory
from feinsum.errors import MeasurementError
from feinsum.ir import array, einsum
from feinsum.measure import count_footprint_bytes
from feinsum.measure.own import is_own
from feinsum.processes import Worker
from feinsum.records import InMemoryStore
from feinsum.transforms import find_transform, list_configurations
from feinsum.transforms.plugins import VARIABLE
from feinsum.tuning import (
    IsolatedBench,
    ensure_measured,
    record_facts,
    requirements,
    tune_einsum,
)
from feinsum.tuning.problem import make_problem
from feinsum.tuning.requirements import (
    check_requirements,
    estimate_requirements,
    get_memory_limit_bytes,
)
from tests.tune import odd_transforms
from tests.tune.odd_transforms import odd_einsum, odd_spec


def chain(extent):
    """A product of five matrices."""
    letters = "ijklmn"
    terms = ",".join(a + b for a, b in pairwise(letters))
    operands = (array(f"A{k}", (extent, extent)) for k in range(5))
    return einsum(f"{terms}->in", *operands)


@pytest.fixture
def nothing_starts(monkeypatch):
    """A process of trials would be an error of its own."""

    def start(*_):
        raise AssertionError("a process was started")

    monkeypatch.setattr(Worker, "isolated", start)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("extent", [20_000, 10**7])
def test_what_does_not_fit_is_refused_before_anything_is_started(extent):
    """With what it takes, and what to do."""
    store = InMemoryStore()
    problem, path = make_problem(chain(extent)), find_transform("contraction_path", 4)
    spec = next(iter(list_configurations(path, problem.einsum)))
    with pytest.raises(MeasurementError, match=r"tuning a c.* takes at least .* GB"):
        tune_einsum(chain(extent), database=store)
    with pytest.raises(MeasurementError, match="smaller sizes"):
        record_facts(chain(extent), spec, database=store)
    with pytest.raises(MeasurementError):
        ensure_measured(chain(extent), None, "measure", database=store)


@pytest.mark.usefixtures("nothing_starts")
def test_what_would_take_for_ever_is_refused(monkeypatch):
    """However little memory it takes."""
    monkeypatch.setattr(requirements, "get_free_memory_bytes", lambda: 10**15)
    with pytest.raises(MeasurementError, match="s until the first recipe is tried"):
        tune_einsum(chain(20_000), database=InMemoryStore())


def test_the_need_counts_arrays_and_products():
    """All arrays several times, and the products of operands of the reference."""
    problem = make_problem(chain(100))
    found = estimate_requirements(problem)
    least = 5 * count_footprint_bytes(problem.einsum, problem.sizes) + 2 * 100 * 100 * 8
    assert found.n_bytes == least
    assert 0 < found.seconds < 1
    check_requirements(problem)


def test_the_limit_is_a_part_of_what_is_free(monkeypatch, tmp_path):
    """A container has its own memory."""
    monkeypatch.setattr(free_memory, "_CGROUP", tmp_path)
    whole = get_memory_limit_bytes()
    assert whole >= requirements.MIN_LIMIT_BYTES
    (tmp_path / "memory.max").write_text("3000000000\n")
    (tmp_path / "memory.current").write_text("1000000000\n")
    assert get_memory_limit_bytes() <= 1_500_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert get_memory_limit_bytes() >= requirements.MIN_LIMIT_BYTES


def test_a_trial_that_wants_too_much_fails_alone(monkeypatch):
    """The process of the trials has a hard limit; the next trial is made."""
    monkeypatch.setenv(VARIABLE, odd_transforms.__name__)
    problem = make_problem(odd_einsum(), {"N": 64}, "host")
    with IsolatedBench(problem) as bench:
        greedy = bench.trial(odd_spec("odd_greedy"))
        good = bench.trial(odd_spec("odd_right"))
    assert not greedy.is_ok
    assert "MemoryError" in greedy.message
    assert good.is_ok


def test_what_is_measured_here_is_marked_and_believed(tmp_path, monkeypatch):
    """A fact of a tuning on this machine is exact and needs no verification."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path))
    matvec = einsum("ij,j->i", array("A", ("N", 9)), array("x", 9))
    fact = record_facts(
        matvec,
        "rowwise@1(block=8, index='a')",
        sizes={"N": 100},
        device="host",
        database=InMemoryStore(),
    )
    assert is_own(fact.id)
