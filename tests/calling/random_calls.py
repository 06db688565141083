"""Random arguments that numpy.einsum takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

__all__ = ["calls"]

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
