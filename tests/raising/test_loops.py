"""Kernels of loops, private values and flat arrays are raised to what they compute.

Each is interpreted as it is given, run on the device as it is rewritten, and computed
with its einsums evaluated by numpy.
"""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum import raise_kernel
from feinsum.measure import compile_kernel, draw_arguments, open_device
from feinsum.raising import single_nest
from tests.loopy_kernels import build_kernel
from tests.raising.forms import kernel_of
from tests.raising.interpreter import run, run_raised
from tests.raising.wordings import ROWS, SEVERAL, kernel
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

F8 = np.float64


def on_device(unit, arguments):
    bound = compile_kernel(unit, open_device()).bind(arguments)
    bound.poison()
    bound.run()
    return {name: np.array(value) for name, value in bound.read().items()}


def assert_same(unit, raised, n=5, tolerance=1e-12):
    """The kernel, the rewritten kernel and its einsums compute one result."""
    arguments = draw_arguments(unit, {"n": n}, np.random.default_rng(n))
    again = on_device(raised.t_unit, arguments)
    written = {name: np.full_like(value, np.nan) for name, value in again.items()}
    arrays = {**written, **arguments, "n": n}
    expected = run(unit, arrays)
    found = run_raised(raised.t_unit, raised.raised, arrays)
    for name in again:
        for other in (found[name], again[name]):
            np.testing.assert_allclose(other, expected[name], tolerance, tolerance)


@pytest.mark.parametrize("name", ROWS)
def test_one_einsum_in_other_words(name):
    """It is found, nothing is refused, and it computes the same."""
    text, domain, shapes, subscripts = ROWS[name]
    unit = kernel(text, domain, shapes)
    raised = raise_kernel(unit)
    assert raised.refused == ()
    nest = single_nest(raised)
    terms = nest.einsum.subscripts.replace(" ", "")
    assert len(nest.einsum.indices) == len(set(subscripts) - set(",->"))
    assert terms.count(",") == subscripts.count(",")
    assert_same(unit, raised)


@pytest.mark.parametrize("name", SEVERAL)
def test_several_einsums_in_other_words(name):
    """Each is found, nothing is refused, and together they compute the same."""
    text, n_nests, private = SEVERAL[name]
    unit = kernel(text, private=private)
    raised = raise_kernel(unit)
    assert raised.refused == ()
    assert len(raised.raised) == n_nests
    assert_same(unit, raised)


@pytest.mark.parametrize(
    ("first", "second", "is_apart"),
    [
        ("flat[2*i]", "flat[2*i + 1]", True),
        ("flat[3*i]", "flat[13 + i]", True),
        ("flat[3*i]", "flat[12 + i]", False),
        ("S[2,i]", "S[i,3]", False),
        ("flat[2*i]", "flat[9 - 2*i]", None),
    ],
)
def test_parts_of_one_array_in_one_loop(first, second, is_apart):
    """Sums into parts that never meet are einsums; into others, loops that race."""
    text = f"""
    {first} = {first} + A[i,j]*x[j] {{id=a,inames=i:j}}
    {second} = {second} + y[i]*x2[j] {{id=b,dep=a,inames=i:j}}
    """
    unit = kernel_of(text)
    raised = raise_kernel(unit)
    rules = [refused.rule for refused in raised.refused]
    assert rules == {True: [], False: ["race", "race"], None: ["assignee"]}[is_apart]
    assert_same(unit, raised)


def test_parts_of_run_time_extents():
    """One half of an array is never the other, however long they are."""
    text = """
    v[e] = v[e] + w[e]*c[q]*c[q]     {id=a,inames=e:q}
    v[n + e] = v[n + e] + w[e]*c[q] {id=b,dep=a,inames=e:q}
    """
    unit = kernel(text, shapes={"v": "2*n", "w": "n", "c": "6"})
    raised = raise_kernel(unit)
    assert [nest.instructions for nest in raised.raised] == [("a",), ("b",)]
    assert_same(unit, raised)


@pytest.mark.parametrize(
    ("place", "is_one_to_one"),
    [
        ("i*m + e", True),
        ("2*n*e + 2*i + 1", True),
        ("m*n + (e*n + i)", True),
        ("n*e + 2*i", False),
        ("m*e + i", False),
        ("(n - 1)*e + i", False),
    ],
)
def test_strides_that_only_a_call_knows(place, is_one_to_one):
    """Subscripts that no two points share, whatever the sizes, are those of einsums."""
    text = f"v[{place}] = v[{place}] + w[e]*sum(q, c[i,q])"
    unit = build_kernel(
        "[n,m] -> {[e,i,q]: 0<=e<m and 0<=i<n and 0<=q<3}",
        text,
        {"v": "2*n*m + (k + 3)*m", "w": "m", "c": "n,3"},
    )
    raised = raise_kernel(unit)
    rules = [refused.rule for refused in raised.refused]
    assert rules == ([] if is_one_to_one else ["assignee"])
    sizes = {"n": 4, "m": 5, "k": 2}
    arrays = {"v": np.ones(65), "w": np.arange(5.0), "c": np.ones((4, 3)), **sizes}
    found = run_raised(raised.t_unit, raised.raised, arrays)
    np.testing.assert_allclose(found["v"], run(unit, arrays)["v"], 1e-12)


KEPT = {
    "what was added so far": (
        "<> t = 0 {id=z}\nt = t + w[e] {id=a,dep=z}\nv[e,0] = t {dep=a}", {}
    ),
    "what an iteration left behind": (
        "v[e,i] = t*u[e,i] {id=r}\nt = w[e] {dep=r}\n", {"t": ()}
    ),
    "what changes before it is read": (
        ("<> t = 2*w[e] {id=t,dep=*}\nw[e] = 3*w[e] {id=w,dep=*t}\n"
        "v[e,i] = t*u[e,i] {dep=*w:t}"), {}
    ),
    "what changes while it is read": (
        "<> t = w[0]*2 {id=t,inames=e,dep=*}\nw[e] = t*u[e,0] {dep=*t}", {}
    ),
    "entries of two values": (
        ("t[i] = u[e,i] {id=t}\nt[j] = 2*t[j] {id=s,dep=t,inames=e:j}\n"
        "v[e,j] = t[3-j]*w[e] {dep=s}"), {"t": "4"}
    ),
    "an entry before it is scaled": (
        ("t[i] = u[e,i] {id=t}\nv[e,j] = t[3-j]*w[e] {id=v,dep=t}\n"
        "t[j] = 2*t[j] {dep=v,inames=e:j}"), {"t": "4"}
    ),
    "entries that are not written": (
        "t[i] = u[e,i] {id=t}\nv[e,j] = t[j]*2 {dep=t}", {"t": "5"}
    ),
    "a first value that is read": (
        ("v[e,i] = 0 {id=z,dep=*}\nw[e] = v[e,0] {id=r,dep=*z}\n"
        "v[e,j] = v[e,j] + D[j,l]*u[e,l] {dep=*r:z}"), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_would_change_is_not_rewritten(name):
    """No value is moved past what it depends on: the rewritten kernel does the same."""
    text, private = KEPT[name]
    unit = kernel(text, private=private)
    raised = raise_kernel(unit)
    if name == "what an iteration left behind":
        assert {one.rule for one in raised.refused} == {"race", "operand-written"}
        return
    assert_same(unit, raised)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("out[i] = 0.1*sum(j, A[i,j]*x[j])", None),
        ("out[i] = y[i] + 0.3 + 0.1*sum(j, A[i,j]*x[j])/0.7", None),
        ("out[i] = sum(j, 0.1*A[i,j]*x[j])", "output-dtype"),
        ("out[i] = alpha*sum(j, A[i,j]*x[j])", None),
        ("out[i] = 1 - alpha*sum(j, A[i,j]*x[j])", None),
        ("out[i] = sum(j, alpha*A[i,j]*x[j])", "output-dtype"),
        ("out[i] = alpha*y[i]*sum(j, A[i,j]*x[j])", "output-dtype"),
        ("out[i] = (0.1 if y[i] > 0.1 else 0.3) + sum(j, A[i,j]*x[j])", None),
    ],
)
def test_scales_of_more_digits_than_the_operands(text, rule):
    """A value is scaled as C does it: a literal in the precision of the result, a
    double by conversion of the sum and of the product. Elsewhere it is refused.
    """
    unit = kernel_of(text, dtype=np.float32, dtypes={"alpha": F8})
    raised = raise_kernel(unit)
    assert [one.rule for one in raised.refused] == ([rule] if rule else [])
    if not rule:
        arguments = draw_arguments(unit, {}, np.random.default_rng(0))
        if "> 0.1" in text:  # which the single-precision number is
            for name in arguments.keys() & {"x", "y"}:
                arguments[name][0] = 0.1
        expected = on_device(unit, arguments)["out"]
        found = on_device(raised.t_unit, arguments)["out"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "n_nests"),
    [
        ("out[i] = 0.3*sum(j, A[i,j]*x[j]) + 0.1*sum(k, C[i,k]*w[k])", 2),
        ("out[i] = 0.7 + 0.1*(sum(j, A[i,j]*x[j]) - sum(k, C[i,k])/0.3)", 2),
        ("out[i] = sum(j, 0.1*A[i,j]) + sum(k, C[i,k]*w[k])", 0),
    ],
)
def test_sums_with_literals_are_added_in_single_precision(text, n_nests):
    """A literal outside of all sums has the precision of the result."""
    unit = kernel_of(text, dtype=np.float32)
    raised = raise_kernel(unit)
    assert len(raised.raised) == n_nests
    assert_same(unit, raised, tolerance=1e-6)


def test_a_scale_beyond_single_precision():
    """What would be infinite in single precision is not, since C computes in double."""
    unit = kernel_of(
        "out[i] = alpha*sum(j, A[i,j]*x[j])", dtype=np.float32, dtypes={"alpha": F8}
    )
    raised = raise_kernel(unit)
    arguments = {
        "A": np.full((5, 6), 1e-30, "f4"),
        "x": np.ones(6, "f4"),
        "alpha": 1e40,
    }
    found = on_device(raised.t_unit, arguments)["out"]
    np.testing.assert_allclose(found, 6e10, 1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "out[i] = out[i] + A[i,j]*x[j] {inames=i:j}",
        "out[i] = sum(j, A[i,j]*x[j]) + sum(k, C[i,k]*w[k])",
        "out[i] = out[i] + map[i]*jmap[j] {inames=i:j}",
    ],
)
def test_sums_keep_the_precision_in_which_they_are_added(text):
    """What is added in double precision to an entry is not added in less."""
    narrow = dict.fromkeys(("A", "x", "C", "w"), np.float32)
    unit = kernel_of(text, dtypes=narrow)
    raised = raise_kernel(unit)
    assert raised.raised == ()
    assert raised.t_unit == unit


def test_a_joined_split_has_the_key_of_the_loop():
    """A user's split does not hide a fact."""
    text = "v[e,i] = sum(j, D[i,j]*u[e,j])"
    unit = kernel(text)
    whole = single_nest(raise_kernel(unit)).key
    for iname, size in {"e": 10, "i": 2, "j": 2}.items():
        split = lp.split_iname(unit, iname, size)
        assert_same(unit, raise_kernel(split))
        assert single_nest(raise_kernel(split)).key == whole
    for size in (2, 3):  # 3 does not divide the extent
        unrolled = lp.split_iname(unit, "j", size, inner_tag="unr")
        assert_same(unit, raise_kernel(unrolled))
        assert single_nest(raise_kernel(unrolled)).key == whole
    twice = lp.split_iname(lp.split_iname(unit, "e", 40), "e_inner", 8)
    assert single_nest(raise_kernel(twice)).key == whole


def test_a_sum_over_both_loops_of_a_split_has_the_key_of_one():
    """Written by hand, with operands that are functions, in one sum or two."""
    domain = "{[jo,ji,i]: 0<=jo<3 and 0<=ji<2 and 0<=i<4}"
    shapes = {"v": "4", "E": "4,6", "c": "6"}
    flat = kernel(
        "v[i] = sum(j, E[i,j]*(c[j] + 1))", "{[i,j]: 0<=i<4 and 0<=j<6}", shapes
    )
    product = "E[i, 2*jo + ji]*(c[2*jo + ji] + 1)"
    for text in (f"sum([jo,ji], {product})", f"sum(ji, sum(jo, {product}))"):
        unit = kernel(f"v[i] = {text}", domain, shapes)
        raised = raise_kernel(unit)
        assert single_nest(raised).key == single_nest(raise_kernel(flat)).key
        assert_same(unit, raised)


def test_a_long_chain_of_private_values_stays_short():
    """Each is the square of the one before: put in, the last has 2**25 factors."""
    n = 25
    lines = ["<> s0 = w[e] {id=s0}"]
    lines += [
        f"<> s{k} = s{k - 1}*s{k - 1} {{id=s{k},dep=s{k - 1}}}" for k in range(1, n)
    ]
    body = "\n".join([*lines, f"v[e,i] = s{n - 1}*u[e,i] {{dep=s{n - 1}}}"])
    raised = raise_kernel(kernel(f"for e\n{body}\nend"))
    assert raised.refused == ()
    assert all(len(nest.einsum.operands) < 200 for nest in raised.raised)


def test_inlined_functions_are_raised():
    """What marks their beginning and their end does nothing."""
    callee = lp.make_function(
        "{[a,b]: 0<=a<5 and 0<=b<6}",
        "o[a] = sum(b, M[a,b]*v[b])",
        [
            lp.GlobalArg("o", F8, shape=(5,)),
            lp.GlobalArg("M", F8, shape=(5, 6)),
            lp.GlobalArg("v", F8, shape=(6,)),
        ],
        name="mv",
        lang_version=(2018, 2),
    )
    caller = build_kernel(
        "{[i,j,l]: 0<=i,l<5 and 0<=j<6}",
        "[i]: out[i] = mv([l,j]: A[l,j], [j]: x[j])",
        {"out": "5", "A": "5,6", "x": "6"},
    )
    inlined = lp.inline_callable_kernel(lp.merge([caller, callee]), "mv")
    raised = raise_kernel(inlined)
    assert raised.refused == ()
    assert single_nest(raised).einsum.n_operands == 2
