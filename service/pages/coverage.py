"""Coverage of a suite: which of its workloads have facts, and how fast the best are.

::

    TCCG: 31 of 48    [#][#][-][ ][#] ...     # faster than untransformed, - no faster
    abcde-efbad-cf    |     1    2  o  5  |   the highest speed-up of a trusted fact
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from feinsum.canonical import canonicalize
from feinsum.db.server.pages import ListedWorkload, get_workloads
from feinsum.db.server.serving import ServingStore
from feinsum.ir import generalize
from feinsum.service.pages.charts import Axis, make_axis
from feinsum.service.pages.words import is_implausible
from feinsum.suites import EVERYDAY, NAMES, SuiteEntry, read_suite

SUITES = {"tccg": "TCCG", "dgfem": "Discontinuous Galerkin", EVERYDAY: "Everyday"}
"""The suites of this package, with their titles."""

assert SUITES.keys() == {*NAMES, EVERYDAY}


@dataclass(frozen=True)
class CoveredEntry:
    """An entry of a suite, with its workload if that has facts."""

    entry: SuiteEntry
    key: str
    listed: ListedWorkload | None

    @property
    def level(self) -> str:
        """How well it is covered, in a word."""
        if self.listed is None:
            return "missing"
        return "faster" if self.listed.speedup > 1 else "slower"


@dataclass(frozen=True)
class Coverage:
    """The entries of a suite, and the axis of their highest speed-ups."""

    title: str
    entries: tuple[CoveredEntry, ...]
    axis: Axis

    @property
    def n_covered(self) -> int:
        """How many entries have facts."""
        return sum(covered.listed is not None for covered in self.entries)


@cache
def _compute_keys(suite: str) -> tuple[str, ...]:
    """Compute the keys of a suite: about a millisecond each, once in a process."""
    entries = read_suite(suite)
    return tuple(canonicalize(generalize(e.einsum())[0]).key for e in entries)


def compute_coverage(suite: str, store: ServingStore, device_id: str) -> Coverage:
    """Compute the coverage of a suite of the package.

    Args:
        suite: name of the suite.
        store: store of the facts.
        device_id: device whose facts count; empty for any.
    """
    keys = _compute_keys(suite)
    listed = {w.key: w for w in store.read(get_workloads, keys, device_id)}
    entries = tuple(
        CoveredEntry(entry, key, listed.get(key))
        for entry, key in zip(read_suite(suite), keys, strict=True)
    )
    speedups = [w.speedup for w in listed.values() if not is_implausible(w.speedup)]
    axis = make_axis([1.0, *speedups], "{:g}×".format)
    return Coverage(SUITES[suite], entries, axis)
