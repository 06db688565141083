"""The one door to nauty: its search for a canonical labelling, bounded.

Source: McKay and Piperno, Practical graph isomorphism II (2014).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pynauty

from feinsum.canonical import search_process
from feinsum.canonical.search_process import ANSWER, searched_order
from feinsum.errors import CanonicalizationError
from feinsum.processes import run_to_end

__all__ = ["CANONICALIZER", "Deadline", "bounded_order"]

CANONICALIZER = "nauty" + ".".join(metadata.version("pynauty").split(".")[:2])
"""Series of nauty releases that label alike; part of every workload key."""

MAX_VERTICES = 20_000
"""Largest graph that is given to nauty, which a graph of 65,600 vertices crashes."""

QUICK = 64
"""Largest graph that is searched in this process, which cannot stop a search."""

TIME_LIMIT_S = 10.0
"""How long all searches for one einsum may take, where nothing else is set."""

LARGEST_LIMIT_S = 1e6

SETTING = "FEINSUM_CANONICALIZATION_LIMIT_S"


class Deadline:
    """When all searches for one einsum must be done.

    Args:
        limit_s: seconds from now; None for the setting
            ``FEINSUM_CANONICALIZATION_LIMIT_S``, or 10 seconds.

    Raises:
        CanonicalizationError: if that is no positive number of seconds.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = _from_setting() if limit_s is None else limit_s
        if not 0 < self.limit_s <= LARGEST_LIMIT_S:
            raise CanonicalizationError(
                f"time limit {self.limit_s!r} s; expected up to {LARGEST_LIMIT_S:.0e}, "
                f"and more than 0, by time_limit_s= or {SETTING}"
            )
        self.at_s = time.monotonic() + self.limit_s

    @property
    def left_s(self) -> float:
        """Seconds left; a little, where nothing is left."""
        return max(1e-3, self.at_s - time.monotonic())


def _from_setting() -> float:
    text = os.environ.get(SETTING, "")
    try:
        return float(text or TIME_LIMIT_S)
    except ValueError:
        raise CanonicalizationError(
            f"{SETTING} is {text!r}; expected a positive number of seconds"
        ) from None


def bounded_order(
    n_vertices: int,
    cells: Sequence[set[int]],
    edges: Sequence[tuple[int, int]],
    deadline: Deadline,
) -> list[int]:
    """The vertices 0, 1, ... in the order of the canonical labelling.

    nauty's worst case is exponential: a graph of more than :data:`QUICK` vertices is
    searched in a separate process, which is stopped at the deadline.

    Args:
        n_vertices: how many there are.
        cells: the vertices of each color, in the order of the colors.
        edges: unordered pairs of vertices, none twice.

    Raises:
        CanonicalizationError: if the search takes longer or the graph is too large.
    """
    if n_vertices <= QUICK:
        return searched_order(n_vertices, cells, edges)
    if n_vertices > MAX_VERTICES:
        raise CanonicalizationError(
            f"color refinement leaves {n_vertices} vertices undecided, nauty takes at "
            f"most {MAX_VERTICES}; split the batch or the product"
        )
    if sys.executable is None or getattr(sys, "frozen", False):
        raise _failed(n_vertices, "needs a Python interpreter, but none was found")
    limit_s = deadline.left_s
    # the process ends itself a second later, if nobody is left here to stop it
    given = [limit_s + 1, n_vertices, [sorted(cell) for cell in cells], edges]
    # -P: modules beside the script must not hide others of their names
    command = [sys.executable, "-P", search_process.__file__]
    env = os.environ | {"PYTHONPATH": str(Path(pynauty.__file__).parents[1])}
    try:
        ended = run_to_end(command, json.dumps(given), limit_s=limit_s, env=env)
    except OSError as error:
        raise _failed(n_vertices, f"could not be started ({error})") from None
    if ended.code is None:
        raise _failed(
            n_vertices,
            f"was stopped after {deadline.limit_s:g} s; raise the limit with "
            f"time_limit_s= or {SETTING}",
        )
    if not ended.is_ok:
        raise _failed(n_vertices, f"ended with {ended}")
    try:
        order: list[int] = json.loads(ended.said.rpartition(ANSWER)[2])
    except ValueError:
        raise _failed(n_vertices, "gave an unreadable answer") from None
    return order


def _failed(n_vertices: int, what: str) -> CanonicalizationError:
    return CanonicalizationError(f"nauty's search on {n_vertices} vertices {what}")
