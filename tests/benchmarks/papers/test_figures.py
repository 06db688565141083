"""The figures of the papers, reproduced by one command each."""

from __future__ import annotations

import pytest

from benchmarks.papers.figures import PAPERS, Figure, main


@pytest.mark.parametrize("name", PAPERS)
def test_differences_have_reasons(name, capsys):
    """Every figure is the paper's, or the command says why it is not."""
    assert main([name]) == 0
    assert "UNEXPLAINED" not in capsys.readouterr().out


def test_a_difference_without_a_reason_is_an_error(monkeypatch, capsys):
    """The exit code is 1, and the table has a word for it."""
    wrong = Figure("1", "elements", "2", "3")
    monkeypatch.setitem(PAPERS, "distal", ("DISTAL", lambda: iter([wrong])))
    assert main(["distal"]) == 1
    assert "UNEXPLAINED" in capsys.readouterr().out
