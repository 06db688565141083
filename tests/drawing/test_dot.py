"""The induced graph as DOT text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from hypothesis import given

from feinsum.canonical import build_induced_graph
from feinsum.drawing import write_dot
from feinsum.drawing.graph.picture import KINDS
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum
from tests.strategies import counts, einsums

GOLDEN = Path(__file__).with_name("batch.dot")
D, x = array("D", (4, 4)), array("x", 4)
BATCH = batched_einsum("ij,jk,kk->ik", [[array("A", ("n", 4)), D, D]] * 2)


def test_the_text_is_on_record() -> None:
    """Labels, colors, layers, edges and legend are those of the golden file.

    It is written anew by ``draw(BATCH, GOLDEN)``.
    """
    assert write_dot(BATCH) == GOLDEN.read_text()


@counts(30, 5000)
@given(einsums())
def test_the_induced_graph_is_drawn(e: BatchedEinsum) -> None:
    """The text has its vertices and edges and no others. The fill of a vertex is that
    of the kind in its color, which the legend has; every index, operand and size
    parameter is named on a vertex.
    """
    graph, text = build_induced_graph(e), write_dot(e)
    vertices = re.findall(r"^  v(\d+) \[", text, re.MULTILINE)
    edges = re.findall(r"^  v(\d+) -- v(\d+);$", text, re.MULTILINE)
    assert list(map(int, vertices)) == list(range(len(graph.colors)))
    assert [(int(u), int(v)) for u, v in edges] == graph.edges
    kinds = [color[0] for color in graph.colors]
    fills = re.findall(r'^  v\d+ .*fillcolor="(.*)"\];$', text, re.MULTILINE)
    assert fills == [KINDS[kind].fill for kind in kinds]
    titled = set(re.findall(r"^    legend_(\w+)_text ", text, re.MULTILINE))
    assert titled == {kind.replace("-", "_") for kind in kinds}
    labels = re.findall(r'^  v\d+ \[label="(\w+)', text, re.MULTILINE)
    named = [*e.indices, *(op.name for op in e.operands), *map(str, e.size_params)]
    assert set(named) <= set(labels)


def test_the_multiplicity_is_a_label_or_a_vertex() -> None:
    """Without vertices for rows, a use says how often it is multiplied; in a batch a
    vertex does, between the row and the use.
    """
    text = write_dot(einsum("i,i,ij->j", x, x, D))
    assert 'label="x\\n<f8 ×2"' in text
    assert 'label="D\\n<f8"' in text
    text = write_dot(batched_einsum("i,i->i", [[x, x], [x, array("y", 4)]]))
    assert re.search(r'label="×2", shape=diamond', text)


def test_kinds_are_told_apart_without_color() -> None:
    """No two kinds have one shape, and no two have one fill."""
    assert len({kind.shape for kind in KINDS.values()}) == len(KINDS)
    assert len({kind.fill for kind in KINDS.values()}) == len(KINDS)


PRINT = """
from feinsum.drawing import write_dot
from feinsum.ir import array, batched_einsum
x, y, z = (array(name, ("N", "M")) for name in "xyz")
print(write_dot(batched_einsum("ij,ij,kj->ik", [[x, y, z], [z, z, y]])))
"""


def test_the_text_is_the_same_in_every_process() -> None:
    """It does not depend on the hashes of strings, which differ by process."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", PRINT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "12345")
    }
    assert len(texts) == 1
