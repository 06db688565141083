"""What raise_kernel is given and gives back: choices, sizes, dtypes, names of loops."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
import numpy as np
import pytest
from constantdict import constantdict
from pymbolic import parse, var

from feinsum import (
    NotAnEinsumError,
    array,
    canonicalize,
    einsum,
    generate_loopy,
    identify_as_einsum,
    raise_kernel,
)
from feinsum.errors import TransformError
from feinsum.raising import single_nest
from feinsum.transforms.primitives import begin
from tests.raising.forms import kernel_of

A, B, X = array("A", (5, 6)), array("B", (6, 7)), array("x", 6)
MATVEC, MATMUL = einsum("ij,j->i", A, X), einsum("ij,jk->ik", A, B)
ONE = "out[i] = sum(j, A[i,j]*x[j])"
TWO = f"{ONE} {{id=one}}\nC[i,k] = sum(j, A[i,j]*B[j,k]) {{id=two}}"


def test_several_nests_are_not_taken_for_one():
    """Two einsums in a kernel need a choice; instructions= makes it."""
    unit = kernel_of(TWO)
    with pytest.raises(NotAnEinsumError) as caught:
        single_nest(raise_kernel(unit))
    assert caught.value.rule == "several-nests"
    chosen = single_nest(raise_kernel(unit, instructions="id:two"))
    assert chosen.key == canonicalize(MATMUL).key


@pytest.mark.parametrize("given", ["((", "id:none", 3])
def test_a_bad_match_expression_is_refused(given):
    """What is no match expression, or matches nothing, is named with what there is."""
    with pytest.raises(NotAnEinsumError, match="instructions=") as caught:
        raise_kernel(kernel_of(ONE), instructions=given)
    assert caught.value.rule == "arguments"


def test_several_kernels_need_a_name():
    """An ambiguous entry point is refused with the list of choices."""
    units = [generate_loopy(MATVEC, name=name) for name in ("first", "second")]
    with pytest.raises(NotAnEinsumError, match="second"):
        raise_kernel(lp.merge(units))


def test_what_is_no_translation_unit_is_refused():
    """A bare kernel, which is a common slip, is refused by name."""
    with pytest.raises(NotAnEinsumError, match="TranslationUnit"):
        raise_kernel(kernel_of(ONE).default_entrypoint)


def test_another_einsum_is_not_identified():
    """A kernel is read as a reference only if it is that einsum."""
    with pytest.raises(NotAnEinsumError) as caught:
        identify_as_einsum(generate_loopy(MATVEC), MATMUL)
    assert caught.value.rule == "other-einsum"


def test_one_instruction_that_cannot_be_analysed_spoils_no_other(monkeypatch):
    """Whatever an analysis raises, the other instructions are still raised."""
    from feinsum.raising import kernel as module

    whole = module.raise_row

    def fails_on_one(insn, table):
        if insn.id == "one":
            raise RuntimeError("not foreseen")
        return whole(insn, table)

    monkeypatch.setattr(module, "raise_row", fails_on_one)
    raised = raise_kernel(kernel_of(TWO))
    assert [nest.rule for nest in raised.refused] == ["loopy"]
    assert [nest.key for nest in raised.raised] == [canonicalize(MATMUL).key]


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


def test_long_free_extents_become_size_parameters():
    """From 500 on a free extent is a parameter; a contraction extent never is."""
    long = einsum("ij,j->i", array("A", (700, 600)), array("x", 600))
    nest = single_nest(raise_kernel(generate_loopy(long)))
    general = einsum("ij,j->i", array("A", ("n", 600)), array("x", 600))
    assert nest.key == canonicalize(general).key
    assert dict(nest.generalized) == {"n700": 700}


def test_a_diagonal_and_a_plain_read_are_one_array():
    """An array that is read with equal and with distinct indices is one operand."""
    square = array("Q", (5, 5))
    e = einsum("ii,ij->j", square, square)
    nest = single_nest(raise_kernel(generate_loopy(e)))
    assert nest.key == canonicalize(e).key


def test_indices_of_a_dense_nest_are_inames():
    """Each index has the value of its iname, under any names."""
    nest = single_nest(raise_kernel(kernel_of(ONE))).nest
    assert nest.points == {"i": var("i"), "j": var("j")}
    canonical = nest.relabel(canonicalize(nest.einsum).relabeling)
    assert canonical.points == {"a": var("i"), "b": var("j")}
    assert canonical.inames == {"a": "i", "b": "j"}
    assert canonical.loops == {"i", "j"}


def test_an_index_can_be_an_entry_that_a_loop_finds():
    """Its names are known; families whose loops run over indices refuse it by name."""
    raised = raise_kernel(kernel_of(ONE))
    nest = single_nest(raised).nest
    points = constantdict({"i": var("i"), "j": parse("idx[p]")})
    sparse = replace(nest, points=points)
    assert sparse.loops == {"i", "idx", "p"}
    renamed = sparse.relabel(canonicalize(nest.einsum).relabeling)
    assert renamed.points == {"a": var("i"), "b": parse("idx[p]")}
    with pytest.raises(TransformError, match=r"index 'j' .* is idx\[p\]"):
        begin(raised.t_unit, sparse)
