"""Random arguments for a Loopy kernel.

For ``y[i] = A[i, t[i]] * x[i]`` with ``A`` of shape (n, 4) and ``n = 1000``: ``A`` and
``x`` get numbers from 0.5 to 1.5, ``y`` none, and ``t`` integers below 4, so that no
entry outside of ``A`` is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import loopy as lp
import numpy as np
from loopy.symbolic import DependencyMapper
from pymbolic.primitives import Subscript, Variable

from feinsum.measure.trial import INTERVAL, draw_array
from feinsum.targets.layout import compute_layout, get_entry_kernel, infer_types

Array = np.ndarray[Any, np.dtype[Any]]


def draw_arguments(
    t_unit: Any,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    *,
    interval: tuple[float, float] = INTERVAL,
) -> dict[str, Any]:
    """Draw random values for every array that a kernel reads, and for every scalar.

    Args:
        t_unit: a translation unit with one entry point; missing dtypes are
            inferred.
        sizes: values of the scalar arguments that are sizes; every symbolic
            shape must be computable from them.
        rng: the source of the random values.
        interval: range of floating-point values (of real and imaginary parts). The
            default keeps roots, logarithms and quotients finite.

    Returns:
        Arrays of the declared shapes and dtypes, and scalars, by name. Arrays that are
        only written are omitted. Integers are drawn from 1 to 9; integer arrays that
        index another array stay within its extent.

    Raises:
        MeasurementError: if a shape needs a missing size.
    """
    kernel = get_entry_kernel(infer_types(t_unit))
    bounds = find_index_bounds(t_unit, sizes)
    values: dict[str, Any] = {}
    for arg in kernel.args:
        dtype = arg.dtype.numpy_dtype
        if isinstance(arg, lp.ValueArg):
            is_size = arg.name in sizes
            value = sizes[arg.name] if is_size else draw_array(rng, (), dtype, interval)
            values[arg.name] = dtype.type(value)
        elif arg.is_input:
            shape = compute_layout(arg, sizes).shape
            if arg.name in bounds and dtype.kind in "iu":
                # An axis of length 0 is never read, but numpy draws below 1 at least.
                high = max(bounds[arg.name], 1)
                values[arg.name] = rng.integers(0, high, shape).astype(dtype)
            else:
                values[arg.name] = draw_array(rng, shape, dtype, interval)
    return values


def find_index_bounds(t_unit: Any, sizes: Mapping[str, int]) -> dict[str, int]:
    """Bound each argument that is read inside a subscript.

    The bound is the extent of the axis if the argument's entry alone is the index. It
    is 1, which admits only zeros, if the entry is part of a larger index expression.
    """
    kernel = get_entry_kernel(infer_types(lp.expand_subst(t_unit)))
    arrays = {arg.name: arg for arg in kernel.args if not isinstance(arg, lp.ValueArg)}
    bounds: dict[str, int] = {}
    for subscript in _find_kernel_subscripts(kernel):
        for axis, index in enumerate(subscript.index_tuple):
            for name in _find_names(index) & set(arrays):
                is_alone = isinstance(index, Subscript) and index.aggregate.name == name
                target = arrays.get(subscript.aggregate.name)
                # In A[2*t[i] + 1] only zeros in t are safe without solving for it.
                bound = 1
                if is_alone and target is not None:
                    bound = compute_layout(target, sizes).shape[axis]
                bounds[name] = min(bound, bounds.get(name, bound))
    return bounds


def _find_kernel_subscripts(kernel: Any) -> Iterator[Any]:
    for instruction in kernel.instructions:
        if isinstance(instruction, lp.MultiAssignmentBase):
            expressions = (
                *instruction.assignees,
                instruction.expression,
                *instruction.predicates,
            )
            for expression in expressions:
                yield from _find_subscripts(expression)


def _find_subscripts(expression: Any) -> Iterator[Any]:
    """Yield every subscript of an expression, also inside subscripts."""
    leaves = DependencyMapper(include_subscripts=True, include_calls=False)(expression)
    for leaf in leaves:
        if isinstance(leaf, Subscript):
            yield leaf
            for index in leaf.index_tuple:
                yield from _find_subscripts(index)


def _find_names(expression: Any) -> set[str]:
    leaves = DependencyMapper(include_subscripts=False, include_calls=False)(expression)
    return {leaf.name for leaf in leaves if isinstance(leaf, Variable)}
