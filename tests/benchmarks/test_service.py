"""The benchmark of the service runs, and its client counts what is answered."""

from __future__ import annotations

import io
import json
from itertools import islice

import pytest
from rich.console import Console

from benchmarks.service import (
    BATCH,
    Load,
    make_facts,
    make_key,
    make_new_batches,
    report,
)
from feinsum.records import rank


def test_facts_are_of_as_many_workloads_as_said():
    """Every workload has four useful facts on two devices."""
    made = list(make_facts(8))
    assert [record.workload for record in made] == [
        make_key(k) for k in [0] * 4 + [1] * 4
    ]
    assert len({record.id for record in made}) == 8
    assert len(rank(made)) == 8
    assert len({record.environment.device for record in made}) == 2


def test_no_question_of_new_batches_was_asked_before():
    """Not even once all keys were asked for; and every batch is full."""
    keys = [make_key(k) for k in range(2 * BATCH + 1)]
    requests = list(islice(make_new_batches(keys), 6))
    bodies = [json.loads(one.partition(b"\r\n\r\n")[2]) for one in requests]
    asked = [(b["architecture"], key) for b in bodies for key in b["workloads"]]
    assert len(set(asked)) == len(asked) == 6 * BATCH


@pytest.mark.parametrize("kind", ["200", "batch"])
def test_the_table_has_rates_of_answers_and_of_keys(kind):
    """A batch counts as many keys as it has."""
    load = Load(
        kind, 500, wrong=3, late=7, seconds=10, p50_s=0.001, p99_s=0.02, cpu_s=1.1
    )
    assert load.per_s == 50
    console = Console(file=io.StringIO(), width=80)
    report(console, {"SQLite": [load]})
    text = console.file.getvalue()
    cells = text.splitlines()[-2].split()
    keys = 50 * (BATCH if kind == "batch" else 1)
    assert cells == ["SQLite", kind, "50", str(keys), "2.00", "1.00", "20.00", "7", "3"]
