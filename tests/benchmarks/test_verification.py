"""The benchmark of verification runs."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from benchmarks.verification import report, run_child


def test_a_process_tells_the_seconds_of_an_entry() -> None:
    """Of the entries that match, and of none that it begins with."""
    asked = Namespace(only="^divergence_b1_Ni(4|10)$", max_gflop=0.01, target="host")
    found = run_child(asked, "off")
    assert set(found) == {"divergence_b1_Ni10"}
    assert found["divergence_b1_Ni10"] > 0


def test_what_verifying_takes_more_is_the_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table and the JSON say the median, and of which processor it is."""
    seconds = {"on": {"a": 0.5, "b": 1.5}, "off": {"a": 0.25, "b": 0.25}}
    costs = {"a": 0.25, "b": 1.25}
    report(True, seconds, costs)
    document = json.loads(capsys.readouterr().out)
    assert document["median_s"] == 0.75
    assert document["processor"]
    assert document["entries"]["b"] == {"verified_s": 1.5, "unverified_s": 0.25}
    report(False, seconds, costs)
    assert "2 nests, 0.75 s in the median" in capsys.readouterr().out
