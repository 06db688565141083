"""The functions, besides ``einsum``, that opt_einsum requires of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from feinsum.calling.compilers import outside_of_compilers
from feinsum.calling.dispatch import einsum
from feinsum.calling.reading.libraries import is_tensor, rank_of
from feinsum.errors import InvalidEinsumError


@outside_of_compilers
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sum products over pairs of axes, as :func:`numpy.tensordot` does.

    Args:
        axes: the number of last axes of ``a`` and first axes of ``b`` to sum over; or
            the axes of ``a`` and, in the same order, of ``b``.

    Raises:
        InvalidEinsumError: if the axes do not fit the arrays.

    >>> A = np.arange(6.0).reshape(2, 3)
    >>> tensordot(A, A, axes=([1], [1])).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    """
    ranks = rank_of(a), rank_of(b)
    try:
        left, right = _pairs(axes, *ranks)
    except (IndexError, TypeError, ValueError):
        raise InvalidEinsumError(
            f"axes={axes!r} do not match arrays of rank {ranks[0]} and {ranks[1]}; "
            "give a number, or the axes of both: ([1, 2], [0, 1])",
            rules=("option",),
        ) from None
    of_a = list(range(ranks[0]))
    of_b = [ranks[0] + k for k in range(ranks[1])]
    for one, other in zip(left, right, strict=True):
        of_b[other] = of_a[one]
    free = [k for k in of_a if k not in of_b] + [k for k in of_b if k not in of_a]
    return einsum(a, of_a, b, of_b, free)


def _pairs(axes: Any, n_left: int, n_right: int) -> tuple[list[int], list[int]]:
    """Axes counted from the front; each at most once."""
    if isinstance(axes, Sequence | np.ndarray):
        left, right = ([one] if np.ndim(one) == 0 else [*one] for one in axes)
    else:
        left, right = [*range(index(axes) * -1, 0)], [*range(axes)]
    left = [range(n_left)[index(k)] for k in left]
    right = [range(n_right)[index(k)] for k in right]
    if len({*left}) != len({*right}) or len(left) != len({*left}):
        raise ValueError(axes)
    return left, right


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """A view with the axes in another order, as :func:`numpy.transpose`.

    A tensor of torch gives a tensor.

    >>> transpose(np.ones((2, 3))).shape
    (3, 2)
    """
    if not is_tensor(a):
        return np.transpose(a, axes)
    return a.permute([*reversed(range(a.ndim))] if axes is None else [*axes])
