"""How ``feinsum roofline`` shows workloads: as a table, as JSON, as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from feinsum.cli.shared.output import print_table, to_digits

if TYPE_CHECKING:
    from feinsum.bounds import Bound
    from feinsum.cli.roofline.work import Placed
    from feinsum.drawing import Chart
    from feinsum.measure import Rung
    from feinsum.records import DevicePeaks

ELSEWHERE = "*"

FOOTNOTE = f"""\
{ELSEWHERE} Measured on another machine, or on one whose processor was not recorded.
  The limits are those of this machine, so the share can be above 100%.
"""

TOO_LOW = """\
A recorded time of this device is below the minimum that its limits allow: the
limits are too low, or the device has changed. Measure them again on an idle
machine: feinsum devices --again
"""
MOST_SHARE = 1.02
"""Of the roofline; what is above it is no noise of a fact."""


@dataclass(frozen=True)
class View:
    """Workloads under the limits of a device.

    Attributes:
        ladder: kernels of rising intensity; empty if they were not measured.
        bounds: what the levels of the memory move at least for each workload; empty
            if nobody asked.
    """

    peaks: DevicePeaks
    placed: Sequence[Placed]
    ladder: Sequence[Rung]
    bounds: Sequence[Bound | None] = ()

    def print(self) -> None:
        """Tables of at most 80 columns, then a line about the device."""
        print_table(
            ("workload",),
            ("Gop", "MB", "op/B", "roof Gop/s", "got", "share"),
            [self._row(one) for one in self.placed],
        )
        if any(map(self._is_elsewhere, self.placed)):
            typer.echo(FOOTNOTE)
        if any(map(self._is_impossible, self.placed)):
            typer.echo(TOO_LOW)
        if names := self._level_names():
            print_table(
                ("workload",),
                [f"{name} MB" for name in names] + [f"{name} %" for name in names],
                [self._level_row(k, names) for k in range(len(self.placed))],
            )
        if self.ladder:
            print_table(
                (),
                ("multiply-adds", "op/B", "roof Gop/s", "got", "lower", "upper"),
                [self._rung_row(rung) for rung in self.ladder],
            )
        rates = sorted(self.peaks.operations_per_s.items())
        typer.echo(
            f"limits of {self.peaks.device}\n"
            f"as of {self.peaks.measured_at}: "
            f"{_giga(self.peaks.bandwidth_bytes_per_s)} GB/s; "
            + "; ".join(f"{_giga(rate)} Gop/s of {dtype}" for dtype, rate in rates)
        )

    def document(self) -> dict[str, Any]:
        """Everything as JSON; null where no fact is known."""
        peaks = self.peaks
        return {
            "device": str(peaks.device),
            "device_id": peaks.device.id,
            "peaks": {
                "bandwidth_bytes_per_s": peaks.bandwidth_bytes_per_s,
                "operations_per_s": dict(peaks.operations_per_s),
                "measured_at": peaks.measured_at,
            },
            "workloads": [self._entry(k, one) for k, one in enumerate(self.placed)],
            "ladder": [self._rung_entry(rung) for rung in self.ladder],
        }

    def _is_elsewhere(self, one: Placed) -> bool:
        """Whether its fact is of another machine than the limits, or may be."""
        fact, here = one.fact, self.peaks.device
        return fact is not None and not fact.environment.device.is_surely(here)

    def _is_impossible(self, one: Placed) -> bool:
        """Whether a fact of this very device is beyond its limits."""
        rate = one.operations_per_s
        if rate is None or self._is_elsewhere(one):
            return False
        return rate > MOST_SHARE * one.work.bound(self.peaks)

    def chart(self) -> Chart:
        """The chart: rates in Gop/s over operations per byte."""
        from feinsum.drawing import Chart, Dot, Step

        dots = [
            Dot(
                one.workload.group,
                one.work.intensity,
                (one.operations_per_s or one.work.bound(self.peaks)) * 1e-9,
                is_measured=one.fact is not None,
            )
            for one in self.placed
        ]
        steps = [
            Step(
                rung.work.intensity,
                rung.operations_per_s * 1e-9,
                *(rate * 1e-9 for rate in rung.spread),
            )
            for rung in self.ladder
        ]
        peaks, date = self.peaks, self.peaks.measured_at[:10]
        is_mixed = any(map(self._is_elsewhere, self.placed))
        more = "; some rates are from other machines" if is_mixed else ""
        return Chart(
            f"Roofline of {peaks.device}, {date}{more}",
            peaks.bandwidth_bytes_per_s * 1e-9,
            {_words(d): rate * 1e-9 for d, rate in peaks.operations_per_s.items()},
            tuple(dots),
            tuple(steps),
            {name: rate * 1e-9 for name, rate in peaks.cache_bytes_per_s.items()},
        )

    def _row(self, one: Placed) -> tuple[str, ...]:
        bound, got = one.work.bound(self.peaks), one.operations_per_s
        mark = ELSEWHERE if self._is_elsewhere(one) else ""
        return (
            one.workload.name,
            to_digits(one.work.n_operations * 1e-9, 3),
            to_digits(one.work.footprint_bytes * 1e-6, 3),
            to_digits(one.work.intensity, 3),
            _giga(bound),
            "-" if got is None else _giga(got),
            "-" if got is None else f"{got / bound:.0%}{mark}",
        )

    def _level_names(self) -> list[str]:
        """The levels beyond the registers, of all bounds alike."""
        known = [bound for bound in self.bounds if bound is not None]
        return [one.level.name for one in known[0].levels] if known else []

    def _level_row(self, place: int, names: Sequence[str]) -> tuple[str, ...]:
        """Megabytes at least, and percents of the bandwidths that were used."""
        one, bound = self.placed[place], self.bounds[place]
        if bound is None:
            return (one.workload.name, *(["-"] * 2 * len(names)))
        reached = self._reached(place)
        return (
            one.workload.name,
            *(to_digits(level.n_bytes * 1e-6, 3) for level in bound.levels),
            *(f"{reached[n]:.0%}"[:-1] if n in reached else "-" for n in names),
        )

    def _reached(self, place: int) -> dict[str, float]:
        from feinsum.bounds import shares

        one, bound = self.placed[place], self.bounds[place]
        if one.fact is None or bound is None:
            return {}
        return shares(bound, one.fact.measurement.median_s)

    def _level_entries(self, place: int) -> list[dict[str, Any]]:
        bound = self.bounds[place] if self.bounds else None
        if bound is None:
            return []
        reached = self._reached(place)
        return [
            {
                "name": one.level.name,
                "bytes": one.n_bytes,
                "seconds": one.seconds,
                "fraction_of_bandwidth": reached.get(one.level.name),
            }
            for one in bound.levels
        ]

    def _entry(self, place: int, one: Placed) -> dict[str, Any]:
        bound, got = one.work.bound(self.peaks), one.operations_per_s
        fact = one.fact
        return {
            "name": one.workload.name,
            "group": one.workload.group,
            "operations": dict(one.work.operations),
            "footprint_bytes": one.work.footprint_bytes,
            "operations_per_byte": one.work.intensity,
            "roofline_operations_per_s": bound,
            "operations_per_s": got,
            "fraction_of_roofline": None if got is None else got / bound,
            "record": None if fact is None else fact.id,
            "measured_on": None if fact is None else str(fact.environment.device),
            "is_of_this_device": None if fact is None else not self._is_elsewhere(one),
            "levels": self._level_entries(place),
        }

    def _rung_row(self, rung: Rung) -> tuple[str, ...]:
        rates = rung.work.bound(self.peaks), rung.operations_per_s, *rung.spread
        intensity = to_digits(rung.work.intensity, 3)
        return str(rung.n_steps), intensity, *map(_giga, rates)

    def _rung_entry(self, rung: Rung) -> dict[str, Any]:
        return {
            "multiply_adds": rung.n_steps,
            "operations_per_byte": rung.work.intensity,
            "operations_per_s": rung.operations_per_s,
            "quartiles": list(rung.spread),
            "samples_s": list(rung.samples_s),
        }


def _giga(value: float) -> str:
    return to_digits(value * 1e-9, 3)


def _words(dtype: str) -> str:
    """A dtype for people.

    >>> _words("<f8")
    'float64'
    """
    return str(np.dtype(dtype))
