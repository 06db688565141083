"""Each rule of the grammar: what is raised, and the mutation that is refused."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum import (
    NotAnEinsumError,
    array,
    canonicalize,
    einsum,
    generate_loopy,
    identify_as_einsum,
    raise_kernel,
)
from feinsum.raising import single_nest

A, B, X = array("A", (5, 6)), array("B", (6, 7)), array("x", 6)
MATVEC, MATMUL = einsum("ij,j->i", A, X), einsum("ij,jk->ik", A, B)
ARGS = [
    lp.GlobalArg("A", np.float64, shape=(5, 6)),
    lp.GlobalArg("A2", np.float64, shape=(5, 6)),
    lp.GlobalArg("B", np.float64, shape=(6, 7)),
    lp.GlobalArg("x", np.float64, shape=(6,)),
    lp.GlobalArg("y", np.float64, shape=(5,)),
    lp.GlobalArg("out", np.float64, shape=(5,)),
    lp.GlobalArg("C", np.float64, shape=(5, 7)),
    lp.ValueArg("alpha", np.float64),
    lp.ValueArg("beta", np.float64),
]
BOX = "{[i,j,k]: 0<=i<5 and 0<=j<6 and 0<=k<7}"


def kernel(text, domain=BOX, args=ARGS):
    names = [arg.name for arg in args]
    used = [arg for arg, name in zip(args, names, strict=True) if name in text]
    unit = lp.make_kernel(domain, text, used, lang_version=(2018, 2))
    return lp.remove_unused_inames(unit)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("out[i] = sum(j, A[i,j]*x[j])", MATVEC),
        ("out[i] = sum(j, x[j]*A[i,j])", MATVEC),
        ("out[i] = sum(j, 1*(A[i,j]*x[j]))", MATVEC),
        ("f(p,q) := A[p,q]\nout[i] = sum(j, f(i,j)*x[j])", MATVEC),
        ("g(p) := 2*x[p]\nf(p) := g(p) + 1\nout[i] = sum(j, A[i,j]*f(j))", MATVEC),
        ("out[i] = sum(j, (alpha*A[i,j] + beta)*x[j])", MATVEC),
        ("out[i] = sum(j, 0.5*(A[i,j] + A2[i,j])*x[j])", MATVEC),
        ("out[i] = alpha*sum(j, A[i,j]*x[j])", MATVEC),
        ("out[i] = sum(j, -A[i,j]*x[j])", MATVEC),
        ("out[i] = sum(j, A[i,j]*x[j])/alpha", MATVEC),
        ("C[i,k] = sum(j, A[i,j]*B[j,k])", MATMUL),
        ("C[i,k] = sum(j, (alpha*A[i,j] + beta)*B[j,k])", MATMUL),
        ("out[i] = sum(j, A[i,j])", einsum("ij->i", A)),
        ("out[i] = sum(j, x[j])", einsum("ij->i", A)),
        ("C[i,k] = y[i]*sum(j, A[i,j])", einsum("ik,ij->ik", array("C", (5, 7)), A)),
        ("out[i] = y[i]", einsum("i->i", array("y", 5))),
        ("out[i] = y[i]*sum(j, A[i,j])", einsum("i,ij->i", array("y", 5), A)),
        ("out[i] = sum(j, sum(k, A[i,j]*B[j,k]))", einsum("ij,jk->i", A, B)),
    ],
)
def test_spellings_of_one_einsum_have_one_key(text, expected):
    """Products, rules, sums and scalars in operands: the key is the einsum's."""
    nest = single_nest(raise_kernel(kernel(text)))
    assert nest.key == canonicalize(expected).key


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("out[i] = max(j, A[i,j]*x[j])", "reduction"),
        ("out[i] = product(j, A[i,j])", "reduction"),
        ("out[i] = sum(j, A[i,j])*sum(k, B[0,k])", "product-of-sums"),
        ("C[i,k] = sum(j, abs(A[i,j] + B[j,k]))", "sum-of-products"),
        ("out[i] = out[4-i] + sum(j, A[i,j])", "operand-written"),
        ("out[i] = y[i]/sum(j, A[i,j])", "nested-reduction"),
        ("out[i] = out[i]*sum(j, A[i,j])", "operand-written"),
        ("out[4-i] = sum(j, A[i,j])", "assignee"),
        ("out[i] = sum(j, A[i,j]*x[j]) {inames=i:k}", "race"),
        ("out[i] = sum([j,k], A[i,j]*x[j])", "unbound-sum"),
        ("out[i] = alpha", "no-operand"),
        ("out[i] = sum(j, A[i,j]*x[j]) {if=y[i] > 0}", "predicate"),
    ],
)
def test_a_broken_rule_is_refused_by_name(text, rule):
    """Every mutation is refused; the error names the instruction and the rule."""
    with pytest.raises(NotAnEinsumError) as caught:
        single_nest(raise_kernel(kernel(text)))
    assert caught.value.rule == rule
    assert all(name in str(caught.value) for name in caught.value.instructions)
    assert caught.value.instructions


@pytest.mark.parametrize(
    ("domain", "rule"),
    [
        ("{[i,j]: 0<=i<5 and 0<=j<=i}", "domain"),
        ("{[i,j]: 0<=i<5 and 0<=j<6 and j mod 2 = 0}", "domain"),
        ("[n] -> {[i,j]: 0<=2*i<n and 0<=j<6}", "extent"),
    ],
)
def test_a_domain_that_is_no_box_is_refused(domain, rule):
    """Triangular, strided and affinely sized domains are no einsum."""
    args = [*ARGS, lp.ValueArg("n", np.int32)] if "n]" in domain else ARGS
    text = "out[i] = sum(j, A[i,j]*x[j])"
    unit = lp.make_kernel(
        domain,
        text,
        [a for a in args if a.name in ("A", "x", "out", "n")],
        lang_version=(2018, 2),
    )
    (refused,) = raise_kernel(unit).refused
    assert refused.rule == rule


def test_a_refusal_tells_a_fill_from_a_scalar():
    """A fill is a loop of its own, a scalar is computed once."""
    (fill,) = raise_kernel(kernel("C[i,k] = 2*alpha")).refused
    (scalar,) = raise_kernel(kernel("<> t = 2*alpha")).refused
    assert (fill.rule, scalar.rule) == ("no-operand", "no-operand")
    assert "it fills C[i, k]" in fill.reason
    assert "computed once" in scalar.reason


def test_a_parallel_iname_is_refused():
    """What is scheduled for parallel execution already is left alone."""
    unit = kernel("out[i] = sum(j, A[i,j]*x[j])")
    (refused,) = raise_kernel(lp.tag_inames(unit, {"i": "g.0"})).refused
    assert refused.rule == "parallel-iname"


def test_an_output_of_another_dtype_is_refused():
    """A store that converts is not what the canonical einsum computes."""
    unit = lp.make_kernel(
        "{[i]: 0<=i<5}",
        "o[i] = y[i]",
        [
            lp.GlobalArg("y", np.float64, shape=(5,)),
            lp.GlobalArg("o", np.float32, shape=(5,)),
        ],
        lang_version=(2018, 2),
    )
    (refused,) = raise_kernel(unit).refused
    assert refused.rule == "output-dtype"


def test_an_open_dtype_is_refused_until_arguments_tell_it():
    """Without dtypes there is no key; with arguments= there is."""
    unit = lp.make_kernel(
        "[n] -> {[i,j]: 0<=i<n and 0<=j<6}",
        "o[i] = sum(j, M[i,j]*v[j])",
        [
            lp.GlobalArg("M", None, shape="n,6"),
            lp.GlobalArg("v", None, shape="6"),
            lp.GlobalArg("o", None, shape="n"),
            lp.ValueArg("n", np.int32),
        ],
        lang_version=(2018, 2),
    )
    assert raise_kernel(unit).refused[0].rule == "unknown-dtype"
    given = {"M": np.zeros((700, 6)), "v": np.zeros(6)}
    nest = single_nest(raise_kernel(unit, arguments=given))
    expected = einsum("ij,j->i", array("M", ("n", 6)), array("v", 6))
    assert nest.key == canonicalize(expected).key


@pytest.mark.parametrize(
    "given",
    [
        {"M": np.zeros((700, 5))},
        {"none": np.zeros(3)},
        {"v": object()},
        {"v": np.zeros(6, np.float32)},
        [np.zeros(6)],
    ],
)
def test_arguments_that_do_not_fit_are_refused(given):
    """Wrong shapes, unknown names and odd values are named."""
    unit = generate_loopy(einsum("ij,j->i", array("M", ("n", 6)), array("v", 6)))
    with pytest.raises(NotAnEinsumError) as caught:
        raise_kernel(unit, arguments=given)
    assert caught.value.rule == "arguments"


def test_two_equal_functions_are_one_operand():
    """Sharing is found by what is read, not by how it is spelled."""
    text = "f(p) := x[p]\ng(q) := x[q]\nout[i] = sum(j, A[i,j]*f(j)*g(j)*x[j])"
    nest = single_nest(raise_kernel(kernel(text)))
    assert nest.key == canonicalize(einsum("ij,j,j,j->i", A, X, X, X)).key


def test_a_diagonal_and_a_plain_read_are_one_array():
    """An array that is read with equal and with distinct indices is one operand."""
    square = array("Q", (5, 5))
    e = einsum("ii,ij->j", square, square)
    nest = single_nest(raise_kernel(generate_loopy(e)))
    assert nest.key == canonicalize(e).key


def test_long_free_extents_become_size_parameters():
    """From 500 on a free extent is a parameter; a contraction extent never is."""
    long = einsum("ij,j->i", array("A", (700, 600)), array("x", 600))
    nest = single_nest(raise_kernel(generate_loopy(long)))
    general = einsum("ij,j->i", array("A", ("n", 600)), array("x", 600))
    assert nest.key == canonicalize(general).key
    assert dict(nest.generalized) == {"n700": 700}


def test_another_einsum_is_not_identified():
    """A kernel is read as a reference only if it is that einsum."""
    unit = generate_loopy(MATVEC)
    with pytest.raises(NotAnEinsumError) as caught:
        identify_as_einsum(unit, MATMUL)
    assert caught.value.rule == "other-einsum"


def test_several_nests_are_not_taken_for_one():
    """Two einsums in a kernel need a choice; instructions= makes it."""
    text = (
        "out[i] = sum(j, A[i,j]*x[j]) {id=one}\nC[i,k] = sum(j, A[i,j]*B[j,k]) {id=two}"
    )
    unit = kernel(text)
    with pytest.raises(NotAnEinsumError) as caught:
        single_nest(raise_kernel(unit))
    assert caught.value.rule == "several-nests"
    chosen = single_nest(raise_kernel(unit, instructions="id:two"))
    assert chosen.key == canonicalize(MATMUL).key


def test_several_kernels_need_a_name():
    """An ambiguous entry point is refused with the list of choices."""
    units = [generate_loopy(MATVEC, name=name) for name in ("first", "second")]
    merged = lp.merge(units)
    with pytest.raises(NotAnEinsumError, match="second"):
        raise_kernel(merged)


@pytest.mark.parametrize("given", ["((", "id:", "id:none", 3])
def test_a_bad_match_expression_is_refused(given):
    """What is no match expression, or matches nothing, is named with what there is."""
    unit = kernel("out[i] = sum(j, A[i,j]*x[j])")
    with pytest.raises(NotAnEinsumError, match="instructions=") as caught:
        raise_kernel(unit, instructions=given)
    assert caught.value.rule == "arguments"


def test_what_is_no_translation_unit_is_refused():
    """A bare kernel, which is a common slip, is refused by name."""
    bare = kernel("out[i] = y[i]").default_entrypoint
    with pytest.raises(NotAnEinsumError, match="TranslationUnit"):
        raise_kernel(bare)


def test_one_instruction_that_cannot_be_analysed_spoils_no_other(monkeypatch):
    """Whatever an analysis raises, the other instructions are still raised."""
    from feinsum.raising import kernel as module

    whole = module.raise_row

    def fails_on_one(insn, table):
        if insn.id == "one":
            raise RuntimeError("not foreseen")
        return whole(insn, table)

    monkeypatch.setattr(module, "raise_row", fails_on_one)
    text = "out[i] = sum(j, A[i,j]*x[j]) {id=one}\nC[i,k] = sum(j, A[i,j]*B[j,k])"
    raised = raise_kernel(kernel(text))
    assert [nest.rule for nest in raised.refused] == ["loopy"]
    assert [nest.key for nest in raised.raised] == [canonicalize(MATMUL).key]
