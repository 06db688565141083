"""Options with a few values, set by an argument or an environment variable."""

from __future__ import annotations

import os
from collections.abc import Sequence

from feinsum.errors import InvalidOptionError

__all__ = ["check_option", "option_of"]


def check_option(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that an option does not take.

    Raises:
        InvalidOptionError: naming the values that it takes.

    >>> check_option("policy", "lax", ("strict", "loose"))
    Traceback (most recent call last):
        ...
    feinsum.errors.InvalidOptionError: policy is 'lax'; expected one of strict, loose
    """
    if value not in choices:
        raise InvalidOptionError(
            f"{name} is {value!r}; expected one of {', '.join(choices)}"
        )


def option_of(
    name: str, given: str | None, choices: Sequence[str], *, variable: str, default: str
) -> str:
    """The given value, else the variable's, else the default.

    Raises:
        InvalidOptionError: if the option does not take it.
    """
    value = given
    if value is None:
        value = os.environ.get(variable, "").strip() or default
    check_option(name if given is not None else variable, value, choices)
    return value
