"""Kernels for tests, with as little beside their text as can be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import loopy as lp
import numpy as np

__all__ = ["build_kernel"]

_ASSIGNED = re.compile(r"<\w*>\s*(\w+)")
"""What a text declares and assigns, such as a bound that it computes."""
_WORDS = {"and", "or", "not", "mod", "exists", "floor"}


def build_kernel(
    domains: str | Sequence[str],
    text: str | Sequence[Any],
    arrays: Mapping[str, str],
    *more: Any,
    dtype: Any = np.float64,
    **options: Any,
) -> lp.TranslationUnit:
    """The kernel of a text over arrays; its sizes are 32-bit integers.

    Args:
        arrays: the shape of each, or of several: ``{"x,y": "n", "A": "n,4"}``.
        more: other arguments and temporaries.
        dtype: of the arrays.
        options: of :func:`loopy.make_kernel`.

    >>> unit = build_kernel("{[i]: 0<=i<n}", "y[i] = 2*x[i]", {"x,y": "n"})
    >>> [arg.name for arg in unit.default_entrypoint.args]
    ['x', 'y', 'n']
    """
    data = [lp.GlobalArg(names, dtype, shape=shape) for names, shape in arrays.items()]
    data += more
    taken = {name for arg in data for name in arg.name.split(",")}
    sets = [domains] if isinstance(domains, str) else [*domains]
    inames = {name for one in sets for name in _names(_between_brackets(one))}
    used = dict.fromkeys(
        name for words in (*arrays.values(), *sets) for name in _names(words)
    )
    lines = [text] if isinstance(text, str) else [x for x in text if isinstance(x, str)]
    assigned = {name for line in lines for name in _ASSIGNED.findall(line)}
    sizes = [name for name in used if name not in taken | inames | assigned | _WORDS]
    data += [lp.ValueArg(name, np.int32) for name in sizes]
    options.setdefault("lang_version", (2018, 2))
    return lp.make_kernel(sets, text, data, **options)


def _between_brackets(domain: str) -> str:
    """The inames of a domain: its second list, after parameters, or its first."""
    return domain.partition("{")[2].partition("[")[2].partition("]")[0]


def _names(words: str) -> list[str]:
    return re.findall(r"[A-Za-z_]\w*", words)
