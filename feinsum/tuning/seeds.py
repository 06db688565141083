"""Starting points of a search: the best recipes of neighbours."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain, groupby, zip_longest

from feinsum.records import (
    Environment,
    FactSource,
    Remoteness,
    TransformSpec,
    TuningRecord,
    level_of,
    rank,
    remoteness,
)
from feinsum.transforms import renewed

__all__ = ["N_SEEDS", "neighbours"]

N_SEEDS = 4
"""Few, as they take trials from the search."""


def neighbours(
    store: FactSource,
    workload_text: str,
    environment: Environment,
    fitting: Collection[TransformSpec],
    limit: int = N_SEEDS,
) -> list[TransformSpec]:
    """The best recipes of facts with the same structure, nearest first.

    The structure is the notation of the canonical einsum, to whose names a recipe
    refers; extents, dtypes, the number of rows, sizes and devices may differ. Nearest
    are facts of this very einsum, then those with the same arrays except for extents;
    in each group, this device comes first, then nearer devices. The best recipe of
    every neighbour comes before the second best of any.

    Recipes of an older version are taken up in the newest one of their family.

    Args:
        fitting: the recipes that fit the einsum; all others are skipped.

    A service gives none: it is not read as a whole.
    """
    alike = [*store.like(_notation(workload_text))]

    def distance(
        record: TuningRecord,
    ) -> tuple[bool, bool, int, Remoteness, str, str]:
        there = record.environment.device
        return (
            record.workload_text != workload_text,
            _dtypes(record.workload_text) != _dtypes(workload_text),
            level_of(record, environment),
            remoteness(there, environment.device),
            record.workload,
            there.id,
        )

    groups = groupby(sorted(alike, key=distance), key=distance)
    rankings = [rank(records) for _, records in groups]
    in_turn = chain.from_iterable(zip_longest(*rankings))
    specs = [record.spec for record in in_turn if record is not None]
    versions = dict.fromkeys(v for spec in specs for v in (spec, renewed(spec)))
    return [spec for spec in versions if spec in fitting][:limit]


def _notation(workload_text: str) -> str:
    return workload_text.partition(" | ")[0]


def _dtypes(workload_text: str) -> list[str]:
    """The dtypes of the arrays, in order.

    >>> _dtypes("a b, b -> a | A0[N0,4]:<f8 A1[4]:<f4 | A0 A1")
    ['<f8', '<f4']
    """
    arrays = workload_text.split(" | ")[1].split()
    return [array.rpartition(":")[2] for array in arrays]
