"""The words of pytato: kernels that it hands to Loopy, as text and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np
from loopy.symbolic import get_dependencies, parse
from pytools.tag import Tag, UniqueTag

__all__ = ["array", "box", "make", "private", "rule", "store", "stored"]

GLOBAL, PRIVATE = lp.AddressSpace.GLOBAL, lp.AddressSpace.PRIVATE
NO_LOOP = "{ : }"


# tags of meshmode and pytato, which mean nothing to feinsum


class DiscretizationElementAxisTag(UniqueTag):
    """Of a loop over elements."""


class DiscretizationDOFAxisTag(UniqueTag):
    """Of a loop over degrees of freedom."""


class FirstAxisIsElementsTag(Tag):
    """Of an array."""


@dataclass(frozen=True)
class NameHint(UniqueTag):
    """Of an array that its user gave a name."""

    name: str


ON_ELEMENTS = frozenset({FirstAxisIsElementsTag()})


def hint(name: str) -> frozenset[Tag]:
    """The tags of an array that its user gave a name."""
    return frozenset({NameHint(name)})


def box(**extents: Any) -> str:
    """A domain of loops from 0.

    >>> box(i=3, j="n")
    '{ [i, j] : 0 <= i < 3 and 0 <= j < n }'
    """
    bounds = (f"0 <= {iname} < {extent}" for iname, extent in extents.items())
    return f"{{ [{', '.join(extents)}] : {' and '.join(bounds)} }}"


def rule(name: str, text: str, n_axes: int) -> lp.SubstitutionRule:
    """An array behind a rule of axes ``_0``, ``_1`` and so on."""
    return lp.SubstitutionRule(name, tuple(f"_{k}" for k in range(n_axes)), parse(text))


def store(
    target: str, value: str, *after: str, loops: Sequence[str] = (), name: str = ""
) -> lp.Assignment:
    """An instruction in the loops of its subscripts, named after what it stores.

    Args:
        value: with parentheses around products of products, as pytato nests them.
        after: names of arrays that are stored before.
    """
    assignee = parse(target)
    array = target.partition("[")[0]
    inames = {*loops, *get_dependencies(assignee)} - {array}
    return lp.Assignment(
        assignee,
        parse(value),
        id=name or f"{array}_store",
        depends_on=frozenset(f"{other}_store" for other in after),
        within_inames=frozenset(inames),
        within_inames_is_final=True,
    )


def array(
    name: str, *shape: int, is_output: bool = False, tags: Iterable[Tag] = ()
) -> lp.ArrayArg:
    """An array of doubles in C order; an input has an offset."""
    return lp.ArrayArg(
        name,
        dtype=np.dtype("<f8"),
        shape=shape,
        strides=_strides(shape),
        offset=0 if is_output else lp.auto,
        address_space=GLOBAL,
        is_input=not is_output,
        is_output=is_output,
        tags=frozenset(tags),
    )


def stored(name: str, *shape: int, tags: Iterable[Tag] = ()) -> lp.TemporaryVariable:
    """A value in global memory."""
    return lp.TemporaryVariable(
        name,
        dtype=np.dtype("<f8"),
        shape=shape,
        strides=_strides(shape),
        address_space=GLOBAL,
        tags=frozenset(tags),
    )


def private(name: str) -> lp.TemporaryVariable:
    """A bound of a loop that the kernel computes."""
    return lp.TemporaryVariable(
        name, dtype=np.dtype("<i8"), shape=(), address_space=PRIVATE
    )


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[k + 1 :])) for k in range(len(shape)))


def make(
    domains: Sequence[str],
    instructions: Sequence[Any],
    data: Sequence[Any],
    name: str = "_pt_kernel",
) -> lp.TranslationUnit:
    """The kernel; pytato's first domain is that of no loop."""
    return lp.make_kernel(
        domains, instructions, data, name=name, lang_version=(2018, 2)
    )
