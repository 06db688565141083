"""Commands that a message recommends, for copying into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import typer

from feinsum.cli.shared.failure import NO_FACT, say
from feinsum.errors import StoreError

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum
    from feinsum.records import Store


def recommend_trials(n_tried: int) -> int:
    """Return how many trials to recommend, including earlier ones without a result."""
    return max(20, 2 * n_tried)


def tune_command(
    einsum: BatchedEinsum,
    sparse: Path | None = None,
    sizes: Sequence[str] | None = None,
    database: str | None = None,
    device: str | None = None,
    tried: Tried | None = None,
) -> str:
    """Return the command that tunes an einsum, in one line.

    Args:
        einsum: the einsum.
        sparse: file of the first operand, if it is a sparse tensor.
        sizes: with ``sparse``, the sizes given for the other indices.
        database: address of the database; None for the default.
        device: part of a device name; None for the default.
        tried: earlier trials, if any; the command then requests more recipes.

    >>> from feinsum.ir import array, einsum
    >>> print(tune_command(einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))))
    feinsum tune 'i j, j -> i | A[n,4]:<f8 x[4]:<f8 | A x'
    """
    from feinsum.ir import to_text

    words = ["feinsum", "tune"]
    if sparse is None:
        # the whole text, so that no option is needed besides
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
    if tried is not None:
        words += ["--trials", str(recommend_trials(tried.recipes))]
    return shlex.join(words)


class Tried(NamedTuple):
    """The recipes of an einsum that were tried on this device, none of them useful.

    Attributes:
        recipes, passed: how many were tried, and how many of them ran correctly.
        last: the date of the last one.
    """

    recipes: int
    passed: int
    last: str


def find_tried_recipes(
    store: Store, einsum: BatchedEinsum, device: str | None
) -> Tried | None:
    """Find the recipes tried for an einsum on this device and driver, if any.

    A service stores no trials, but it has the facts about the best of them.
    """
    from feinsum.canonical import canonicalize
    from feinsum.ir import generalize
    from feinsum.measure import open_device
    from feinsum.records import MatchLevel, Trial, get_match_level

    key = canonicalize(generalize(einsum)[0]).key
    environment = open_device(device).environment({})
    # a service has no trials, but facts
    entries = store.trials(key) or store.query(key)
    local = [e for e in entries if get_match_level(e, environment) == MatchLevel.EXACT]
    if not local:
        return None
    # a recipe that was tried again counts by its last trial
    latest = {e.spec: not isinstance(e, Trial) or e.is_ok for e in local}
    last = max(e.recorded_at for e in local)[:10]
    return Tried(len(latest), sum(latest.values()), last)


def tune_advice(tried: Tried | None) -> str:
    """Return the words before a command that tunes, given the recipes tried."""
    if tried is None:
        return "tune it with"
    return (
        f"recipes tried on this device: {tried.recipes}, {tried.passed} passed, the "
        f"last on {tried.last}; none is used, for the reason above; try more with"
    )


def make_unchanged_advice(
    einsum: BatchedEinsum, database: str | None, device: str | None
) -> tuple[str, str]:
    """Return a remark about an einsum without a recipe, and the command to run."""
    from feinsum.db import opened_store

    try:
        with opened_store(database, has_shipped=True) as store:
            tried = find_tried_recipes(store, einsum, device)
    except StoreError:  # a database that does not exist has no trials
        tried = None
    command = tune_command(einsum, database=database, device=device, tried=tried)
    return tune_advice(tried), command


def end_without_recipe(
    einsum: BatchedEinsum, database: str | None, device: str | None
) -> NoReturn:
    """Say how to get a recipe, and end with :data:`NO_FACT`."""
    words, command = make_unchanged_advice(einsum, database, device)
    say(f"no recipe was applied; {words}: {command}")
    raise typer.Exit(NO_FACT)
