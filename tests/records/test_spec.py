"""Transform specs as text: data that leads back, and never code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidRecordError
from feinsum.records import TransformSpec
from tests.strategies import specs


@given(specs)
def test_round_trip(spec):
    """Text leads back to the spec, types of its values included; it is one for one
    spec, in whatever order its parameters were given.
    """
    again = TransformSpec.parse(str(spec))
    assert again == spec
    assert repr(again) == repr(spec)
    backwards = dict(reversed(spec.parameters.items()))
    assert str(TransformSpec(spec.name, spec.version, backwards)) == str(spec)


def test_examples():
    """What people write by hand is read as it looks."""
    for text, spec in (
        ("plain@0()", TransformSpec("plain", 0, {})),
        (" tile@12(n=-3) ", TransformSpec("tile", 12, {"n": -3})),
        ("a_b2@1(x='@1(', y=True)", TransformSpec("a_b2", 1, {"x": "@1(", "y": True})),
        ("o@1(order=('i', 2))", TransformSpec("o", 1, {"order": ("i", 2)})),
        ("o@1(order=())", TransformSpec("o", 1, {"order": ()})),
    ):
        assert TransformSpec.parse(text) == spec


WITNESS = Path("/tmp/feinsum-spec-was-executed")
CODE = f"__import__('os').system('touch {WITNESS}')"

HOSTILE = {
    "code as value": f"a@1(x={CODE})",
    "code as position": f"a@1({CODE})",
    "code as name": f"{CODE}@1()",
    "code in a tuple": f"a@1(x=({CODE},))",
    "code in text": f"a@1(x=f'{{{CODE}}}')",
    "code by unpacking": f"a@1(**{CODE})",
    "a call of the call": "a@1(x=1)(y=2)",
    "a code call of the call": f"a@1(x={CODE})(y=2)",
    "an attribute of the call": "a@1(x=1).b(y=2)",
    "an operator": "a@1(x=1)+a(y=2)",
    "two calls": "a@1(x=1), b@1(y=2)",
    "nested call": "a@1(x=b(1))",
    "lambda": "a@1(x=lambda: 1)",
    "comprehension": "a@1(x=[y for y in (1,)])",
    "path": "../../evil.py@1()",
    "absolute path": "/etc/passwd@1()",
    "dotted name": "os.path@1()",
    "capital": "Os@1()",
    "no version": "a(x=1)",
    "negative version": "a@-1()",
    "version in words": "a@one()",
    "huge version": f"a@{'9' * 5000}()",
    "no parentheses": "a@1",
    "nothing": "",
    "positional": "a@1(1)",
    "starred": "a@1(*(1,))",
    "unnamed by unpacking": "a@1(**5)",
    "twice": "a@1(x=1, x=2)",
    "no value": "a@1(x=)",
    "name as value": "a@1(x=y)",
    "float": "a@1(x=1.5)",
    "infinity": "a@1(x=1e999)",
    "none": "a@1(x=None)",
    "bytes": "a@1(x=b'1')",
    "list": "a@1(x=[1])",
    "unhashable": "a@1(x={[]: 1})",
    "tuple of tuples": "a@1(x=((1,),))",
    "tuple of booleans": "a@1(x=(True,))",
    "null byte": "a@1(x='\0')",
    "deep": f"a@1(x={'-' * 10**5}1)",
    "deep parentheses": f"a@1(x={'(' * 10**4}1{')' * 10**4})",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused(text):
    """Code, paths and all but named literals are refused, and nothing is run."""
    with pytest.raises(InvalidRecordError, match="transform spec "):
        TransformSpec.parse(text)
    assert not WITNESS.exists()


@given(st.text(alphabet="a@1(x=,)'*: -\\\n#{", max_size=20).map("a@1({}".format))
def test_any_text_is_read_or_refused(text):
    """What is accepted has a text form that leads back to it."""
    try:
        spec = TransformSpec.parse(text)
    except InvalidRecordError:
        return
    assert TransformSpec.parse(str(spec)) == spec


def test_what_is_not_understood_is_named():
    """The message says which part of the text is wrong."""
    for text, words in (
        ("rowwise@1", "the parameters in brackets are missing"),
        ("rowwise(block=64)", "'rowwise' has no version, such as rowwise@1"),
        ("rowwise@one(block=64)", "'one' is no version"),
        ("rowwise@1(block=64", "the closing bracket is missing"),
        ("Rowwise@1(block=64)", "'Rowwise' is no name of a transform"),
        ("rowwise@1(64)", "'64' has no name"),
        ("rowwise@1(block=64, **more)", "'**more' is not a parameter"),
        ("rowwise@1(index=a, block=64)", "index=a is not a literal"),
        ("rowwise@1(block=64 index=2)", "'64 index=2' cannot be parsed"),
        ("rowwise@1(=64)", "'=64' cannot be parsed"),
        ("rowwise@1(block=6, block=7)", "'block' is given twice"),
    ):
        with pytest.raises(InvalidRecordError, match=re.escape(words)):
            TransformSpec.parse(text)
