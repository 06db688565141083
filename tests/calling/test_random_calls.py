"""Random calls, and those of real programs, give what numpy gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feinsum
from feinsum.calling import clear_call_cache
from feinsum.calling.kernel_cache import BoundedCache
from tests.calling.comparing import NO_FACTS, assert_as_numpy, outcome
from tests.portions import spread
from tests.strategies import counts

LETTERS = "abijkEXYz"
DTYPES = ("<f8", "<f4", ">f8", "<c16", "<c8", "<i8", "<i4", "|i1", "|u1", "|b1")
LAYOUTS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda a: a,
    lambda a: np.array(a, order="F"),
    lambda a: np.repeat(a, 2, axis=0)[::2] if a.ndim else a,
    lambda a: a[..., ::-1] if a.ndim else a,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """Subscripts and operands of small whole numbers, so that results are exact."""
    extents = {
        letter: draw(st.sampled_from((0, 1, 2, 3, 3, 5)))
        for letter in draw(st.permutations(LETTERS))[: draw(st.integers(1, 5))]
    }
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    terms, operands = [], []
    for _ in range(draw(st.integers(1, 3))):
        term, shape = draw(_terms(extents, batch))
        known = [a for a in operands if a.shape == shape]
        is_repeated = known and draw(st.booleans())
        operands.append(known[0] if is_repeated else draw(_arrays(shape)))
        terms.append(term)
    return draw(_notations(terms)), operands


@st.composite
def _terms(
    draw: st.DrawFn, extents: dict[str, int], batch: list[int]
) -> tuple[str, tuple[int, ...]]:
    """Letters, perhaps with an ellipsis; some axes are left to be broadcast."""
    letters = draw(st.lists(st.sampled_from(sorted(extents)), max_size=3))
    shape = [
        1 if letters.count(x) == 1 and draw(st.integers(0, 9)) == 0 else extents[x]
        for x in letters
    ]
    if draw(st.integers(0, 2)):
        return "".join(letters), tuple(shape)
    at = draw(st.integers(0, len(letters)))
    rank = draw(st.integers(0, len(batch)))
    middle = [draw(st.sampled_from((n, 1))) for n in batch[len(batch) - rank :]]
    term = "".join(letters[:at]) + "..." + "".join(letters[at:])
    return term, (*shape[:at], *middle, *shape[at:])


@st.composite
def _notations(draw: st.DrawFn, terms: list[str]) -> str:
    """Implicit or explicit output, with or without spaces."""
    glue = draw(st.sampled_from((",", " , ")))
    text = glue.join(terms)
    if draw(st.booleans()):
        return text
    letters = sorted({x for x in "".join(terms) if x != "."})
    output = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
    dots = "..." if any("..." in term for term in terms) else ""
    return f"{text}->{dots}{''.join(output)}"


@st.composite
def _arrays(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    low = -2 if dtype.kind in "ifc" else 0
    values = np.asarray(rng.integers(low, 3, shape)).astype(dtype)
    if dtype.kind == "c":
        values = values + np.asarray(1j * rng.integers(low, 3, shape)).astype(dtype)
    return draw(st.sampled_from(LAYOUTS))(values)


@counts(40, 1500)
@given(calls())
def test_a_call_gives_what_numpy_gives(call):
    """The result of a random call is numpy's, entry by entry, with its dtype."""
    subscripts, operands = call
    assert_as_numpy(subscripts, *operands)


def test_a_cache_keeps_no_more_than_its_bound():
    """The value that was asked for longest ago is made anew."""
    cache, made = BoundedCache(2), []

    def ask(key):
        return cache.get(key, lambda: made.append(key) or key)

    assert [ask(k) for k in "ababcab"] == list("ababcab")
    assert made == list("abcab")
    assert len(cache) == 2


ANY_DTYPES = ("f2", "f4", "f8", "g", "c8", "c16", "i1", "u2", "i8", "?", "O", ">f8")
CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@st.composite
def options(draw: st.DrawFn, n_operands: int) -> dict[str, Any]:
    """Without those of which numpy makes nothing for a view; see the documentation."""
    found: dict[str, Any] = {}
    if n_operands > 1 and draw(st.booleans()):
        found["dtype"] = draw(st.sampled_from((None, *ANY_DTYPES[:-1])))
    if n_operands > 1 and draw(st.booleans()):
        found["casting"] = draw(st.sampled_from(CASTINGS))
    if n_operands > 1 and draw(st.booleans()):
        found["order"] = draw(st.sampled_from(("C", "F", "A", "K", "c", None)))
    return found


@st.composite
def drop_in_calls(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any], str | None]:
    """Subscripts, operands, perhaps of wrong shapes, options, and a dtype of out."""
    subscripts, operands = draw(calls())
    operands = [
        draw(st.sampled_from((x, x, x.astype(draw(st.sampled_from(ANY_DTYPES))))))
        if x.dtype.kind != "c" else x
        for x in operands
    ]  # fmt: skip
    if draw(st.integers(0, 9)) == 0:
        operands[-1] = operands[-1][None]
    target = draw(st.none() | st.sampled_from(ANY_DTYPES))
    return subscripts, operands, draw(options(len(operands))), target


@counts(25, 1500)
@given(drop_in_calls())
def test_a_first_call_is_that_of_numpy(call):
    """Value, dtype, shape, type, or kind of error; for all options."""
    subscripts, operands, named, target = call
    clear_call_cache()
    arguments, out = (subscripts, *operands), {}
    if target is not None:
        expected = outcome(np.einsum, arguments, {})
        if isinstance(expected, type):
            return
        out = {"out": np.zeros(np.shape(expected), target)}
        named = {**named, "dtype": None}  # numpy also wants a cast from out to it
    expected = outcome(np.einsum, arguments, {**named, **out})
    out = {name: np.zeros_like(x) for name, x in out.items()}
    how = {**named, **out, "database": NO_FACTS, "effort": "amortized"}
    found = outcome(feinsum.einsum, arguments, how)
    if isinstance(expected, type):
        assert found is expected
        return
    assert not out or found is out["out"]
    assert type(found) is type(expected)
    assert np.shape(found) == np.shape(expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    assert np.array_equal(found, expected)


LINES = (Path(__file__).parent / "programs.txt").read_text().splitlines()
NOTATIONS = [line.split("|")[0][:-1] for line in LINES if not line.startswith("#")]


def operands_of(subscripts):
    """Small whole numbers; each letter has an extent, an ellipsis two axes."""
    rng = np.random.default_rng(len(subscripts))
    for term in subscripts.split("->")[0].split(","):
        head, dots, tail = term.strip().partition("...")
        shape = [[2 + ord(x) % 3 for x in part] for part in (head, tail)]
        middle = [2, 3] if dots else []
        yield rng.integers(-2, 3, [*shape[0], *middle, *shape[1]]).astype(float)


def test_there_are_enough_of_them():
    """More than eighty different ones, some of them with upper case."""
    assert len(set(NOTATIONS)) == len(NOTATIONS) > 80
    assert sum(text != text.lower() for text in NOTATIONS) >= 9


@pytest.mark.parametrize("subscripts", spread(NOTATIONS, 15))
def test_a_notation_of_a_real_program_is_evaluated(subscripts):
    """The result is numpy's."""
    assert_as_numpy(subscripts, *operands_of(subscripts))
