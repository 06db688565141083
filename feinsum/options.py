"""Options with a few values, set by an argument or an environment variable.

The names of variables on which a call depends are here, so that a call can read them
before Loopy and the database are loaded, which takes longer than many calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

from feinsum.errors import InvalidOptionError, MeasurementError

Function = TypeVar("Function", bound=Callable[..., Any])


def with_options_of(source: Callable[..., Any]) -> Callable[[Function], Function]:
    """Show the options that a function passes on in its signature.

    Args:
        source: the function whose keywords the decorated one takes besides its own.

    >>> def scale(x, *, factor=1): ...
    >>> @with_options_of(scale)
    ... def scale_all(*xs, **options): ...
    >>> print(signature(scale_all))
    (*xs, factor=1)
    """

    def decorate(function: Function) -> Function:
        declared = signature(function)
        named = [p for p in declared.parameters.values() if p.kind is not p.VAR_KEYWORD]
        further = [
            parameter
            for name, parameter in signature(source).parameters.items()
            if parameter.kind is Parameter.KEYWORD_ONLY
            and name not in declared.parameters
        ]
        shown = declared.replace(parameters=[*named, *further])
        setattr(function, "__signature__", shown)  # noqa: B010  (of no type of its own)
        return function

    return decorate


def check_option(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse an invalid value of an option.

    Raises:
        InvalidOptionError: naming the valid values.

    >>> check_option("policy", "lax", ("strict", "loose"))
    Traceback (most recent call last):
        ...
    feinsum.errors.InvalidOptionError: policy is 'lax'; expected one of strict, loose
    """
    if value not in choices:
        raise InvalidOptionError(
            f"{name} is {value!r}; expected one of {', '.join(choices)}"
        )


def get_option(
    name: str,
    argument: str | None,
    choices: Sequence[str],
    *,
    variable: str,
    default: str,
) -> str:
    """Return the given value, else the variable's, else the default.

    Raises:
        InvalidOptionError: if the value is invalid.
    """
    value = argument
    # an argument overrides the variable
    if value is None:
        value = os.environ.get(variable, "").strip() or default
    check_option(name if argument is not None else variable, value, choices)
    return value


Effort: TypeAlias = Literal[
    "recorded", "estimate", "amortized", "measure", "patient", "exhaustive"
]
"""Effort for an einsum without recorded facts.

- ``recorded``: none; only measured recipes are used.
- ``estimate``: use the recipe that is predicted to be the fastest.
- ``amortized``: the same, but calls wait for no kernel: another process builds it, and
  times the next best recipes, once that pays off. Elsewhere the same as ``estimate``.
- ``measure``: time the few recipes predicted to be the fastest at first use.
- ``patient``: tune at first use.
- ``exhaustive``: time every recipe at first use.

Source: Frigo and Johnson 2005 (FFTW), whose planner has most of these efforts.
"""

MEASURING: frozenset[Effort] = frozenset({"measure", "patient", "exhaustive"})
"""Efforts that measure before first use."""


def get_effort(argument: Effort | None, default: Effort = "estimate") -> Effort:
    """Return the given effort, else the variable's, else the default.

    Raises:
        InvalidOptionError: if it is none.

    >>> get_effort("recorded")
    'recorded'
    """
    choices = get_args(Effort)
    effort = get_option(
        "effort", argument, choices, variable=EFFORT_VARIABLE, default=default
    )
    # the check has made it one of the literals
    return cast(Effort, effort)


DEPRECATED_VARIABLES = {
    "FEINSUM_DEBUG": "feinsum --debug",
    "FEINSUM_REMOTE_KEY_FILE": "FEINSUM_REMOTE_KEY",
}
"""Environment variables that the next release does not read, and what replaces them."""

DATABASE_VARIABLE = "FEINSUM_DATABASE"
"""Environment variable: the database of facts; see :mod:`feinsum.db`."""


def get_default_location() -> str:
    """Return the path or URL of the user's database.

    The value of ``FEINSUM_DATABASE`` if set, otherwise ``facts.sqlite`` in the user's
    data folder.
    """
    from platformdirs import user_data_path

    chosen = os.environ.get(DATABASE_VARIABLE, "").strip()
    return chosen or str(user_data_path("feinsum") / "facts.sqlite")


DEVICE_VARIABLE = "FEINSUM_DEVICE"
"""Environment variable with a part of a device's name."""

EFFORT_VARIABLE = "FEINSUM_EFFORT"
"""Environment variable with the effort, where none is given."""

INTERMEDIATE_VARIABLE = "FEINSUM_INTERMEDIATE_BYTES"
"""Environment variable: bytes of all intermediates of a kernel; 0 for none."""


def get_intermediate_bytes() -> int | None:
    """Return the limit on intermediates in the environment; None if there is none.

    Raises:
        MeasurementError: if it is not a number.
    """
    named = os.environ.get(INTERMEDIATE_VARIABLE, "").strip()
    if named and not named.isdecimal():
        raise MeasurementError(
            f"{INTERMEDIATE_VARIABLE} is {named!r}; expected a number of bytes, or 0"
        )
    return int(named) if named else None
