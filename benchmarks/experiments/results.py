"""The samples and statuses of contenders, their comparison, and the file of results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.experiments.entries import Entry
from benchmarks.experiments.ours import OURS
from feinsum.records import compute_quartiles


@dataclass(frozen=True)
class Outcome:
    """The outcome of one contender at one entry under some terms.

    Attributes:
        status: ``ok``, ``wrong``, ``failed``, ``crashed``, ``left out`` or ``not
            installed``.
        why: the reason of any status but ``ok``.
        note: such as the recipe.
        first_s: time to the first result: import of the library, look-up, compilation,
            copies to the device, one run.
        second_s: time of the second run, in which feinsum builds a kernel if numpy
            computed the first.
        error: largest error, relative to the largest result.
        samples_s: run times, in the order of the rounds.
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
        quartiles_s = compute_quartiles(self.samples_s)
        return quartiles_s.low, quartiles_s.high


Runs = Mapping[str, Mapping[str, Outcome]]
"""Outcomes by terms and contender."""


@dataclass(frozen=True)
class Comparison:
    """Ours and a rival, timed in the same interleaved rounds."""

    ours: Outcome
    rival: Outcome
    name: str
    terms: str

    @property
    def ratio(self) -> float:
        """Return the rival's time over ours: above 1, ours is faster."""
        return self.rival.median_s / self.ours.median_s

    @property
    def is_tied(self) -> bool:
        """Return whether the quartiles of the two overlap."""
        (low, high), (first, last) = self.ours.quartiles_s, self.rival.quartiles_s
        return low <= last and first <= high


@dataclass(frozen=True)
class Result:
    """The outcomes of one entry, at the sizes at which it ran.

    Attributes:
        tuned: recipes that ``--tune`` recorded, or the reason of its failure.
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

    def find_ours(self, terms: str) -> Outcome | None:
        """Return the retrieved kernel on the device where it is fastest."""
        outcomes = self.list_ours(terms).values()
        return min(outcomes, key=lambda outcome: outcome.median_s, default=None)

    def list_ours(self, terms: str) -> dict[str, Outcome]:
        """Return the outcomes of the retrieved kernel on each device, by contender."""
        return {
            name: outcome
            for name, outcome in self.runs.get(terms, {}).items()
            if name.startswith(OURS) and outcome.is_ok
        }

    def list_rivals(self) -> Iterator[tuple[str, str, Outcome]]:
        """Yield terms, name and outcome of each rival with a time."""
        for terms, outcomes in self.runs.items():
            for name, outcome in outcomes.items():
                is_rival = not name.startswith(OURS) and name != "untransformed"
                if is_rival and outcome.is_ok:
                    yield terms, name, outcome

    def compare(
        self, rival: str | None = None, *, ours: str | None = None
    ) -> Comparison | None:
        """Compare ours with a rival, under the terms that suit the rival best.

        Args:
            rival: the name; by default the fastest.
            ours: our contender; by default the fastest.
        """
        candidates = [r for r in self.list_rivals() if rival in (None, r[1])]
        if not candidates:
            return None
        terms, name, outcome = min(candidates, key=lambda r: r[2].median_s)
        mine = self.list_ours(terms).get(ours) if ours else self.find_ours(terms)
        return None if mine is None else Comparison(mine, outcome, name, terms)

    def find_best_rival(self) -> tuple[str, Outcome] | None:
        """Return the fastest rival under any terms."""
        candidates = min(self.list_rivals(), key=lambda r: r[2].median_s, default=None)
        return None if candidates is None else (candidates[1], candidates[2])

    def find_fastest_of_ours(self) -> Outcome | None:
        """Return ours under the terms of the fastest rival; without a rival, under the
        best.
        """
        compared = self.compare()
        if compared is not None:
            return compared.ours
        candidates = [ours for terms in self.runs if (ours := self.find_ours(terms))]
        return min(candidates, key=lambda outcome: outcome.median_s, default=None)

    def find_untransformed(self) -> Outcome | None:
        for outcomes in self.runs.values():
            if outcome := outcomes.get("untransformed"):
                return outcome
        return None


@dataclass(frozen=True)
class Limits:
    """Measured limits of the machine.

    Attributes:
        operations_per_s: in double precision, the higher of feinsum's multiply-adds
            and, on a CPU, numpy's matrix product.
    """

    bandwidth_bytes_per_s: float
    fma_operations_per_s: float
    dgemm_operations_per_s: float
    device: str = ""

    @property
    def operations_per_s(self) -> float:
        return max(self.fma_operations_per_s, self.dgemm_operations_per_s)

    def compute_roofline(self, result: Result) -> float:
        """Return the attainable operations per second of an entry."""
        intensity = result.flops / result.footprint_bytes
        return min(self.operations_per_s, intensity * self.bandwidth_bytes_per_s)


@dataclass
class Report:
    """The contents of a file of results.

    Attributes:
        about: metadata of each run; several if it was resumed.
    """

    suite: str
    about: list[dict[str, Any]]
    limits: Limits | None = None
    results: dict[str, Result] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.new")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Report:
        read = json.loads(path.read_text())
        limits = Limits(**read["limits"]) if read["limits"] else None
        results = {name: _read_result(value) for name, value in read["results"].items()}
        return cls(read["suite"], read["about"], limits, results)


def _read_result(value: dict[str, Any]) -> Result:
    runs = {
        terms: {name: read_outcome(document) for name, document in outcomes.items()}
        for terms, outcomes in value["runs"].items()
    }
    return Result(**{**value, "runs": runs, "tuned": tuple(value["tuned"])})


def read_outcome(value: Mapping[str, Any]) -> Outcome:
    """Read an outcome from its JSON form."""
    return Outcome(**{**value, "samples_s": tuple(value["samples_s"])})


def compute_geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean, or None without values.

    >>> compute_geometric_mean([1.0, 4.0]), compute_geometric_mean([])
    (2.0, None)
    """
    numbers = list(values)
    return geometric_mean(numbers) if numbers else None
