"""What surrounds a nest does not break, and is not changed, when the nest is moved."""

from __future__ import annotations

import loopy as lp
import pytest

import feinsum.retrieval.applying
from feinsum import raise_kernel, retrieve
from feinsum.errors import TransformError
from feinsum.records import TransformSpec
from feinsum.retrieval import look_up
from feinsum.retrieval.phases import phases_of
from tests.loopy_kernels import build_kernel
from tests.retrieval.facts import fact
from tests.retrieval.support import given, why_unchanged
from tests.retrieval.test_whole_kernels import assert_same_results, facts_for

ARRAYS = {"M": "n,12", "x": "12", "y,z": "n"}
SUM = "y[i] = sum(j, M[i,j]*x[j])   {id=nest}\n"
LOOPS = "{[i,j,k]: 0<=i,k<n and 0<=j<12}"


def kernel_of(text, loops=LOOPS, arrays=ARRAYS):
    return build_kernel(loops, text, arrays)


def assert_moved_and_right(t_unit):
    found = look_up(t_unit, database=facts_for(t_unit))
    assert found.applied
    for n in (1, 37, 130):
        assert_same_results(t_unit, found.t_unit, {"n": n})


def test_a_loop_that_a_rule_hides():
    """Another instruction reduces over the nest's loop, behind a rule."""
    text = f"f(p) := max(j, M[p,j])\n{SUM}z[i] = f(i)"
    assert_moved_and_right(kernel_of(text, "{[i,j]: 0<=i<n and 0<=j<12}"))


def test_a_shared_loop_of_one_value():
    """A loop that is no index of the einsum is made the nest's own as well."""
    text = """
        W[i,k] = sum(j, M[i,j]*x[j])   {id=nest}
        V[l,k] = max(m, M[l,m])        {id=other}
    """
    loops = ["{[i,l]: 0<=i,l<n}", "{[j,m]: 0<=j,m<12}", "{[k]: k=0}"]
    arrays = {"M": "n,12", "x": "12", "V,W": "n,1"}
    assert_moved_and_right(kernel_of(text, loops, arrays))


@pytest.mark.parametrize("condition", ["c", "not c", "c > 0", "x[0] > 2", "n > 40"])
def test_a_phase_under_one_condition(condition):
    """Loopy does not let the host decide on what is in the memory of the device."""
    text = f"""
        <int> c = 1 if x[0] > 2 else 0   {{id=set}}
        {SUM}
        z[k] = M[k,0]                    {{id=use,dep=set:nest,if={condition}}}
    """
    assert_moved_and_right(kernel_of(text))


def test_barriers_and_conditions_keep_a_kernel_together():
    """A part between barriers must not be under one condition, so nothing moves."""
    text = f"{SUM}... gbarrier {{id=wait}}\nz[k] = 1 {{dep=wait:nest,if=x[0] > 2}}"
    kernel = kernel_of(text).default_entrypoint
    assert phases_of(kernel, [{"nest"}])[1] == [{"nest"}]


def test_what_is_written_in_c_keeps_a_kernel_together():
    """C names its variables in text, so none is put into other memory."""
    written = lp.CInstruction(
        (),
        "s = 2*s + y[0];",
        read_variables=frozenset({"s", "y"}),
        assignees=("s",),
        id="written",
        depends_on=frozenset({"set", "nest"}),
    )
    set_, use = "<> s = 3*x[0] {id=set}", "z[k] = s*y[k] {dep=written:nest:set}"
    t_unit = kernel_of([set_, SUM, written, use])
    store = facts_for(t_unit)
    assert "cannot be run apart" in why_unchanged(t_unit, database=store)


def test_nests_without_a_recipe_that_share_loops(monkeypatch):
    """They are in phases of their own, and so have loops of their own."""
    text = """
        y[i] = sum(j, M[i,j]*x[j])            {id=one}
        z[i] = sum(l, M[i,l]*x[l])*M[i,0]     {id=two}
        w[k] = 2*M[k,1]                       {id=three}
    """
    loops = "{[i,j,k,l]: 0<=i,k<n and 0<=j,l<12}"
    t_unit = kernel_of(text, loops, {**ARRAYS, "w": "n"})
    apply = feinsum.retrieval.applying.apply_spec

    def apply_to_some(spec, alone, nest):
        if nest.instructions != ("three",):
            raise TransformError("made to fail")
        return apply(spec, alone, nest)

    monkeypatch.setattr(feinsum.retrieval.applying, "apply_spec", apply_to_some)
    found = look_up(t_unit, database=facts_for(t_unit))
    assert len(found.applied) == 1
    assert len(found.unchanged) == 2
    assert_same_results(t_unit, found.t_unit, {"n": 37})


def test_a_size_of_one_work_group_and_a_bit():
    """Loopy would make no code of it: the recipe is passed over, and says why."""
    t_unit = build_kernel(
        "{[i,j]: 0<=i<130 and 0<=j<6}",
        "y[i] = sum(j, M[i,j]*x[j])",
        {"M": "130,6", "x": "6", "y": "130"},
    )
    einsum = raise_kernel(t_unit).raised[0].form.einsum
    spec = "element_blocked@1(element='{}', lanes=8, rows=4, stage_matrices=False, {})"
    long = einsum.output[0]
    for vectors, is_applied in (("vectors=16", False), ("vectors=4", True)):
        recipe = TransformSpec.parse(spec.format(long, vectors))
        store = given(fact(einsum, recipe))
        if is_applied:
            assert_same_results(t_unit, retrieve(t_unit, database=store), {})
        else:
            assert "single value" in why_unchanged(t_unit, database=store)
