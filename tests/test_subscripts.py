"""Subscripts: a table of readings, the refusals, and agreement with numpy."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidEinsumError
from feinsum.ir import array, einsum, evaluate, parse_subscripts
from tests.strategies import arrays_of

READINGS = [
    # letters
    ("ij,jk->ik", None, "i j,j k->i k"),
    ("ij,jk->ik", (2, 2), "i j,j k->i k"),
    ("ij->", (2,), "i j->"),
    ("aB,Bc->ac", (2, 2), "a B,B c->a c"),
    # spaces in letter form
    (" i j , j k -> i k ", (2, 2), "i j,j k->i k"),
    ("i j, j -> i", None, "i j,j->i"),
    ("ij , j->i", None, "i j,j->i"),
    # names of several letters
    ("{cell}{dof}, {dof} -> {cell}", None, "cell dof,dof->cell"),
    ("{cell}{dof}, {dof} -> {cell}", (2, 1), "cell dof,dof->cell"),
    ("{cell}i,i->{cell}", (2, 1), "cell i,i->cell"),
    ("{i}j->j", (2,), "i j->j"),
    ("row, row ->", None, "r o w,r o w->"),
    ("{cell}{dof}, {dof}", (2, 1), "cell dof,dof->cell"),
    ("ab c->ab c", (3,), "a b c->a b c"),
    ("...ab c->c...", (4,), "_0 a b c->c _0"),
    # any other character
    ("a×,×÷->a÷", None, "a ×,× ÷->a ÷"),
    ("i1,1_->i_", (2, 2), "i 1,1 _->i _"),
    ("β, β", None, "β,β->"),
    # implicit output, in numpy's order
    ("ij,jk", None, "i j,j k->i k"),
    ("ba", (2,), "b a->a b"),
    ("zA,Ba", None, "z A,B a->A B a z"),
    ("ii", None, "i i->"),
    # scalars
    (",->", (0, 0), ",->"),
    (",", (0, 0), ",->"),
    ("i,->i", (1, 0), "i,->i"),
    ("", (0,), "->"),
    ("->", (0,), "->"),
    # diagonals
    ("ii->i", (2,), "i i->i"),
    ("iij,jj->ij", (3, 2), "i i j,j j->i j"),
    # ellipsis
    ("...i,i", (3, 1), "_0 _1 i,i->_0 _1"),
    ("...i,i->...", (3, 1), "_0 _1 i,i->_0 _1"),
    ("a...aa->a...", (3,), "a a a->a"),
    ("...{row}", (1,), "row->row"),
    ("ij->...ij", (2,), "i j->i j"),
    ("...ij,...jk->...ik", (3, 3), "_0 i j,_0 j k->_0 i k"),
    ("...i,...i->i...", (3, 2), "_0 _1 i,_1 i->i _0 _1"),
    ("i...j->j...i", (4,), "i _0 _1 j->j _0 _1 i"),
    ("...,...", (2, 0), "_0 _1,->_0 _1"),
    ("i...->i", (1,), "i->i"),
    ("...{dof},{dof}{mode}->...{mode}", (2, 2), "_0 dof,dof mode->_0 mode"),
    ("...{dof}{mode}", (3,), "_0 dof mode->_0 dof mode"),
    ("...{_0}{dof}", (3,), "_1 _0 dof->_1 _0 dof"),
]


@pytest.mark.parametrize(("subscripts", "ranks", "reading"), READINGS)
def test_reading(subscripts: str, ranks: tuple[int, ...] | None, reading: str) -> None:
    """Each notation has one reading: its terms and its output, name by name."""
    terms, output = reading.split("->")
    expected = tuple(tuple(term.split()) for term in terms.split(","))
    assert parse_subscripts(subscripts, ranks) == (expected, tuple(output.split()))


REFUSALS = [
    ("ij->i->j", None, "more than one '->'"),
    ("ij->i,j", None, "comma after '->'"),
    ("ij,j->i", (2,), "has 2 terms but 1 operand was given"),
    ("i-j->i", None, "has '-', which is not an index name"),
    ("ij->i>", None, "has '>', which is not an index name"),
    ("ij>i", None, "not an index name; an arrow is written '->'"),
    ("i..->i", None, "has '.', which is not an index name"),
    ("{row->i", None, "has '{', which is not an index name"),
    ("row}->i", None, "has '}', which is not an index name"),
    ("{}i->i", None, "has '{}'; expected one name in braces"),
    ("{row col}->", None, "has '{row col}'; expected one name in braces"),
    ("{...}->", (1,), "has '{...}'; expected one name in braces"),
    ("{a|b}->", (1,), "has '{a|b}'; expected one name in braces"),
    ("...i...->i", (2,), "more than one ellipsis in the term '...i...'"),
    ("...i->...i", None, "the operands' ranks are needed"),
    ("...i j->...", (1,), "names 2 axes of operand 0, which has 1"),
    ("...i->i", (2,), "an ellipsis in a term but none in the output"),
]


@pytest.mark.parametrize(("subscripts", "ranks", "message"), REFUSALS)
def test_refusal(subscripts: str, ranks: tuple[int, ...] | None, message: str) -> None:
    """What cannot be read is refused: the message quotes it and says why."""
    with pytest.raises(InvalidEinsumError) as caught:
        parse_subscripts(subscripts, ranks)
    assert message in str(caught.value)
    assert repr(subscripts) in str(caught.value)
    assert caught.value.rules == ("subscripts",)


@pytest.mark.parametrize(
    ("subscripts", "ranks", "wanted"),
    [
        ("cell dof, dof -> cell", (2, 1), "{cell}{dof}, {dof} -> {cell}"),
        ("...cell dof->cell...", (3,), "...{cell}{dof} -> {cell}..."),
        ("ij,jk", (1, 1), "{ij}, {jk}"),
        ("ii", (1,), "{ii}"),
        ("ij...", (1,), "{ij}..."),
    ],
)
def test_words_without_braces_are_refused(
    subscripts: str, ranks: tuple[int, ...], wanted: str
) -> None:
    """Letters that do not fit are an error, though words would; it shows the braces."""
    with pytest.raises(InvalidEinsumError) as caught:
        parse_subscripts(subscripts, ranks)
    assert repr(wanted) in str(caught.value)
    assert caught.value.rules == ("rank",)


@pytest.mark.parametrize("subscripts", [None, 3, b"ij", [[0, 1]]])
def test_subscripts_are_text(subscripts: object) -> None:
    """Anything but text is refused with an example of what is expected."""
    with pytest.raises(InvalidEinsumError, match="must be text such as 'ij,jk->ik'"):
        parse_subscripts(subscripts)


@st.composite
def notations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """Letters with spaces, ellipses, diagonals; and a shape for every term."""
    letters = draw(
        st.lists(st.sampled_from(string.ascii_letters), min_size=1, max_size=5)
    )
    extent = {letter: draw(st.integers(1, 3)) for letter in letters}
    broadcast = draw(st.lists(st.integers(1, 3), max_size=2))
    terms, shapes = [], []
    for names in draw(
        st.lists(st.lists(st.sampled_from(letters), max_size=3), min_size=1, max_size=4)
    ):
        shape = [extent[name] for name in names]
        at = draw(st.none() | st.integers(0, len(names)))
        if at is not None:
            first = draw(st.integers(0, len(broadcast)))
            names, shape = names[:], shape[:]
            shape[at:at] = broadcast[first:]
            names.insert(at, "...")
        terms.append(draw(st.sampled_from(["", " "])).join(names))
        shapes.append(tuple(shape))
    text = draw(st.sampled_from([",", ", "])).join(terms)
    if draw(st.booleans()):
        used = sorted({name for name in text if name.isalpha()})
        output = draw(st.lists(st.sampled_from(used), unique=True)) if used else []
        if "..." in text:
            output.insert(draw(st.integers(0, len(output))), "...")
        text += "->" + "".join(output)
    return text, shapes


@given(notations())
def test_letters_mean_what_numpy_says(
    notation: tuple[str, list[tuple[int, ...]]],
) -> None:
    """Letter subscripts give numpy's result, on operands of the same shapes."""
    subscripts, shapes = notation
    operands = [array(f"X{p}", shape, "i8") for p, shape in enumerate(shapes)]
    e = einsum(subscripts, *operands)
    arrays = arrays_of(e)
    expected = np.einsum(subscripts, *(arrays[operand.name] for operand in operands))
    np.testing.assert_array_equal(evaluate(e, arrays)[0], expected, strict=True)
