"""Choosing among records: how well a fact fits, and which recipe is best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from feinsum.records.environment import Environment
from feinsum.records.record import TuningRecord
from feinsum.records.trial import Trial

__all__ = ["Level", "Match", "Policy", "best_match", "level_of", "rank"]

Policy = Literal["strict", "default", "loose"]
"""The worst level accepted: exact; same architecture, other extents; any."""


class Level(IntEnum):
    """How well the environment of a record fits; lower is better."""

    EXACT = 0
    SAME_DEVICE_OTHER_DRIVER = 1
    SAME_ARCHITECTURE = 2
    NEAREST_EXTENTS = 3
    OTHER_DEVICE = 4
    MISS = 5

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


WORST_ACCEPTED: dict[Policy, Level] = {
    "strict": Level.EXACT,
    "default": Level.NEAREST_EXTENTS,
    "loose": Level.OTHER_DEVICE,
}


@dataclass(frozen=True)
class Match:
    """What a look-up returns.

    Attributes:
        level: how well the best record fits; :attr:`Level.MISS` for none.
        reason: why, in words.
        ranking: all acceptable records of that level, the best first.
    """

    level: Level
    reason: str
    ranking: tuple[TuningRecord, ...] = ()

    @property
    def record(self) -> TuningRecord | None:
        return self.ranking[0] if self.ranking else None


def level_of(record: TuningRecord | Trial, environment: Environment) -> Level:
    """How well a record, or a trial, fits a machine."""
    there, here = record.environment, environment
    if there.device == here.device:
        is_same_driver = (there.driver_version, there.platform_version) == (
            here.driver_version,
            here.platform_version,
        )
        return Level.EXACT if is_same_driver else Level.SAME_DEVICE_OTHER_DRIVER
    if (there.device.kind, there.device.architecture) == (
        here.device.kind,
        here.device.architecture,
    ):
        return Level.SAME_ARCHITECTURE
    return Level.OTHER_DEVICE


def rank(records: Iterable[TuningRecord]) -> tuple[TuningRecord, ...]:
    """Records by speed-up, the best first; the same for every input order.

    Records whose speed-up interval reaches the highest lower end of all are tied
    for the first place. Of these the recipes that run on the device come first, then
    those that call a library of the host; then the text of the spec decides, then the
    content id. A recipe that is no faster than the untransformed kernel is left out.
    """
    useful = [r for r in records if r.measurement.speedup > 1]
    if not useful:
        return ()
    floor = max(r.measurement.speedup_interval[0] for r in useful)

    def order(record: TuningRecord) -> tuple[bool, float, bool, str, str]:
        is_tied = record.measurement.speedup_interval[1] >= floor
        slowness = 0.0 if is_tied else -record.measurement.speedup
        spec = record.spec
        return not is_tied, slowness, spec.is_on_host, str(spec), record.id

    return tuple(sorted(useful, key=order))


def best_match(
    records: Sequence[TuningRecord],
    environment: Environment,
    policy: Policy = "default",
    *,
    is_nearest: bool = False,
) -> Match:
    """The best acceptable record, the level of its fit, and why.

    Args:
        is_nearest: the records are of the same einsum at other extents.
    """
    if not records:
        return Match(Level.MISS, "no fact is recorded for this workload")
    best = Level.NEAREST_EXTENTS if is_nearest else Level.EXACT
    levels = {record.id: max(best, level_of(record, environment)) for record in records}
    worst = WORST_ACCEPTED[policy]
    for level in sorted(set(levels.values())):
        ranking = rank(r for r in records if levels[r.id] == level)
        if ranking and level <= worst:
            return Match(level, _reason(ranking, level, environment), ranking)
    best_level = min(levels.values())
    return Match(
        Level.MISS,
        f"{len(records)} facts are recorded, but none is both faster than the "
        f"untransformed kernel and accepted by the policy {policy!r} "
        f"(best level: {best_level})",
    )


def _reason(
    ranking: Sequence[TuningRecord], level: Level, environment: Environment
) -> str:
    best = ranking[0]
    there = best.environment
    if level == Level.NEAREST_EXTENTS:
        sizes = ", ".join(f"{name}={n}" for name, n in best.measurement.sizes.items())
        there_too = _reason(ranking, level_of(best, environment), environment)
        return f"{there_too}; measured at {sizes}"
    where = {
        Level.EXACT: f"on this device and driver ({there.driver_version})",
        Level.SAME_DEVICE_OTHER_DRIVER: f"on this device with driver "
        f"{there.driver_version}; here it is {environment.driver_version}",
    }.get(level, f"on {there.device}; here it is {environment.device}")
    return (
        f"{best.spec} ran {best.measurement.speedup:.1f} times as fast as the "
        f"untransformed kernel {where}; {len(ranking)} candidates"
    )
