"""A trial verifies before it times, and never passes what is wrong."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from feinsum import array, einsum
from feinsum.errors import ImplausibleError
from feinsum.measure import open_device, timing
from feinsum.measure.cases import make_ragged_cases
from feinsum.records import InMemoryStore, from_json, to_json
from feinsum.transforms.gpu import GPU_ROWS
from feinsum.tuning import bench as bench_module
from feinsum.tuning import make_problem
from feinsum.tuning.bench import Bench
from feinsum.tuning.recording import record
from feinsum.tuning.trials import TrialAnswer, TrialRequest
from feinsum.tuning.worker import serve_requests, try_specs
from tests.targets.cuda.stand_in import needs_nvrtc, stand_in
from tests.tune.odd_transforms import ODD, TUNED_SIZE, odd_einsum, odd_spec

__all__ = ["stand_in"]

pytestmark = pytest.mark.filterwarnings(  # Loopy's own use of islpy
    "ignore:.*with implicit conversion:DeprecationWarning"
)


@pytest.fixture(scope="module")
def bench():
    """A bench of the einsum whose size is a parameter."""
    return Bench(make_problem(odd_einsum(), {"N": TUNED_SIZE}))


@pytest.fixture(scope="module")
def literal_bench():
    """A bench of the einsum whose size is known."""
    return Bench(make_problem(odd_einsum(TUNED_SIZE)))


@pytest.fixture(autouse=True)
def _all_registered(registered):
    registered(*ODD)


def outcome_of(bench, name, *, is_comparison=False):
    (outcome,) = try_specs(bench, TrialRequest(None, (odd_spec(name),), is_comparison))
    return outcome


STATUS = {
    "odd_double": "wrong-result",
    "odd_drop_last": "wrong-result",
    "odd_raises": "transform-failed",
    "odd_unbuildable": "build-failed",
    "odd_returns_nothing": "transform-failed",
}


@pytest.mark.parametrize("is_comparison", [False, True])
@pytest.mark.parametrize("name", STATUS)
def test_the_status_says_what_went_wrong(bench, name, is_comparison):
    """Every way to fail has its code, in a trial and in a comparison alike."""
    outcome = outcome_of(bench, name, is_comparison=is_comparison)
    assert (outcome.status, outcome.measurement) == (STATUS[name], None)
    assert outcome.to_error().code == STATUS[name]
    assert outcome.median_s == float("inf")


def test_nothing_wrong_is_timed(bench, monkeypatch):
    """Verification comes first: what fails it is never timed."""
    assert bench.baseline_s

    def refuse(kernels):
        raise AssertionError("a wrong kernel was timed")

    monkeypatch.setattr(bench, "_time", refuse)
    for name in STATUS:
        assert outcome_of(bench, name).status == STATUS[name]


@pytest.mark.parametrize("which", ["bench", "literal_bench"])
def test_a_recipe_right_at_one_size_alone_is_refused(which, request):
    """Right where it is tuned, wrong at ragged run-time sizes: refused, with them.

    That is found out before it is recorded, and not in every trial.
    """
    there = request.getfixturevalue(which)
    assert outcome_of(there, "odd_crooked").status == "ok"
    outcome = outcome_of(there, "odd_crooked", is_comparison=True)
    assert outcome.status == "wrong-result"
    assert "at the run-time sizes" in outcome.message
    assert "301" in outcome.message


def test_a_recipe_that_needs_a_known_extent_is_refused(literal_bench):
    """What breaks at run-time extents is a failed transform, never a crash."""
    outcome = outcome_of(literal_bench, "odd_fixed", is_comparison=True)
    assert outcome.status == "transform-failed"
    assert "run-time extents" in outcome.message


def test_a_right_recipe_is_measured(bench):
    """A measurement: enough samples of both kernels, sizes, all that was verified."""
    measurement = outcome_of(bench, "odd_right", is_comparison=True).measurement
    _, ragged = make_ragged_cases(bench.problem.einsum)
    (name,) = bench.problem.sizes
    assert len(measurement.samples_s) >= 20
    assert len(measurement.baseline_s) >= 20
    assert measurement.sizes == {name: TUNED_SIZE}
    assert measurement.verification.sizes == ({name: TUNED_SIZE}, *ragged)
    assert measurement.verification.largest_error <= measurement.verification.tolerance
    # a multiplication and an addition for each of 64 * 13 entries
    assert sum(measurement.operations.values()) in (
        2 * TUNED_SIZE * 13,
        2 * TUNED_SIZE * 13 - TUNED_SIZE,
    )
    assert measurement.footprint_bytes == 8 * (TUNED_SIZE * 13 + 13 + TUNED_SIZE)


def test_what_no_device_can_do_is_not_recorded(bench):
    """A measurement with a wrong timer ends the tuning; there is no fact of it."""
    right = outcome_of(bench, "odd_right", is_comparison=True).measurement
    wrong = replace(right, samples_s=tuple(s * 1e-9 for s in right.samples_s))
    here = SimpleNamespace(problem=bench.problem, start=lambda: bench.environment)
    store = InMemoryStore()
    with pytest.raises(ImplausibleError) as refused:
        record(here, [(RIGHT, wrong)], store, "random")
    assert "faster-than-possible" in {code for code, *_ in refused.value.findings}
    assert list(store.records()) == []


RIGHT, ALSO_RIGHT = odd_spec("odd_right", 4), odd_spec("odd_right", 8)


def against(bench, spec, reference=None):
    (outcome,) = try_specs(bench, TrialRequest(specs=(spec,), reference=reference))
    assert outcome.is_ok, outcome.message
    return outcome


def test_a_trial_is_timed_against_its_reference(bench):
    """The best so far, kept or made anew; without one, the untransformed kernel."""
    assert against(bench, RIGHT).reference is None
    for reference in (RIGHT, ALSO_RIGHT):
        outcome = against(bench, ALSO_RIGHT, reference)
        assert outcome.reference == reference
        assert outcome.ratio > 0


def test_a_reference_that_fails_is_laid_to_nobodys_charge(bench):
    """The untransformed kernel takes its place, and the outcome says so."""
    assert against(bench, RIGHT, odd_spec("odd_raises")).reference is None


def test_a_slow_untransformed_kernel_is_not_in_every_round(bench, monkeypatch):
    """It is in no trial; in the finals three times at least, spread over the rounds."""
    monkeypatch.setitem(vars(bench), "baseline_s", (1.9, 1.8, 2.0))
    monkeypatch.setattr(timing, "MAX_SAMPLES", 10**6)
    outcome = against(bench, RIGHT)
    assert outcome.ratio == outcome.measurement.median_s / 1.9
    request = TrialRequest(None, (RIGHT, ALSO_RIGHT), is_comparison=True)
    for compared in try_specs(bench, request):
        n_samples = len(compared.measurement.samples_s)
        assert len(compared.measurement.baseline_s) == -(-n_samples // 7) >= 3


def test_a_very_slow_untransformed_kernel_is_not_run_again(bench, monkeypatch):
    """Its times from the beginning stand in the finals too."""
    monkeypatch.setitem(vars(bench), "baseline_s", (9.0, 8.0, 10.0))
    request = TrialRequest(None, (RIGHT, ALSO_RIGHT), is_comparison=True)
    for compared in try_specs(bench, request):
        assert compared.measurement.baseline_s == (9.0, 8.0, 10.0)


def test_a_comparison_is_one_run(bench):
    """Its recipes share the samples of the untransformed kernel; one that fails spoils
    no other.
    """
    specs = (odd_spec("odd_raises"), RIGHT, ALSO_RIGHT)
    failed, *passed = try_specs(bench, TrialRequest(None, specs, is_comparison=True))
    assert (failed.status, *(one.status for one in passed)) == (
        "transform-failed", "ok", "ok",
    )  # fmt: skip
    assert tuple(one.spec for one in passed) == specs[1:]
    assert passed[0].measurement.baseline_s == passed[1].measurement.baseline_s


def test_kernels_that_are_compared_read_the_same_arrays(bench):
    """So the caches are alike for all, however many are compared."""
    kernel = bench.verified_kernel(RIGHT)
    assert kernel.slots.keys() == bench.baseline.slots.keys()
    for name, slot in bench.baseline.slots.items():
        assert kernel.slots[name] is slot or not hasattr(slot, "array")


def test_the_environment_says_how_was_measured(bench):
    """The environment is that of the device, with the policy of the timing."""
    expected = open_device().environment(
        {"rounds": 20, "warmup": 3, "max_total_s": 3.0}
    )
    assert bench.environment == expected


def answers_to(*requests):
    """What a worker says to the requests, in this process."""
    lines = []
    serve_requests([to_json(request) for request in requests], lines.append)
    return [from_json(TrialAnswer, line) for line in lines]


def test_a_worker_answers_every_request():
    """One line for each request: the environment first, then outcomes."""
    problem = make_problem(odd_einsum(), {"N": TUNED_SIZE})
    set_up, good, bad = answers_to(
        TrialRequest(problem),
        TrialRequest(specs=(odd_spec("odd_right"),)),
        TrialRequest(specs=(odd_spec("odd_double"), odd_spec("odd_raises"))),
    )
    assert set_up.environment is not None
    assert [o.status for o in good.outcomes] == ["ok"]
    assert [o.status for o in bad.outcomes] == ["wrong-result", "transform-failed"]


def test_a_worker_without_a_problem_says_so():
    """A trial before the problem, or after a problem that failed, is an error."""
    problem = make_problem(odd_einsum(), {"N": 8}, device="Cray-1")
    first, second, third = answers_to(
        TrialRequest(specs=(odd_spec("odd_right"),)),
        TrialRequest(problem),
        TrialRequest(specs=(odd_spec("odd_right"),)),
    )
    assert (first.error_code, third.error_code) == ("feinsum-error", "feinsum-error")
    assert second.error_code == "device-unavailable"
    assert first.outcomes == second.outcomes == third.outcomes == ()


def test_many_operands_are_compared_with_pairs():
    """One nest of this chain takes minutes; its pairs take milliseconds."""
    A, B, C = (array(name, (300, 300)) for name in "ABC")
    chain = Bench(make_problem(einsum("ab,cd,de->be", A, B, C)))
    assert chain.policy["baseline"] == "pairwise"
    assert sum(chain.baseline_s) < 60


def test_one_nest_is_compared_with_itself(bench):
    """Of two operands the baseline is the untransformed nest."""
    assert "baseline" not in bench.policy


@needs_nvrtc
def test_what_spills_on_a_gpu_is_not_launched(stand_in, monkeypatch):
    """The compiler's figures rule it out first; other recipes are tried."""
    there = Bench(make_problem(odd_einsum(), {"N": TUNED_SIZE}, device="cuda"))
    assert there.baseline_s
    launches = there.opened.session.launches
    launches.clear()
    (summed,) = there.problem.einsum.summation_indices
    specs = [GPU_ROWS.spec({"summed": summed, "items": n, "rows": 1}) for n in (32, 64)]
    with monkeypatch.context() as patch:
        patch.setattr("feinsum.targets.cuda.figures.MAX_SPILLED", -1)
        (refused,) = try_specs(there, TrialRequest(specs=specs[:1]))
    assert (refused.status, launches) == ("build-failed", [])
    assert "spills 0 bytes of a work-item" in refused.message
    (tried,) = try_specs(there, TrialRequest(specs=specs[1:]))
    assert tried.is_ok
    assert launches


STEADY, WIDE = (1.0, 1.0, 1.0, 1.1), (1.0, 2.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("kind", "attempts", "expected"),
    [
        ("gpu", [STEADY], STEADY),
        ("gpu", [WIDE, STEADY], STEADY),
        ("gpu", [WIDE, WIDE], WIDE),
        ("cpu", [WIDE], WIDE),
    ],
)
def test_noisy_times_of_a_gpu_are_taken_once_more(
    bench, monkeypatch, kind, attempts, expected
):
    """Its clock may have changed; a fact says if they are noisy again."""
    left = [*attempts]
    monkeypatch.setattr(bench_module, "interleave", lambda *_, **__: (left.pop(0),))
    device = replace(bench.opened.device, kind=kind)
    monkeypatch.setattr(bench, "opened", SimpleNamespace(device=device))
    (samples,) = bench._time([])
    assert (samples, left) == (expected, [])


@pytest.mark.parametrize(("samples", "spread"), [(STEADY, None), (WIDE, "0.67")])
def test_a_fact_of_a_gpu_says_that_its_times_are_noisy(bench, samples, spread, caplog):
    """In its provenance; on any device, who tunes is warned."""
    right = outcome_of(bench, "odd_right", is_comparison=True).measurement
    measured = replace(right, samples_s=samples)
    environment = bench.environment
    gpu = replace(environment, device=replace(environment.device, kind="gpu"))
    here = SimpleNamespace(problem=bench.problem, start=lambda: gpu, is_here=False)
    (fact,) = record(here, [(RIGHT, measured)], InMemoryStore(), "random")
    assert fact.provenance.get("spread") == spread
    assert ("timings are noisy" in caplog.text) == (samples is WIDE)
    on_cpu = SimpleNamespace(**{**vars(here), "start": lambda: environment})
    caplog.clear()
    record(on_cpu, [(RIGHT, measured)], InMemoryStore(), "random")
    assert ("timings are noisy" in caplog.text) == (samples is WIDE)
