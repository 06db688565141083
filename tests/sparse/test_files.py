"""Files of FROSTT's form: read as a stream, and refused by name."""

from __future__ import annotations

import gzip
import tracemalloc

import numpy as np
import pytest
from hypothesis import given

from feinsum.errors import InvalidSparseArrayError
from feinsum.sparse import (
    COO,
    iterate_tns,
    random_uniform,
    read_tns,
    to_coo,
    to_dense,
    write_tns,
)
from tests.sparse.arrays import coordinates


@given(coordinates(dtypes=(np.float64,)))
def test_what_was_written_comes_back(tmp_path_factory, entries):
    """With the shape, which such a file does not have."""
    path = tmp_path_factory.mktemp("files") / "some.tns"
    write_tns(path, entries)
    if not entries.nnz:
        assert path.read_bytes() == b""
        return
    found = read_tns(path, shape=entries.shape)
    assert np.array_equal(found.values, entries.values)
    assert np.array_equal(np.stack(found.indices), np.stack(entries.indices))


def test_values_come_back_to_the_last_bit(tmp_path):
    """Also in single precision, and compressed."""
    for name, dtype in [("a.tns", np.float64), ("b.tns.gz", np.float32)]:
        tree = random_uniform((40, 30, 20), 500, seed=2, dtype=dtype)
        write_tns(tmp_path / name, tree)
        found = read_tns(tmp_path / name, shape=tree.shape, dtype=dtype)
        assert np.array_equal(to_dense(found), to_dense(tree))
        assert found.values.dtype == dtype


def test_a_compressed_file_is_compressed(tmp_path):
    """By its name, and by its content."""
    write_tns(tmp_path / "a.tns.gz", random_uniform((4, 4), 5, seed=0))
    assert len(gzip.decompress((tmp_path / "a.tns.gz").read_bytes()).split()) == 15


@pytest.mark.parametrize("block_bytes", [1, 7, 2**20])
def test_blocks_of_any_size_give_the_same_entries(tmp_path, block_bytes):
    """Lines are never cut between blocks."""
    path = tmp_path / "a.tns"
    path.write_text("# head\n1 2 3 0.5\n\n4\t5  6 -1e-3 # why\r\n  7 8 9 2\n")
    blocks = [*iterate_tns(path, block_bytes=block_bytes)]
    indices = np.concatenate([indices for indices, _ in blocks], axis=1)
    values = np.concatenate([values for _, values in blocks])
    assert indices.tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert values.tolist() == [0.5, -1e-3, 2.0]


def test_the_shape_is_that_of_the_largest_indices(tmp_path):
    """Where none is given."""
    (tmp_path / "a.tns").write_text("3 1 1.0\n1 7 2.0\n")
    assert read_tns(tmp_path / "a.tns").shape == (3, 7)


def test_indices_take_four_bytes_where_they_can(tmp_path):
    """And eight beyond."""
    (tmp_path / "a.tns").write_text("3 5000000000 1.0\n")
    found = read_tns(tmp_path / "a.tns")
    assert [i.dtype for i in found.indices] == [np.int32, np.int64]
    assert found.shape == (3, 5_000_000_000)


BROKEN = [
    ("line", "1 2 3 0.5\n1 2 0.5\n", "line 2 has 3 words"),
    ("line", "1 2 3 0.5\n1 2 3 4 0.5\n1 2 0.5\n", "line 2 has 5 words"),
    ("line", "1,2,3,0.5\n", "line 1 has 1 word;"),
    ("line", "1 2 3 0.5\n\n1 2 x 0.5\n", "line 3 has the word 'x'"),
    ("line", "1 2 3 0,5\n", "line 1 has the word '0,5'"),
    ("line", "1 2 1.5.2 2\n", "line 1 has the word '1.5.2'"),
    ("line", "1 2 1-1 2\n", "line 1 has the word '1-1'"),
    ("line", "1 2 \xff 2\n", "line 1 has the word"),
    ("line", "5\n", "line 1 has 1 word;"),
    ("index-range", "1 2 3 0.5\n0 2 3 0.5\n", "line 2 has the indices 0 2 3"),
    ("index-range", "-1 2 3 0.5\n", "line 1"),
    ("index-range", "1.5 2 3 0.5\n", "line 1"),
    ("index-range", "nan 2 3 0.5\n", "line 1"),
    ("index-range", "90071992547409931 2 0.5\n", "line 1"),
    ("not-finite", "1 2 0.5\n# note\n1 3 nan\n", "line 3 has the value nan"),
    ("not-finite", "1 2 -inf\n", "line 1 has the value -inf"),
    ("not-finite", "1 2 1e999\n", "line 1 has the value inf"),
    ("cut", "1 2 3 0.5\n1 2 3 0.", "line 2, the last, has no end"),
    ("cut", "1 2 3 0.5\n1 2", "line 2"),
    ("empty-file", "# nothing\n\n", "no entries"),
    ("line", "1 " * 70_000, "line 1 is longer than"),
]


@pytest.mark.parametrize(("rule", "text", "message"), BROKEN)
def test_a_file_that_breaks_a_rule_is_refused_by_name(tmp_path, rule, text, message):
    """The error has the code of the rule and the number of the line."""
    path = tmp_path / "a.tns"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSparseArrayError) as caught:
        read_tns(path)
    assert caught.value.rule == rule
    assert message in str(caught.value)


def test_a_line_keeps_its_number_in_a_later_block(tmp_path):
    """Numbers count from the head of the file."""
    path = tmp_path / "a.tns"
    path.write_text("1 1 1.0\n" * 1000 + "1 x 1.0\n")
    with pytest.raises(InvalidSparseArrayError, match="line 1001 has the word 'x'"):
        [*iterate_tns(path, block_bytes=100)]


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_compressed_file_that_was_cut_is_refused(tmp_path, kept):
    """In the middle of its data."""
    path = tmp_path / "a.tns.gz"
    write_tns(path, random_uniform((400, 300), 5000, seed=0))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(InvalidSparseArrayError) as caught:
        read_tns(path)
    assert caught.value.rule == "cut"


def test_a_file_that_is_not_compressed_is_refused_under_such_a_name(tmp_path):
    """With the rule ``compression``."""
    (tmp_path / "a.tns.gz").write_text("1 1 1.0\n")
    with pytest.raises(InvalidSparseArrayError) as caught:
        read_tns(tmp_path / "a.tns.gz")
    assert caught.value.rule == "compression"


def test_more_entries_than_memory_are_refused(tmp_path):
    """At the first block that is too much, with what to do."""
    write_tns(tmp_path / "a.tns", random_uniform((400, 300), 5000, seed=0))
    with pytest.raises(InvalidSparseArrayError, match="iterate_tns") as caught:
        read_tns(tmp_path / "a.tns", max_bytes=10_000)
    assert caught.value.rule == "memory"
    assert read_tns(tmp_path / "a.tns", max_bytes=5000 * 16).nnz == 5000


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("index-range", {"shape": (399, 300)}),
        ("rank", {"shape": (400, 300, 2)}),
        ("shape", {"shape": (400, -1)}),
        ("value-dtype", {"dtype": np.int32}),
    ],
)
def test_options_that_do_not_fit_a_file_are_refused(tmp_path, rule, options):
    """By the rule that is broken."""
    entries = COO((400, 300), ([399], [299]), [1.0])
    write_tns(tmp_path / "a.tns", entries)
    with pytest.raises(InvalidSparseArrayError) as caught:
        read_tns(tmp_path / "a.tns", **options)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("rule", "values"), [("value-dtype", [1j]), ("not-finite", [np.nan])]
)
def test_what_could_not_be_read_back_is_not_written(tmp_path, rule, values):
    """And leaves no file."""
    with pytest.raises(InvalidSparseArrayError) as caught:
        write_tns(tmp_path / "a.tns", COO((2,), ([0],), values))
    assert caught.value.rule == rule
    assert not (tmp_path / "a.tns").exists()


def test_memory_is_that_of_the_entries_and_of_a_block(tmp_path):
    """A file in many blocks takes no more than its entries, a column and a block."""
    path, n, block_bytes = tmp_path / "a.tns", 60_000, 2**15
    write_tns(path, random_uniform((900, 800, 700), n, seed=0))
    tracemalloc.start()
    try:
        for _ in iterate_tns(path, block_bytes=block_bytes):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 40 * block_bytes
    assert peak < 30 * block_bytes + 100_000


def test_coordinates_are_written_in_their_order(tmp_path):
    """So that a diff of two files says something."""
    tree = random_uniform((4, 4), 5, seed=0)
    write_tns(tmp_path / "a.tns", tree)
    lines = (tmp_path / "a.tns").read_text().splitlines()
    first = [int(line.split()[0]) for line in lines]
    assert first == (to_coo(tree).indices[0] + 1).tolist()
