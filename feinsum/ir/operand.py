"""Operands and size parameters: the arrays of einsums.

Source: paper, section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import feinsum.ir.dtypes  # noqa: F401  (then numpy knows the name bfloat16)
from feinsum.dtypes import format_dtype, get_eps, is_inexact, is_numeric
from feinsum.errors import InvalidEinsumError


@dataclass(frozen=True, order=True)
class SizeParam:
    """An extent that is known only when the kernel runs."""

    name: str

    def __str__(self) -> str:
        return self.name


MAX_EXTENT = 2**63 - 1
"""Largest count in the widest integers of numpy and OpenCL."""

Extent: TypeAlias = int | SizeParam
"""Number of values of an index: an integer or a :class:`SizeParam`."""


def bind_shape(extents: Iterable[Extent], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape whose size parameters are replaced by their values.

    >>> bind_shape((4, SizeParam("N")), {"N": 9})
    (4, 9)
    """
    return tuple(sizes[x.name] if isinstance(x, SizeParam) else x for x in extents)


STORAGES = ("", "csf", "csf=")
"""Storages of an operand: dense, a tree of compressed sparse fibers (``csf``), and a
tree whose pattern the result has, too (``csf=``).
"""


@dataclass(frozen=True)
class Operand:
    """A multidimensional array: name, shape and dtype (paper, definition 1).

    Two operands of one einsum are the same array exactly if they are equal.

    Attributes:
        storage: one of :data:`STORAGES`; the axes of a tree are in the order of its
            levels, from the root.

    Raises:
        InvalidEinsumError: for a name that is not an identifier, a negative or
            non-integer extent, a dtype that is not numeric, an unknown storage.

    >>> Operand("u", (SizeParam("Nel"), 20), np.dtype("float64")).rank
    2
    """

    name: str
    shape: tuple[Extent, ...]
    dtype: np.dtype[Any]
    storage: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(_simplify_extent, self.shape)))
        # metadata would make equal dtypes unequal, and the text form has none
        if getattr(self.dtype, "metadata", None) is not None:
            object.__setattr__(self, "dtype", np.dtype(self.dtype.str))
        raise_if_any(_find_violations(self))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def shape_text(self) -> str:
        """The extents as text."""
        return " × ".join(map(str, self.shape))

    def __str__(self) -> str:
        return format_operand(self.name, map(str, self.shape), self.dtype, self.storage)


def format_operand(
    name: str, shape: Iterable[str], dtype: np.dtype[Any], storage: str = ""
) -> str:
    """Write an operand as in ``u[Nel,20]:<f8`` and ``T[9,9]:csf<f8``."""
    return f"{name}[{','.join(shape)}]:{storage}{format_dtype(dtype)}"


def _simplify_extent(extent: Extent) -> Extent:
    """Convert an extent to a plain type: enumerations, for example, print oddly."""
    if isinstance(extent, SizeParam):
        return extent if type(extent) is SizeParam else SizeParam(extent.name)
    if isinstance(extent, int) and type(extent) not in (int, bool):
        return int(extent)
    return extent


def _find_violations(operand: Operand) -> Iterator[Violation]:
    name, dtype = operand.name, operand.dtype
    if not (isinstance(name, str) and name.isidentifier()):
        yield Violation("operand-name", f"operand name {name!r} is not an identifier")
    # booleans, integers, floats and complex numbers
    if not isinstance(dtype, np.dtype) or not is_numeric(dtype):
        yield Violation(
            "dtype", f"operand {name!r} has dtype {dtype!r}; expected a numeric one"
        )
    if operand.storage not in STORAGES:
        yield Violation(
            "storage",
            f"operand {name!r} has storage {operand.storage!r}; expected one of "
            f"{STORAGES}",
        )
    elif operand.storage and not operand.shape:
        yield Violation("storage", f"operand {name!r} is a tree without axes")
    for axis, extent in enumerate(operand.shape):
        yield from _find_extent_violations(extent, axis, operand)


def _find_extent_violations(
    extent: object, axis: int, operand: Operand
) -> Iterator[Violation]:
    match extent:
        case SizeParam(name):
            if not (isinstance(name, str) and name.isidentifier()):
                yield Violation(
                    "size-param-name",
                    f"size parameter {name!r} (axis {axis} of {operand.name!r}) is not "
                    "an identifier",
                )
        # True is an int for Python
        case bool():
            yield Violation(
                "extent",
                f"axis {axis} of {operand.name!r} has extent {extent!r}, not an int",
            )
        case int() if 0 <= extent <= MAX_EXTENT:
            pass
        case _:
            yield Violation(
                "extent",
                f"axis {axis} of {operand.name!r} has extent {extent!r}; "
                f"expected an int from 0 to {MAX_EXTENT} or a SizeParam",
            )


class Violation(NamedTuple):
    """A broken rule: its stable code and what was given and expected."""

    rule: str
    message: str


def raise_if_any(broken: Iterable[Violation]) -> None:
    """Raise one :class:`InvalidEinsumError` that names every broken rule."""
    violations = tuple(broken)
    if violations:
        text = "; ".join(f"[{v.rule}] {v.message}" for v in violations)
        rules = tuple(dict.fromkeys(v.rule for v in violations))
        raise InvalidEinsumError(f"ill-formed einsum: {text}", rules=rules)


def order_by_precision(dtypes: Iterable[np.dtype[Any]]) -> list[int]:
    """Order the factors so that C multiplies without rounding on the way.

    C multiplies from left to right, each product in the dtype of its two factors:
    with the most precise one first, all are computed in its precision.

    >>> order_by_precision([np.dtype("f4"), np.dtype("i4"), np.dtype("f8")])
    [2, 0, 1]
    """
    # integers come last: they are exact in the dtype of any other factor
    eps = [get_eps(d) if is_inexact(d) else np.inf for d in dtypes]
    return sorted(range(len(eps)), key=eps.__getitem__)
