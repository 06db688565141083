"""The choice among records: rank, levels of fit, policies."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.db import get_shipped_facts
from feinsum.records import (
    MatchLevel,
    Processor,
    TuningRecord,
    compute_distance,
    compute_remoteness,
    estimate_resources,
    find_best_match,
    get_match_level,
    mark_untrusted,
    rank,
)
from feinsum.records.environment import HOST_PLATFORM
from feinsum.targets.host.code import VERSION
from feinsum.targets.host.compiler import Compiler
from tests.strategies import CPU, HERE, PROCESSOR, make_record

OTHER_DRIVER = replace(HERE, driver_version="driver 2")
OTHER_PLATFORM_VERSION = replace(HERE, platform_version="platform 2")
OTHER_CPU = replace(HERE, device=replace(CPU, name="Other CPU"))
OTHER_ARCHITECTURE = replace(HERE, device=replace(CPU, architecture="aarch64"))
GPU = replace(HERE, device=replace(CPU, kind="gpu", processor=None))
BEFORE = replace(HERE, device=replace(CPU, processor=None))
"""A fact from before processors were recorded."""
NEXT_CPU = replace(
    HERE, device=replace(CPU, processor=replace(PROCESSOR, microarchitecture="zen5"))
)
"""Another processor under the same name."""
OTHER_RUNTIME = replace(HERE, device=replace(CPU, platform="Another OpenCL"))
FAR = replace(NEXT_CPU, device=replace(NEXT_CPU.device, platform="Another OpenCL"))
OTHER_SOFTWARE = replace(HERE, software={"loopy": "2030.1"}, policy={"rounds": 9})

_times = st.lists(st.sampled_from([0.5, 0.9, 1.0, 1.1, 2.0]), min_size=1, max_size=4)
_record = st.builds(
    make_record,
    _times.map(tuple),
    _times.map(tuple),
    spec=st.sampled_from(["a@1()", "b@1()", "b@2()"]),
    environment=st.sampled_from([HERE, OTHER_DRIVER, OTHER_CPU, NEXT_CPU, FAR, GPU]),
)
record_lists = st.lists(_record, max_size=6)


@given(record_lists, st.randoms(use_true_random=False))
def test_rank_orders_what_is_faster_than_nothing(records, random):
    """All that beat the untransformed kernel, whatever their order was. None is surely
    faster than the first: its interval reaches theirs; those that are not tied with it
    come by falling speed-up.
    """
    ranking = rank(records)
    assert rank(random.sample(records, len(records))) == ranking
    faster = [record for record in records if record.measurement.speedup > 1]
    assert sorted(map(id, ranking)) == sorted(map(id, faster))
    for other in ranking[1:]:
        low, _ = other.measurement.speedup_interval
        assert ranking[0].measurement.speedup_interval[1] >= low
    floor = max((r.measurement.speedup_interval[0] for r in ranking), default=0)
    is_behind = [r.measurement.speedup_interval[1] < floor for r in ranking]
    behind = ranking[is_behind.count(False) :]
    speedups = [record.measurement.speedup for record in behind]
    assert is_behind == sorted(is_behind)
    assert speedups == sorted(speedups, reverse=True)


def test_libraries_of_the_host_come_after_what_they_are_tied_with():
    """A recipe of the device needs no memory for operands that are functions."""
    device, host = make_record((0.1, 0.11, 0.12)), make_record((0.1, 0.1, 0.11))
    host = replace(host, spec=replace(host.spec, name="library_product"))
    assert host.measurement.speedup > device.measurement.speedup
    assert rank([host, device]) == (device, host)


@given(record_lists, record_lists, st.randoms(use_true_random=False))
def test_the_untrusted_rank_behind(trusted, others, random):
    """However fast they say to be; among them the order is the same."""
    mixed = [*trusted, *map(mark_untrusted, others)]
    random.shuffle(mixed)
    assert rank(mixed) == (*rank(trusted), *rank(others))
    assert [r.is_trusted for r in rank(mixed)] == [True] * len(rank(trusted)) + [
        False
    ] * len(rank(others))


def test_overlap_is_a_tie():
    """Where speed-up intervals overlap, the text of the spec decides."""
    fast = make_record((0.24, 0.25, 0.27), spec="b@1()")
    tied = make_record((0.25, 0.26, 0.28), spec="a@1()")
    assert fast.measurement.speedup > tied.measurement.speedup
    assert rank([fast, tied]) == (tied, fast)


def at_time(day: int, samples_s: tuple[float, ...], spec: str = "a@1()"):
    record = make_record(samples_s, spec=spec)
    return replace(record, recorded_at=f"2026-03-{day:02}T00:00:00+00:00")


NOISY, QUIET = (0.05, 0.1, 0.3), (0.2, 0.2, 0.2)


def test_the_latest_quiet_measurement_of_a_recipe_counts():
    """However fast an earlier or a noisy one was; all of them stay in the ranking,
    unless the one that counts is no faster than the untransformed kernel.
    """
    noisy, quiet = at_time(1, NOISY), at_time(2, QUIET)
    latest, last = at_time(3, (0.25, 0.25, 0.25)), at_time(4, NOISY)
    rival = at_time(1, (0.24, 0.24, 0.24), "b@1()")
    assert rank([noisy, rival]) == (noisy, rival)
    assert rank([noisy, quiet, rival]) == (quiet, rival, noisy)
    ranking = rank([noisy, quiet, latest, last, rival])
    assert ranking[:2] == (rival, latest)
    assert {*ranking[2:]} == {noisy, quiet, last}
    assert rank([noisy, at_time(2, (1.5,) * 3), rival]) == (rival,)
    # two runs that are noisy: the later one
    assert rank([noisy, last])[0] == last


def test_measurements_of_other_places_do_not_replace_each_other():
    """Of other devices, drivers or sizes; nor do those of senders without trust."""
    old, new = at_time(1, QUIET), at_time(2, (1.5,) * 3)
    others = (
        *(replace(new, environment=there) for there in (OTHER_CPU, OTHER_DRIVER)),
        at_size(7, new),
        mark_untrusted(new),
    )
    assert rank([old, new]) == ()
    for other in others:
        assert rank([old, other]) == (old,)


def test_quiet_times_come_before_noisy_ones_that_are_tied():
    """So an earlier noisy fact of fewer resources does not displace a precise one."""
    noisy = at_time(1, (0.1, 0.25, 0.3), "a@1()")
    quiet = at_time(2, (0.2, 0.2, 0.2), "b@1(lanes=8)")
    assert rank([noisy, quiet]) == (quiet, noisy)


LEVELS = [
    (HERE, MatchLevel.EXACT),
    (OTHER_SOFTWARE, MatchLevel.EXACT),
    (OTHER_DRIVER, MatchLevel.SAME_DEVICE_OTHER_DRIVER),
    (OTHER_PLATFORM_VERSION, MatchLevel.SAME_DEVICE_OTHER_DRIVER),
    (OTHER_CPU, MatchLevel.SAME_ARCHITECTURE),
    (NEXT_CPU, MatchLevel.SAME_ARCHITECTURE),
    (BEFORE, MatchLevel.SAME_ARCHITECTURE),
    (OTHER_RUNTIME, MatchLevel.SAME_ARCHITECTURE),
    (OTHER_ARCHITECTURE, MatchLevel.GENERIC),
    (GPU, MatchLevel.GENERIC),
]


MASKED = replace(CPU, processor=Processor("", -1, -1, -1, "x86_64", (), -1, {}))


def test_equal_names_do_not_make_one_cpu():
    """A CPU whose processor is not known is only ever one of its architecture."""
    for driver in ("driver 1", "driver 2"):
        for device in (BEFORE.device, MASKED):
            here = replace(HERE, device=device)
            there = replace(here, driver_version=driver)
            assert (
                get_match_level(make_record(environment=there), here)
                == MatchLevel.SAME_ARCHITECTURE
            )
            assert (
                get_match_level(make_record(environment=there), HERE)
                == MatchLevel.SAME_ARCHITECTURE
            )


def test_gpus_need_no_processor():
    """OpenCL's names tell them apart."""
    driver = replace(GPU, driver_version="driver 2")
    assert get_match_level(make_record(environment=GPU), GPU) == MatchLevel.EXACT
    assert (
        get_match_level(make_record(environment=driver), GPU)
        == MatchLevel.SAME_DEVICE_OTHER_DRIVER
    )


def test_shipped_facts_without_a_processor_fit_no_machine_exactly():
    """They are verified before first use; others are exact where they were measured."""
    for fact in get_shipped_facts().records():
        device = fact.environment.device
        is_told_apart = device.kind == "gpu" or device.processor is not None
        expected = MatchLevel.EXACT if is_told_apart else MatchLevel.SAME_ARCHITECTURE
        assert get_match_level(fact, fact.environment) == expected


def test_shipped_facts_are_exact_where_they_were_recorded():
    """On a machine like that of a shipped fact, with its compiler and today's options,
    the fact is exact.
    """
    gcc = Compiler(("gcc",), "gcc 12", is_clang=False)
    platform = f"{VERSION} {' '.join(gcc.flags)}"
    facts = [
        fact
        for fact in get_shipped_facts().records()
        if fact.environment.device.platform == HOST_PLATFORM
    ]
    assert facts
    for fact in facts:
        here = replace(fact.environment, platform_version=platform)
        assert get_match_level(fact, here) == MatchLevel.EXACT, find_best_match(
            [fact], here
        ).reason


OPTIONS = "1 -O3 -ffp-contract=fast -march=native"
COMPLEX = "a b, b -> a | A0[N0,4]:<c16 A1[4]:<c16 | A0 A1"
HOST = replace(
    HERE, device=replace(CPU, platform=HOST_PLATFORM), platform_version=OPTIONS
)


def test_only_options_that_change_times_make_another_driver():
    """Options of the compiler that cannot change what was measured make no other
    driver; a reason names those that do, and never two equal drivers.
    """
    for platform, text, difference in (
        (f"{OPTIONS} -w -fPIC -std=gnu11 -fvisibility=hidden -shared", "", ""),
        ("1 -march=native -O3 -ffp-contract=fast", "", ""),
        (f"{OPTIONS} -fcx-fortran-rules", "", ""),
        (f"{OPTIONS} -mprefer-vector-width=256", "", ""),
        (
            f"{OPTIONS} -fcx-fortran-rules",
            COMPLEX,
            "compiler option -fcx-fortran-rules; here it is none",
        ),
        (
            "1 -O2 -ffp-contract=fast -march=native",
            "",
            "on this device with compiler option -O2; here it is -O3",
        ),
        (f"2{OPTIONS[1:]}", "", "feinsum's calling code of version 2; here it is 1"),
    ):
        there = replace(HOST, platform_version=platform)
        fact = make_record((0.5,), environment=there)
        fact = replace(fact, workload_text=text or fact.workload_text)
        match = find_best_match([fact], HOST)
        assert (match.level == MatchLevel.EXACT) == (not difference)
        assert difference in match.reason
        assert f"here it is {HERE.driver_version}" not in match.reason


NEAREST_FIRST = (OTHER_CPU, NEXT_CPU, OTHER_RUNTIME, FAR)
"""Same platform and microarchitecture; the platform; the microarchitecture; neither."""


def test_remoteness_orders_devices():
    """An unknown microarchitecture is another one, even on both sides."""
    found = [compute_remoteness(there.device, CPU) for there in NEAREST_FIRST]
    assert found == sorted(set(found))
    assert compute_remoteness(CPU, CPU) == found[0]
    unknown = BEFORE.device
    assert (
        compute_remoteness(unknown, unknown)
        == compute_remoteness(unknown, CPU)
        == found[1]
    )


@given(st.permutations(NEAREST_FIRST), st.integers(0, 3))
def test_nearer_devices_come_first_within_a_level(order, k):
    """However fast recipes are elsewhere: speed-ups of two platforms have different
    baselines; and however near the extents are that were measured elsewhere.
    """
    records = {
        there: at_size(
            10 ** (6 - 2 * n),
            make_record((0.5 / 2**n,), environment=there, spec=f"r@1(n={n})"),
        )
        for n, there in enumerate(NEAREST_FIRST)
    }
    known = [records[there] for there in order if there in NEAREST_FIRST[k:]]
    match = find_best_match(known, HERE, extents={"a text": {"N": 1}})
    assert match.level == MatchLevel.SAME_ARCHITECTURE
    assert match.ranking == tuple(records[there] for there in NEAREST_FIRST[k:])
    assert match.remoteness == compute_remoteness(NEAREST_FIRST[k].device, CPU)


@pytest.mark.parametrize(
    ("policy", "worst"),
    [
        ("strict", MatchLevel.EXACT),
        ("default", MatchLevel.NEAREST_EXTENTS),
        ("loose", MatchLevel.GENERIC),
    ],
)
def test_a_policy_accepts_levels_up_to_its_worst(policy, worst):
    """And says so where it does not. A fact fits by device and driver, not by software
    or policy; facts of other extents fit less than those of another machine of this
    kind, and the reason says at which they were measured.
    """
    for there, level in LEVELS:
        record = make_record(environment=there)
        assert get_match_level(record, HERE) == level
        match = find_best_match([record], HERE, policy)
        if level <= worst:
            assert (match.level, match.record) == (level, record)
        else:
            assert (match.level, match.record) == (MatchLevel.MISS, None)
            assert f"the policy {policy!r} rejects" in match.reason
            assert f"level: {level})" in match.reason
        match = find_best_match([record], HERE, policy, is_nearest=True)
        is_accepted = max(level, MatchLevel.NEAREST_EXTENTS) <= worst
        assert (match.record == record) == is_accepted
        if is_accepted and level <= MatchLevel.NEAREST_EXTENTS:
            assert match.level == MatchLevel.NEAREST_EXTENTS
            assert "; measured at " in match.reason


@given(record_lists, st.sampled_from(["strict", "default", "loose"]))
def test_ranking_is_of_one_level(records, policy):
    """A match ranks the facts of the best level that has any, and no others; those of
    nearer devices first, each by rank.
    """
    match = find_best_match(records, HERE, policy)
    ranking: list[TuningRecord] = []
    useless = {r.spec for r in records if get_match_level(r, HERE) < match.level}
    of_level = [r for r in records if get_match_level(r, HERE) == match.level]
    places = {compute_remoteness(r.environment.device, CPU) for r in of_level}
    for place in sorted(places):
        near = [
            r
            for r in of_level
            if compute_remoteness(r.environment.device, CPU) == place
        ]
        found = rank(r for r in near if r.spec not in useless)
        useless |= {r.spec for r in near} - {r.spec for r in found}
        ranking += found
    assert match.ranking == tuple(ranking)
    if match.level != MatchLevel.MISS:
        assert match.ranking
        # a recipe that is of no use on a nearer level is not taken from a later one
        levels = [(r, get_match_level(r, HERE)) for r in records]
        for nearer in {level for _, level in levels if level < match.level}:
            of_no_use = {r.spec for r, level in levels if level < nearer}
            assert not rank(
                r for r, level in levels if level == nearer and r.spec not in of_no_use
            )


def test_what_is_slow_here_is_not_taken_from_elsewhere():
    """A recipe that was no faster on this machine is not served for a fact of another,
    however fast it was there; nor one that was slow at the nearest extents, or on the
    nearest device.
    """
    here = make_record((2.0,), environment=HERE)
    there = make_record((0.1,), environment=OTHER_CPU)
    assert find_best_match([here, there], HERE).level == MatchLevel.MISS
    assert find_best_match([mark_untrusted(here), there], HERE).record == there
    near = at_size(64, make_record((2.0,)))
    far = at_size(1_000_000, make_record((0.1,)))
    assert (
        find_best_match([near, far], HERE, extents={"a text": {"N": 60}}).record is None
    )
    assert find_best_match([near, far], HERE).record == far
    near = make_record((2.0,), environment=OTHER_CPU)
    far = make_record((0.1,), environment=FAR)
    assert find_best_match([near, far], HERE).record is None
    assert find_best_match([far], HERE).record == far


def test_distance():
    """The largest log2 of the ratios of extents that both know."""
    for sizes, extents, expected in (
        ({"N": 100}, {"N": 100}, 0.0),
        ({"N": 100}, {"N": 800}, 3.0),
        ({"N": 800}, {"N": 100}, 3.0),
        ({"N": 128, "M": 9}, {"N": 256, "M": 9}, 1.0),
        ({"N": 128, "M": 9}, {"M": 18}, 1.0),
        ({"N": 128}, {}, 0.0),
        ({}, {"N": 128}, 0.0),
        ({"N": 0}, {"N": 128}, 0.0),
        ({"N": 10**400}, {"N": 1}, 1328.8),
    ):
        assert compute_distance(sizes, extents) == expected
        assert compute_distance(extents, sizes) == expected


@given(record_lists, st.lists(st.integers(1, 10**6), min_size=6, max_size=6))
def test_nearest_extents_come_first(records, sizes):
    """Within a level, facts of alike devices are ordered by distance; the match states
    the first.
    """
    known = [at_size(n, r) for n, r in zip(sizes, records, strict=False)]
    match = find_best_match(known, HERE, "strict", extents={"a text": {"N": 500}})
    far = [compute_distance(r.measurement.sizes, {"N": 500}) for r in match.ranking]
    assert far == sorted(far)
    assert match.distance == (far[0] if far else 0)


def test_the_reason_states_the_distance():
    """At which extents it was measured, which are here, and how far that is."""
    record = at_size(4096, make_record((0.5,)))
    extents = {"a text": {"N": 512}}
    for is_nearest in (False, True):
        match = find_best_match([record], HERE, extents=extents, is_nearest=is_nearest)
        assert match.distance == 3.0
        words = "measured at N=4096; here it is N=512, a distance of 3 (log2"
        assert words in match.reason


def at_size(size: int, record: TuningRecord) -> TuningRecord:
    return replace(record, measurement=replace(record.measurement, sizes={"N": size}))


def test_ties_are_broken_by_fewest_resources():
    """Then by the text of the spec, then by content id."""
    big = make_record((0.5,), spec="a@1(block=64, lanes=8)")
    small = make_record((0.5,), spec="b@1(block=32, index='i', lanes=4)")
    same = make_record((0.5,), spec="c@1(block=128, path=(9, 9))")
    assert [estimate_resources(r.spec) for r in (big, small, same)] == [512, 128, 128]
    assert rank([big, same, small]) == (small, same, big)


@given(record_lists, st.integers(0, 2**32), st.sampled_from(["default", "loose"]))
def test_the_answer_does_not_depend_on_the_order_of_rows(records, seed, policy):
    """Look-ups in rows of any order have one answer; also twenty of them."""
    shuffled = list(records)
    random = Random(seed)
    expected = find_best_match(records, HERE, policy, extents={"a text": {"N": 7}})
    for _ in range(20 if seed % 10 == 0 else 2):
        random.shuffle(shuffled)
        match = find_best_match(shuffled, HERE, policy, extents={"a text": {"N": 7}})
        assert match == expected


def test_an_infinite_speed_up_is_not_believed():
    """Times at the ends of what a float can be make no winner."""
    absurd = make_record((1e-320,), (1e300,), spec="a@1()")
    assert absurd.measurement.speedup == inf
    assert find_best_match([absurd], HERE).level == MatchLevel.MISS


def test_nothing_recorded():
    """No facts at all is a miss of its own."""
    match = find_best_match([], HERE)
    assert (match.level, match.record) == (MatchLevel.MISS, None)
    assert match.reason == "no fact is recorded for this workload"


def test_reason():
    """A hit says which recipe, how fast, and on what it was measured."""
    for there, where in (
        (HERE, "on this device and driver (driver 1)"),
        (OTHER_DRIVER, "on this device with driver driver 2; here it is driver 1"),
        (
            OTHER_CPU,
            "on Other CPU (Portable OpenCL, zen4, 8 units); here it is Some CPU",
        ),
        (NEXT_CPU, "on Some CPU (Portable OpenCL, zen5, 8 units); here it is Some CPU"),
        (BEFORE, "on Some CPU (Portable OpenCL, unknown microarchitecture, 8 units)"),
    ):
        reason = find_best_match([make_record((0.4,), environment=there)], HERE).reason
        assert reason.startswith("rowwise@1(lanes=8) ran 2.5 times as fast as")
        assert where in reason
        assert reason.endswith("1 candidate")
