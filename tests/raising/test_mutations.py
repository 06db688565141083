"""Each rule of the grammar, broken by one change of a kernel that keeps it."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pyopencl.cltypes as cltypes
import pytest
from pymbolic import var

from feinsum import NotAnEinsumError, raise_kernel
from feinsum.raising import single_nest
from tests.docs.codes import refusal_rules
from tests.raising.forms import BOX, kernel_of, make

VALID = "out[i] = sum(j, A[i,j]*x[j]) {id=row}"
SMALL = "{[i,j]: 0<=i<5 and 0<=j<5}"

MUTANTS = [
    ("reduction", "sum(j,", "max(j,"),
    ("reduction", "sum(j,", "product(j,"),
    ("reduction", "sum(j, A[i,j]*x[j])", "reduce(any, j, A[i,j] > x[j])"),
    ("instruction-kind", "out[i] = sum(j, A[i,j]*x[j])",
     "out[i], out2[i] = argmin(j, A[i,j], j)"),
    ("reduction", "x[j]", "max(k, B[j,k])"),
    ("nested-reduction", "x[j]", "abs(x[j] + sum(k, B[j,k]))"),
    ("nested-reduction", "sum(j, A[i,j]*x[j])", "y[i]/sum(j, A[i,j]*x[j])"),
    ("nested-reduction", "A[i,j]", "A[sum(k, map[0]),j]"),
    ("nested-reduction", "sum(j, A[i,j]*x[j])", "y[i] if sum(j, x[j]) > 0 else z[i]"),
    ("nested-reduction", "out[i]", "f(p) := sum(k, C[p,k])\nout[i]"),
    ("product-of-sums", "*x[j])", ")*sum(k, C[i,k])"),
    ("repeated-sum", "*x[j]", "*sum(j, x[j])"),
    ("sum-of-products", "A[i,j]*x[j]", "abs(y[i] + x[j])"),
    ("unbound-sum", "sum(j,", "sum([j,k],"),
    ("race", "*x[j])", ") + x[j]"),
    ("race", "x[j]", "w[k]"),
    ("broadcast", "A[i,j]*x[j]", "S[j,j]"),
    ("no-operand", "sum(j, A[i,j]*x[j])", "alpha"),
    ("assignee", "out[i]", "out[map[i]]"),
    ("assignee", "out[i]", "S[i,i]"),
    ("assignee", "out[i]", "out[4-i]"),
    ("assignee", "out[i]", "out[i%2]"),
    ("race", "{id=row}", "{id=row,inames=i:k}"),
    ("race", "out[i]", "out[0]"),
    ("race", "{id=row}", "{id=row}\nout[i] = y[i]*z[i] {id=other}"),
    ("operand-written", "x[j]", "out[i]"),
    ("operand-written", "x[j])", "x[j]) + out[4-i]"),
    ("operand-written", "x[j])", "x[j]) + out[map[i]]"),
    ("operand-written", "{id=row}", "{id=row}\nx[j] = 2*x2[j]"),
    ("operand-written", "x[j])", "x[j]) + z[4-i]"),
    ("output-read", "{id=row}", "{id=row}\nout2[i] = out[4-i] {dep=row}"),
    ("predicate", "{id=row}", "{id=row,if=y[i] > 0}"),
    ("atomic", "{id=row}", "{id=row,atomic}"),
    ("operand-function", "A[i,j]", "A[i/1,j]"),
    ("operand-function", "x[j]", "sqrt(map[i])"),
    ("operand-function", "x[j]", "frobnicate(x[j])"),
    ("operand-function", "A[i,j]", "A[[6*i + j]]"),
    ("operand-function", "A[i,j]", "abs(A[i,j]*((flag[i] > 0) + (map[i] > 0)))"),
    ("operand-function", "A[i,j]", "(A[i,j] // 2.0)"),
    ("captured-iname", "out[i]", "g(p) := A[p,j]\nf(j) := g(j)*1.0\nout[i]"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:LinearSubscript")
@pytest.mark.parametrize(("rule", "old", "new"), MUTANTS)
def test_a_mutant_is_refused_by_the_rule_that_it_breaks(rule, old, new):
    """The kernel is raised as it is, and refused with one change."""
    single_nest(raise_kernel(make(VALID)))
    assert VALID.count(old) == 1
    text = VALID.replace(old, new)
    if rule == "captured-iname":
        text = text.replace("A[i,j]*x", "f(i)*x")
    if "f(p) := sum" in text:
        text = text.replace("*x[j]", "*f(i)")
    if "+ z[4-i]" in text:
        text += "\nz[i] = y[i]*alpha {id=other}"
    raised = raise_kernel(make(text))
    refused = {r.instructions[0]: r for r in raised.refused}
    name = "row" if "row" in refused else next(iter(refused))
    assert refused[name].rule == rule
    assert name in refused[name].reason
    # a message for logs: Loopy's own text of a function has combining characters
    assert refused[name].reason.isascii()
    assert all("row" not in nest.instructions for nest in raised.raised)


def test_a_refused_instruction_is_no_nest():
    """The error names the instruction and the rule."""
    with pytest.raises(NotAnEinsumError, match="instruction 'row'") as caught:
        single_nest(raise_kernel(make(VALID.replace("sum(", "max("))))
    assert (caught.value.rule, caught.value.instructions) == ("reduction", ("row",))


@pytest.mark.parametrize(
    ("dtypes", "words"),
    [
        ({"out": "f4", "A": "f8"}, "A[_0, _1] (float64), x[_0] (float64)"),
        ({"out": "i8", "A": "i8", "x": "i4"}, "A[_0, _1] (int64), x[_0] (int32)"),
    ],
)
def test_a_refused_dtype_names_the_arrays(dtypes, words):
    """With the dtype of each, as the kernel reads them."""
    types = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
    (refused,) = raise_kernel(typed(**types)).refused
    assert refused.rule == "output-dtype"
    assert words in refused.reason


BOXES = "{[i, j, k]: 0 <= i < 5 and 0 <= j < 6 and 0 <= k < 7}"
SHIFTED = "[n] -> {[i, j]: 1 <= i < n and 0 <= j < 6}"


@pytest.mark.parametrize(
    ("rule", "domain", "line", "instead"),
    [
        (
            "assignee",
            SHIFTED,
            "out[map[i]] = out[map[i]] + reduce(sum, [j], A[i, j]*x[j])",
            (SHIFTED, VALID),
        ),
        (
            "extent",
            "[n] -> {[i]: 0 <= i < n and i mod 2 = 0}",
            "out[i] = y[i]*z[i]",
            ("[n] -> {[i]: 0 <= i < n}", "flat[2*i] = A[2*i,0]*A2[2*i,1]"),
        ),
        (
            "domain",
            "{[i, j]: 0 <= i < 5 and 0 <= j <= i}",
            "out[i] = reduce(sum, [j], A[i, j]*x[j])",
            (BOXES, VALID),
        ),
        (
            "product-of-sums",
            BOXES,
            "out[i] = reduce(sum, [j], A[i, j])*reduce(sum, [k], C[i, k])",
            (BOXES, "out[i] = sum(j, A[i, j])"),
        ),
    ],
)
def test_a_refusal_names_the_line_and_a_rewrite_that_works(rule, domain, line, instead):
    """Whatever raising has made of the kernel: shifted loops, or other instructions."""
    text = line.replace("reduce(sum, ", "sum(")
    (refused,) = raise_kernel(kernel_of(text, domain)).refused
    assert refused.rule == rule
    assert f"The line: {line}. Instead, " in refused.reason
    domain, text = instead
    raised = raise_kernel(kernel_of(text, domain))
    assert raised.raised
    assert not raised.refused


def test_a_refusal_tells_a_fill_from_a_scalar():
    """A fill is a loop of its own, a scalar is computed once."""
    (fill,) = raise_kernel(kernel_of("C[i,k] = 2*alpha")).refused
    (scalar,) = raise_kernel(kernel_of("<> t = 2*alpha")).refused
    assert (fill.rule, scalar.rule) == ("no-operand", "no-operand")
    assert "it fills C[i, k]" in fill.reason
    assert "computed once" in scalar.reason


def unbound():
    """A kernel that names its loops itself can forget one."""
    unit = make(VALID.replace("x[j]", "w[k]"))
    kernel = unit.default_entrypoint
    loops = {"within_inames": frozenset("i"), "within_inames_is_final": True}
    row = kernel.id_to_insn["row"].copy(**loops)
    return unit.with_kernel(kernel.copy(instructions=[row]))


def calling():
    """A callee and what is handed to it are no functions of indices."""
    callee = lp.make_function(
        "{[a]: 0<=a<6}", "b[a] = 2*c[a]", name="twice", lang_version=(2018, 2)
    )
    return lp.merge([make("[j]: x2[j] = twice([j]: x[j])"), callee])


def in_c():
    """An instruction in C says nothing about what it computes."""
    insn = lp.CInstruction("i", "out[i] = 0;", assignees=(var("out")[var("i")],))
    unit = make("out[i] = y[i]")
    changed = unit.default_entrypoint.copy(instructions=[insn.copy(id="c")])
    return unit.with_kernel(changed)


def into_own(text, domain=BOX, **options):
    """Outputs whose entries share a place in memory."""
    shape = (2, 5) if "own[0" in text else (5, 7)
    own = lp.GlobalArg("own", np.float64, shape=shape, **options)
    return make(text, domain, extra=[own])


def in_a_pool():
    """An operand in the memory of the output changes while the nest runs."""
    options = {"base_storage": "pool", "address_space": lp.AddressSpace.GLOBAL}
    extra = [
        lp.TemporaryVariable(name, np.float64, shape=(6,), **options)
        for name in ("here", "there")
    ]
    return make("here[i] = sum(j, A[i,j]*there[j])", BOX, extra=extra)


def typed(**dtypes):
    return make(VALID, dtypes=dtypes)


OUTER = "own[i,k] = y[i]*w[k]"
KERNELS = {
    "a triangle": ("domain", lambda: make(VALID, BOX.replace("j<6", "j<=i"))),
    "steps": ("domain", lambda: make(VALID, BOX.replace("j<6", "j<6 and j mod 2=0"))),
    "a size of a loop without instructions": (
        "domain", lambda: make(VALID, f"[n] -> {BOX.replace('k<7', 'k<n')}")
    ),
    "a bound from another loop": (
        "domain", lambda: make(VALID, ["{[i]: 0<=i<5}", "[i] -> {[j]: 0<=j<=i}"])
    ),
    "half a size": (
        "extent", lambda: make(VALID, "[n] -> {[i,j]: 0<=2*i<n and 0<=j<6}")
    ),
    "no iteration": ("extent", lambda: make(VALID, "{[i,j]: 0<=i<5 and 0<=j<0}")),
    "a store that rounds": ("output-dtype", lambda: typed(out=np.float32)),
    "a complex operand": ("output-dtype", lambda: typed(x=np.complex128)),
    "operands of less precision": (
        "output-dtype", lambda: typed(A=np.float32, x=np.float32)
    ),
    "integers of two sizes": (
        "output-dtype", lambda: typed(A=np.int32, x=np.int8, out=np.int32)
    ),
    "an open dtype": ("unknown-dtype", lambda: typed(x=None)),
    "vectors": (
        "operand-function", lambda: typed(x=cltypes.double4, out=cltypes.double4)
    ),
    "small integers that C promotes": (
        "operand-function output-dtype",
        lambda: make("out[i] = sum(j, (A[i,j]//2 + A2[i,j])*x[j])", dtype=np.int8),
    ),
    "unsigned integers that C promotes": (
        "operand-function output-dtype",
        lambda: make(
            "out[i] = sum(j, (A[i,j] if A[i,j] - A2[i,j] < 0 else 0)*x[j])",
            dtype=np.uint32,
        ),
    ),
    "-1 for a large unsigned number": (
        "operand-function",
        lambda: kernel_of(
            "out[i] = (y[i] if flag[i] > map[i] else z[i])*z[i]", SMALL,
            dtypes={"flag": np.uint32},
        ),
    ),
    "a loop of the grid": (
        "parallel-iname", lambda: lp.tag_inames(make(VALID), {"i": "g.0"})
    ),
    "a parallel sum": (
        "parallel-iname", lambda: lp.tag_inames(make(VALID), {"j": "l.0"})
    ),
    "an interleaved loop": (
        "parallel-iname", lambda: lp.tag_inames(make(VALID), {"i": "ilp"})
    ),
    "rows that overlap": ("race", lambda: into_own(OUTER, strides=(1, 1))),
    "rows whose ends overlap": ("race", lambda: into_own(OUTER, strides=(6, 1))),
    "lanes": ("race", lambda: into_own(OUTER, dim_tags="N0,vec")),
    "rows of one place in memory": (
        "race operand-written",
        lambda: into_own(
            "own[0,i] = 2*y[i] {id=a}\nout[i] = own[1,4-i]*z[i] {id=row,dep=a}",
            SMALL, strides=(0, 1),
        ),
    ),
    "a shared pool": ("operand-written", in_a_pool),
    "rows that write each other's entries": (
        "race",
        lambda: make(
            "S[i,j] = y[i]*z[j] {id=a}\nS[j,i] = z[i]*z[j] {id=b,dep=a}", SMALL
        ),
    ),
    "an index that nothing binds": ("unbound-index", unbound),
    "a call": ("call", calling),
    "code in C": ("instruction-kind", in_c),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*never written")
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_no_einsum_is_refused_by_a_rule(name):
    """What is no box, C computes otherwise than numpy, runs in parallel already, shares
    memory, or is no expression.
    """
    rules, build = KERNELS[name]
    raised = raise_kernel(build())
    assert raised.raised == ()
    assert {one.rule for one in raised.refused} <= {*rules.split()}
    assert raised.refused


def test_a_loop_that_needs_every_step_is_refused():
    """What others read while a loop adds to it is no sum."""
    text = """
    out[i] = out[i] + A[i,j]*x[j] {id=row}
    x2[j] = out[2] {dep=row,inames=i:j}
    """
    refused = {r.instructions[0]: r.rule for r in raise_kernel(make(text)).refused}
    assert refused["row"] == "race"


OTHERS = {
    "arguments", "compressed", "kernel", "loopy", "other-einsum", "other-instructions",
    "reported", "several-nests", "target",
}  # fmt: skip
"""Rules that have tests of their own: in ``test_calls``, ``test_trees`` or for
``retrieve``."""


def test_every_rule_has_a_mutant():
    """No rule of the grammar is without a kernel that breaks it."""
    tested = {rule for rule, _, _ in MUTANTS} | {rule for rule, _ in KERNELS.values()}
    assert tested | OTHERS >= refusal_rules()
