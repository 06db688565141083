"""Kernels of several nests: each gets its recipe, the rest stays, all is right."""

from __future__ import annotations

import warnings
from functools import cache

import loopy as lp
import numpy as np
import pytest

from feinsum import FeinsumWarning, raise_kernel, retrieve
from feinsum.errors import RecordNotFoundError, TransformError
from feinsum.measure import compute_largest_error
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.retrieval import generating, look_up
from feinsum.retrieval.applying import extract_nest
from feinsum.retrieval.phases import order_phases
from feinsum.targets.host import HostCTarget
from feinsum.transforms import (
    REGISTRY,
    Transform,
    find_applicable_transforms,
    list_configurations,
)
from tests.loopy_kernels import build_kernel
from tests.raising.test_captured import captured
from tests.retrieval.facts import fact, fact_of
from tests.retrieval.kernels import mixed, reduction, two_nests
from tests.retrieval.runs import run

CAPTURED = [
    "k16_grudge_be_vec_grad_fused",
    "k43_pytato_demo_matmul",
    "k45_pytato_grad_private_bounds",
]


def facts_for(t_unit, **options):
    """A made-up fact for every nest: the first recipe that fits."""
    store = InMemoryStore()
    for nest in raise_kernel(t_unit, **options).raised:
        einsum = nest.form.einsum
        for transform in find_applicable_transforms(einsum):
            spec = next(list_configurations(transform, einsum), None)
            if spec is not None:
                store.add(fact(einsum, spec))
                break
    return store


def assert_same_results(t_unit, other, sizes):
    """Both kernels compute the same from the same random arrays."""
    expected, found = run(t_unit, sizes), run(other, sizes)
    assert set(expected) == set(found)
    for name, right in expected.items():
        assert compute_largest_error(found[name], right) < 1e-13, name


def assert_all_transformed_and_right(t_unit, *sizes):
    found = look_up(t_unit, database=facts_for(t_unit))
    assert len(found.nests) > 1
    assert not [n.why_unchanged for n in found.unchanged]
    for values in sizes:
        assert_same_results(t_unit, found.t_unit, values)


@pytest.mark.parametrize(
    "name",
    ["k01_grudge_eager_local_grad", "k10_grudge_lazy_inverse_mass"],
)
def test_captured_kernels_of_one_nest(name):
    """The kernel of a real program is transformed; the results agree.

    What it leaves open is told by the arguments of its call; the untransformed
    kernel gets the same sizes at run time.
    """
    module = captured(name)
    t_unit, arguments = module.build(), getattr(module, "CALL_ARGS", None)
    store = facts_for(t_unit, arguments=arguments)
    result = retrieve(t_unit, arguments=arguments, database=store)
    assert result is not t_unit
    sizes = {"Ne": 1296, "Ni": 35, "Nj": 35, "Nr": 3, "Nx": 3}
    assert_same_results(t_unit, result, sizes)


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_kernels_of_several_nests(name):
    """Every nest of a kernel of a real program is transformed; the results agree."""
    t_unit = captured(name).build()
    assert_all_transformed_and_right(t_unit, {})


def test_assumptions_under_which_a_recipe_has_no_loops():
    """A recipe that Loopy could make no code of is passed over."""
    t_unit = build_kernel(
        "{[i,j,m]: 0<=i<n and 0<=j,m<12}",
        "t[i,j] = sum(m, D[j,m]*u[i,m])",
        {"D": "12,12", "u,t": "n,12"},
        assumptions="n<=40",
    )
    result = retrieve(t_unit, database=facts_for(t_unit), on_miss="return")
    assert_same_results(t_unit, result, {"n": 37})


def chain(address_space):
    """The second einsum reads the result of the first, in a temporary."""
    return build_kernel(
        "{[i,j,k,l,m,p]: 0<=i,k<n and 0<=j,l,m,p<12}",
        """
        t[i,j] = 2*sum(m, D[j,m]*u[i,m])   {id=first}
        v[k,l] = sum(p, D[l,p]*t[k,p])     {id=second,dep=first}
        """,
        {"D": "12,12", "u,v": "n,12"},
        lp.TemporaryVariable(
            "t", np.float64, shape=(400, 12), address_space=address_space
        ),
        assumptions="n<=400",
    )


@pytest.mark.parametrize(
    "address_space", [lp.AddressSpace.PRIVATE, lp.AddressSpace.GLOBAL]
)
def test_an_operand_that_is_a_result(address_space):
    """A temporary that outlives a nest is kept in global memory."""
    assert_all_transformed_and_right(chain(address_space), {"n": 3}, {"n": 37})


def test_shared_loops_are_separated():
    """Two nests in the same loops, the second reading the first at the same point."""
    t_unit = build_kernel(
        "{[e,i,j,k]: 0<=e<n and 0<=i,j,k<12}",
        """
        t[e,i] = sum(j, D[i,j]*u[e,j])              {id=first}
        v[e,i] = t[e,i]*sum(k, M[i,k]*w[e,k])       {id=second,dep=first}
        """,
        {"D,M": "12,12", "u,v,w,t": "n,12"},
    )
    found = look_up(t_unit, database=facts_for(t_unit))
    assert_same_results(t_unit, found.t_unit, {"n": 37})


def test_what_is_no_einsum_stays_as_it_is():
    """The einsum is transformed, the other instruction is the very same."""
    t_unit = mixed()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FeinsumWarning)
        result = retrieve(t_unit, database=facts_for(t_unit))
    old, new = t_unit["mixed"].id_to_insn["other"], result["mixed"].id_to_insn["other"]
    assert (old.assignee, old.expression) == (new.assignee, new.expression)
    assert old.within_inames == new.within_inames
    assert_same_results(t_unit, result, {"n": 29})


def test_an_einsum_without_a_fact_stays_and_is_named():
    """One warning says how many are left, of which workload nothing is known."""
    t_unit = two_nests()
    nests = raise_kernel(t_unit).raised
    known = InMemoryStore()
    (some,) = facts_for(t_unit).query(nests[0].key)
    known.add(some)
    with pytest.warns(FeinsumWarning, match="1 of 2 einsums of the kernel") as caught:
        result = retrieve(t_unit, database=known)
    assert nests[1].key in str(caught[0].message)
    assert len(caught) == 1
    assert_same_results(t_unit, result, {"n": 37})
    with pytest.raises(RecordNotFoundError, match="no fact is recorded"):
        retrieve(t_unit, database=known, on_miss="raise")
    assert retrieve(t_unit, database=known, on_miss="return") is not t_unit


def test_nests_in_no_stated_order_stay():
    """One writes what the other reads, in no order that the kernel states."""
    t_unit = build_kernel(
        "{[i,j,k,l]: 0<=i,k<n and 0<=j,l<12}",
        """
        y[i] = sum(j, A[i,j]*x[j])   {id=reader}
        A[k,l] = 2*B[k,l]            {id=writer}
        """,
        {"A,B": "n,12", "x": "12", "y": "n"},
    )
    kernel = t_unit.default_entrypoint
    free = [insn.copy(depends_on=frozenset()) for insn in kernel.instructions]
    unordered = t_unit.with_kernel(kernel.copy(instructions=free))
    assert len(look_up(t_unit, database=facts_for(t_unit)).applied) == 2
    with pytest.warns(FeinsumWarning, match="cannot be run apart"):
        assert retrieve(unordered, database=facts_for(unordered)) is unordered


@pytest.mark.parametrize(
    ("text", "stuck"),
    [
        ("y[i] = A[i,0]*2 {id=a}\nz[k] = y[k]*A[k,1] {id=b,dep=a}", set()),
        ("y[i] = A[i,0]*2 {id=a}\nz[i] = y[i]*A[i,1] {id=b,dep=a}", set()),
        ("y[i] = A[i,0]*2 {id=a}\nz[i] = y[5-i]*A[i,1] {id=b,dep=a}", {"a", "b"}),
        ("y[i] = A[i,0]*2 {id=a}\nz[i] = y[0]*A[i,1] {id=b,dep=a}", {"a", "b"}),
    ],
    ids=["own loops", "same point", "another point", "one point"],
)
def test_what_can_be_separated(text, stuck):
    """Loops are shared out only where an iteration keeps to its own entries."""
    t_unit = build_kernel("{[i,k]: 0<=i,k<6}", text, {"A": "6,2", "y,z": "6"})
    _, left = order_phases(t_unit.default_entrypoint, [{"a"}, {"b"}])
    assert {insn for nest in left for insn in nest} <= stuck
    assert bool(left) == bool(stuck)


@pytest.mark.parametrize(
    ("first", "second"), [("A[i,0]", "A[i,1]"), ("B[2*i]", "B[2*i + 1]")]
)
def test_what_subscripts_tell_apart_is_no_conflict(first, second):
    """Two nests write parts of one array, in no stated order."""
    t_unit = build_kernel(
        "{[i]: 0<=i<6}",
        f"{first} = y[i]*2 {{id=a}}\n{second} = y[i]*z[i] {{id=b}}",
        {"A": "6,2", "B": "12", "y,z": "6"},
    )
    phases, stuck = order_phases(t_unit.default_entrypoint, [{"a"}, {"b"}])
    assert (phases, stuck) == ([{"a"}, {"b"}], [])


def test_others_in_no_stated_order_stay_together():
    """What the kernel leaves open is left to Loopy, as it was, and not decided here."""
    t_unit = build_kernel(
        "{[i,k]: 0<=i,k<6}",
        """
        s[0] = 1                {id=set}
        s[0] = s[0] + 4         {id=add}
        y[i] = A[i,0]*2         {id=nest,dep=set}
        z[k] = s[0]*A[k,1]      {id=use,dep=add}
        """,
        {"A": "6,2", "y,z": "6", "s": "1"},
    )
    kernel = t_unit.default_entrypoint
    assert order_phases(kernel, [{"nest"}]) == ([{"set", "add", "use"}, {"nest"}], [])


TWO = """
    v[i] = sum(j, A[i,j]*x[j])            {id=a}
    z[k] = v[k]*u[k]                      {id=b,dep=a}
"""


def two_in_a_row(**options):
    return build_kernel(
        "{[i,j,k]: 0<=i,k<n and 0<=j<6}",
        TWO,
        {"A": "n,6", "x": "6", "v,z,u": "n"},
        **options,
    )


def test_only_a_nest_whose_recipe_has_no_code_loses_it(monkeypatch):
    """The recipes of others stay, though the kernel as a whole has no code either."""

    def marked(t_unit, nest, parameters):
        return lp.rename_iname(t_unit, next(iter(nest.loops)), "marked")

    def refusal(unit):
        return TransformError("no code") if "marked" in str(unit) else None

    space = cache(lambda einsum: {"n": (1,)})
    transform = Transform("marking", 1, "a test transform", space, marked)
    monkeypatch.setitem(REGISTRY, ("marking", 1), transform)
    monkeypatch.setattr(generating, "find_refusal", refusal)
    unit = two_nests()
    store = facts_for(unit)
    first = raise_kernel(unit).raised[0].form.einsum
    store.add(fact(first, TransformSpec.parse("marking@1(n=1)"), speedup=100.0))
    found = look_up(unit, database=store)
    assert [[str(spec) for spec, _ in one.failures] for one in found.nests] == [
        ["marking@1(n=1)"],
        [],
    ]
    assert not found.unchanged


def test_a_linearized_kernel_is_scheduled_anew():
    """Loops that Loopy has ordered already can still get recipes."""
    t_unit = two_in_a_row().copy(target=HostCTarget())
    ordered = lp.linearize(lp.preprocess_program(t_unit))
    found = look_up(ordered, database=facts_for(t_unit))
    assert found.applied
    assert_same_results(t_unit, found.t_unit, {"n": 37})


def test_a_kernel_with_parallel_loops_of_its_own_stays():
    """A nest cannot be taken out of what is on the device's grid already."""
    t_unit = lp.tag_inames(two_in_a_row(), {"k": "g.0"})
    store = facts_for(two_in_a_row())
    with pytest.warns(FeinsumWarning, match="cannot be run apart"):
        assert retrieve(t_unit, database=store) is t_unit


def test_a_kernel_with_a_computed_bound_stays():
    """A loop whose bound the kernel computes keeps all of it together."""
    t_unit = build_kernel(
        [
            "[n]->{[i]: 0<=i<n}",
            "[n]->{[j]: 0<=j<6}",
            "[h]->{[k]: 0<=k<h}",
        ],
        """
        <> h = n//2 + 1                 {id=h}
        v[i] = sum(j, A[i,j]*x[j])      {id=a,dep=h}
        z[k] = max(j, A[k,j])           {id=b,dep=a:h}
        """,
        {"A": "n,6", "x": "6", "v,z": "n"},
    )
    store = facts_for(two_in_a_row())
    assert retrieve(t_unit, database=store, on_miss="return") is t_unit


def test_one_nest_that_is_all_has_no_barrier():
    """A kernel of one einsum stays one kernel on the device."""
    example = reduction()
    result = retrieve(example.kernel, database=InMemoryStore(), on_miss="return")
    assert result is example.kernel
    store = InMemoryStore()
    store.add(fact_of(example))
    result = retrieve(example.kernel, database=store)
    insns = result.default_entrypoint.instructions
    assert not [x for x in insns if isinstance(x, lp.BarrierInstruction)]


def test_a_nest_is_transformed_without_the_arrays_of_others():
    """Loopy visits the shapes of all arrays with every step; names stay taken."""
    unit = two_nests()
    raised = raise_kernel(unit)
    sums = next(nest for nest in raised.raised if nest.instructions == ("sums",))
    kernel = raised.t_unit.default_entrypoint
    alone, _ = extract_nest(kernel, sums, frozenset())
    assert {arg.name for arg in alone.args} == {"A", "y", "n"}
    assert kernel.arg_dict.keys() <= alone.all_variable_names()
    found = look_up(unit, database=facts_for(unit)).t_unit.default_entrypoint
    assert [arg.name for arg in found.args] == ["A", "w", "y", "Z", "n"]
    assert not {"w", "Z"} & found.temporary_variables.keys()
