"""Canonical labelling of colored graphs, whatever way it takes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import labelling
from feinsum.canonical.labelling import (
    Deadline,
    compute_places,
    group_by_color,
    list_neighbours,
    refine_cells,
)
from feinsum.canonical.search_process import run_nauty
from feinsum.errors import CanonicalizationError
from feinsum.processes import Worker
from tests.strategies import counts

Colored = tuple[list[int], list[tuple[int, int]]]


@st.composite
def colored_graphs(draw: st.DrawFn, max_vertices: int = 9) -> Colored:
    """Few colors, and edges of any density: much symmetry, often several parts."""
    n = draw(st.integers(1, max_vertices))
    colors = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n).map(sorted))
    pairs = [(u, v) for v in range(n) for u in range(v)]
    if not pairs:
        return colors, []
    edges = draw(st.lists(st.sampled_from(pairs), unique=True))
    return colors, edges


@st.composite
def pairs_of_graphs(draw: st.DrawFn) -> tuple[Colored, Colored]:
    """A graph, and the same or one with one edge moved; renumbered."""
    colors, edges = draw(colored_graphs())
    other = list(edges)
    n = len(colors)
    if edges and draw(st.booleans()):
        other.pop(draw(st.integers(0, len(edges) - 1)))
        left = [(u, v) for v in range(n) for u in range(v) if (u, v) not in other]
        other.append(draw(st.sampled_from(left)))
    return (colors, edges), renumbered((colors, other), draw(st.permutations(range(n))))


def renumbered(graph: Colored, new: Any) -> Colored:
    colors, edges = graph
    moved = sorted(zip(new, colors, strict=True))
    return [color for _, color in moved], [(new[u], new[v]) for u, v in edges]


@pytest.fixture(params=[labelling.SMALL, 0], ids=["nauty alone", "by components"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs are given to nauty as they are, or are refined first."""
    monkeypatch.setattr(labelling, "SMALL", request.param)


def placed(graph: Colored) -> tuple[Any, Any]:
    """Colors and edges in the canonical numbering."""
    colors, edges = graph
    places = compute_places(colors, edges)
    assert sorted(places) == list(range(len(colors)))
    moved = sorted(zip(places, colors, strict=True))
    in_order = [color for _, color in moved]
    assert in_order == sorted(in_order), "a smaller color has smaller places"
    return moved, sorted(tuple(sorted((places[u], places[v]))) for u, v in edges)


def as_networkx(graph: Colored) -> nx.Graph:
    colors, edges = graph
    made = nx.Graph(edges)
    made.add_nodes_from((v, {"color": color}) for v, color in enumerate(colors))
    return made


@pytest.mark.usefixtures("both_ways")
@counts(150, 20_000)
@given(pairs_of_graphs())
def test_equal_exactly_if_isomorphic(pair: tuple[Colored, Colored]) -> None:
    """Two placed graphs are equal exactly if networkx finds an isomorphism."""
    first, second = pair
    is_isomorphic = nx.is_isomorphic(
        as_networkx(first), as_networkx(second), node_match=lambda a, b: a == b
    )
    assert (placed(first) == placed(second)) == is_isomorphic


@given(colored_graphs(max_vertices=12))
def test_refined_partition_is_equitable(graph: Colored) -> None:
    """All vertices of a cell have as many neighbours in any cell as the others."""
    cells, neighbours = refine(graph)
    cell_of = {v: k for k, cell in enumerate(cells) for v in cell}
    for cell in cells:
        counts = [Counter(cell_of[w] for w in neighbours[v]) for v in cell]
        assert all(count == counts[0] for count in counts)


def refine(graph: Colored) -> tuple[list[set[int]], list[list[int]]]:
    colors, edges = graph
    neighbours = list_neighbours(len(colors), edges)
    return refine_cells(group_by_color(colors), neighbours), neighbours


def ring(n: int) -> tuple[int, list[set[int]], list[tuple[int, int]]]:
    return n, [set(range(n))], [(v, (v + 1) % n) for v in range(n)]


def test_one_graph_in_two_processes() -> None:
    """The helper process finds the order that is found in this process."""
    assert labelling.search_order(*ring(200), Deadline()) == run_nauty(*ring(200))


def test_the_helper_process_imports_our_nauty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not another one that Python would find first: keys are those of one release."""
    package = tmp_path / "pynauty" / "__init__.py"
    package.parent.mkdir()
    package.write_text("raise ImportError('imported from where ours is')")
    monkeypatch.setattr(labelling.pynauty, "__file__", str(package))
    with pytest.raises(CanonicalizationError, match="imported from where ours is"):
        labelling.search_order(*ring(200), Deadline())


def test_no_search_in_this_process_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph of more than QUICK vertices is never searched where it cannot stop."""
    seen: list[int] = []

    def spy(n: int, cells: list[set[int]], edges: Any) -> list[int]:
        seen.append(n)
        return run_nauty(n, cells, edges)

    monkeypatch.setattr(labelling, "run_nauty", spy)
    for n in (labelling.QUICK, labelling.QUICK + 1):
        assert len(labelling.search_order(*ring(n), Deadline())) == n
    assert seen == [labelling.QUICK]


def test_search_beyond_its_time_is_stopped() -> None:
    """The error says after which time, and how to give more."""
    match = r"200 vertices was stopped after 0\.001 s.*time_limit_s="
    with pytest.raises(CanonicalizationError, match=match):
        labelling.search_order(*ring(200), Deadline(0.001))


def test_all_searches_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a graph gets the time that those before it have left."""
    limits: list[float] = []
    request = labelling.Worker.request

    def watched(worker: Worker, line: str, limit_s: float) -> str:
        limits.append(limit_s)
        return request(worker, line, limit_s)

    monkeypatch.setattr(labelling.Worker, "request", watched)
    n, _, edges = ring(100)
    edges = [(u + n * k, v + n * k) for k in range(3) for u, v in edges]
    assert sorted(compute_places([0] * (3 * n), edges, 60.0)) == list(range(3 * n))
    assert len(limits) == 3
    assert limits == sorted(limits, reverse=True)
    assert 60.0 > limits[0] > limits[1] > limits[2] > 0


def test_process_ends_itself() -> None:
    """A search that nobody waits for ends when its time is over."""
    n = 4000  # without edges: nauty is slow where everything can be exchanged
    given = json.dumps([0.2, n, [list(range(n))], []])
    command = [sys.executable, "-P", labelling.search_process.__file__]
    done = subprocess.run(command, input=given, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGALRM


@pytest.mark.parametrize(
    ("script", "match"),
    [
        ("", "ended with code 0"),
        # it reads the graph: unread, the system may drop the answer at its end
        ("import os; os.read(0, 1 << 20); os.write(0, b'hello\\n')",
         "gave an unreadable answer"),
        (None, r"ended with code 2: .*script\.py"),
    ],
)  # fmt: skip
def test_a_process_without_an_answer_is_an_error(
    script: str | None, match: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says nothing, or something else, or fails: its last line is in the error."""
    path = tmp_path / "script.py"
    if script is not None:
        path.write_text(script)
    monkeypatch.setattr(labelling.search_process, "__file__", str(path))
    with pytest.raises(CanonicalizationError, match=match):
        labelling.search_order(*ring(200), Deadline())


@pytest.mark.parametrize(
    ("executable", "match"),
    [("/nowhere/python", "could not be started"), (None, "but none was found")],
)
def test_search_that_cannot_start(
    executable: str | None, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no interpreter to run, the error says so."""
    monkeypatch.setattr("sys.executable", executable)
    with pytest.raises(CanonicalizationError, match=match):
        labelling.search_order(*ring(200), Deadline())


def test_too_many_vertices_are_refused() -> None:
    """A graph that would crash the process is never given to nauty."""
    n = labelling.MAX_VERTICES + 1
    match = (
        f"leaves {n} vertices undecided, nauty takes at most {labelling.MAX_VERTICES}"
    )
    with pytest.raises(CanonicalizationError, match=match):
        labelling.search_order(n, [set(range(n))], [], Deadline())


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_argument_is_refused(limit_s: float) -> None:
    """The error names the argument."""
    with pytest.raises(CanonicalizationError, match="time_limit_s="):
        Deadline(limit_s)
