"""Transform specifications: which registered transform, with which parameters.

A spec is data. It names a transform; it holds no path and no code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from constantdict import constantdict

from feinsum.errors import InvalidRecordError
from feinsum.records.document import STRICT

ParameterValue: TypeAlias = bool | int | str | tuple[int | str, ...]

HOST_PREFIX = "library_"
"""Prefix of the names of transforms that call a library of the host."""

_HEAD = re.compile(r"([a-z][a-z0-9_]*)@(\d+)\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class TransformSpec:
    """A registered transform's name, its version, and parameters.

    >>> spec = TransformSpec("rowwise", 1, {"lanes": 8, "index": "a"})
    >>> str(spec)
    "rowwise@1(index='a', lanes=8)"
    >>> TransformSpec.parse(str(spec)) == spec
    True
    """

    __pydantic_config__ = STRICT

    name: str
    version: int
    parameters: Mapping[str, ParameterValue]

    def __post_init__(self) -> None:
        # in one order, so that equal specs have equal texts and ids
        ordered = dict(sorted(self.parameters.items()))
        object.__setattr__(self, "parameters", constantdict(ordered))

    @property
    def is_on_host(self) -> bool:
        """Whether a library of the host computes it, by the transform's name."""
        return self.name.startswith(HOST_PREFIX)

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.parameters.items())
        return f"{self.name}@{self.version}({inside})"

    @classmethod
    def parse(cls, text: str) -> TransformSpec:
        """Parse the text form.

        Raises:
            InvalidRecordError: if the text is not of the form
                ``name@version(parameter=value, ...)`` with literal values.
        """
        if not isinstance(text, str):
            raise _refuse(repr(text), "expected text, or a TransformSpec")
        head = _HEAD.fullmatch(text.strip())
        if head is None:
            raise _refuse(text, _missing_in(text.strip()))
        name, version, inside = head.groups()
        try:
            parameters = _parameters(inside)
            number = int(version)
        except SyntaxError as error:
            # the offset counts from "f(", which the text does not have
            at = max((error.offset or 0) - len("f(") - 1, 0)
            rest = inside[at : at + 20] or inside
            raise _refuse(text, f"{rest!r} cannot be parsed: {error.msg}") from None
        except (TypeError, ValueError) as error:
            raise _refuse(text, str(error)) from None
        except (MemoryError, RecursionError):
            raise _refuse(text, "the values are nested too deeply") from None
        for key, value in parameters.items():
            if not _is_parameter(value):
                raise _refuse(
                    text, f"{key}={value!r} is not an int, bool, text or tuple"
                )
        return cls(name, number, parameters)


class FramedSpec(NamedTuple):
    """A recipe, and the text of the workload to whose names it refers."""

    spec: TransformSpec
    frame: str


def _missing_in(text: str) -> str:
    """Describe the missing part of ``name@version(parameter=value, ...)``."""
    form = "expected name@version(parameter=value, ...)"
    head, bracket, _ = text.partition("(")
    name, at, version = head.partition("@")
    if not bracket:
        return f"the parameters in brackets are missing; {form}"
    if not at:
        return f"{name!r} has no version, such as {name or 'name'}@1; {form}"
    if not version.isascii() or not version.isdigit():
        return f"{version!r} is no version; {form}"
    if not text.endswith(")"):
        return f"the closing bracket is missing; {form}"
    return f"{name!r} is no name of a transform; {form}"


def _parameters(inside: str) -> dict[str, Any]:
    """Parse the literals of ``key=value, ...``; nothing is executed."""
    # A spec arrives from other people, so the values must be literals. Python's own
    # parser reads them, as the arguments of a call that is never made.
    match ast.parse(f"f({inside})", mode="eval").body:
        case ast.Call(func=ast.Name(), args=[], keywords=keywords):
            pass
        case ast.Call(func=ast.Name(), args=[first, *_]):
            raise ValueError(f"{ast.unparse(first)!r} has no name; write name=value")
        case _:
            raise ValueError("expected only named parameters")
    parameters: dict[str, Any] = {}
    for keyword in keywords:
        name, value = keyword.arg, ast.unparse(keyword.value)
        if name is None:
            raise ValueError(f"'**{value}' is not a parameter; write name=value")
        if name in parameters:
            raise ValueError(f"the parameter {name!r} is given twice")
        try:
            parameters[name] = ast.literal_eval(keyword.value)
        except ValueError:
            raise ValueError(
                f"{name}={value} is not a literal; expected a number, True, False, a "
                "quoted text, or a tuple"
            ) from None
    return parameters


def _is_parameter(value: object) -> bool:
    if isinstance(value, tuple):  # one level: JSON has no tuples, so lists become some
        return all(type(item) in (int, str) for item in value)
    return isinstance(value, (bool, int, str))


def _refuse(text: str, problem: str) -> InvalidRecordError:
    return InvalidRecordError(f"transform spec {text!r}: {problem}")
