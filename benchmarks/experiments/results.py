"""What came of it: samples, statuses, comparisons, and the file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.experiments.entries import Entry
from benchmarks.experiments.ours import OURS


@dataclass(frozen=True)
class Outcome:
    """What became of one contender at one entry under some terms.

    Attributes:
        status: ``ok``, ``wrong``, ``failed``, ``crashed``, ``left out`` or
            ``not installed``.
        why: the reason of any status but ``ok``.
        note: such as the recipe.
        first_s: from the user's program to the first result: import of the library,
            look-up, compilation, copies to the device, one run.
        second_s: of the second run, in which ours builds a kernel if the first one was
            answered by numpy.
        error: the largest, relative to the largest result.
        samples_s: all of them, in the order of the rounds.
    """

    status: str
    why: str = ""
    note: str = ""
    first_s: float | None = None
    second_s: float | None = None
    error: float | None = None
    samples_s: tuple[float, ...] = ()

    @property
    def is_ok(self) -> bool:
        return self.status == "ok" and bool(self.samples_s)

    @property
    def median_s(self) -> float:
        return median(self.samples_s)

    @property
    def quartiles_s(self) -> tuple[float, float]:
        if len(self.samples_s) == 1:
            return self.samples_s[0], self.samples_s[0]
        low, _, high = quantiles(self.samples_s, n=4, method="inclusive")
        return low, high


Runs = Mapping[str, Mapping[str, Outcome]]
"""Outcomes by terms and contender."""


@dataclass(frozen=True)
class Comparison:
    """Ours and a rival, timed in turns in one run."""

    ours: Outcome
    rival: Outcome
    name: str
    terms: str

    @property
    def ratio(self) -> float:
        """The rival's time over ours: above 1, ours is faster."""
        return self.rival.median_s / self.ours.median_s

    @property
    def is_tied(self) -> bool:
        """Whether the quartiles of the two overlap."""
        (low, high), (first, last) = self.ours.quartiles_s, self.rival.quartiles_s
        return low <= last and first <= high


@dataclass(frozen=True)
class Result:
    """One entry, at the sizes at which it ran.

    Attributes:
        tuned: recipes that ``--tune`` recorded, or why it could not.
    """

    name: str
    group: str
    batch_size: int
    sizes: Mapping[str, int]
    flops: int
    footprint_bytes: int
    runs: Runs
    tuned: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: Entry, runs: Runs, tuned: Iterable[str] = ()) -> Result:
        return cls(entry.name, entry.group, len(entry.rows), dict(entry.sizes),
                   entry.flops, entry.footprint_bytes, runs, tuple(tuned))  # fmt: skip

    def ours(self, terms: str) -> Outcome | None:
        """The retrieved kernel; of several devices, on that where it is fastest."""
        outcomes_found = self.ours_by_device(terms).values()
        return min(outcomes_found, key=lambda outcome: outcome.median_s, default=None)

    def ours_by_device(self, terms: str) -> dict[str, Outcome]:
        """The retrieved kernel on each device where it did well, by contender."""
        return {
            name: outcome
            for name, outcome in self.runs.get(terms, {}).items()
            if name.startswith(OURS) and outcome.is_ok
        }

    def rivals(self) -> Iterator[tuple[str, str, Outcome]]:
        """Terms, name and outcome of each rival that did well."""
        for terms, outcomes in self.runs.items():
            for name, outcome in outcomes.items():
                is_rival = not name.startswith(OURS) and name != "untransformed"
                if is_rival and outcome.is_ok:
                    yield terms, name, outcome

    def against(
        self, rival: str | None = None, *, ours: str | None = None
    ) -> Comparison | None:
        """Ours and a rival, under the terms that suit the rival best.

        Args:
            rival: its name; by default the fastest of all.
            ours: the contender of a device; by default the fastest of ours.
        """
        candidates = [r for r in self.rivals() if rival in (None, r[1])]
        if not candidates:
            return None
        terms, name, outcome = min(candidates, key=lambda r: r[2].median_s)
        mine = self.ours_by_device(terms).get(ours) if ours else self.ours(terms)
        return None if mine is None else Comparison(mine, outcome, name, terms)

    def best(self) -> tuple[str, Outcome] | None:
        """The rival that is fastest under any terms."""
        candidates = min(self.rivals(), key=lambda r: r[2].median_s, default=None)
        return None if candidates is None else (candidates[1], candidates[2])

    def fastest_of_ours(self) -> Outcome | None:
        """Ours as it is compared with the fastest rival; without one, at its best."""
        compared = self.against()
        if compared is not None:
            return compared.ours
        candidates = [ours for terms in self.runs if (ours := self.ours(terms))]
        return min(candidates, key=lambda outcome: outcome.median_s, default=None)

    def untransformed(self) -> Outcome | None:
        outcomes_found = (
            outcomes.get("untransformed") for outcomes in self.runs.values()
        )
        return next((outcome for outcome in outcomes_found if outcome), None)


@dataclass(frozen=True)
class Limits:
    """What the machine reached when it was measured.

    Attributes:
        operations_per_s: double precision, the better of feinsum's multiply-adds
            and of numpy's product of matrices, which only a CPU has.
    """

    bandwidth_bytes_per_s: float
    fma_operations_per_s: float
    dgemm_operations_per_s: float
    device: str = ""

    @property
    def operations_per_s(self) -> float:
        return max(self.fma_operations_per_s, self.dgemm_operations_per_s)

    def roofline(self, result: Result) -> float:
        """Operations per second that this entry could reach."""
        intensity = result.flops / result.footprint_bytes
        return min(self.operations_per_s, intensity * self.bandwidth_bytes_per_s)


@dataclass
class Report:
    """The contents of a file.

    Attributes:
        about: machine, date, versions, command line, options; of every run that made
            it, if it was resumed.
    """

    suite: str
    about: list[dict[str, Any]]
    limits: Limits | None = None
    results: dict[str, Result] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write beside, then exchange: a file is whole at any time."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.new")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Report:
        read = json.loads(path.read_text())
        limits = Limits(**read["limits"]) if read["limits"] else None
        results = {name: _result(value) for name, value in read["results"].items()}
        return cls(read["suite"], read["about"], limits, results)


def _result(value: dict[str, Any]) -> Result:
    runs = {
        terms: {name: outcome_of(document) for name, document in outcomes.items()}
        for terms, outcomes in value["runs"].items()
    }
    return Result(**{**value, "runs": runs, "tuned": tuple(value["tuned"])})


def outcome_of(value: Mapping[str, Any]) -> Outcome:
    """From its JSON form."""
    return Outcome(**{**value, "samples_s": tuple(value["samples_s"])})


def geometric_mean(values: Iterable[float]) -> float | None:
    """The mean of ratios; None without any.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs)) if logs else None
