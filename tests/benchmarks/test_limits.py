"""What limits a recipe: instances that take one limit away, and a run."""

from __future__ import annotations

import json
from math import prod

import pytest

from benchmarks.experiments.entries import list_both_suites
from benchmarks.limits import (
    NEAR_BYTES,
    SIDE,
    Instance,
    Limits,
    deepen,
    shrink_to_cache,
)
from feinsum import record_facts
from feinsum.db import open_store
from feinsum.records import InMemoryStore
from feinsum.transforms import find_transform, list_configurations
from feinsum.tuning import make_problem
from tests.children import run_python
from tests.retrieval.facts import surely_faster

OPERATOR = "^gradient_b1_Ni4$"


def problem_of(name, elements_scale=1.0):
    (entry,) = list_both_suites(name, max_gflop=4.0, elements_scale=elements_scale)
    return make_problem(entry.make_einsum(), entry.parameters)


def recommended(problem):
    family = find_transform("packed_contraction", 2)
    return next(list_configurations(family, problem.einsum))


@pytest.mark.parametrize(
    "name", ["^gradient_b3_Ni20$", "^ab-ac-cb$", "^ab-acd-dbc$", "^abcdef-dega-gfbc$"]
)
def test_what_is_near_fits_the_cache(name):
    """All arrays do, where they did not before; and the family fits the einsum."""
    problem = problem_of(name)
    spec = recommended(problem)
    whole = Instance(problem.einsum, problem.sizes)
    short = shrink_to_cache(whole, spec)
    assert short.footprint_bytes <= NEAR_BYTES < whole.footprint_bytes
    assert find_transform(spec.name, spec.version).fits(short.einsum)


@pytest.mark.parametrize("name", ["^abc-bda-dc$", "^ab-ac-cb$", "^abcdef-dega-gfbc$"])
def test_contractions_get_three_long_sides(name):
    """Rows, columns and sums are long, and the arrays fit the cache."""
    problem = problem_of(name)
    found = deepen(Instance(problem.einsum, problem.sizes), recommended(problem))
    assert found is not None
    assert found.footprint_bytes <= NEAR_BYTES
    first, second = map(set, problem.einsum.inputs)
    for side in (first - second, second - first, first & second):
        length = prod(found.einsum.extents[index] for index in side)
        assert SIDE <= length < 2 * SIDE


def test_shares_are_parts_of_the_time():
    """They make up all of it; the largest one is named."""
    found = Limits("", "", 1.0, near=0.7, deep=0.2, triad=0.1, peak=0.1)
    assert found.shares == pytest.approx({"memory": 0.3, "tiles": 0.5, "cores": 0.2})
    assert found.largest == "tiles"
    found = Limits("", "", 1.0, near=0.4, deep=None, triad=0.5, peak=0.1)
    assert found.shares == pytest.approx({"memory": 0.6, "cores": 0.4})
    assert found.largest == "memory"


@pytest.mark.long
def test_a_recipe_on_record_is_taken_apart(tmp_path):
    """A row with shares, and a file with all of them."""
    database, written = tmp_path / "facts.sqlite", tmp_path / "limits.json"
    problem = problem_of(OPERATOR, 0.05)
    spec, measured = recommended(problem), InMemoryStore()
    record = record_facts(problem.einsum, spec, sizes=problem.sizes, database=measured)
    with open_store(database) as store:
        store.add(surely_faster(record))
    words = ["benchmarks/limits.py", "--database", database, "--only", OPERATOR]
    words += ["--elements-scale", "0.05", "--rounds", "3", "--json", written]
    done = run_python(*words)
    (found, *_) = json.loads(written.read_text())
    assert found["name"] == "gradient_b1_Ni4"
    assert found["whole_s"] > 0
    assert found["near"] > 0
    assert found["triad"] > 0
    assert "| gradient_b1_Ni4" in done.stdout
    assert found["most"] in ("memory", "cores")
