"""Captured programs: a recipe where there is one, else the transform from before."""

from __future__ import annotations

import warnings
from importlib import import_module

import loopy as lp
import numpy as np
import pytest

from feinsum.integrations import transform_program
from feinsum.records import InMemoryStore
from tests.integrations.facts import einsums_of, facts_about

EINSUMS = (
    "k01_grudge_eager_local_grad",
    "k10_grudge_lazy_inverse_mass",
    "k21_pytato_grad",
)
OTHERS = (
    "k07_grudge_lazy_local_grad",
    "k16_grudge_be_vec_grad_fused",
    "k43_pytato_demo_matmul",
    "k44_grudge_be_elementwise_max_not_an_einsum",
)


def captured(name):
    """A captured program, and the arguments of its call if they are known."""
    module = import_module(f"tests.raising.kernels.{name}")
    return module.build(), getattr(module, "CALL_ARGS", None)


def never(t_unit):
    raise AssertionError("the fallback was asked")


def tags_of(t_unit):
    inames = t_unit.default_entrypoint.inames.values()
    return {str(tag) for iname in inames for tag in iname.tags}


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("name", EINSUMS)
def test_a_known_einsum_gets_its_recipe(name):
    """The loops become parallel, and the transform from before is not asked."""
    t_unit, arguments = captured(name)
    store = facts_about(einsums_of(t_unit, arguments))
    found = transform_program(
        t_unit, fallback=never, arguments=arguments, database=store
    )
    assert any(tag.startswith("g.") for tag in tags_of(found) - tags_of(t_unit))


@pytest.mark.parametrize("name", [*EINSUMS, *OTHERS])
def test_without_a_fact_the_transform_from_before_is_used(name):
    """It is given the very program, and what it makes of it is the result."""
    t_unit, arguments = captured(name)
    asked = []
    found = transform_program(
        t_unit,
        fallback=lambda given: asked.append(given) or "transformed",
        arguments=arguments,
        database=InMemoryStore(),
    )
    assert found == "transformed"
    assert asked == [t_unit]
    assert asked[0] is t_unit


def test_open_kernels_need_the_arguments_of_the_call():
    """Without dtypes and sizes an eager kernel is left alone."""
    t_unit, arguments = captured("k01_grudge_eager_local_grad")
    store = facts_about(einsums_of(t_unit, arguments))
    assert transform_program(t_unit, database=store) is t_unit


@pytest.mark.parametrize(
    "options",
    [
        {"arguments": {"unknown": ((3,), "<f8")}},
        {"arguments": {"J": "nothing"}},
        {"arguments": 3},
        {"device": "no such device"},
        {"database": "nowhere/facts.sqlite"},
    ],
    ids=str,
)
def test_nothing_that_fails_breaks_a_build(options, tmp_path, monkeypatch):
    """The program comes back, whatever is wrong with the look-up."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nowhere").write_text("no folder")
    t_unit, _ = captured("k21_pytato_grad")
    assert transform_program(t_unit, **{"database": InMemoryStore(), **options}) is (
        t_unit
    )


def test_the_error_of_the_transform_from_before_is_its_own():
    """It is not hidden."""
    t_unit, _ = captured("k44_grudge_be_elementwise_max_not_an_einsum")
    with pytest.raises(AssertionError, match="was asked"):
        transform_program(t_unit, fallback=never, database=InMemoryStore())


def test_every_entry_point_is_looked_up():
    """A program of two kernels gets the recipe of the one that is known."""
    t_unit, _ = captured("k10_grudge_lazy_inverse_mass")
    store = facts_about(einsums_of(t_unit))
    other = lp.make_kernel(
        "{[i]: 0<=i<10}",
        "y[i] = fmax(x[i], 0.0)",
        [lp.GlobalArg("x,y", np.float64, shape=(10,))],
        name="other",
        lang_version=(2018, 2),
    )
    both = lp.merge([t_unit, other])
    name = t_unit.default_entrypoint.name
    assert both.entrypoints == {name, "other"}
    found = transform_program(both, fallback=never, database=store)
    assert found["other"] == both["other"]
    assert found[name] != both[name]
