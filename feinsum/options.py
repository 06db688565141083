"""Options with a few values, set by an argument or an environment variable."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any, TypeVar

from feinsum.errors import InvalidOptionError

__all__ = ["check_option", "option_of", "with_options_of"]

Function = TypeVar("Function", bound=Callable[..., Any])


def with_options_of(source: Callable[..., Any]) -> Callable[[Function], Function]:
    """Show the options that a function passes on in its signature.

    Args:
        source: the function whose keywords it takes beside its own.

    >>> def scale(x, *, factor=1): ...
    >>> @with_options_of(scale)
    ... def scale_all(*xs, **options): ...
    >>> print(signature(scale_all))
    (*xs, factor=1)
    """

    def decorate(function: Function) -> Function:
        own = signature(function)
        named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        further = [
            parameter
            for name, parameter in signature(source).parameters.items()
            if parameter.kind is Parameter.KEYWORD_ONLY and name not in own.parameters
        ]
        shown = own.replace(parameters=[*named, *further])
        setattr(function, "__signature__", shown)  # noqa: B010  (of no type of its own)
        return function

    return decorate


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
