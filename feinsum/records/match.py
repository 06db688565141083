"""Choose among records: how well a fact fits, and which recipe is best.

A look-up has the facts of a workload from many machines. Each is at a level, the best
at the top; the best level that has a recipe faster than the untransformed kernel wins::

    level                      the fact was measured ...
    exact                      on this device and driver, at like extents
    same-device-other-driver   on this device with another driver
    same-architecture          on another CPU (or GPU) of this architecture
    nearest-extents            at other extents of the same einsum
    predicted                  (not measured: a recipe of the cost model)
    generic                    on any other device
    miss                       nowhere, or no recipe is faster
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import IntEnum
from html import escape
from math import inf, log2, prod
from typing import Literal, NamedTuple

from feinsum.ir import PROFILE
from feinsum.records.environment import (
    Device,
    Environment,
    describe_driver_difference,
)
from feinsum.records.record import FramedSpec, TransformSpec, Trial, TuningRecord
from feinsum.words import (
    format_brief,
    format_count,
    format_html_table,
    format_sizes,
)

Policy = Literal["strict", "default", "loose"]
"""The worst level accepted: exact; other extents, or predicted; any."""

Extents = Mapping[str, Mapping[str, int]]
"""From the text of a workload to the extents of a kernel, in its names."""


SAME_PROFILE = 0.1
"""Maximum distance of equal profiles of a sparse operand: 7 % more entries."""


class MatchLevel(IntEnum):
    """How well a record fits a kernel and a machine; lower is better."""

    EXACT = 0
    SAME_DEVICE_OTHER_DRIVER = 1
    SAME_ARCHITECTURE = 2
    NEAREST_EXTENTS = 3
    PREDICTED = 4
    GENERIC = 5
    MISS = 6

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


WORST_ACCEPTED: dict[Policy, MatchLevel] = {
    "strict": MatchLevel.EXACT,
    "default": MatchLevel.PREDICTED,
    "loose": MatchLevel.GENERIC,
}


class Remoteness(NamedTuple):
    """How far one device is from another; lower is better.

    The platform weighs more: it compiles both the recipe and the untransformed kernel,
    so speed-ups of two platforms cannot be compared.
    """

    is_other_platform: bool
    is_other_microarchitecture: bool


NEAR = Remoteness(is_other_platform=False, is_other_microarchitecture=False)


@dataclass(frozen=True)
class Match:
    """The result of a look-up.

    Attributes:
        level: how well the best record fits; :attr:`Level.MISS` for none.
        reason: why, in words.
        ranking: all acceptable records of that level, the best first.
        remoteness: how far the device of the best record is from this one.
        distance: how far the extents of the best record are from the kernel's, see
            :func:`compute_distance`.
        recipes: at :attr:`Level.PREDICTED` and, if there is no record, at
            :attr:`Level.GENERIC`: recipes that were not measured, best first.
        is_tuned: at :attr:`Level.MISS`, whether recipes were recorded on this device
            and driver, all of them no faster than the untransformed kernel.
    """

    level: MatchLevel
    reason: str
    ranking: tuple[TuningRecord, ...] = ()
    remoteness: Remoteness = NEAR
    distance: float = 0.0
    recipes: tuple[TransformSpec, ...] = ()
    is_tuned: bool = False

    @property
    def record(self) -> TuningRecord | None:
        return self.ranking[0] if self.ranking else None

    @property
    def is_hit(self) -> bool:
        """Whether there is a recipe, measured or not."""
        return bool(self.ranking or self.recipes)

    def __repr__(self) -> str:
        best = self.ranking[0].spec if self.ranking else next(iter(self.recipes), None)
        n_records = (
            f"{format_count(len(self.ranking), 'record')}, " if self.ranking else ""
        )
        recipe = "" if best is None else f"; the best is {best}"
        return format_brief(self, f"{self.level}: {n_records}{self.reason}{recipe}")

    def _repr_html_(self) -> str:
        headings = ["recipe", "median", "IQR", "speed-up", "device"]
        rows: list[Sequence[object]] = [_make_row(record) for record in self.ranking]
        rows += [(recipe, "", "", "", "") for recipe in self.recipes]
        head = f"<p><b>{self.level}</b>: {escape(self.reason)}</p>"
        return head + (format_html_table(headings, rows) if rows else "")


def _make_row(record: TuningRecord) -> Sequence[object]:
    measured = record.measurement
    return (
        record.spec,
        f"{measured.median_s * 1e3:.4g} ms",
        f"{measured.spread_s * 1e3:.2g} ms",
        f"{measured.speedup:.3g}",
        record.environment.device,
    )


class _Fit(NamedTuple):
    """How well a record fits; lower is better.

    The machine takes precedence over the extents, by level and by remoteness: records
    of two platforms must not compete by speed-up, whatever their extents. Distances
    have tenths, so remoteness would hardly ever decide after them.

    Attributes:
        machine: the level of the machine alone.
    """

    level: MatchLevel
    machine: MatchLevel
    remoteness: Remoteness
    distance: float


def get_match_level(
    record: TuningRecord | Trial, environment: Environment
) -> MatchLevel:
    """Return how well a record, or a trial, fits a machine.

    It fits a CPU with an unknown processor no better than any other of its
    architecture: an equal name proves nothing. Options of the C compiler that cannot
    change a time make no other driver; see :func:`describe_driver_difference`.
    """
    measured, local = record.environment.device, environment.device
    if measured.is_surely(local):
        difference = describe_driver_difference(
            record.environment, environment, record.workload_text
        )
        return MatchLevel.SAME_DEVICE_OTHER_DRIVER if difference else MatchLevel.EXACT
    if (measured.kind, measured.architecture) == (local.kind, local.architecture):
        return MatchLevel.SAME_ARCHITECTURE
    return MatchLevel.GENERIC


def compute_remoteness(measured: Device, local: Device) -> Remoteness:
    """Return how far a device is from another; unknown microarchitectures differ.

    >>> unknown = Device("PoCL", "AMD EPYC", "AuthenticAMD", "cpu", "x86_64", 2)
    >>> compute_remoteness(unknown, unknown)
    Remoteness(is_other_platform=False, is_other_microarchitecture=True)
    """
    # Two unknown microarchitectures are probably different.
    name = measured.microarchitecture
    is_other = name is None or name != local.microarchitecture
    return Remoteness(measured.platform != local.platform, is_other)


def compute_distance(sizes: Mapping[str, int], extents: Mapping[str, int]) -> float:
    """Return the largest ``abs(log2)`` of the ratios of extents, to a tenth.

    Args:
        sizes: extents that were measured.
        extents: extents of the kernel, as far as known.

    >>> compute_distance({"N0": 100_000, "N1": 40}, {"N0": 384})
    8.0
    """
    # On a logarithmic scale, twice and half the extent are equally far. Parameters that
    # are not known here are ignored.
    ratios = (
        abs(log2(size) - log2(extents[name]))
        for name, size in sizes.items()
        if size > 0 and extents.get(name, 0) > 0
    )
    return round(max(ratios, default=0.0), 1)


def profile_distance(sizes: Mapping[str, int], extents: Mapping[str, int]) -> float:
    """Return the distance of the profiles of a sparse operand, without the extents.

    >>> profile_distance({"N0": 9, "nodes.0": 8}, {"N0": 99, "nodes.0": 9})
    0.2
    """
    nodes = {name: n for name, n in sizes.items() if name.startswith(PROFILE)}
    return compute_distance(nodes, extents)


def estimate_resources(spec: TransformSpec) -> int:
    """Estimate the resource use of a recipe by the size of its tiles.

    Work-items, registers and local memory grow with blocks, lanes, widths and depths,
    so this is the product of all whole numbers among the parameters.

    >>> spec = TransformSpec.parse("rowwise@1(block=64, index='a', lanes=2)")
    >>> estimate_resources(spec)
    128
    """
    return prod(v for v in spec.parameters.values() if type(v) is int and v > 1)


def rank(records: Iterable[TuningRecord]) -> tuple[TuningRecord, ...]:
    """Sort records by speed-up, best first; the same for every input order.

    Those of trusted recorders precede all others. Of either, outdated records come
    last, and records whose speed-up interval reaches the highest lower end of all are
    tied for first place. Among these, times that are not noisy precede others, and
    recipes that run on the device precede those that call a library of the host; then
    the fewest resources, the text of the spec, and the content id decide. Recipes no
    faster than the untransformed kernel are omitted.
    """
    records = tuple(records)
    outdated = find_outdated_records(records)
    # A recipe that is no faster than the untransformed kernel is never applied.
    faster = [record for record in records if record.measurement.is_faster]
    current = useful = faster
    if outdated:
        current = [record for record in faster if record.id not in outdated]
        recipes = {record.recipe for record in current}
        useful = [record for record in faster if record.recipe in recipes]
    if len(useful) < 2:  # as of most workloads
        return tuple(useful)
    first = find_tied_records([record for record in current if record.is_trusted])
    first |= find_tied_records([record for record in current if not record.is_trusted])

    def sort_key(
        record: TuningRecord,
    ) -> tuple[bool, bool, bool, float, bool, bool, int, str, str]:
        is_first, spec = record.id in first, record.spec
        # Speed-ups of tied records differ by noise only, so something stable decides.
        slowness = 0.0 if is_first else -record.measurement.speedup
        return (
            not record.is_trusted,
            record.id in outdated,
            not is_first,
            slowness,
            is_first and record.measurement.is_noisy,
            spec.is_on_host,
            estimate_resources(spec),
            str(spec),
            record.id,
        )

    return tuple(sorted(useful, key=sort_key))


def find_outdated_records(records: Iterable[TuningRecord]) -> frozenset[str]:
    """Return the ids of records that another measurement replaces.

    Of the measurements of a recipe on one device and driver at the same sizes, those
    that are not noisy count, and of these the latest::

        2026-03-01  noisy   8.1  (6.0 - 9.9)     outdated
        2026-03-02          6.2  (6.1 - 6.3)     outdated
        2026-03-03          6.5  (6.4 - 6.6)     counts
        2026-03-04  noisy   5.0  (4.0 - 7.0)     outdated

    Untrusted records replace none: one false time would hide a good recipe.
    """
    trusted = [record for record in records if record.is_trusted]
    outdated = set[str]()
    # by recipe first: most have one record, and no place has to be compared
    for alike in _group(trusted, lambda record: record.recipe):
        for group in _group(alike, _get_place) if len(alike) > 1 else ():
            quiet = [r for r in group if not r.measurement.is_noisy] or group
            latest = max(record.recorded_at for record in quiet)
            # those of the same time are of one run
            outdated |= {r.id for r in group if r.recorded_at != latest}
    return frozenset(outdated)


def _get_place(record: TuningRecord) -> Hashable:
    """Return the device, driver and sizes of a measurement."""
    environment = record.environment
    versions = environment.driver_version, environment.platform_version
    return environment.device, versions, record.measurement.sizes


def _group(
    records: Iterable[TuningRecord], key: Callable[[TuningRecord], Hashable]
) -> Iterable[list[TuningRecord]]:
    groups: dict[Hashable, list[TuningRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups.values()


def find_tied_records(records: Collection[TuningRecord]) -> frozenset[str]:
    """Return the ids of records tied for first place.

    Their speed-up intervals reach the highest lower end of all::

        r1      |----------|             tied
        r2          |------------|       tied: its lower end is the highest
        r3  |--|                         not tied
    """
    intervals = {r.id: r.measurement.speedup_interval for r in records}
    floor = max((low for low, _ in intervals.values()), default=inf)
    return frozenset(name for name, (_, high) in intervals.items() if high >= floor)


def find_best_match(
    records: Sequence[TuningRecord],
    environment: Environment,
    policy: Policy = "default",
    *,
    is_nearest: bool = False,
    extents: Extents | None = None,
) -> Match:
    """Choose the best acceptable record; return the level of its fit, and why.

    Within a level, records of nearer devices come first, and among these those with
    extents nearer to the kernel's. A recipe that was no faster than the untransformed
    kernel at a better fit is not taken from a worse one, if a trusted recorder says so.

    Args:
        records: facts of the workload.
        environment: the device and software of the caller.
        policy: the worst acceptable match.
        is_nearest: whether the records are of the same einsum at other extents.
        extents: extents of the kernel, as far as known.
    """
    if not records:
        return Match(MatchLevel.MISS, "no fact is recorded for this workload")
    extents = extents or {}
    fits = {r.id: _fit(r, environment, extents, is_nearest) for r in records}
    groups = list(_group_records(records, fits))
    # Take the first group with a ranking: a worse fit is used only without a better
    # one.
    best = next((fit for fit, ranking in groups if ranking), None)
    if best is None or best.level > WORST_ACCEPTED[policy]:
        closest = min(fits.values()).level
        why = f"none beats the untransformed kernel (closest level: {closest})"
        if best is not None:
            why = f"the policy {policy!r} rejects the best (level: {best.level})"
        facts = "1 fact is" if len(records) == 1 else f"{len(records)} facts are"
        last = max(record.recorded_at for record in records)[:10]
        reason = f"{facts} recorded, the last on {last}, but {why}"
        # Tuned here without success: another tuning would find nothing, either.
        return Match(MatchLevel.MISS, reason, is_tuned=closest == MatchLevel.EXACT)
    ranking = [r for fit, group in groups if fit.level == best.level for r in group]
    local_extents = extents.get(ranking[0].workload_text, {})
    reason = _format_reason(ranking, best, environment, local_extents)
    return Match(best.level, reason, tuple(ranking), best.remoteness, best.distance)


def _fit(
    record: TuningRecord, environment: Environment, extents: Extents, is_nearest: bool
) -> _Fit:
    machine = get_match_level(record, environment)
    sizes, kernel = record.measurement.sizes, extents.get(record.workload_text, {})
    # A recipe depends on how many entries a row has, as it does on extents.
    is_other = is_nearest or profile_distance(sizes, kernel) > SAME_PROFILE
    level = max(MatchLevel.NEAREST_EXTENTS if is_other else MatchLevel.EXACT, machine)
    remote = compute_remoteness(record.environment.device, environment.device)
    return _Fit(level, machine, remote, compute_distance(sizes, kernel))


def _group_records(
    records: Sequence[TuningRecord], fits: Mapping[str, _Fit]
) -> Iterator[tuple[_Fit, tuple[TuningRecord, ...]]]:
    """Yield rankings of records of equal fit, the best fit first."""
    useless: set[FramedSpec] = set()
    # From the best fit to the worst: recipes that failed at a better fit are excluded.
    for fit in sorted(set(fits.values())):
        group = [r for r in records if fits[r.id] == fit and r.recipe not in useless]
        ranking = rank(group)
        # Untrusted records exclude no recipe: one false time would hide a good recipe.
        trusted = {record.recipe for record in group if record.is_trusted}
        useless |= trusted - {record.recipe for record in ranking}
        yield fit, ranking


def _format_reason(
    ranking: Sequence[TuningRecord],
    fit: _Fit,
    environment: Environment,
    extents: Mapping[str, int],
) -> str:
    best = ranking[0]
    measured = best.environment
    if fit.machine == MatchLevel.EXACT:
        machine = f"on this device and driver ({measured.driver_version})"
    elif fit.machine == MatchLevel.SAME_DEVICE_OTHER_DRIVER:
        difference = describe_driver_difference(
            measured, environment, best.workload_text
        )
        machine = f"on this device with {difference}"
    else:
        devices = _describe(measured.device), _describe(environment.device)
        machine = "on {}; here it is {}".format(*devices)
    sizes = best.measurement.sizes
    sizes_note = ""
    if fit.level == MatchLevel.NEAREST_EXTENTS or fit.distance:
        sizes_note = f"; measured at {format_sizes(sizes)}"
    if fit.distance:
        sizes_note += (
            "; here it is "
            f"{format_sizes({n: extents[n] for n in sizes if n in extents})}"
        )
        sizes_note += f", a distance of {fit.distance:g} (log2 of the ratio)"
    candidates = format_count(len(ranking), "candidate")
    return (
        f"{best.spec!s:.200} ran {best.measurement.speedup:.1f} times as fast as the "
        f"untransformed kernel {machine}; {candidates}{sizes_note}"
    )


def _describe(device: Device) -> str:
    """Describe a device; a CPU with the details that identify it."""
    if device.kind != "cpu":
        return str(device)
    design = device.microarchitecture or "unknown microarchitecture"
    units = format_count(device.compute_units, "unit")
    return f"{device.name} ({device.platform}, {design}, {units})"
