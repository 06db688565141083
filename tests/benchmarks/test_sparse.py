"""The benchmark of sparse einsums runs, and its rivals are right."""

from __future__ import annotations

import pytest

from benchmarks.sparse_problems import PATTERNS
from benchmarks.sparse_rivals import write_downward_source, write_upward_source
from tests.children import run_python
from tests.docs.pages import ROOT
from tests.portions import spread


def run(*options: str) -> str:
    """Run the script and return what it prints.

    It has a process of its own: libraries built with ``-ffast-math`` flush subnormal
    numbers to zero in the whole process that loads them.
    """
    return run_python("benchmarks/sparse.py", "--rounds", "1", *options).stdout


def read_rows(said: str) -> list[dict[str, str]]:
    """The rows of the printed table, by the heads of its columns."""
    lines = [line.strip("| ") for line in said.splitlines() if line.startswith("| ")]
    heads, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    return [dict(zip(heads, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("only", "dtype"),
    spread(
        [
            ("^sp", "float32"),
            ("mttkrp (nips|vast)", "float64"),
            ("(leaf|tttp) vast", "float64"),
        ],
        1,
    ),
)
def test_a_small_run_has_a_row_for_each_entry(only: str, dtype: str) -> None:
    """Right results, times of what is installed, a ratio, and the processor."""
    said = run("--only", only, "--scale", "0.0005", "--rank", "16", "--dtype", dtype)
    rows = read_rows(said)
    assert len(rows) == 2
    for row in rows:
        for head in ("feinsum, ms", "plain C, ms", "best rival / ours"):
            assert float(row[head]) > 0
    assert dtype in said
    assert "cores" in said
    assert "geometric means of" in said
    assert "a first call" in said
    assert "not installed" in said


@pytest.mark.long
def test_ttmc_and_tttc_are_compared_with_the_unfactorized_nest() -> None:
    """And with how many operations each of them takes."""
    said = run("--only", "ttmc nips|tttc", "--scale", "0.0002", "--rank", "4")
    rows = read_rows(said)
    assert len(rows) == 2
    for row in rows:
        assert float(row["unfactorized, ms"]) > 0
        assert float(row["operations"]) > 1


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_keep_the_lengths_of_their_fibers(name: str) -> None:
    """All numbers of nodes are scaled alike."""
    tree = PATTERNS[name].make_tree(0.001, "float64")
    wanted = PATTERNS[name].profile
    assert tree.order == len(PATTERNS[name].shape)
    assert tree.nnz > 0
    if wanted:
        assert tree.nnz == pytest.approx(wanted[-1] * 0.001, rel=0.05)


def test_the_script_of_tensora_reads_what_it_is_given() -> None:
    """It needs no more than numpy and tensora, and is not run without them."""
    source = (ROOT / "benchmarks" / "sparse_tensora.py").read_text()
    imported = {line.split()[1] for line in source.splitlines() if "import " in line}
    assert not any(name.startswith("feinsum") for name in imported)


def test_sums_by_hand_are_vectors() -> None:
    """And plain ones are not."""
    assert "vector_size(32)" in write_upward_source(3, 32, "double", 4)
    assert "vector_size" not in write_upward_source(3, 32, "double", 1)
    assert "vector_size(32)" in write_downward_source(3, 32, "double", 4, "tttp")
    assert "vector_size" not in write_downward_source(3, 32, "double", 1, "tttp")
