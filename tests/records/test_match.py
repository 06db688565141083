"""The choice among records: rank, levels of fit, policies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.records import (
    Environment,
    Level,
    Policy,
    TuningRecord,
    best_match,
    level_of,
    rank,
)
from tests.strategies import CPU, HERE, make_record

OTHER_DRIVER = replace(HERE, driver_version="driver 2")
OTHER_PLATFORM_VERSION = replace(HERE, platform_version="platform 2")
OTHER_CPU = replace(HERE, device=replace(CPU, name="Other CPU"))
OTHER_ARCHITECTURE = replace(HERE, device=replace(CPU, architecture="aarch64"))
GPU = replace(HERE, device=replace(CPU, kind="gpu"))
OTHER_SOFTWARE = replace(HERE, software={"loopy": "2030.1"}, policy={"rounds": 9})

_times = st.lists(st.sampled_from([0.5, 0.9, 1.0, 1.1, 2.0]), min_size=1, max_size=4)
_record = st.builds(
    make_record,
    _times.map(tuple),
    _times.map(tuple),
    spec=st.sampled_from(["a@1()", "b@1()", "b@2()"]),
    environment=st.sampled_from([HERE, OTHER_DRIVER, OTHER_CPU, GPU]),
)
record_lists = st.lists(_record, max_size=6)


@given(record_lists, st.randoms(use_true_random=False))
def test_rank_does_not_depend_on_order(records: list[TuningRecord], random) -> None:
    """The same records in any order have one ranking."""
    shuffled = random.sample(records, len(records))
    assert rank(shuffled) == rank(records)


@given(record_lists)
def test_rank_holds_what_is_faster_than_nothing(records: list[TuningRecord]) -> None:
    """Ranked are those that beat the untransformed kernel: these, and all of them."""
    faster = [record for record in records if record.measurement.speedup > 1]
    assert sorted(map(id, rank(records))) == sorted(map(id, faster))


@given(record_lists)
def test_first_is_as_good_as_any(records: list[TuningRecord]) -> None:
    """No record is surely faster than the first: its interval reaches theirs."""
    ranking = rank(records)
    for other in ranking[1:]:
        low, _ = other.measurement.speedup_interval
        assert ranking[0].measurement.speedup_interval[1] >= low


@given(record_lists)
def test_rank_is_ordered_after_the_ties(records: list[TuningRecord]) -> None:
    """Records that are not tied with the first come by falling speed-up."""
    ranking = rank(records)
    floor = max((r.measurement.speedup_interval[0] for r in ranking), default=0)
    is_behind = [r.measurement.speedup_interval[1] < floor for r in ranking]
    behind = ranking[is_behind.count(False) :]
    speedups = [record.measurement.speedup for record in behind]
    assert is_behind == sorted(is_behind)
    assert speedups == sorted(speedups, reverse=True)


def test_libraries_of_the_host_come_after_what_they_are_tied_with() -> None:
    """A recipe of the device needs no memory for operands that are functions."""
    device, host = make_record((0.1, 0.11, 0.12)), make_record((0.1, 0.1, 0.11))
    host = replace(host, spec=replace(host.spec, name="library_product"))
    assert host.measurement.speedup > device.measurement.speedup
    assert rank([host, device]) == (device, host)


def test_faster_is_first() -> None:
    """Without overlap the faster recipe comes first, whatever its name."""
    slow = make_record((0.5,), spec="a@1()")
    fast = make_record((0.25,), spec="b@1()")
    assert rank([slow, fast]) == (fast, slow)


def test_overlap_is_a_tie() -> None:
    """Where speed-up intervals overlap, the text of the spec decides."""
    fast = make_record((0.2, 0.25, 0.3), spec="b@1()")
    tied = make_record((0.25, 0.26, 0.5), spec="a@1()")
    assert fast.measurement.speedup > tied.measurement.speedup
    assert rank([fast, tied]) == (tied, fast)


def test_tie_of_one_recipe() -> None:
    """Two facts of one recipe and one speed are ordered by their ids."""
    twins = make_record(environment=HERE), make_record(environment=OTHER_DRIVER)
    assert rank(twins) == tuple(sorted(twins, key=lambda record: record.id))


@pytest.mark.parametrize("sample", [1.0, 1.001, 2.0])
def test_slower_is_never_served(sample: float) -> None:
    """A recipe no faster than the untransformed kernel is neither ranked nor served."""
    record = make_record((sample,))
    assert rank([record]) == ()
    assert best_match([record], HERE, "loose").record is None


LEVELS = [
    (HERE, Level.EXACT),
    (OTHER_SOFTWARE, Level.EXACT),
    (OTHER_DRIVER, Level.SAME_DEVICE_OTHER_DRIVER),
    (OTHER_PLATFORM_VERSION, Level.SAME_DEVICE_OTHER_DRIVER),
    (OTHER_CPU, Level.SAME_ARCHITECTURE),
    (OTHER_ARCHITECTURE, Level.OTHER_DEVICE),
    (GPU, Level.OTHER_DEVICE),
]


@pytest.mark.parametrize(("there", "level"), LEVELS)
def test_level(there: Environment, level: Level) -> None:
    """How well a fact fits: by device and driver, not by software or policy."""
    assert level_of(make_record(environment=there), HERE) == level


@pytest.mark.parametrize(("there", "level"), LEVELS)
@pytest.mark.parametrize(
    ("policy", "worst"),
    [
        ("strict", Level.EXACT),
        ("default", Level.NEAREST_EXTENTS),
        ("loose", Level.OTHER_DEVICE),
    ],
)
def test_policy(there: Environment, level: Level, policy: Policy, worst: Level) -> None:
    """A policy accepts a fact up to its worst level, and says so where it does not."""
    record = make_record(environment=there)
    match = best_match([record], HERE, policy)
    if level <= worst:
        assert (match.level, match.record) == (level, record)
    else:
        assert (match.level, match.record) == (Level.MISS, None)
        assert f"accepted by the policy {policy!r}" in match.reason
        assert f"best level: {level}" in match.reason


@given(record_lists, st.sampled_from(["strict", "default", "loose"]))
def test_ranking_is_of_one_level(records: list[TuningRecord], policy: Policy) -> None:
    """A match ranks the facts of the best level that has any, and no others."""
    match = best_match(records, HERE, policy)
    levels = {record.id: level_of(record, HERE) for record in rank(records)}
    assert match.level == Level.MISS or match.level == min(levels.values())
    assert match.ranking == rank(
        record for record in records if levels.get(record.id) == match.level
    )


def test_fit_goes_before_speed() -> None:
    """A fact of this machine is preferred to a better one of another."""
    exact = make_record((0.5,), environment=HERE)
    foreign = make_record((0.01,), environment=OTHER_CPU)
    assert best_match([foreign, exact], HERE).record == exact


def test_a_slow_exact_fact_gives_way() -> None:
    """A level with nothing but slow recipes is passed over."""
    exact = make_record((2.0,), environment=HERE)
    other = make_record((0.5,), environment=OTHER_DRIVER)
    match = best_match([exact, other], HERE)
    assert (match.level, match.ranking) == (
        Level.SAME_DEVICE_OTHER_DRIVER,
        (other,),
    )


def test_nothing_recorded() -> None:
    """No facts at all is a miss of its own."""
    match = best_match([], HERE)
    assert (match.level, match.record) == (Level.MISS, None)
    assert match.reason == "no fact is recorded for this workload"


@pytest.mark.parametrize(
    ("there", "where"),
    [
        (HERE, "on this device and driver (driver 1)"),
        (OTHER_DRIVER, "on this device with driver driver 2; here it is driver 1"),
        (OTHER_CPU, "on Other CPU (Portable OpenCL); here it is Some CPU"),
    ],
)
def test_reason(there: Environment, where: str) -> None:
    """A hit says which recipe, how fast, and on what it was measured."""
    reason = best_match([make_record((0.4,), environment=there)], HERE).reason
    assert reason.startswith("rowwise@1(lanes=8) ran 2.5 times as fast as")
    assert where in reason
    assert reason.endswith("1 candidates")


@pytest.mark.parametrize(("there", "level"), LEVELS)
def test_other_extents_are_a_level(there: Environment, level: Level) -> None:
    """Facts of other extents fit less than those of another machine of this kind, and
    the reason says at which they were measured.
    """
    match = best_match([make_record((0.4,), environment=there)], HERE, is_nearest=True)
    if level <= Level.NEAREST_EXTENTS:
        assert match.level == Level.NEAREST_EXTENTS
        assert "; measured at " in match.reason
    else:
        assert match.level == Level.MISS


def test_levels_by_name() -> None:
    """Levels are printed in the words of the documentation."""
    assert [str(level) for level in Level] == [
        "exact",
        "same-device-other-driver",
        "same-architecture",
        "nearest-extents",
        "other-device",
        "miss",
    ]
