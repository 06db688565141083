"""The forms that kernels take: each is raised to the einsum that it is.

The key is that of the einsum, and its value at each point is what the kernel computes.
"""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest
from loopy.symbolic import Reduction, TypeCast
from pymbolic import var

from feinsum import array, canonicalize, einsum, raise_kernel
from feinsum.raising import single_nest
from tests.raising.forms import BOX, arguments, kernel_of, make
from tests.raising.interpreter import run, run_raised

A, B, X, Y = array("A", (5, 6)), array("B", (6, 7)), array("x", 6), array("y", 5)
Z = array("z", 5)
MATVEC, MATMUL = einsum("ij,j->i", A, X), einsum("ij,jk->ik", A, B)
ROWS, SCALED_ROWS = einsum("ij->i", A), einsum("i,ij->i", Y, A)
ROWSCALED = einsum("ij,j,i->i", A, X, Y)
DG = "{[s,r,e,d,q]: 0<=s<3 and 0<=r<2 and 0<=e<5 and 0<=d<4 and 0<=q<4}"
J, D, U = array("J", (3, 2, 5)), array("D", (2, 4, 4)), array("u", (5, 4))
GRADIENT = einsum("xre,rij,ej->xei", J, D, U)
STACKED = einsum("ij,xej->xei", array("D", (4, 4)), array("u", (3, 5, 4)))
CHOICE = "(u0[e,q] if s == 0 else (u1[e,q] if s == 1 else u2[e,q]))"

PRODUCTS = [
    ("out[i] = sum(j, A[i,j]*x[j])", MATVEC),
    ("out[i] = sum(j, x[j]*(A[i,j]*1))*1", MATVEC),
    ("out[i] = simul_reduce(sum, j, A[i,j]*x[j])", MATVEC),
    ("out[i] = sum(j, A[i,j]*x[j])*alpha/(2*beta)", MATVEC),
    ("out[i] = alpha*3*sum(j, -A[i,j]*x[j])", MATVEC),
    ("out[i] = x[0]*sum(j, A[i,j]*x[j])", MATVEC),
    ("C$tag[i,k] = sum(j, A$one[i,j]*B[j,k])", MATMUL),
    ("f(p,q) := A[p,q]\nout[i] = sum(j, f$hot(i,j)*x[j])", MATVEC),
    ("g(p) := 2*x[p]\nf(p,q) := A[p,q] + g(q)\nout[i] = sum(j, f(i,j)*x[j])", MATVEC),
    ("f(p) := A[p,j]\nout[i] = sum(j, f(i)*x[j])", MATVEC),
    (
        "f(p,q) := A[p,q] - beta\ng(p) := f(p,2)\nout[i] = g(i)*sum(j, f(i,j)*x[j])",
        ROWSCALED,
    ),
    (
        "f(p) := x[p]\ng(q) := x[q]\nout[i] = sum(j, A[i,j]*f(j)*g(j)*x[j])",
        einsum("ij,j,j,j->i", A, X, X, X),
    ),
    ("f() := y[0]\nout[i] = f()*y[i]", einsum(",i->i", array("f", ()), Y)),
    ("out[i] = sum(j, S[i,j]*S[j,i]) {id=row}", None),
    ("C[i,k] = y[i]*B[0,k]", einsum("i,k->ik", Y, array("w", 7))),
    ("C[i,k] = 2*sum(j, A[i,j]*B[j,k]*x[j])", einsum("ij,jk,j->ik", A, B, X)),
    ("C[i,k] = y[i]*sum(j, A[i,j])", einsum("ik,ij->ik", array("C", (5, 7)), A)),
    ("out[i] = y[i]", einsum("i->i", Y)),
    ("out[i] = y[i]*sum(j, A[i,j])", SCALED_ROWS),
    ("out[i] = sum(j, A[i,j])", ROWS),
    ("out[i] = sum(j, x[j])", ROWS),
    ("out[i] = sum([j,k], A[i,j]*B[j,k])", einsum("ij,jk->i", A, B)),
    ("out[i] = sum(j, A[i,j]*sum(k, B[j,k]))", einsum("ij,jk->i", A, B)),
]
QUOTIENTS = [
    ("out[i] = sum(j, A[i,j]*x[j])/y[i]", ROWSCALED),
    ("out[i] = sum(j, A[i,j]*x[j]/y[i])", ROWSCALED),
    ("out[i] = sum(j, A[i,j]*(x[j]/y[i]))", ROWSCALED),
    ("out[i] = 2*sum(j, A[i,j]/(y[i]/x[j]))", ROWSCALED),
    ("out[i] = y[i]*sum(j, A[i,j]/x[j])", ROWSCALED),
    (
        "out[i] = sum(j, A[i,j]*x[j]/(j + 2.0))",
        einsum("ij,j,j->i", A, X, array("v", 6)),
    ),
    ("out[i] = y[i]/z[i]", einsum("i,i->i", Y, Z)),
]
FUNCTIONS = [
    ("out[i] = sum(j, (alpha*A[i,j] + beta)*(x[j]*x[j] + 1))", MATVEC),
    ("out[i] = -sum(j, 0.5*(A[i,j] + A2[i,j])*x[j])", MATVEC),
    ("out[i] = sum(j, (x[j] if j < 3 else alpha)*A[i,j])", MATVEC),
    ("out[i] = sum(j, (A[i,j] + x2[j])*x[j])", MATVEC),
    ("out[i] = sum(j, (At[j,i] + A[i,j])*x[j])", MATVEC),
    ("out[i] = sum(j, (A[i,j-1] if j > 0 else 0.0)*x[j])", MATVEC),
    ("out[i] = sum(j, (A[i,j] if flag[i] > 0 else 0.0)*x[j])", MATVEC),
    ("out[i] = sum(j, A[map[i],jmap[j]]*x[j])", MATVEC),
    ("out[i] = sum(j, A[4-i,(j + 1) % 6]*x[5-j])", MATVEC),
    ("out[i] = sum(j, flat[6*i + j]*x[j])", MATVEC),
    ("out[i] = sum(j, A[(6*i + j)//6, (6*i + j) % 6]*x[j])", MATVEC),
    ("out[i] = sum(j, fmin(A[i,j], 2.0)*abs(x[j])**1.5)", MATVEC),
    ("out[i] = sum(j, (A[i,j]*x[j] + A2[i,j]*x2[j]))", einsum("ij->i", A)),
]
OUTPUTS = [
    ("T[2,i] = sum(j, A[i,j]*x[j])", MATVEC),
    ("W[i,0] = sum(j, A[i,j]*x[j])", MATVEC),
    ("out[0] = sum(j, x[j]*x2[j])", einsum("j,j->", X, array("x2", 6))),
    ("total = sum(j, x[j])", einsum("j->", X)),
    ("<> t = sum(j, x[j])", einsum("j->", X)),
]


@pytest.mark.parametrize(
    ("text", "expected"), [*PRODUCTS, *QUOTIENTS, *FUNCTIONS, *OUTPUTS]
)
def test_a_form_has_the_key_of_its_einsum(text, expected):
    """Two spellings of one einsum have one key."""
    square = array("S", (5, 5))
    domain = BOX if expected else BOX.replace("j<6", "j<5")
    assert_raised(
        kernel_of(text, domain), expected or einsum("ij,ji->i", square, square)
    )


def assert_raised(unit, expected):
    """The key is that of the einsum, and its value is what the kernel computes."""
    raised = raise_kernel(unit)
    nest = single_nest(raised)
    assert nest.key == canonicalize(expected).key
    given = arguments(unit)
    found = run_raised(raised.t_unit, raised.raised, given)
    for name, value in run(unit, given).items():
        np.testing.assert_allclose(found[name], value, 1e-12)
    return nest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("G[s,e,d] = sum([r,q], J[s,r,e,0]*D[r,d,q]*u[e,q])", GRADIENT),
        ("G[s,e,d] = sum([q,r], u[e,q]*(D[r,d,q]*J[s,r,e,0]))", GRADIENT),
        ("G[s,e,d] = sum(r, J[s,r,e,0]*sum(q, u[e,q]*D[r,d,q]))", GRADIENT),
        (f"G[s,e,d] = sum(q, D[0,d,q]*{CHOICE})", STACKED),
        (f"G[s,e,d] = sum(q, {CHOICE}*D[0,d,q])", STACKED),
    ],
)
def test_the_order_of_factors_and_sums_does_not_matter(text, expected):
    """A product is its factors, and a sum is its inames."""
    assert_raised(make(text, DG), expected)


@pytest.mark.parametrize(
    ("text", "shift", "scale"),
    [
        ("out[i] = sum(j, A[i,j]*x[j]) + y[i]", "y[i]", "1"),
        ("out[i] = 1 + 2*sum(j, A[i,j]*x[j])", "1", "2"),
        ("out[i] = out[i] + sum(j, A[i,j]*x[j])", "out[i]", "1"),
        ("out[i] = 3*out[i] - alpha*sum(j, A[i,j]*x[j])", "3*out[i]", "(-1)*alpha"),
        ("out[i] = 2*(y[i] + sum(j, A[i,j]*x[j]))", "2*y[i]", "2"),
        ("out[i] = (y[i] + sum(j, A[i,j]*x[j]))/alpha", "y[i] / alpha", "1 / alpha"),
        ("T[2,i] = T[2,i] + sum(j, A[i,j]*x[j])", "T[2, i]", "1"),
        ("out[i] = y[i]*z[i] + out[i]", "out[i]", "1"),
    ],
)
def test_a_shift_stands_beside_the_scale(text, shift, scale):
    """What is added to a sum is kept, and does not change the key."""
    expected = MATVEC if "sum" in text else einsum("i,i->i", Y, Z)
    nest = assert_raised(kernel_of(text), expected)
    assert (str(nest.shift[0]), str(nest.scale[0])) == (shift, scale)


@pytest.mark.parametrize(
    "domain",
    [
        ["{ : }", "{[i]: 0<=i<5}", "{[j]: 0<=j<6}"],
        "{[j,i]: 0<=i<=4 and j>=0 and j<=5}",
        "[n,m] -> {[i,j]: 0<=i<n and 0<=j<m}",
        ["[n] -> {[i]: 0<=i<n}", "[m] -> {[j]: 0<=j<m}"],
    ],
)
def test_domains_are_split_and_joined(domain):
    """One domain for all inames or one for each; numbers or parameters."""
    is_open = "->" in str(domain)
    shape = ("n", "m") if is_open else (5, 6)
    expected = einsum("ij,j->i", array("A", shape), array("x", shape[1]))
    assert_raised(make("out[i] = sum(j, A[i,j]*x[j])", domain), expected)


def test_an_axis_of_one_entry_is_no_index():
    """``W[i,c]`` with a single ``c`` is ``W[i,0]``; a sum over one value is none."""
    domain = ["{[i,c]: 0<=i<5 and c=0}", "{[j,b]: 0<=j<6 and b=0}"]
    text = "W[i,c] = sum([j,b], A[i,j]*x[j])"
    assert_raised(make(text, domain), MATVEC)
    copy = make("W[i,c] = y[i]", "{[i,c]: 0<=i<5 and c=0}")
    assert_raised(copy, einsum("ic->ic", array("y", (5, 1))))


@pytest.mark.parametrize("value", ["6", "2*3"])
def test_a_bound_that_is_assigned_a_constant_is_a_number(value):
    """Such a bound is folded, and the instruction that assigned it is gone."""
    raised = raise_kernel(_with_bound(f"<> size = {value} {{id=size}}"))
    assert single_nest(raised).key == canonicalize(MATVEC).key
    assert [i.id for i in raised.t_unit.default_entrypoint.instructions] == ["row"]


@pytest.mark.parametrize(
    "line",
    [
        "<> size = map[0] {id=size}",
        "<> size = 6 {id=size,if=map[0] > 0}",
        "<> size = 1/0 {id=size}",
        "<> size = sum(c, 2) {id=size}",
        "<float64> size = 6 {id=size}",
    ],
)
def test_a_bound_that_depends_on_anything_is_refused(line):
    """Bounds from data, under a condition or of no whole value are not numbers."""
    refused = {r.instructions: r.rule for r in raise_kernel(_with_bound(line)).refused}
    assert refused["row",] == "extent"


def test_a_constant_bound_in_the_loops_of_its_sum_is_a_number():
    """The bounds of a sum may be assigned in every iteration, as pytato does it."""
    text = """
    <> first = 0 {id=first,inames=i}
    <> size = 6 {id=size,inames=i}
    out[i] = sum(j, A[i,j]*x[j]) {id=row,dep=first:size}
    """
    domain = ["{[i]: 0<=i<5}", "[first, size] -> {[j]: first<=j<size}"]
    raised = raise_kernel(make(text, domain))
    assert single_nest(raised).key == canonicalize(MATVEC).key
    assert [i.id for i in raised.t_unit.default_entrypoint.instructions] == ["row"]


@pytest.mark.parametrize(
    "row",
    [
        "out[k] = sum(j, A[k,j]*x[j]) {id=row,dep=size}",
        "out[i] = sum(j, A[i,j]*x[j]) {id=row,dep=}",
        "out[i] = x[i] {id=row}\nout2[k] = size {dep=size,inames=k}",
        "f() := size\nout[i] = x[i] {id=row}\nout2[k] = f() {dep=size,inames=k}",
        "f(a) := sum(j, A[a,j])\nout[i] = x[i] {id=row}\nout2[k] = f(k) {dep=size}",
    ],
    ids=["other loops", "any order", "read", "read by a rule", "sum in a rule"],
)
def test_a_bound_that_others_use_elsewhere_stays(row):
    """What runs outside of the loops in which it is assigned might not see it."""
    unit = _with_bound("<> size = 6 {id=size,inames=i}", row)
    names = raise_kernel(unit).t_unit.default_entrypoint.id_to_insn
    assert "size" in names


def test_a_bound_that_c_code_reads_stays():
    """The text of C is not rewritten, so the scalar has to be there."""
    unit = _with_bound("<> size = 6 {id=size}")
    kernel = unit.default_entrypoint
    code = lp.CInstruction(
        (),
        "out2[0] = size;",
        read_variables=frozenset(["size"]),
        assignees=("out2[0]",),
        depends_on=frozenset(["size"]),
    )
    kernel = kernel.copy(instructions=[*kernel.instructions, code])
    names = raise_kernel(unit.with_kernel(kernel)).t_unit.default_entrypoint.id_to_insn
    assert "size" in names


def _with_bound(line, row="out[i] = sum(j, A[i,j]*x[j]) {id=row,dep=size}"):
    domain = [
        "{[i,c]: 0<=i<5 and 0<=c<3}",
        "[size] -> {[j]: 0<=j<size}",
        "{[k]: 0<=k<5}",
    ]
    return make(f"{line}\n{row}", domain)


def test_a_cast_to_a_floating_point_dtype_is_a_function():
    """``cast(float64, map[i])`` is an operand like any other."""
    unit = make("out[i] = sum(j, A[i,j]) + map[i]")
    kernel = unit.default_entrypoint
    factor = TypeCast(np.dtype(np.float64), var("map")[var("i")])
    value = Reduction("sum", ("j",), var("A")[var("i"), var("j")] * factor)
    insn = kernel.instructions[0].copy(expression=value)
    nest = single_nest(raise_kernel(unit.with_kernel(kernel.copy(instructions=[insn]))))
    assert nest.key == canonicalize(einsum("ij,i->i", A, Y)).key
    assert "float64(map[_0])" in {f.body for f in nest.functions.values()}


def test_rows_of_a_batch_may_write_parts_of_one_array():
    """Stores that a number tells apart do not race."""
    text = "T[0,i] = sum(j, A[i,j]*x[j])\nT[1,i] = sum(j, A[i,j]*x2[j])"
    nest = single_nest(raise_kernel(make(text)))
    assert nest.einsum.batch_size == 2
    text = text.replace("= sum", "= T[0,i] + sum", 1).replace("= sum", "= T[1,i] + sum")
    nest = single_nest(raise_kernel(make(text)))
    assert [str(shift) for shift in nest.shift] == ["T[0, i]", "T[1, i]"]


@pytest.mark.parametrize(
    "text",
    [
        "out[i] = sum(j, A[i,j]*x[j]) {id=row}\nout[i] = out[i] + y[i]",
        "out[i] = y[i]*z[i] {id=row}\nout2[i] = out[i]*z[i]",
        "out2[i] = out[i]*z[i] {id=row}\nout[i] = y[i]*z[i]",
        "C[i,k] = y[i]*w[k] {id=row}\nout[i] = sum(q, C[i,q])",
    ],
    ids=["overwritten", "read after", "read before", "summed"],
)
def test_what_each_iteration_keeps_to_itself_may_be_exchanged(text):
    """Loops can be shared with who comes before or after, at the same point."""
    domain = "{[i,k,q,j]: 0<=i<5 and 0<=k,q<7 and 0<=j<6}"
    unit = kernel_of(text, domain)
    kernel = unit.default_entrypoint
    free = [insn.copy(depends_on=frozenset()) for insn in kernel.instructions]
    ordered = [free[0], free[1].copy(depends_on=frozenset({"row"}))]
    raised = raise_kernel(unit.with_kernel(kernel.copy(instructions=ordered)))
    assert [len(nest.instructions) for nest in raised.raised] == [1, 1]
    unordered = raise_kernel(unit.with_kernel(kernel.copy(instructions=free)))
    assert {nest.rule for nest in unordered.refused} <= {
        "race",
        "operand-written",
        "output-read",
    }
    assert not unordered.raised


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16])
def test_small_integers_may_be_compared(dtype):
    """C compares them by their values: a mask is a function like any other."""
    text = "out[i] = (y[i] if flag[i] > map[i] and flag[i] != -1 else z[i])*z[i]"
    unit = make(text, "{[i]: 0<=i<5}", dtypes={"flag": dtype})
    nest = single_nest(raise_kernel(unit))
    assert nest.key == canonicalize(einsum("i,i->i", Y, Z)).key


def test_rows_between_which_an_operand_changes_are_no_batch():
    """``x`` is not the same array before and after it is written."""
    text = """
    out[i] = sum(j, A[i,j]*x[j]) {id=first}
    x[k] = 2*out[k] {id=update,dep=first}
    out2[i] = sum(j, A[i,j]*x[j]) {id=second,dep=update}
    """
    raised = raise_kernel(make(text, ["{[i,j]: 0<=i<5 and 0<=j<6}", "{[k]: 0<=k<5}"]))
    batches = {nest.instructions for nest in raised.raised}
    assert batches == {("first",), ("second",), ("update",)}


@pytest.mark.parametrize(
    "text",
    [
        "total = sum(j, x[j]) {id=one}\ntotal = sum(j, x2[j]) {id=two,dep=one}",
        """
        f() := y[0]
        g() := 2*total
        total = f() {id=one}
        <> t = g() {id=two,dep=one}
        """,
    ],
)
def test_rows_outside_of_all_loops_are_no_batch_if_their_order_matters(text):
    """One overwrites, or reads, what the other one assigns."""
    raised = raise_kernel(kernel_of(text))
    assert [nest.instructions for nest in raised.raised] == [("one",), ("two",)]


@pytest.mark.parametrize("name", ["_0", "__1"])
def test_an_argument_may_have_the_name_of_a_parameter(name):
    """The parameters of a new rule are names that the kernel does not have."""
    extra = [lp.ValueArg(name, np.float64)]
    unit = make(f"out[i] = sum(j, (A[i,j] + {name})*x[j])", extra=extra)
    nest = single_nest(raise_kernel(unit))
    assert all(name not in f.parameters for f in nest.functions.values())
