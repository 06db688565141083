"""Sizes and dtypes that a kernel leaves open, and the profile of its sparse operand.

They come from the arguments of a call, from the shapes of arrays, and from private
scalars that hold constant loop bounds. Short extents become numbers, so that recipes
can unroll them; long ones stay parameters, so that all long extents share recipes. With
the argument ``u`` of shape (90000, 4)::

    for e < n, i < m:  v[e, i] = 2*u[e, i]    becomes    for e < n, i < 4:  ...
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.kernel.array import ArrayBase
from loopy.symbolic import SubstitutionRuleExpander, get_dependencies
from pymbolic import evaluate
from pymbolic import primitives as p
from pymbolic.mapper import UnsupportedExpressionError

from feinsum.dtypes import is_numeric
from feinsum.errors import NotAnEinsumError
from feinsum.ir import list_profile_names
from feinsum.raising.dependences import find_ancestors
from feinsum.raising.expressions import Expression, collect_loops
from feinsum.raising.nest import RaisedKernel, RaisedNest
from feinsum.raising.rewriting import is_plain
from feinsum.raising.trees import list_subscripts
from feinsum.words import format_count


def fold_constant_bounds(
    t_unit: lp.TranslationUnit, kernel_name: str
) -> lp.TranslationUnit:
    """Fold the constant bounds of a kernel into numbers.

    A bound is constant if exactly one instruction assigns it, unconditionally, an
    integer. That instruction is removed. If it is in loops, all uses of the bound must
    be in the same loops and depend on it, so that each use gets the assigned value.

    Rewrite::

        for i < m:            for i < m:
            n = 6                 for j < 6:  f(i, j)
            for j < n:  f(i, j)
    """
    kernel = t_unit[kernel_name]
    # repeated, since a constant may be computed from another one
    while values := _find_constants(kernel):
        kernel = _with_values(kernel, values)
    return t_unit.with_kernel(kernel)


def _find_constants(kernel: lp.LoopKernel) -> dict[str, tuple[str, int]]:
    """Return the instruction and the value that assign each constant bound."""
    params = [domain.get_var_names(isl.dim_type.param) for domain in kernel.domains]
    names = set[str]().union(*params) & set(kernel.temporary_variables)
    if not names:
        return {}
    users = _find_users(names, kernel)
    constants = {}
    for name in sorted(names):
        writers = [i for i in kernel.instructions if name in i.assignee_var_names()]
        # a bound with a second writer is not constant
        if len(writers) != 1 or not _is_seen_by_all(writers[0], users[name], kernel):
            continue
        value = _evaluate_constant(writers[0])
        if value is not None and _can_hold(value, kernel.temporary_variables[name]):
            constants[name] = writers[0].id, value
    return constants


def _is_seen_by_all(
    writer: lp.InstructionBase,
    users: Sequence[lp.InstructionBase],
    kernel: lp.LoopKernel,
) -> bool:
    """Return whether all users of a scalar run after its writer, in every iteration.

    Code in C is not analyzed, so a scalar that it may read is kept.
    """
    if any(isinstance(user, lp.CInstruction) for user in users):
        return False
    return not writer.within_inames or all(
        writer.within_inames <= user.within_inames
        and writer.id in find_ancestors(kernel, user.id)
        for user in users
        if user.id != writer.id
    )


def _find_users(
    names: Collection[str], kernel: lp.LoopKernel
) -> dict[str, list[lp.InstructionBase]]:
    """Return the instructions that read each scalar, or have it in loop bounds."""
    expand = SubstitutionRuleExpander(kernel.substitutions)
    users: dict[str, list[lp.InstructionBase]] = {name: [] for name in names}
    for insn in kernel.instructions:
        expanded = insn.with_transformed_expressions(expand)
        bounds = kernel.get_inames_domain(collect_loops(expanded)).get_var_names(
            isl.dim_type.param
        )
        for name in users.keys() & (expanded.dependency_names() | set(bounds)):
            users[name].append(insn)
    return users


def _evaluate_constant(insn: lp.InstructionBase) -> int | None:
    """Return the integer that an instruction always assigns; None otherwise."""
    if not is_plain(insn) or get_dependencies(insn.expression):
        return None
    try:
        value = evaluate(insn.expression)
    except (UnsupportedExpressionError, ArithmeticError):
        return None
    return int(value) if isinstance(value, (int, np.integer)) else None


def _can_hold(value: int, scalar: lp.TemporaryVariable) -> bool:
    """Return whether a scalar can hold a value; a dtype that Loopy infers can."""
    dtype = getattr(scalar.dtype, "numpy_dtype", None)
    if dtype is None:
        return True
    if dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)


def _with_values(
    kernel: lp.LoopKernel, values: Mapping[str, tuple[str, int]]
) -> lp.LoopKernel:
    """Replace scalars by values, and remove the instructions that assign them.

    Most scalars occur in domains only; substituting in all expressions is slow.
    """
    kernel = lp.remove_instructions(kernel, {writer for writer, _ in values.values()})
    scalars = {n: s for n, s in kernel.temporary_variables.items() if n not in values}
    kernel = kernel.copy(temporary_variables=scalars)
    numbers = {name: value for name, (_, value) in values.items()}
    in_text = _list_names(kernel)
    named = {name: x for name, x in numbers.items() if name in in_text}
    if named:
        kernel = lp.fix_parameters(kernel, within=None, **named)
    return kernel.copy(domains=[_with_numbers(d, numbers) for d in kernel.domains])


def _list_names(kernel: lp.LoopKernel) -> frozenset[str]:
    """Return all names that occur outside of the domains of loops."""
    insns = [insn.dependency_names() for insn in kernel.instructions]
    rules = [get_dependencies(r.expression) for r in kernel.substitutions.values()]
    shapes: set[str] = set()

    def collect(expression: Expression) -> Expression:
        shapes.update(get_dependencies(expression))
        return expression

    for array in (*kernel.args, *kernel.temporary_variables.values()):
        if isinstance(array, ArrayBase):
            array.map_exprs(collect)
    assumed = set(kernel.assumptions.get_var_names(isl.dim_type.param))
    return frozenset[str]().union(*insns, *rules, shapes, assumed)


def _with_numbers(domain: isl.BasicSet, numbers: Mapping[str, int]) -> isl.BasicSet:
    for name in numbers.keys() & set(domain.get_var_names(isl.dim_type.param)):
        kind, axis = domain.get_var_dict()[name]
        domain = domain.fix_val(kind, axis, numbers[name]).project_out(kind, axis, 1)
    return domain


def with_profiles(raised: RaisedKernel, arguments: Mapping[str, Any]) -> RaisedKernel:
    """Add the sizes of trees, if the arguments determine them, to nests over trees.

    Args:
        raised: the raised kernel.
        arguments: see :func:`feinsum.raise_kernel`.
    """
    if not any(nest.nest.tree for nest in raised.raised):
        return raised
    kernel = raised.t_unit[raised.kernel_name]
    nests = tuple(
        nest if nest.nest.tree is None else _with_profile(nest, kernel, arguments)
        for nest in raised.raised
    )
    return replace(raised, raised=nests)


def _with_profile(
    nest: RaisedNest, kernel: lp.LoopKernel, arguments: Mapping[str, Any]
) -> RaisedNest:
    sizes = read_sizes(kernel, arguments)
    named = {
        name: sizes.get(str(kernel_size))
        for name, kernel_size in nest.nest.sizes.items()
    }
    sizes_known = {
        **nest.generalized,
        **{n: x for n, x in named.items() if x is not None},
    }
    assert nest.nest.tree is not None
    nodes = []
    for level in nest.nest.tree.levels:
        arrays = [] if level.index is None else list_subscripts(level.index)
        name = arrays[0].aggregate.name if arrays else ""
        nodes.append(_find_length(name, kernel, arguments))
    position = nest.einsum.sparse_position or 0
    root = nest.einsum.extents[nest.einsum.inputs[position][0]]
    if nodes[0] is None:
        nodes[0] = sizes_known.get(root.name) if not isinstance(root, int) else root
    if all(n is not None and n > 0 for n in nodes):
        counts = [n for n in nodes if n is not None]
        # arrays may be longer than needed, but levels of a tree never get shorter
        least = [min(counts[level:]) for level in range(len(counts))]
        sizes_known |= dict(zip(list_profile_names(nest.einsum), least, strict=True))
    return replace(nest, generalized=constantdict(sizes_known))


def _find_length(
    name: str, kernel: lp.LoopKernel, arguments: Mapping[str, Any]
) -> int | None:
    if name in arguments:
        shape, _ = get_shape_and_dtype(name, arguments[name])
        return shape[0] if len(shape) == 1 else None
    if name not in kernel.arg_dict:
        return None
    declared = kernel.arg_dict[name].shape
    extent = declared[0] if isinstance(declared, tuple) and declared else None
    return int(extent) if isinstance(extent, (int, np.integer)) else None


def specialize(
    t_unit: lp.TranslationUnit,
    arguments: Mapping[str, Any],
    kernel_name: str,
    long_extent: int,
) -> lp.TranslationUnit:
    """Specialize a kernel to the dtypes and short extents of ``arguments``.

    A size that is at least ``long_extent`` stays a parameter.

    Args:
        t_unit: the unit with the kernel.
        arguments: arrays or scalars, or ``{name: (shape, dtype)}``.
        kernel_name: the name of the kernel.
        long_extent: extents of at least this stay parameters.

    Raises:
        NotAnEinsumError: with the rule ``arguments`` if the arguments do not
            fit the kernel.
    """
    if not isinstance(arguments, Mapping):
        raise _make_refusal(
            f"expected arguments by name, got {type(arguments).__name__}"
        )
    if not arguments:
        return t_unit
    kernel = t_unit[kernel_name]
    sizes: dict[str, int] = {}
    dtypes = {}
    for name, argument in arguments.items():
        shape, dtype = get_shape_and_dtype(name, argument)
        arg = kernel.arg_dict.get(name)
        # otherwise a misspelt name would silently leave a size open
        if arg is None:
            raise _make_refusal(
                f"the kernel has no argument {name!r}: {sorted(kernel.arg_dict)}"
            )
        if isinstance(arg, lp.ValueArg):
            _bind_value(sizes, name, argument)
            if arg.dtype is not None:
                continue
        else:
            _bind_shape(sizes, name, arg.shape, shape)
        if arg.dtype is not None and arg.dtype.numpy_dtype != dtype:
            raise _make_refusal(
                f"argument {name!r} has dtype {dtype}, the kernel declares {arg.dtype}"
            )
        if not is_numeric(dtype):
            raise _make_refusal(f"argument {name!r} has dtype {dtype}; give numbers")
        dtypes[name] = dtype
    short = {
        name: size
        for name, size in sizes.items()
        # long sizes stay parameters, so that they share recipes
        if size < long_extent and name in kernel.arg_dict
    }
    # sizes that stay parameters get Loopy's index dtype if none is declared
    dtypes |= {
        name: kernel.index_dtype.numpy_dtype
        for name in sizes
        if name in kernel.arg_dict and kernel.arg_dict[name].dtype is None
    }
    t_unit = lp.add_dtypes(t_unit, {n: d for n, d in dtypes.items() if n not in short})
    return lp.fix_parameters(t_unit, **short) if short else t_unit


def read_sizes(kernel: lp.LoopKernel, arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return the values of the kernel parameters that the arguments determine."""
    sizes: dict[str, int] = {}
    for name, argument in arguments.items():
        arg = kernel.arg_dict.get(name)
        if isinstance(arg, lp.ValueArg):
            _bind_value(sizes, name, argument)
        elif arg is not None:
            _bind_shape(sizes, name, arg.shape, get_shape_and_dtype(name, argument)[0])
    return sizes


def get_shape_and_dtype(
    name: str, argument: Any
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of an array, a scalar or a pair of both.

    Raises:
        NotAnEinsumError: with the rule ``arguments``, if it is neither.
    """
    try:
        if isinstance(argument, tuple) and len(argument) == 2:
            return tuple(argument[0]), np.dtype(argument[1])
        if hasattr(argument, "shape") and hasattr(argument, "dtype"):
            return tuple(argument.shape), np.dtype(argument.dtype)
        scalar = np.asarray(argument)
    except (TypeError, ValueError):
        raise _make_refusal(
            f"argument {name!r} is {argument!r}; give an array"
        ) from None
    return scalar.shape, scalar.dtype


def _bind_value(sizes: dict[str, int], name: str, argument: Any) -> None:
    if isinstance(argument, (int, np.integer)):
        sizes[name] = int(argument)


def _bind_shape(
    sizes: dict[str, int], name: str, declared: Any, shape: tuple[int, ...]
) -> None:
    if not isinstance(declared, tuple):
        return
    if len(declared) != len(shape):
        raise _make_refusal(
            f"argument {name!r} has {format_count(len(shape), 'axis')}, the kernel "
            f"declares {declared}"
        )
    for extent, size in zip(declared, shape, strict=True):
        if isinstance(extent, p.Variable):
            expected = sizes.setdefault(extent.name, size)
        else:
            expected = extent if isinstance(extent, int) else size
        if expected != size:
            raise _make_refusal(
                f"argument {name!r} has extent {size}, expected {expected}"
            )


def _make_refusal(reason: str) -> NotAnEinsumError:
    return NotAnEinsumError(
        f"arguments do not fit the kernel: {reason}", rule="arguments"
    )
