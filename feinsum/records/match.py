"""Choosing among records: how well a fact fits, and which recipe is best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from feinsum.records.environment import Environment
from feinsum.records.record import TuningRecord

__all__ = ["Level", "Match", "Policy", "best_match", "level_of", "rank"]

Policy = Literal["strict", "default", "loose"]
"""The worst level accepted: exact; same architecture; any."""


class Level(IntEnum):
    """How well the environment of a record fits; lower is better."""

    EXACT = 0
    SAME_DEVICE_OTHER_DRIVER = 1
    SAME_ARCHITECTURE = 2
    OTHER_DEVICE = 3
    MISS = 4

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


WORST_ACCEPTED: dict[Policy, Level] = {
    "strict": Level.EXACT,
    "default": Level.SAME_ARCHITECTURE,
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


def level_of(record: TuningRecord, environment: Environment) -> Level:
    """How well ``record`` fits a machine."""
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
    for the first place; ties are broken by the text of the spec, then by content
    id. A recipe that is no faster than the untransformed kernel is left out.
    """
    useful = [r for r in records if r.measurement.speedup > 1]
    if not useful:
        return ()
    floor = max(r.measurement.speedup_interval[0] for r in useful)

    def order(record: TuningRecord) -> tuple[bool, float, str, str]:
        is_tied = record.measurement.speedup_interval[1] >= floor
        slowness = 0.0 if is_tied else -record.measurement.speedup
        return not is_tied, slowness, str(record.spec), record.id

    return tuple(sorted(useful, key=order))


def best_match(
    records: Sequence[TuningRecord],
    environment: Environment,
    policy: Policy = "default",
) -> Match:
    """The best acceptable record, the level of its fit, and why."""
    if not records:
        return Match(Level.MISS, "no fact is recorded for this workload")
    levels = {record.id: level_of(record, environment) for record in records}
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
    where = {
        Level.EXACT: f"on this device and driver ({there.driver_version})",
        Level.SAME_DEVICE_OTHER_DRIVER: f"on this device with driver "
        f"{there.driver_version}; here it is {environment.driver_version}",
    }.get(level, f"on {there.device}; here it is {environment.device}")
    return (
        f"{best.spec} ran {best.measurement.speedup:.1f} times as fast as the "
        f"untransformed kernel {where}; {len(ranking)} candidates"
    )
