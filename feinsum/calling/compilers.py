"""Functions that compilers of torch leave as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def is_compiling() -> bool:
    """Whether ``torch.compile`` reads the program, in place of Python running it."""
    compiler: Any = sys.modules.get("torch.compiler")
    if compiler is None:
        return False
    # another thread may still import it
    is_dynamo_compiling = getattr(compiler, "is_dynamo_compiling", None)
    return is_dynamo_compiling is not None and bool(is_dynamo_compiling())


def outside_of_compilers(function: Callable[P, R]) -> Callable[P, R]:
    """A function that ``torch.compile`` calls as it is, between two graphs.

    Torch is not imported: what is compiled has imported it.
    """

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        if is_compiling():
            untraced = sys.modules["torch.compiler"].disable(function)
            return cast("R", untraced(*arguments, **options))
        return function(*arguments, **options)

    return call
