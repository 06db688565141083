"""A fact names the recipes of its steps, so that corrected costs do not change it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import loopy as lp
import pytest

from feinsum import array, einsum, record_facts
from feinsum.canonical import canonicalize
from feinsum.errors import InvalidParameterError
from feinsum.machine import MachineModel
from feinsum.measure import open_device
from feinsum.measure.cases import make_case
from feinsum.predict import predict_recipes
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.retrieval import explain
from feinsum.transforms import (
    apply_spec,
    check_spec,
    list_configurations,
    with_named_steps,
)
from feinsum.transforms.cost import rank_recipes
from feinsum.transforms.library import CONTRACTION_PATH, SPLIT_SUM
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

CHAIN = einsum(
    "ij,jk,kl->il", array("A", (96, 40)), array("B", (40, 72)), array("C", (72, 56))
)
DIAGONAL = einsum(
    "ii,ij,j->j", array("A", (50, 50)), array("B", (50, 60)), array("x", 60)
)
COLUMNS = einsum("ij->j", array("A", (40_000, 7)))
OF_RUN_TIME = einsum("ijk->k", array("A", (200, 200, "N")))

WORKLOADS = {
    "chain": (CHAIN, CONTRACTION_PATH),
    "diagonal": (DIAGONAL, CONTRACTION_PATH),
    "column sums": (COLUMNS, SPLIT_SUM),
    "of run-time length": (OF_RUN_TIME, SPLIT_SUM),
}


@cache
def short_and_full(name):
    """The canonical einsum, a recipe that leaves its steps to costs, and in full."""
    workload, family = WORKLOADS[name]
    canonical = canonicalize(workload).einsum
    (short, *_) = [
        one.spec for one in rank_recipes(canonical, {}, [family], MachineModel())
    ]
    return canonical, short, with_named_steps(short, canonical)


def code_of(spec, einsum):
    case = make_case(einsum, {x.name: 5 for x in einsum.size_params})
    return lp.generate_code_v2(apply_spec(spec, case.t_unit, case.nest)).device_code()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_recipe_in_full_is_the_same_recipe(name, monkeypatch):
    """Its text can be read back. Its code is that of the short form, though nothing is
    chosen any more when it is applied: other costs do not change it.
    """
    canonical, short, full = short_and_full(name)
    assert full != short
    assert isinstance(full.parameters["steps"], tuple)
    assert TransformSpec.parse(str(full)) == full
    assert with_named_steps(full, canonical) == full
    code = code_of(short, canonical)

    def refuse(*_args):
        raise AssertionError("a step was chosen by its cost")

    monkeypatch.setattr("feinsum.transforms.library.steps.find_cheapest_recipe", refuse)
    assert code_of(full, canonical) == code


@pytest.mark.usefixtures("trials_here")
@pytest.mark.parametrize("name", ["chain", "column sums"])
def test_facts_name_their_steps_and_are_found(name):
    """Whatever was recorded: the fact has the recipes of all steps."""
    canonical, short, full = short_and_full(name)
    database = InMemoryStore()
    fact = record_facts(canonical, short, device="host", database=database)
    assert fact.spec == full
    kernel = make_case(canonical, {}).t_unit
    assert "steps=(" in explain(kernel, device="host", database=database)


def test_every_prediction_can_be_recorded():
    """Its full form is in the space of its family."""
    device = open_device("host").device
    for workload, _ in WORKLOADS.values():
        canonical = canonicalize(workload).einsum
        for one in predict_recipes(canonical, {"N0": 5}, device):
            check_spec(with_named_steps(one.spec, canonical), canonical)


BAD = {
    "too few": (),
    "no recipe": ("packed_contraction", "generic"),
    "an unknown one": ("jammed@1()", "jammed@1()"),
    "a path in a path": ("contraction_path@4()", "contraction_path@4()"),
    "outside of its space": (
        "generic@3(block=-1, parallel='', step=8, vector='', vectors='', width=1)",
    )
    * 2,
    "numbers": (1, 2),
}


@pytest.mark.parametrize("steps", BAD.values(), ids=BAD)
def test_steps_that_are_none_are_refused(steps):
    """A database may say anything: only recipes of registered families are applied."""
    for family in ("chain", "column sums"):
        canonical, _, full = short_and_full(family)
        bad = replace(full, parameters={**full.parameters, "steps": steps})
        with pytest.raises(InvalidParameterError, match="step"):
            check_spec(bad, canonical)


@pytest.mark.parametrize("name", ["chain", "diagonal"])
def test_every_configuration_of_a_path_costs_something(name):
    """Whatever its steps are; a tuning compares it with the least that is expected."""
    canonical, *_ = short_and_full(name)
    machine = MachineModel()
    for spec in list_configurations(CONTRACTION_PATH, canonical):
        assert CONTRACTION_PATH.cost(canonical, spec.parameters, machine) > 0
