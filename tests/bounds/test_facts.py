"""Facts beside their bounds: shares, and times that no run can be below."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.bounds import (
    bound_record,
    compute_bound,
    compute_least_s,
    compute_shares,
    find_roofline_s,
    list_levels,
)
from feinsum.canonical import canonicalize
from feinsum.ir import array, einsum
from feinsum.records import Device, DevicePeaks, Processor, TuningRecord
from feinsum.service.pages.charts import make_marks
from tests.db.factories import make_record

CACHES = {"L1d": 32 << 10, "L2": 512 << 10, "L3": 32 << 20}
PROCESSOR = Processor("", 25, 1, 1, "zen3", ("avx", "avx2", "sse2"), 2, CACHES)
CPU = Device("Host", "a CPU", "", "cpu", "x86_64", 2, PROCESSOR)
PEAKS = DevicePeaks(
    CPU, 2e10, {"<f8": 1e11}, "2026-01-01T00:00:00+00:00",
    {"L1": 4e11, "L2": 1e11, "L3": 5e10},
)  # fmt: skip
PRODUCT = einsum("ij,jk->ik", *(array(name, (2000, 2000)) for name in "AB"))


def fact(median_s: float = 1.0) -> TuningRecord:
    form = canonicalize(PRODUCT)
    made = make_record(workload=form.key, workload_text=form.text)
    timing = replace(
        made.measurement,
        sizes={},
        samples_s=(median_s,) * 3,
        operations={"<f8": 16 * 10**9},
    )
    environment = replace(made.environment, device=CPU)
    return replace(made, measurement=timing, environment=environment)


def test_a_fact_has_the_bound_of_its_einsum_at_its_sizes():
    """With the limits of its device, and the arithmetic of its measurement."""
    found = bound_record(fact(), PEAKS)
    assert found.compulsory_bytes == 3 * 8 * 2000**2
    assert found.operations_s == pytest.approx(0.16)
    assert [one.level.name for one in found.levels] == ["L1", "L2", "L3", "DRAM"]
    reached = compute_shares(found, 1.0)
    assert set(reached) == {"L1", "L2", "L3", "DRAM"}
    assert reached["DRAM"] == pytest.approx(found.compulsory_bytes / 2e10)


def test_a_fact_that_says_nonsense_has_no_bound():
    """A text that is no einsum, a size that is missing: none, and no error."""
    good = fact()
    timing = replace(good.measurement, sizes={"n": 3})
    text = "a b -> a | A[N,4]:<f8 | A"
    assert bound_record(replace(good, workload_text="nonsense"), PEAKS) is None
    other = replace(good, workload_text=text, measurement=timing)
    assert bound_record(other, PEAKS) is None


def test_limits_that_nobody_can_have_give_no_times():
    """Rates of zero and below count as not measured."""
    broken = replace(PEAKS, bandwidth_bytes_per_s=-1.0, cache_bytes_per_s={"L1": 0.0})
    assert compute_shares(bound_record(fact(), broken), 1.0) == {}
    assert all(one.bandwidth_bytes_per_s is None for one in list_levels(CPU, broken))


def test_the_roofline_of_a_fact_is_the_longer_of_two_times():
    """To compute and to move; unknown without limits, or with ones that none has."""
    measured = replace(fact().measurement, operations={"<f8": 60}, footprint_bytes=100)
    limits = replace(PEAKS, bandwidth_bytes_per_s=50.0, operations_per_s={"<f8": 15.0})
    assert find_roofline_s(measured, limits) == 4.0
    assert find_roofline_s(replace(measured, operations={}), limits) == 2.0
    assert find_roofline_s(measured, None) is None
    for changes in (
        {"operations_per_s": {"<f4": 1.0}},
        {"operations_per_s": {"<f8": 15.0, "<f4": 0.0}},
        {"operations_per_s": {"<f8": 1e-320}},
        {"bandwidth_bytes_per_s": -5.0},
        {"bandwidth_bytes_per_s": 0.0},
    ):
        assert find_roofline_s(measured, replace(limits, **changes)) is None
    for operations in ({"no dtype": 1}, {"<f8": 10**400}):
        odd = replace(measured, operations=operations)
        assert find_roofline_s(odd, limits) is None


def test_facts_of_equal_sizes_are_bounded_once(monkeypatch):
    """A page of many facts looks for one bound; other limits are another one."""
    asked = []

    def counted(*given):
        asked.append(given)
        return compute_bound(*given)

    monkeypatch.setattr("feinsum.bounds.bound.compute_bound", counted)
    limits = replace(PEAKS, bandwidth_bytes_per_s=3.25e10)
    for median_s in (1.0, 2.0, 3.0):
        bound_record(fact(median_s), limits)
    assert len(asked) == 1
    bound_record(fact(), replace(limits, bandwidth_bytes_per_s=3.5e10))
    assert len(asked) == 2


def test_a_page_has_a_mark_for_every_level():
    """From the nearest cache to the memory; without limits there are bytes alone."""
    marks = make_marks(fact(0.5), PEAKS)
    assert [mark.level for mark in marks] == ["L1", "L2", "L3", "DRAM"]
    assert all(mark.fraction == mark.seconds / 0.5 for mark in marks)
    assert all(m.n_bytes and m.seconds is None for m in make_marks(fact(), None))
    assert make_marks(replace(fact(), workload_text="nonsense"), PEAKS) == ()


def test_no_run_is_below_what_is_possible():
    """The arithmetic, and of each level what caches cannot have kept."""
    least = compute_least_s(PRODUCT, {}, CPU, PEAKS)
    bound = bound_record(fact(), PEAKS)
    assert least == pytest.approx(2 * 2000**3 / 1e11, rel=0.2)
    assert least <= max(bound.seconds, bound.operations_s)


def test_what_fits_a_cache_may_take_no_time_at_all_beyond_it():
    """A run that is repeated need not read again what the last one left."""
    copied = einsum("ij->ji", array("A", (100, 100)))
    assert compute_least_s(copied, {}, CPU, PEAKS) < 80_000 * 2 / 5e10
    large = einsum("ij->ji", array("A", (10_000, 10_000)))
    moved = 2 * 8 * 10**8 - 3 * (32 << 20)
    assert compute_least_s(large, {}, CPU, PEAKS) > moved / 2e10


def test_the_fewest_steps_of_a_chain_count():
    """By the best order, not by one statement."""
    chain = einsum("ij,jk,kl->il", *(array(n, (100, 100)) for n in "ABC"))
    peaks = replace(PEAKS, cache_bytes_per_s={})
    found = compute_least_s(chain, {}, replace(CPU, processor=None), peaks)
    assert found == pytest.approx(2 * 2 * 100**3 / 1e11)


def test_measured_sizes_stand_in_for_those_that_nobody_tells():
    """Of a processor without caches; what the system tells goes before."""
    quiet = replace(CPU, processor=replace(PROCESSOR, cache_bytes={}))
    sized = replace(PEAKS, device=quiet, cache_bytes={"L1": 90000, "L2": 2**21})
    levels = {one.name: one for one in list_levels(quiet, sized)}
    assert list(levels) == ["registers", "L1", "L2", "DRAM"]
    assert (levels["L1"].n_bytes, levels["L1"].n_copies) == (90000, 2)
    assert levels["L2"].bandwidth_bytes_per_s == 1e11
    told = {one.name: one.n_bytes for one in list_levels(CPU, sized)}
    assert told["L1"] == CACHES["L1d"]
    assert [one.name for one in list_levels(quiet, PEAKS)] == ["registers", "DRAM"]
