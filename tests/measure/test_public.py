"""The public names of the package."""

from __future__ import annotations

import inspect

import feinsum.measure


def test_every_public_name_exists_and_is_documented():
    """``__all__`` is sorted; each of its functions and classes has a docstring."""
    names = feinsum.measure.__all__
    assert names == sorted(names)
    values = [getattr(feinsum.measure, name) for name in names]
    for value in values:
        if inspect.isclass(value) or inspect.isroutine(value):
            assert value.__doc__, value
