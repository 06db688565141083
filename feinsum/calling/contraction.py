"""``contract`` and its companions, with opt_einsum's interface.

``tensordot`` and ``transpose`` are the functions, besides ``einsum``, that opt_einsum
requires of a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from operator import index
from typing import Any

import numpy as np

from feinsum.calling.by_numpy import NumpyStepsCall, build_steps_call
from feinsum.calling.dispatch import einsum
from feinsum.calling.numpy_options import check_call_options
from feinsum.calling.operands import ArrayForm, get_form, get_rank, is_tensor
from feinsum.calling.terms import (
    Shape,
    as_subscripts,
    read_terms,
    write_in_letters,
)
from feinsum.contraction import Step, find_steps
from feinsum.contraction.paths import (
    OPTIMAL_UP_TO,
    Path,
    check_path,
    get_index_letter,
    is_path_name,
    search_path,
)
from feinsum.errors import InvalidEinsumError
from feinsum.libraries import exclude_from_compilers
from feinsum.options import with_options_of
from feinsum.subscripts import IndexList, parse_subscripts, write_subscripts
from feinsum.words import format_count

BACKENDS = ("auto", "feinsum", "numpy", None)


@with_options_of(einsum)
@exclude_from_compilers
def contract(
    subscripts: Any,
    *operands: Any,
    out: Any = None,
    use_blas: bool = True,
    optimize: Any = True,
    memory_limit: int | str | None = None,
    backend: str | None = "auto",
    **options: Any,
) -> Any:
    """Evaluate an einsum of arrays; same interface as ``opt_einsum.contract``.

    Args:
        subscripts: as for :func:`feinsum.einsum`.
        operands: as for :func:`feinsum.einsum`.
        out: as for :func:`feinsum.einsum`.
        use_blas: has no effect; recipes decide when to call a library.
        optimize: a path, which is followed; or an object or function that searches for
            one. For more than six operands, also the name of a search. With any other
            value, feinsum chooses the order itself.
        memory_limit: maximum entries of an intermediate; opt_einsum searches for a path
            within this limit.
        backend: ``auto``, ``numpy`` or ``feinsum``; all have the same effect.
        options: as for :func:`feinsum.einsum`.

    Raises:
        InvalidEinsumError: as :func:`feinsum.einsum`; also for any other backend.

    >>> from feinsum.records import InMemoryStore
    >>> A, B = np.ones((2, 3)), np.ones((3, 2))
    >>> float(contract("ij,ji->", A, B, database=InMemoryStore()))
    6.0
    """
    is_free = optimize is True and memory_limit is None and backend == "auto"
    # the most frequent call skips all checks of options
    if is_free and out is None and not options:
        return einsum(subscripts, *operands)
    _check_backend(backend)
    check_call_options("contract", options)
    text, arrays = as_subscripts((subscripts, *operands))
    shapes = map(get_shape, arrays)
    path = find_requested_path(text, len(arrays), shapes, optimize, memory_limit)
    return einsum(text, *arrays, out=out, optimize=path or optimize, **options)


def contract_path(
    subscripts: Any,
    *operands: Any,
    use_blas: bool = True,
    optimize: Any = True,
    memory_limit: int | str | None = None,
    shapes: bool = False,
) -> tuple[list[tuple[int, ...]], Any]:
    """Search a path and report on it, as ``opt_einsum.contract_path`` does.

    :func:`contract` and :func:`feinsum.einsum` follow this path if it is passed as
    ``optimize``; otherwise they may choose another one.

    Args:
        subscripts: as for :func:`feinsum.einsum`.
        operands: as for :func:`feinsum.einsum`; with ``shapes``, tuples of integers in
            place of arrays.
        use_blas: as for ``opt_einsum.contract_path``.
        optimize: as for ``opt_einsum.contract_path``.
        memory_limit: maximum number of entries of an intermediate, as for
            ``opt_einsum.contract_path``.
        shapes: whether the operands are shapes.

    >>> contract_path("ij,jk,kl->il", (9, 2), (2, 9), (9, 2), shapes=True)[0]
    [(1, 2), (0, 1)]
    """
    text, arrays = as_subscripts((subscripts, *operands))
    sizes = [tuple(x) if shapes else get_shape(x) for x in arrays]
    read_terms(text, sizes)  # raises an error that names the operand
    return search_path(
        write_in_letters(text, [len(size) for size in sizes]),
        *arrays,
        optimize=optimize,
        use_blas=use_blas,
        memory_limit=memory_limit,
        shapes=shapes,
    )


@dataclass(frozen=True, eq=False, repr=False)
class ContractExpression:
    """An einsum that takes its arrays later; made by :func:`contract_expression`.

    Attributes:
        contraction: the subscripts, with constants in brackets.
        text, constants: the remaining einsum, and its constant operands by position;
            products of constants are already computed.
        num_args: the number of arrays that it takes.
        options: options for :func:`feinsum.einsum`.
        search: finds opt_einsum's path of the whole contraction.
    """

    contraction: str
    text: str
    constants: Mapping[int, Any]
    num_args: int
    options: Mapping[str, Any]
    search: Callable[[], tuple[Any, list[Any]]]

    @cached_property
    def contraction_list(self) -> list[Any]:
        """The steps of opt_einsum's path, in the form of its own expressions."""
        return self.search()[1]

    @exclude_from_compilers
    def __call__(
        self,
        *arrays: Any,
        out: Any = None,
        backend: str | None = "auto",
        **options: Any,
    ) -> Any:
        """Evaluate the einsum of these arrays, one for each non-constant operand.

        Raises:
            InvalidEinsumError: for the wrong number of arrays, and as :func:`contract`.
        """
        _check_backend(backend)
        check_call_options("ContractExpression", options)
        if len(arrays) != self.num_args:
            raise InvalidEinsumError(
                f"{self!r} takes {format_count(self.num_args, 'array')}, not "
                f"{len(arrays)}",
                rules=("operand",),
            )
        remaining_arrays = iter(arrays)
        operands = [
            self.constants[k] if k in self.constants else next(remaining_arrays)
            for k in range(self.num_args + len(self.constants))
        ]
        if out is not None:
            options["out"] = out
        return einsum(self.text, *operands, **self.options, **options)

    def __repr__(self) -> str:
        return f"<ContractExpression({self.contraction!r})>"


@with_options_of(einsum)
def contract_expression(
    subscripts: Any,
    *shapes: Any,
    constants: Collection[int] | None = None,
    use_blas: bool = True,
    optimize: Any = True,
    memory_limit: int | str | None = None,
    **options: Any,
) -> ContractExpression:
    """Return an einsum to be called later with arrays, as in opt_einsum.

    Args:
        subscripts: as for :func:`feinsum.einsum`.
        shapes: shapes of the operands; for a constant operand, the array itself.
        constants: positions of the constant operands. Products of constants along
            opt_einsum's path are computed once, unless a path or a limit is given.
        use_blas: has no effect; recipes decide when to call a library.
        optimize: as for :func:`contract`.
        memory_limit: as for :func:`contract`.
        options: as for :func:`contract`.

    Raises:
        InvalidEinsumError: as :func:`contract`, and for ``out`` or ``optimize=False``,
            which belong to a call.

    >>> from feinsum.records import InMemoryStore
    >>> expression = contract_expression("ij,j->i", np.eye(2), (2,), constants=[0])
    >>> expression
    <ContractExpression('[ij],j->i')>
    >>> expression(np.array([3.0, 4.0]), database=InMemoryStore())
    array([3., 4.])
    """
    if "out" in options or optimize is False:
        raise InvalidEinsumError(
            "contract_expression() makes an expression along a path, to be called with "
            "arrays later; give out to the expression, and no optimize=False",
            rules=("path",),
        )
    check_call_options("contract_expression", options)
    text, arguments = as_subscripts((subscripts, *shapes))
    constants_at = {
        k: arguments[_check_position(k, len(arguments))]
        for k in sorted(constants or ())
    }
    sizes = [
        get_shape(x) if k in constants_at else _check_shape(x, k)
        for k, x in enumerate(arguments)
    ]
    read_terms(text, sizes)  # errors are raised now, not at the first call
    path = find_requested_path(text, len(sizes), sizes, optimize, memory_limit)
    ranks = [len(size) for size in sizes]
    letters = write_in_letters(text, ranks)
    terms, output = parse_subscripts(text, ranks)
    shown_text = _format_subscripts(text, constants_at)
    n_free = len(arguments) - len(constants_at)
    if path is not None:
        options["optimize"] = path
    elif len(constants_at) > 1:
        # like opt_einsum, which also folds constants along a path of its own choice
        order, _ = search_path(letters, *sizes, shapes=True)
        terms, constants_at = _fold_constants(
            terms, constants_at, output, order, options
        )
    text = write_subscripts(terms, output) if len(terms) != len(arguments) else text
    search = partial(
        search_path, letters, *sizes, use_blas=use_blas, memory_limit=memory_limit,
        optimize=optimize if path is None else path, shapes=True, einsum_call=True,
    )  # fmt: skip
    return ContractExpression(shown_text, text, constants_at, n_free, options, search)


def _check_position(constant: int, n_operands: int) -> int:
    if not 0 <= constant < n_operands:
        raise InvalidEinsumError(
            f"constants name operand {constant}; expected positions from 0 to "
            f"{n_operands - 1}",
            rules=("operand",),
        )
    return constant


def _check_shape(shape: Any, position: int) -> tuple[int, ...]:
    if getattr(shape, "ndim", 1) != 1:
        raise InvalidEinsumError(
            f"operand {position} is an array of shape {tuple(shape.shape)}; give its "
            f"shape, or name it as a constant: constants=[{position}]",
            rules=("operand",),
        )
    return tuple(shape)


def follow_path(
    text: str, operands: Sequence[Any], path: Path | None, options: Mapping[str, Any]
) -> Any:
    """Evaluate an einsum, step by step along a path if one is given."""
    from feinsum.calling.call import call_einsum

    if path is None:
        return call_einsum(text, *operands, **options)
    # without options, steps of numpy arrays need neither kernels nor a look-up
    if not options and all(type(operand) is np.ndarray for operand in operands):
        forms = tuple(map(get_form, operands))
        return _call_along(text, path, forms).run(operands)
    ranks = [len(get_shape(operand)) for operand in operands]
    terms, output = parse_subscripts(text, ranks)
    values = [*operands]
    for step in _list_steps(terms, output, path):
        line = write_subscripts(step.inputs, step.output)
        chosen = [values[number] for number in step.operands]
        for number in step.operands:
            values[number] = None  # frees intermediates
        values.append(call_einsum(line, *chosen, **options))
    return values[-1]


def _list_steps(
    terms: Sequence[IndexList], output: IndexList, path: Sequence[Any]
) -> tuple[Step, ...]:
    """Return the steps of a caller's path, each with all its operands at once."""
    return find_steps(terms, output, path, is_pairwise=False, has_sums_first=False)


@lru_cache(512)
def _call_along(text: str, path: Path, forms: tuple[ArrayForm, ...]) -> NumpyStepsCall:
    """Build the call of arrays with these forms, in the steps of a path."""
    terms = read_terms(text, [form.shape for form in forms])
    return build_steps_call(terms, [form.dtype for form in forms], path=path)


def find_requested_path(
    text: str,
    n_operands: int,
    shapes: Iterable[Shape],
    optimize: Any,
    memory_limit: int | str | None,
) -> Path | None:
    """Return the path that a call gives, or that the search it names finds.

    Shapes are read only for a search: an operand that has none is refused later.

    Returns:
        The path; None if the call leaves the order to feinsum.
    """
    if _is_limited_search(optimize):
        optimize, memory_limit = optimize[0], int(optimize[1])
    if isinstance(optimize, Sequence) and not isinstance(optimize, str):
        return _parse_path(optimize, n_operands)
    if isinstance(optimize, str) and not is_path_name(optimize):
        return None  # `einsum` raises the error for an unknown name
    is_named = isinstance(optimize, bool | str)
    # opt_einsum writes no limit as None or as -1
    is_free = memory_limit in (None, -1) and not is_search(optimize, n_operands)
    if is_free and (is_named or optimize is None):
        return None
    # not cached: opt_einsum's optimizer objects, such as RandomGreedy, have state
    search = _search_cached if is_named else _search_cached.__wrapped__
    return search(text, tuple(shapes), optimize, memory_limit)


def is_search(optimize: Any, n_operands: int) -> bool:
    """Return whether a search is named and there are too many orders to try all."""
    is_named = isinstance(optimize, str) and optimize != "auto"
    return is_named and n_operands > OPTIMAL_UP_TO


@lru_cache(512)
def _search_cached(
    text: str, sizes: tuple[Shape, ...], optimize: Any, memory_limit: int | str | None
) -> Path:
    steps, _ = contract_path(
        text, *sizes, optimize=optimize, memory_limit=memory_limit, shapes=True
    )
    return _parse_path(steps, len(sizes))


def _is_limited_search(optimize: Any) -> bool:
    """Return whether this is numpy's pair of a search and a limit of entries."""
    is_pair = isinstance(optimize, Sequence) and len(optimize) == 2
    if not is_pair or not isinstance(optimize[0], str) or optimize[0] == "einsum_path":
        return False
    return isinstance(optimize[1], int | float)


def _fold_constants(
    terms: Sequence[IndexList],
    constants: Mapping[int, Any],
    output: IndexList,
    path: Sequence[Sequence[int]],
    options: Mapping[str, Any],
) -> tuple[tuple[IndexList, ...], dict[int, Any]]:
    """Contract the constants that a path multiplies with each other alone.

    Returns:
        The terms of the remaining operands, and the constants among these by position.
    """
    values, terms_left = dict(constants), dict(enumerate(terms))
    for number, step in enumerate(_list_steps(terms, output, path), len(terms)):
        if len(step.operands) > 1 and values.keys() >= {*step.operands}:
            line = write_subscripts(step.inputs, step.output)
            value = einsum(line, *map(values.pop, step.operands), **options)
            for folded in step.operands:
                del terms_left[folded]
            terms_left[number] = step.output
            values[number] = np.asarray(value) if np.isscalar(value) else value
    # numbers become positions: deleting terms keeps the order of the operands that a
    # call passes
    remaining = {k: values[n] for k, n in enumerate(terms_left) if n in values}
    return tuple(terms_left.values()), remaining


def _parse_path(path: Sequence[Any], n_operands: int) -> Path:
    """Check a path, in opt_einsum's form or numpy's, which begins with a word."""
    if path and path[0] == "einsum_path":
        path = path[1:]
    try:
        steps = tuple(tuple(int(position) for position in step) for step in path)
    except (TypeError, ValueError):
        raise InvalidEinsumError(
            f"optimize={path!r:.80} is not a path such as [(0, 1), (0, 1)]",
            rules=("option",),
        ) from None
    check_path(steps, n_operands)
    return steps


def _format_subscripts(text: str, constants: Collection[int]) -> str:
    inputs, arrow, output = text.partition("->")
    terms = [
        f"[{term}]" if k in constants else term
        for k, term in enumerate(inputs.split(","))
    ]
    return ",".join(terms) + arrow + output


def get_shape(operand: Any) -> tuple[int, ...]:
    shape = getattr(operand, "shape", None)
    return np.shape(operand) if shape is None else tuple(shape)


def _check_backend(backend: str | None) -> None:
    if backend not in BACKENDS:
        raise InvalidEinsumError(
            f"backend={backend!r}; feinsum computes the result itself: omit the "
            "backend, and pass arrays that numpy or DLPack can read",
            rules=("option",),
        )


@exclude_from_compilers
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sum products over pairs of axes, as :func:`numpy.tensordot` does.

    Args:
        a: the first array, or anything that numpy can convert to one.
        b: the second array, likewise.
        axes: the number of last axes of ``a`` and first axes of ``b`` to sum over; or
            the axes of ``a`` and, in the same order, of ``b``.

    Raises:
        InvalidEinsumError: if the axes do not fit the arrays.

    >>> A = np.arange(6.0).reshape(2, 3)
    >>> tensordot(A, A, axes=([1], [1])).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    """
    ranks = get_rank(a), get_rank(b)
    try:
        text = _write_tensordot(
            axes if _is_plain(axes) else _normalize_axes(axes), *ranks
        )
    except (IndexError, TypeError, ValueError):
        raise InvalidEinsumError(
            f"axes={axes!r} do not match arrays of rank {ranks[0]} and {ranks[1]}; "
            "give a number, or the axes of both: ([1, 2], [0, 1])",
            rules=("option",),
        ) from None
    return einsum(text, a, b)


def _is_plain(axes: Any) -> bool:
    """Return whether axes are a number or two tuples, and so can be a cache key."""
    if type(axes) is tuple and len(axes) == 2:
        return type(axes[0]) is tuple and type(axes[1]) is tuple
    return type(axes) is int


def _normalize_axes(axes: Any) -> int | tuple[tuple[int, ...], ...]:
    """Convert axes to a form that can be a cache key."""
    if not isinstance(axes, Sequence | np.ndarray):
        return index(axes)
    sides = ([side] if np.ndim(side) == 0 else [*side] for side in axes)
    return tuple(tuple(map(index, side)) for side in sides)


@lru_cache(4096)
def _write_tensordot(axes: Any, rank_a: int, rank_b: int) -> str:
    """Build the subscripts; without the cache, they take longer than a small product.

    >>> _write_tensordot(((1,), (-1,)), 2, 2), _write_tensordot(1, 2, 2)
    ('ab,cb->ac', 'ab,bd->ad')
    """
    if isinstance(axes, int):
        axes = [*range(-axes, 0)], [*range(axes)]
    axes_a, axes_b = axes
    # indexing a range counts negative axes from the end, and raises IndexError for
    # others
    axes_a = [range(rank_a)[index(k)] for k in axes_a]
    axes_b = [range(rank_b)[index(k)] for k in axes_b]
    if len({*axes_a}) != len({*axes_b}) or len(axes_a) != len({*axes_a}):
        raise ValueError(axes)
    letters_a = [get_index_letter(k) for k in range(rank_a)]
    letters_b = [get_index_letter(rank_a + k) for k in range(rank_b)]
    for k, n in zip(axes_a, axes_b, strict=True):
        letters_b[n] = letters_a[k]
    free = [x for x in letters_a if x not in letters_b] + [
        x for x in letters_b if x not in letters_a
    ]
    return "".join((*letters_a, ",", *letters_b, "->", *free))


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """Return a view with the axes in another order, as :func:`numpy.transpose`.

    A tensor of torch gives a tensor.

    >>> transpose(np.ones((2, 3))).shape
    (3, 2)
    """
    if not is_tensor(a):
        return np.transpose(a, axes)
    # torch.transpose exchanges two axes; permute is numpy's transpose
    return a.permute([*reversed(range(a.ndim))] if axes is None else [*axes])
