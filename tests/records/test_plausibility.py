"""What is plausible: all that was ever measured, and nothing that cannot be."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from feinsum.db import get_shipped_facts
from feinsum.ir import array, batched_einsum, einsum
from feinsum.records import TransformSpec, find_latest_peaks, judge
from feinsum.records.capability import (
    MAX_UNITS,
    compute_least_work,
    estimate_slowest_s,
    get_capability,
)
from feinsum.records.plausibility import SHIPPED
from feinsum.transforms import REGISTRY
from tests.db.factories import (
    make_device,
    make_environment,
    make_measurement,
    make_peaks,
    make_plan_record,
    make_record,
    make_trial,
)
from tests.hostile.world import HONEST
from tests.older import older_key


def test_what_was_measured_is_plausible():
    """Nothing is found in a fact that a tuning recorded."""
    facts = [*HONEST, *get_shipped_facts().records()]
    assert not [fact.id for fact in facts if judge(fact)]


def test_the_shipped_transforms_are_those_of_the_registry():
    """Who has no code generator knows the same names and versions."""
    ours = {
        key
        for key, transform in REGISTRY.items()
        if transform.apply.__module__.startswith("feinsum.")
    }
    assert ours == SHIPPED


def test_what_cannot_be_judged_here_is_not_refused():
    """A recipe of a newer installation, and a text of another canonical form."""
    text = "a => b"
    old = replace(make_record(), workload=older_key(text), workload_text=text)
    unknown = replace(make_record(), spec=TransformSpec("miracle", 1, {}))
    assert judge(old) == judge(unknown) == ()


def test_trials_are_not_judged():
    """They are in no look-up."""
    assert judge(make_trial()) == ()


def test_exact_is_a_tolerance():
    """Integers and booleans are compared exactly."""
    for tolerance, error, expected in (
        (0.0, 0.0, set()),
        (0.0, 1e-16, {"error-above-tolerance"}),
        (-1e-9, 0.0, {"tolerance", "error-above-tolerance"}),
    ):
        measured = make_record().measurement
        checked = replace(
            measured.verification, tolerance=tolerance, largest_error=error
        )
        measured = replace(measured, verification=checked)
        assert codes_of(replace(make_record(), measurement=measured)) == expected


def codes_of(document):
    return {finding.code for finding in judge(document)}


def test_a_device_has_one_unit_to_a_million():
    """Whatever is measured on it."""
    for n_units in (0, 1, MAX_UNITS, MAX_UNITS + 1):
        device = replace(make_device(), compute_units=n_units)
        found = codes_of(make_record(environment=make_environment(device)))
        assert ("compute-units" in found) == (not 1 <= n_units <= MAX_UNITS)


def test_integers_have_64_bits():
    """Those that databases keep."""
    for number in (-(2**63) - 1, -(2**63), 2**63 - 1, 2**63):
        parameters = {**make_record().spec.parameters, "n": number}
        spec = TransformSpec("rowwise", 1, parameters)
        found = codes_of(replace(make_record(), spec=spec))
        assert ("integer-range" in found) == (not -(2**63) <= number < 2**63)


def test_a_plan_without_a_verified_block_is_refused():
    """So is one of blocks without entries."""
    for numbers in ((0, 64), (2, 0), (1, 1)):
        fact = make_plan_record()
        checked = replace(fact.verification, n_blocks=numbers[0], n_entries=numbers[1])
        found = codes_of(replace(fact, verification=checked))
        assert ("not-verified" in found) == (0 in numbers)


@given(st.integers(0, 3_600))
def test_clocks_may_differ_by_ten_minutes(ahead_s):
    """A time is in the future if it is further ahead."""
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    at = (now + timedelta(seconds=ahead_s)).isoformat()
    found = judge(replace(make_record(), recorded_at=at), now=now)
    assert [finding.code for finding in found] == ["future"] * (ahead_s > 600)


@given(st.floats(1e-7, 1e3), st.integers(1, 10**6))
def test_no_time_is_below_the_least_or_above_the_most(seconds, size):
    """A time is found exactly if it is outside of what the work allows."""
    e = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))
    fact = make_record()
    measured = replace(
        make_measurement(),
        samples_s=(seconds,) * 3,
        baseline_s=(1.0,),
        sizes={"n": size},
    )
    least_s = get_capability(make_device()).seconds(compute_least_work(e, {"n": size}))
    codes = {f.code for f in judge(replace(fact, measurement=measured))}
    assert ("faster-than-possible" in codes) == (seconds < least_s)
    assert ("slower-than-possible" in codes) == (
        seconds > estimate_slowest_s(e, {"n": size})
    )


def test_the_least_work_of_einsums():
    """Entries that are touched, and multiplications that nothing saves."""
    matmul = einsum("ij,jk->ik", array("A", (5, 3)), array("B", (3, 4)))
    assert compute_least_work(matmul, {}).operation_bytes == 5 * 3 * 4 * 8
    outer_sum = einsum("ij,kl->", array("A", (5, 3)), array("B", (3, 4)))
    assert compute_least_work(outer_sum, {}).operation_bytes == 8
    trace = einsum("ii->", array("A", (7, 7)))
    assert compute_least_work(trace, {}).n_bytes == 7 * 8 + 8
    A, x, y = array("A", (5, 3)), array("x", 3), array("y", 3)
    batch = batched_einsum("ij,j->i", [[A, x], [A, y]])
    assert compute_least_work(batch, {}).n_bytes == (15 + 3 + 3 + 5 + 5) * 8


def test_the_least_work_of_many_operands_is_that_of_the_cheapest_order():
    """Half of its operations; of more than six nothing is searched."""
    A, B, C = (array(name, (50, 50)) for name in "ABC")
    chain = einsum("ij,jk,kl->il", A, B, C)
    assert (
        compute_least_work(chain, {}).operation_bytes
        == (2 * (2 * 50**3 - 50**2)) // 2 * 8
    )
    many = einsum("ab,bc,cd,de,ef,fg,gh->ah", A, B, C, A, B, C, A)
    assert compute_least_work(many, {}).operation_bytes == 0
    seconds = get_capability(make_device()).seconds(compute_least_work(chain, {}))
    assert seconds > 0


def test_of_a_sparse_operand_nothing_is_presumed():
    """Its pattern may be empty; a dense result is written all the same."""
    for tree, n_bytes in (("csf", 5 * 8), ("csf=", 0)):
        A = replace(array("A", (5, 3)), storage=tree)
        subscripts = "ij,j->i" if tree == "csf" else "ij,j->ij"
        work = compute_least_work(einsum(subscripts, A, array("x", 3)), {})
        assert (work.n_bytes, work.operation_bytes) == (n_bytes, 0)


def test_rates_of_caches_are_judged_as_well():
    """What no core reads from its caches was not measured."""
    for rate in (-1.0, 1e30):
        good = replace(make_peaks(), cache_bytes_per_s={"L1": 3e11})
        assert judge(good) == ()
        bad = replace(good, cache_bytes_per_s={"L1": 3e11, "L2": rate})
        assert [finding.code for finding in judge(bad)] == ["rate"]


def test_the_latest_limits_are_plausible_and_compared_as_times():
    """However a time is written, and whatever the other limits are."""
    early = make_peaks(measured_at="2025-01-01T12:00:00+00:00")
    late = make_peaks(measured_at="2025-01-01T10:00:00-05:00")
    odd = replace(make_peaks(measured_at="2025-02-01"), bandwidth_bytes_per_s=-5.0)
    ahead = make_peaks(measured_at="9999-01-01")
    assert find_latest_peaks([early, late, odd, ahead]) == late
    assert find_latest_peaks([odd, ahead]) is None
