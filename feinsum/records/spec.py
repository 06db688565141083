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

__all__ = ["FramedSpec", "ParameterValue", "TransformSpec"]

ParameterValue: TypeAlias = bool | int | str | tuple[int | str, ...]

HOST_PREFIX = "library_"
"""With which the names of transforms begin that call a library of the host."""

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
        ordered = dict(sorted(self.parameters.items()))
        object.__setattr__(self, "parameters", constantdict(ordered))

    @property
    def is_on_host(self) -> bool:
        """Whether a library of the host computes it, as the transform's name says."""
        return self.name.startswith(HOST_PREFIX)

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.parameters.items())
        return f"{self.name}@{self.version}({inside})"

    @classmethod
    def parse(cls, text: str) -> TransformSpec:
        """Read the text form back.

        Raises:
            InvalidRecordError: if the text is not of the form
                ``name@version(parameter=value, ...)`` with literal values.
        """
        if not isinstance(text, str):
            raise _refuse(repr(text), "expected text, or a TransformSpec")
        head = _HEAD.fullmatch(text.strip())
        if head is None:
            raise _refuse(text, "expected name@version(parameter=value, ...)")
        name, version, inside = head.groups()
        try:
            parameters = _parameters(inside)
            number = int(version)
        except (SyntaxError, TypeError, ValueError) as error:
            raise _refuse(text, str(error)) from None
        except (MemoryError, RecursionError):
            raise _refuse(text, "the values are nested too deeply") from None
        for key, value in parameters.items():
            if not _is_parameter(value):
                raise _refuse(text, f"{key}={value!r} is no int, bool, text or tuple")
        return cls(name, number, parameters)


class FramedSpec(NamedTuple):
    """A recipe, and the text of the workload whose names it speaks of."""

    spec: TransformSpec
    frame: str


def _parameters(inside: str) -> dict[str, Any]:
    """The literals of ``key=value, ...``; nothing is executed."""
    match ast.parse(f"f({inside})", mode="eval").body:
        case ast.Call(func=ast.Name(), args=[], keywords=keywords):
            names = [keyword.arg for keyword in keywords if keyword.arg is not None]
        case _:
            raise ValueError("expected nothing but named parameters")
    if len(set(names)) != len(keywords):
        raise ValueError("every parameter must be named, and named once")
    values = (ast.literal_eval(keyword.value) for keyword in keywords)
    return dict(zip(names, values, strict=True))


def _is_parameter(value: object) -> bool:
    if isinstance(value, tuple):
        return all(type(item) in (int, str) for item in value)
    return isinstance(value, (bool, int, str))


def _refuse(text: str, what: str) -> InvalidRecordError:
    return InvalidRecordError(f"transform spec {text!r}: {what}")
