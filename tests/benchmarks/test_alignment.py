"""The benchmark of places of a result runs."""

from __future__ import annotations

import json

import pytest

from benchmarks.alignment import OFFSETS, main, places

SMALL = ("abc-bda-dc", "--max-gflop", "0.0001", "--rounds", "1")


def test_results_begin_where_they_should() -> None:
    """As many bytes after a line of the cache as they are named by."""
    found = places((3, 5))
    assert {key: a.ctypes.data % 64 for key, a in found.items()} == {
        offset: offset for offset in OFFSETS
    }
    assert all(a.shape == (3, 5) for a in found.values())


def test_it_prints_seconds_and_the_processor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([*SMALL, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert set(document["seconds"]) == {str(offset) for offset in OFFSETS}
    assert document["processor"]
    main(SMALL)
    printed = " ".join(capsys.readouterr().out.split())
    assert document["processor"] in printed


def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(SystemExit, match="no entry"):
        main(["abc"])
