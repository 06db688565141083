"""What is around a nest, or shared with it, does not break when the nest is moved."""

from __future__ import annotations

import re

import hypothesis
import loopy as lp
import numpy as np
import pytest
from hypothesis import note, settings
from hypothesis import strategies as st

import feinsum.retrieval.applying
from feinsum import raise_kernel, retrieve
from feinsum.errors import TransformError
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.retrieval import look_up
from feinsum.retrieval.phases import order_phases
from feinsum.targets.host import HostCTarget
from feinsum.transforms import find_applicable_transforms, list_configurations
from tests.loopy_kernels import build_kernel
from tests.retrieval.facts import fact
from tests.retrieval.kernels import texts
from tests.retrieval.support import given, why_unchanged
from tests.retrieval.test_whole_kernels import assert_same_results, facts_for

pytestmark = pytest.mark.filterwarnings("ignore::feinsum.FeinsumWarning")

ARRAYS = {"M": "n,12", "x": "12", "y,z": "n"}
SUM = "y[i] = sum(j, M[i,j]*x[j])   {id=nest}\n"
LOOPS = "{[i,j,k]: 0<=i,k<n and 0<=j<12}"


def kernel_of(text, loops=LOOPS, arrays=ARRAYS):
    return build_kernel(loops, text, arrays)


def assert_moved_and_right(t_unit):
    found = look_up(t_unit, database=facts_for(t_unit))
    assert found.applied
    for n in (1, 130):
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


@pytest.mark.parametrize("condition", ["not c", "x[0] > 2", "n > 40"])
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
    assert order_phases(kernel, [{"nest"}])[1] == [{"nest"}]


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


SIZES = {"start": 3, "end": 40, "n": 40}
PRODUCT = "u[e, i] = sum(j, A[i, j]*x[e, j])"


def kernel_of_rows(domains, statement: str, *sizes: str) -> lp.TranslationUnit:
    """Over arrays of ``sizes[-1]`` rows; A is a matrix of 4."""
    n = sizes[-1]
    shapes = {"A": "4,4", "x": f"{n},4", "w": n, "u": f"{n},4", "v": n}
    return build_kernel(
        domains,
        statement,
        {name: shape for name, shape in shapes.items() if f"{name}[" in statement},
        assumptions=f"{sizes[0]} >= 0",
        target=HostCTarget(),
    )


SHIFTED = {
    "an interior": (
        "[n] -> {[e, i, j]: 1 <= e < n - 1 and 0 <= i, j < 4}",
        PRODUCT,
        "n",
    ),
    "neighbours": (
        "[n] -> {[e]: 1 <= e < n - 1}",
        "v[e] = w[e - 1]*x[e + 1, 2]",
        "n",
    ),
    "a part of a sum": (
        "[n] -> {[e, i, j]: 0 <= e < n and 0 <= i < 4 and 1 <= j < 4}",
        PRODUCT,
        "n",
    ),
    "both bounds are arguments": (
        ["[start, end] -> {[e]: start <= e < end}", "{[i, j]: 0 <= i, j < 4}"],
        PRODUCT,
        "start",
        "end",
    ),
    "from below 0": (
        "[n] -> {[e, i, j]: -2 <= e < n - 2 and 0 <= i, j < 4}",
        "u[e + 2, i] = sum(j, A[i, j]*x[e + 2, j])",
        "n",
    ),
    "a multiple of a parameter": (
        "[start, n] -> {[e, i, j]: 2*start <= e < n and 1 <= i < 4 and 0 <= j < 4}",
        PRODUCT,
        "start",
        "n",
    ),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_shifted_loops_are_raised_and_right(name):
    """The result writes what the given kernel writes, and nothing else."""
    domains, statement, *sizes = SHIFTED[name]
    t_unit = kernel_of_rows(domains, statement, *sizes)
    raised = raise_kernel(t_unit)
    assert not raised.refused
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert result is not t_unit
    assert_same_results(t_unit, result, {name: SIZES[name] for name in sizes})


def test_extents_of_different_sizes_have_different_names():
    """``n - 2`` and ``n + 2`` in one kernel."""
    t_unit = build_kernel(
        ["[n] -> {[e]: 0 <= e < n - 2}", "[n] -> {[f]: 0 <= f < n + 2}"],
        "v[e] = 2*w[e] {id=a}\n u[f] = 3*x[f] {id=b}",
        {"v,w,u,x": "n + 2"},
        target=HostCTarget(),
    )
    found = {nest.nest.sizes[x.name] for nest in raise_kernel(t_unit).raised
             for x in nest.einsum.size_params}  # fmt: skip
    assert found == {"(n - 2)", "(n + 2)"}
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert_same_results(t_unit, result, {"n": 37})


def kernel_of_statements(statements: str, *rules: str) -> lp.TranslationUnit:
    """Statements over vectors a, c of n entries, b, d of 4, and matrices A, B of 4."""
    lines = [line for line in statements.split("\n") if line.strip()]
    results = {line.split("[")[0].strip(): line for line in lines}
    shapes = {"a": ("n",), "c": ("n",), "b": (4,), "d": (4,), "A": ("n", 4)}
    shapes["B"] = (4, 4)
    for name, line in results.items():
        subscript = line.split("[")[1].split("]")[0].split(",")
        shapes[name] = tuple("n" if i.strip() == "e" else 4 for i in subscript)
    short = ", ".join(i for i in "jkqrstxy" if re.search(rf"\b{i}\b", statements))
    bounds = f"0 <= e < n and 0 <= {short} < 4" if short else "0 <= e < n"
    inames = f"e, {short}" if short else "e"
    return build_kernel(
        f"[n] -> {{[{inames}]: {bounds}}}",
        [*rules, *lines],
        texts(shapes),
        assumptions="n >= 1",
        target=HostCTarget(),
    )


SHARED = {
    "a vector, alone and repeated": "u[e,j] = b[j]*a[e]\n v[e,j] = a[e]",
    "repeated along two": "u[e,j] = b[j]*a[e]\n v[e,j] = a[e]\n w[e,j,k] = a[e]",
    "summed and repeated": "u[e] = sum(q, A[e,q]*b[q])\n v[e,j] = b[j]",
    "names of rules and arrays of ours": (
        "a_rule[e,j] = b[j]*a[e]\n product[e,j] = a[e]\n tile[e] = 2.0*a[e]*c[e]"
    ),
}


@pytest.mark.parametrize("statements", SHARED.values(), ids=SHARED)
def test_statements_that_share_arrays(statements):
    """All of them with recipes: the result builds, and computes the same."""
    t_unit = kernel_of_statements(statements)
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert result is not t_unit
    assert_same_results(t_unit, result, {"n": 37})


@st.composite
def _statements(draw):
    """Lines of two or three statements; each reads the arrays by indices of its own."""
    lines = []
    # Loopy has no schedule of the given kernel where statements share indices that nest
    # differently: j and k are prefixes, and sums have indices of their own
    for name, sums in [("u", "qr"), ("v", "st"), ("w", "xy")][
        : draw(st.integers(2, 3))
    ]:
        free = ["e", "j", "k"][: draw(st.integers(1, 3))]
        summed = [*sums[: draw(st.integers(0, 2))]]
        short = st.sampled_from([*free[1:], *summed] or ["0"])
        factor = st.one_of(
            st.sampled_from(["a[e]", "c[e]"]),
            st.builds("{}[{}]".format, st.sampled_from("bd"), short),
            st.builds("A[e,{}]".format, short),
            st.builds("B[{},{}]".format, short, short),
        )
        product = "*".join(draw(st.lists(factor, min_size=1, max_size=4)))
        summed = [q for q in summed if q in product]
        right = f"sum(({', '.join(summed)}), {product})" if summed else product
        lines.append(f"{name}[{','.join(free)}] = {right}")
    return "\n".join(lines)


@settings(max_examples=5, deadline=None)
@hypothesis.given(statements=_statements(), data=st.data())
def test_any_statements_that_share_arrays(statements, data):
    """With any recipe for each of them: the result builds, and computes the same."""
    note(statements)
    t_unit = kernel_of_statements(statements)
    store = InMemoryStore()
    for nest in raise_kernel(t_unit).raised:
        einsum = nest.form.einsum
        transforms = {str(t.name): t for t in find_applicable_transforms(einsum)}
        transform = transforms[data.draw(st.sampled_from([*transforms]))]
        for spec in list_configurations(transform, einsum):
            store.add(fact(einsum, spec))
            break
    result = retrieve(t_unit, database=store, verify=False)
    assert_same_results(t_unit, result, {"n": 37})


@pytest.mark.parametrize("rule", ["f(x, y) := a[x]", "a_rule(x, y) := a[x]"])
def test_rules_of_the_user_with_the_text_of_ours(rule):
    """A rule of the user reads what a rule of ours reads, with other arguments."""
    name = rule.split("(")[0]
    call = f"{name}(e, j)" if "y" in rule else f"{name}(e)"
    t_unit = kernel_of_statements(f"u[e,j] = b[j]*a[e]\n v[e,j] = b[j]*{call}", rule)
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert_same_results(t_unit, result, {"n": 37})


def test_one_of_the_statements():
    """The others keep their loops, and what they read."""
    t_unit = kernel_of_statements(SHARED["a vector, alone and repeated"])
    store = facts_for(t_unit)
    result = retrieve(t_unit, database=store, verify=False, instructions="id:insn")
    assert_same_results(t_unit, result, {"n": 37})


@pytest.mark.filterwarnings("ignore:.*GCCToolchain:DeprecationWarning")
def test_an_argument_that_nothing_reads():
    """The result takes it as the given kernel does; Loopy's own executor of C does not
    survive the call.
    """
    t_unit = build_kernel(
        "[n] -> {[e, j]: 0 <= e < n and 0 <= j < 4}",
        "u[e,j] = 2.0*pow(a[e,j], 1.4)",
        {"z,a,u": "n,4"},
        target=lp.ExecutableCTarget(),
    )
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert result is not t_unit
    a = np.random.default_rng(0).random((37, 4))
    _, (u,) = result.executor()(z=np.zeros((37, 4)), a=a, n=37)
    np.testing.assert_allclose(u, 2.0 * a**1.4)
