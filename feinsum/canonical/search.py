"""The one door to nauty: its search for a canonical labelling, bounded.

Source: McKay and Piperno, Practical graph isomorphism II (2014).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata

from feinsum.canonical import search_process
from feinsum.canonical.search_process import searched_order
from feinsum.errors import CanonicalizationError

__all__ = ["CANONICALIZER", "default_time_limit_s", "nauty_order"]

CANONICALIZER = "nauty" + ".".join(metadata.version("pynauty").split(".")[:2])
"""Series of nauty releases that label alike; part of every workload key."""

MAX_VERTICES = 20_000
"""Largest graph that is given to nauty, which a graph of 65,600 vertices crashes."""

QUICK = 128
"""Largest graph that is searched in this process, which cannot stop a search."""


TIME_LIMIT_S = 10.0


def default_time_limit_s() -> float:
    """The setting ``FEINSUM_CANONICALIZATION_LIMIT_S``, or 10 seconds.

    Raises:
        CanonicalizationError: if the setting is no positive number.
    """
    text = os.environ.get("FEINSUM_CANONICALIZATION_LIMIT_S", "")
    try:
        limit_s = float(text or TIME_LIMIT_S)
    except ValueError:
        limit_s = 0.0
    if not limit_s > 0:
        raise CanonicalizationError(
            f"FEINSUM_CANONICALIZATION_LIMIT_S is {text!r}; expected a positive number "
            "of seconds"
        )
    return limit_s


def nauty_order(
    n_vertices: int,
    cells: Sequence[set[int]],
    edges: Sequence[tuple[int, int]],
    time_limit_s: float | None,
) -> list[int]:
    """The vertices 0, 1, ... in the order of the canonical labelling.

    Args:
        n_vertices: how many there are.
        cells: the vertices of each color, in the order of the colors.
        edges: unordered pairs of vertices, none twice.
        time_limit_s: how long a search of more than :data:`QUICK` vertices may take;
            default is :func:`default_time_limit_s`.

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
    if time_limit_s is None:
        time_limit_s = default_time_limit_s()
    return _order_from_process(n_vertices, cells, edges, time_limit_s)


def _order_from_process(
    n_vertices: int,
    cells: Sequence[set[int]],
    edges: Sequence[tuple[int, int]],
    time_limit_s: float,
) -> list[int]:
    """Let a process of its own search; stop it when the time is over."""
    given = json.dumps([n_vertices, [sorted(cell) for cell in cells], edges])
    command = [sys.executable, "-P", search_process.__file__]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(  # noqa: S603 (our own script)
            command,
            input=given,
            env=environment,
            capture_output=True,
            timeout=time_limit_s,
            check=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        what = (
            f"was stopped after {time_limit_s:g} s; more time is given by "
            "FEINSUM_CANONICALIZATION_LIMIT_S"
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"code {error.returncode}"])[-1]
        what = f"ended with an error ({last})"
    except OSError as error:
        what = f"could not be started ({error})"
    else:
        order: list[int] = json.loads(done.stdout)
        return order
    raise CanonicalizationError(f"nauty's search on {n_vertices} vertices {what}")
