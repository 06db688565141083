"""A nest and its text are the same thing."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.errors import InvalidEinsumError
from feinsum.nests import nest_from_text, nest_to_text, network
from tests.nests.networks import KERNELS, random_nest


@pytest.mark.parametrize("name", sorted({*KERNELS} - {"tucker"}))
def test_a_nest_comes_back_from_its_text(name):
    """Whatever the path and the orders."""
    net, rng = KERNELS[name], np.random.default_rng(2)
    for _ in range(10):
        nest = random_nest(net, rng)
        assert nest_from_text(net, nest_to_text(nest)) == nest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 2, 3 1",
        "0 2 | i j k a",
        "0 2, 3 1 | i j k a",
        "0 2, 3 1 | i j k a, i j",
        "0 2, 3 1 | k j i a, i j a",
        "0 2, 3 2 | i j k a, i j a",
        "0 0, 3 1 | i j k a, i j a",
        "0 3, 3 1 | i j k a, i j a",
        "0 2 1, 3 | i j k a, i j a",
        "0 -2, 3 1 | i j k a, i j a",
        "0 2, 3 9 | i j k a, i j a",
        "0 x, 3 1 | i j k a, i j a",
        "0 ², 3 1 | i j k a, i j a",
        f"0 {'9' * 5000}, 3 1 | i j k a, i j a",
        "0 1, 3 2, 4 0 | i j k a, i j a, i",
    ],
)
def test_a_text_that_is_no_nest_is_refused(text):
    """With the rule ``nest``."""
    with pytest.raises(InvalidEinsumError) as caught:
        nest_from_text(network("ijk,ja,ka->ia"), text)
    assert caught.value.rules == ("nest",)
