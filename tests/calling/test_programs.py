"""The notations of real programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.calling.comparing import assert_as_numpy
from tests.portions import spread

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
