"""The text form of einsums: it leads back, and nothing else is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum, from_text, to_text
from tests.strategies import einsums, relabelings


@given(einsums(), st.data())
def test_round_trip(e: BatchedEinsum, data: st.DataObject) -> None:
    """Text leads back to the einsum, whatever its things are named. It is one line, so
    that it can be stored and compared as such.
    """
    f = data.draw(relabelings(e)).apply(e)
    assert from_text(to_text(f)) == f
    assert len(to_text(f).splitlines()) == 1


NAMES = st.text(max_size=4).map("a{}".format).filter(str.isidentifier)


@given(name=NAMES, index=NAMES, param=NAMES)
def test_round_trip_of_any_identifier(name: str, index: str, param: str) -> None:
    """Every identifier of Python can be written and read back."""
    operand = array(name, param)
    e = BatchedEinsum((index,), ((index,),), ((operand,),))
    assert from_text(to_text(e)) == e


def test_examples() -> None:
    """Terms, output, operands and rows are written in this order."""
    x, s = array("x", "N"), array("s", (), ">c16")
    assert to_text(einsum(",->", s, s)) == ",  ->  | s[]:>c16 | s s"
    text = "i,  -> i | x[N]:<f8 s[]:>c16 y[N]:|b1 | x s; y s"
    e = batched_einsum("i,->i", [[x, s], [array("y", "N", "?"), s]])
    assert to_text(e) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 'terms -> output"),
        ("i -> i | x[3]:<f8", "expected 'terms -> output"),
        ("i | x[3]:<f8 | x", "expected 'terms -> output"),
        ("i -> i -> i | x[3]:<f8 | x", "expected 'terms -> output"),
        ("i -> i | x[3] | x", r"expected 'name\[extents\]:dtype'"),
        ("i -> i | x(3):<f8 | x", r"expected 'name\[extents\]:dtype'"),
        ("i -> i | x[3]:<f9 | x", "'<f9' is not a numpy dtype"),
        ("i -> i | x[3]:f8,@@ | x", "'f8,@@' is not a numpy dtype"),
        ("i -> i | x[3]:(f8 | x", r"'\(f8' is not a numpy dtype"),
        ("i -> i | x[3]:a8 | x", "'a8' is not a numpy dtype"),
        (f"i -> i | x[{'9' * 5000}]:<f8 | x", "over 1000 digits"),
        ("i -> i | x[3]:<f8 | y", "row names unknown operand 'y'"),
        ("i -> i | x[3]:<f8 x[4]:<f8 | x", "every operand once"),
        ("i -> i | x[3]:<f8 y[3]:<f8 | x", "every operand once"),
        ("i -> i | y[3]:<f8 x[3]:<f8 | x; y", "in the order of first use"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    """A text of another form is refused: what it is and what was expected."""
    with pytest.raises(InvalidEinsumError, match=message) as caught:
        from_text(text)
    assert caught.value.rules == ("text",)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("i -> j | x[3]:<f8 | x", "unbound-output-index"),
        ("i, i -> i | x[3]:<f8 | x", "row-length"),
        ("i -> i | x[3,]:<f8 | x", "size-param-name"),
        ("i -> i | x[-3]:<f8 | x", "size-param-name"),
        ("i -> i | x[3]:U4 | x", "dtype"),
    ],
)
def test_text_of_an_ill_formed_einsum(text: str, rule: str) -> None:
    """A text is checked like any einsum: the broken rule is named."""
    with pytest.raises(InvalidEinsumError) as caught:
        from_text(text)
    assert caught.value.rules == (rule,)


@given(st.text(alphabet="ij ,->|x[3N]:<f8;_\n", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text does anything but give an einsum or raise ``InvalidEinsumError``."""
    try:
        e = from_text(text)
    except InvalidEinsumError:
        return
    assert from_text(to_text(e)) == e
