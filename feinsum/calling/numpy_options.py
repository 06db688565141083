"""``einsum`` with numpy's options, and with operands other than numpy's arrays."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.calling.operands import (
    are_host_tensors,
    as_array,
    as_given,
    check_out,
    evaluate_by_override,
    get_memory,
    has_override,
    has_sparse,
    is_jax_array,
    is_tensor,
    read_tensor,
)
from feinsum.calling.terms import as_subscripts, read_terms
from feinsum.contraction.direct import compute
from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.libraries import exclude_from_compilers, is_cuda_array, is_device_array
from feinsum.words import describe_type

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
ORDERS = ("C", "F", "A", "K")
CHECKED = ("order", "casting")
DEFAULTS = {"out": None, "dtype": None, "order": "K", "casting": "safe"}
LOOKUP_OPTIONS = {"device", "database", "policy", "on_miss", "effort"}


@exclude_from_compilers
def einsum_with_options(
    subscripts: Any,
    operands: Sequence[Any],
    *,
    out: Any = None,
    dtype: DTypeLike | None = None,
    order: str | None = "K",
    casting: str = "safe",
    optimize: Any = True,
    **lookup: Any,
) -> Any:
    """Evaluate :func:`feinsum.einsum` for any arguments."""
    is_plain = out is None and dtype is None and order == "K" and casting == "safe"
    has_options = not is_plain or optimize is not True or bool(lookup)
    is_usual = dtype is None and order == "K" and casting == "safe" and not lookup
    if is_usual and optimize is True and type(subscripts) is str:
        # not imported here: it is loaded by the first call that cannot do without it
        module = sys.modules.get("feinsum.calling.call")
        known_result = getattr(module, "known_result", None)
        if known_result is not None:
            result = known_result(subscripts, operands, out)
            if result is not NotImplemented:
                return _as_scalar(result) if out is None else out
    # arrays in their memory take the short way above, which tensors do not
    if not has_options and are_host_tensors(operands):
        entries = tuple(map(read_tensor, operands))
        result = compute(subscripts, entries)
        if result is NotImplemented:
            result = einsum_with_options(subscripts, entries)
        return as_given(result, operands)
    text, arrays = as_subscripts((subscripts, *operands))
    # the extension takes subscripts as text, which index lists have become only now
    if not has_options and text is not subscripts:
        result = compute(text, arrays)
        if result is not NotImplemented:
            return result
    # whoever made a symbolic operand has imported the module; in another thread, that
    # import may still be under way
    symbol = getattr(sys.modules.get("feinsum.ir"), "Operand", ())
    n_symbolic = sum(isinstance(operand, symbol) for operand in arrays)
    if n_symbolic:
        from feinsum.ir import einsum as symbolic_einsum

        _check_symbolic(arrays, n_symbolic, is_plain=not has_options)
        return symbolic_einsum(text, *arrays)
    if lookup.keys() - LOOKUP_OPTIONS:
        check_call_options("einsum", lookup, LOOKUP_OPTIONS)
    _check_optimize(optimize)
    if not is_plain:
        casting, order = (
            _check_choice("casting", casting),
            _check_choice("order", order),
        )
    return _evaluate_arrays(
        text, arrays, is_plain, out, dtype, order or "K", casting, optimize, lookup
    )


def _evaluate_arrays(
    text: str,
    arrays: Sequence[Any],
    is_plain: bool,
    out: Any,
    dtype: DTypeLike | None,
    order: str,
    casting: str,
    optimize: Any,
    lookup: Mapping[str, Any],
) -> Any:
    """Cast the operands, compute, and lay out the result. The options are valid.

    ``is_plain`` says that those from ``out`` to ``casting`` are defaults; ``lookup``
    has those of :func:`feinsum.call_einsum` that numpy lacks.
    """
    from feinsum.calling.call import call_einsum  # symbolic einsums need no more

    in_steps = _has_path(optimize, arrays)
    if not is_plain or in_steps:
        options = {"out": out, "dtype": dtype, "order": order, "casting": casting}
        if has_override(arrays):
            # only options that are not defaults
            changed = {k: x for k, x in options.items() if x is not DEFAULTS[k]}
            return evaluate_by_override(text, arrays, **changed)
        if is_tensor(out) and not is_cuda_array(out):
            options = {**options, "out": get_memory(out), "optimize": optimize}
            einsum_with_options(text, arrays, **options, **lookup)
            return out
        if out is not None:
            check_out(out, is_on_host=False)
    operands = _cast_operands(text, arrays, out, dtype, casting, in_steps=in_steps)
    if in_steps:
        from feinsum.calling.contraction import (
            find_requested_path,
            follow_path,
            get_shape,
        )

        shapes = map(get_shape, operands)
        path = find_requested_path(text, len(operands), shapes, optimize, None)
        result = follow_path(text, operands, path, lookup)
    elif out is not None and _can_write_out(out, operands):
        return call_einsum(text, *operands, out=out, **lookup)
    else:
        result = call_einsum(text, *operands, **lookup)
    if is_plain:
        # `call_einsum` returns an array of the operands' library; `follow_path` may not
        return as_given(_as_scalar(result), arrays) if in_steps else _as_scalar(result)
    if (is_tensor(result) or is_jax_array(result)) and not is_cuda_array(result):
        result = as_array(result)
    result = _finish_result(result, out, order, arrays)
    return as_given(result, arrays) if out is None else out


def _has_path(optimize: Any, arrays: Sequence[Any]) -> bool:
    """Return whether a path is given, or has to be searched."""
    if not isinstance(optimize, str):
        return _is_path(optimize)
    if optimize == "auto":
        return False
    from feinsum.calling.contraction import is_search

    return is_search(optimize, len(arrays))


def _as_scalar(result: Any) -> Any:
    """Convert an array of rank 0 to a scalar, as numpy does."""
    return result[()] if type(result) is np.ndarray and not result.ndim else result


def _can_write_out(out: Any, operands: Sequence[Any]) -> bool:
    """Return whether the call itself writes into ``out``, without a cast."""
    if any(map(is_cuda_array, (out, *operands))):
        return True
    if not isinstance(out, np.ndarray) or has_sparse(operands):
        return False
    return bool(out.dtype == np.result_type(*map(as_array, operands)))


def _is_path(optimize: Any) -> bool:
    return isinstance(optimize, Sequence) and not isinstance(optimize, str)


def check_call_options(
    caller: str,
    options: Iterable[str],
    allowed: Collection[str] = LOOKUP_OPTIONS | {"dtype", *CHECKED},
) -> None:
    """Refuse an option that a function does not take, and suggest a similar one.

    Raises:
        TypeError: naming the function that was called.
    """
    unknown = sorted(set(options) - set(allowed))
    if not unknown:
        return
    names = sorted(
        {"out", "dtype", "optimize", *CHECKED, *LOOKUP_OPTIONS} - {unknown[0]}
    )
    from difflib import get_close_matches

    similar_names = get_close_matches(unknown[0], names, n=1)
    hint = (
        f"did you mean {similar_names[0]!r}?"
        if similar_names
        else f"there are {', '.join(names)}"
    )
    raise TypeError(f"{caller}() has no option {unknown[0]!r}; {hint}")


def _check_optimize(optimize: Any) -> None:
    if optimize is None or isinstance(optimize, bool) or _is_path(optimize):
        return
    if isinstance(optimize, str):
        from feinsum.contraction.paths import is_path_name

        if is_path_name(optimize):
            return
    kind = InvalidEinsumError if isinstance(optimize, str) else InvalidTypeError
    raise kind(
        f"optimize={optimize!r:.60} is not a boolean, a search of opt_einsum such as "
        "'greedy', or a path such as [(0, 1), (0, 1)]",
        rules=("option",),
    )


def _check_choice(option: str, value: Any) -> str:
    """Check the value of an option; an order may be lower case, or None for K."""
    choices = CASTINGS if option == "casting" else ORDERS
    name = value.decode() if isinstance(value, bytes) else value
    if option == "order":
        name = "K" if name is None else name.upper() if isinstance(name, str) else name
    if isinstance(name, str) and name in choices:
        return name
    kind = InvalidEinsumError if isinstance(name, str) else InvalidTypeError
    raise kind(
        f"{option}={value!r}; expected one of {', '.join(choices)}", rules=("option",)
    )


def _check_symbolic(operands: Sequence[Any], n_symbolic: int, is_plain: bool) -> None:
    """Refuse a mix of arrays and symbolic operands, and options for arrays alone."""
    if n_symbolic < len(operands):
        from feinsum.ir import Operand

        other = next(k for k, x in enumerate(operands) if not isinstance(x, Operand))
        raise InvalidEinsumError(
            f"operand {other} is of type {type(operands[other]).__name__}, while "
            "others are symbolic; pass only arrays to compute a result, or only "
            "operands from feinsum.array for a symbolic einsum",
            rules=("operand",),
        )
    if not is_plain:
        raise InvalidEinsumError(
            "options such as out, dtype and device apply to arrays; a symbolic einsum "
            "takes only subscripts and operands",
            rules=("option",),
        )


def _cast_operands(
    text: str,
    operands: Sequence[Any],
    out: Any,
    dtype: DTypeLike | None,
    casting: Any,
    *,
    in_steps: bool,
) -> tuple[Any, ...]:
    """Cast the operands to the dtype of the computation; equal objects stay equal.

    Sparse operands stay as they are: dense ones of a wider dtype suffice. All steps of
    a path have one dtype. Errors in the subscripts come before those about dtypes.
    """
    is_free = dtype is None and casting in ("safe", "same_kind", "unsafe")
    has_target = in_steps or isinstance(out, np.ndarray)
    if is_free and not (has_target and _is_mixed(out, operands)):
        return tuple(operands)
    is_kept = {id(x): is_free and has_sparse([x]) for x in operands}
    arrays = {
        id(x): x if is_kept[id(x)] else as_array(x, k) for k, x in enumerate(operands)
    }
    dtypes = [_get_dtype(array) for array in arrays.values()]
    target_dtype = _find_common_dtype(dtypes, out, dtype)
    for position, operand in enumerate(operands):
        source = _get_dtype(arrays[id(operand)])
        if not np.can_cast(source, target_dtype, casting):
            read_terms(text, [np.shape(arrays[id(x)]) for x in operands])
            raise InvalidTypeError(
                f"operand {position} has dtype {source}; casting={casting!r} does not "
                f"allow a cast to {target_dtype}",
                rules=("dtype",),
            )
    if isinstance(out, np.ndarray) and not np.can_cast(
        target_dtype, out.dtype, casting
    ):
        raise InvalidTypeError(
            f"out has dtype {out.dtype}; casting={casting!r} does not allow a cast "
            f"from {target_dtype}",
            rules=("dtype",),
        )
    with np.errstate(all="ignore"):
        cast_arrays = {
            operand_id: array
            if is_kept[operand_id]
            else array.astype(target_dtype, copy=False)
            for operand_id, array in arrays.items()
        }
    return tuple(cast_arrays[id(operand)] for operand in operands)


def _is_mixed(out: Any, operands: Sequence[Any]) -> bool:
    """Return whether arrays on the host, including ``out``, may differ in dtype."""
    dtypes = {x.dtype if type(x) is np.ndarray else None for x in operands}
    if isinstance(out, np.ndarray):
        dtypes.add(out.dtype)
    if len(dtypes) == 1 and None not in dtypes:
        return False
    return not any(is_cuda_array(x) or is_device_array(x) for x in operands)


def _get_dtype(array: Any) -> np.dtype[Any]:
    """Return the dtype of the entries; for sparse trees, that of the values."""
    tree = array[0] if isinstance(array, (list, tuple)) else array
    values: Any = getattr(tree, "values", tree)
    dtype: np.dtype[Any] = values.dtype
    return dtype


def _find_common_dtype(
    dtypes: Sequence[np.dtype[Any]], out: Any, dtype: DTypeLike | None
) -> np.dtype[Any]:
    """Return the given dtype, or else numpy's result type of operands and ``out``."""
    try:
        if dtype is not None:
            return np.dtype(dtype)
        into = [out.dtype] if isinstance(out, np.ndarray) else []
        return np.result_type(*dtypes, *into)
    except TypeError as error:
        raise InvalidTypeError(
            f"dtype={dtype!r} for operands of dtype {', '.join(map(str, dtypes))}: "
            f"{error}",
            rules=("dtype",),
        ) from None


def _finish_result(result: Any, out: Any, order: str, operands: Sequence[Any]) -> Any:
    """Copy the result into ``out``, or bring it into the requested memory order."""
    if out is None:
        return _as_scalar(_order_result(result, order, operands))
    if not isinstance(out, np.ndarray) or out.shape != result.shape:
        kind = InvalidEinsumError if isinstance(out, np.ndarray) else InvalidTypeError
        raise kind(
            f"out has type {type(out).__name__}, shape {getattr(out, 'shape', None)}; "
            f"expected a numpy array of shape {result.shape}",
            rules=("shape",),
        )
    with np.errstate(all="ignore"):
        np.copyto(out, result, casting="unsafe")
    return out


def _order_result(result: Any, order: str, operands: Sequence[Any]) -> Any:
    if order == "K":
        return result
    if not hasattr(result, "flags"):
        raise InvalidEinsumError(
            f"order={order!r} is for results that are arrays of numpy or CuPy; omit it "
            f"for {describe_type(result)}",
            rules=("option",),
        )
    if order == "A":
        is_fortran = (
            isinstance(x, np.ndarray) and x.flags.f_contiguous for x in operands
        )
        order = "F" if all(is_fortran) else "C"
    flags = result.flags
    is_so = flags.c_contiguous if order == "C" else flags.f_contiguous
    return result if is_so else result.copy(order)
