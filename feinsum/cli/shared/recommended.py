"""Commands that a message recommends, to be copied into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from feinsum.errors import StoreError

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum
    from feinsum.records import FactStore, Trial

__all__ = [
    "more_trials",
    "trials_here",
    "tune_advice",
    "tune_command",
    "unchanged_advice",
]


def more_trials(n_tried: int) -> int:
    """How many trials to ask for after some that found nothing; they count, too."""
    return max(20, 2 * n_tried)


def tune_command(
    einsum: BatchedEinsum,
    sparse: Path | None = None,
    sizes: Sequence[str] | None = None,
    database: str | None = None,
    device: str | None = None,
    n_tried: int = 0,
) -> str:
    """The command that tunes an einsum, in one line.

    Args:
        sparse, sizes: of an einsum whose first operand is a sparse tensor of a file:
            that file, and what was said of the other indices.
        n_tried: recipes that were tried before; more are asked for.

    >>> from feinsum.ir import array, einsum
    >>> print(tune_command(einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))))
    feinsum tune 'i j, j -> i | A[n,4]:<f8 x[4]:<f8 | A x'
    """
    from feinsum.ir import to_text

    words = ["feinsum", "tune"]
    if sparse is None:
        words.append(to_text(einsum))
    else:
        words += [einsum.subscripts, "--sparse", str(sparse)]
        for text in sizes or ():
            words += ["--sizes", text]
        if einsum.batch_size > 1:
            rows = [",".join(operand.name for operand in row) for row in einsum.rows]
            words += ["--rows", ";".join(rows)]
    for option, value in (("--database", database), ("--device", device)):
        if value is not None:
            words += [option, value]
    if n_tried:
        words += ["--trials", str(more_trials(n_tried))]
    return shlex.join(words)


def trials_here(
    store: FactStore, einsum: BatchedEinsum, device: str | None
) -> list[Trial]:
    """The latest trial of each recipe of an einsum on this device and driver."""
    from feinsum.canonical import canonicalize
    from feinsum.ir import generalize
    from feinsum.measure import open_device
    from feinsum.records import Level, level_of

    key = canonicalize(generalize(einsum)[0]).key
    here = open_device(device).environment({})
    mine = (one for one in store.trials(key) if level_of(one, here) == Level.EXACT)
    return list({trial.spec: trial for trial in mine}.values())


def tune_advice(tried: Sequence[Trial]) -> str:
    """The words before a command that tunes, given the recipes that were tried."""
    if not tried:
        return "tune it with"
    n_passed = sum(trial.is_ok for trial in tried)
    return (
        f"{len(tried)} recipes were tried on this device and {n_passed} passed, but no "
        "faster one is on record; try more with"
    )


def unchanged_advice(
    einsum: BatchedEinsum, database: str | None, device: str | None
) -> tuple[str, str]:
    """What to say of an einsum without a recipe: words, and the command to run."""
    from feinsum.db import opened_store

    try:
        with opened_store(database, has_shipped=True) as store:
            tried = trials_here(store, einsum, device)
    except StoreError:  # nobody has tuned into a database that is missing
        tried = []
    command = tune_command(einsum, database=database, device=device, n_tried=len(tried))
    return tune_advice(tried), command
