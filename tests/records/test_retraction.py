"""What is asked to be retracted is understood, or refused."""

from __future__ import annotations

import pytest

from feinsum.errors import InvalidRequestError
from feinsum.records import RetractionQuery


@pytest.mark.parametrize("n_digits", [12, 13, 63, 64])
def test_an_id_may_be_cut_off(n_digits):
    """Down to 12 digits."""
    ids = ("0f" * 32)[:n_digits]
    assert RetractionQuery(ids=(ids,)).ids == (ids,)


@pytest.mark.parametrize("text", ["", "0" * 11, "0" * 65, "g" * 12, "0F" * 32])
def test_what_is_no_id_is_refused(text):
    """With what was expected."""
    with pytest.raises(InvalidRequestError, match="12 to 64 hexadecimal digits"):
        RetractionQuery(ids=(text,))
