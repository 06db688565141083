"""``einsum`` with the options of numpy, and of operands other than arrays of numpy."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.calling.compilers import outside_of_compilers
from feinsum.calling.reading.interleaved import as_subscripts
from feinsum.calling.reading.libraries import (
    as_given,
    by_override,
    has_override,
    is_jax_array,
    is_tensor,
    memory_of,
)
from feinsum.contraction.direct import compute
from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.words import type_in_words

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
ORDERS = ("C", "F", "A", "K")
CHECKED = ("order", "casting")
HOW = {"device", "database", "policy", "on_miss", "effort"}


@outside_of_compilers
def einsum_with_options(
    subscripts: Any,
    operands: Sequence[Any],
    *,
    out: Any = None,
    dtype: DTypeLike | None = None,
    order: str | None = "K",
    casting: str = "safe",
    optimize: Any = True,
    **how: Any,
) -> Any:
    """The result of :func:`feinsum.einsum` for any arguments."""
    is_plain = out is None and dtype is None and order == "K" and casting == "safe"
    if is_plain and optimize is True and not how and type(subscripts) is str:
        # loaded with the first call of arrays: symbolic einsums need no more
        module = sys.modules.get("feinsum.calling.call")
        known_result = getattr(module, "known_result", None)
        if known_result is not None:
            result = known_result(subscripts, operands)
            if result is not NotImplemented:
                return _as_scalar(result)
    text, given = as_subscripts((subscripts, *operands))
    if is_plain and optimize is True and not how and text is not subscripts:
        result = compute(text, given)
        if result is not NotImplemented:
            return result
    # loaded by whoever made a symbolic operand; another thread may still import it
    symbol = getattr(sys.modules.get("feinsum.ir"), "Operand", ())
    n_symbolic = sum(isinstance(operand, symbol) for operand in given)
    if n_symbolic:
        from feinsum.ir import einsum as symbolic_einsum

        _check_symbolic(given, n_symbolic, is_plain and optimize is True and not how)
        return symbolic_einsum(text, *given)
    if how.keys() - HOW:
        check_call_options("einsum", how, HOW)
    _check_optimize(optimize)
    from feinsum.calling.call import call_einsum  # symbolic einsums need no more
    from feinsum.calling.reading.forms import as_array
    from feinsum.device_arrays import is_cuda_array

    if not is_plain:
        casting, order = _name("casting", casting), _name("order", order)
    in_steps = _is_path(optimize)
    if isinstance(optimize, str) and optimize != "auto":
        from feinsum.calling.contraction import is_search

        in_steps = is_search(optimize, given)
    if not is_plain or in_steps:
        given_options = {"out": out, "dtype": dtype, "order": order, "casting": casting}
        if has_override(given):
            return _by_override(text, given, given_options)
        if is_tensor(out) and not is_cuda_array(out):
            given_options["out"] = memory_of(out)
            options = {"optimize": optimize, **given_options, **how}
            einsum_with_options(text, given, **options)
            return out
        _check_out(out)
    operands = _cast(text, given, out, dtype, casting, in_steps=in_steps)
    if in_steps:
        from feinsum.calling.contraction import follow_path, requested_path

        path = requested_path(text, operands, optimize, None)
        result = follow_path(text, operands, path, how)
    elif _is_for_call(out, operands):
        return call_einsum(text, *operands, out=out, **how)
    else:
        result = call_einsum(text, *operands, **how)
    if is_plain:
        return _as_scalar(result)
    if (is_tensor(result) or is_jax_array(result)) and not is_cuda_array(result):
        result = as_array(result)
    result = _finished(result, out, order or "K", given)
    return as_given(result, given) if out is None else out


def _by_override(text: str, given: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The einsum of a library, with the options that are not those by default."""
    usual = {"out": None, "dtype": None, "order": "K", "casting": "safe"}
    rest = {name: x for name, x in options.items() if x is not usual[name]}
    return by_override(text, given, **rest)


def _as_scalar(result: Any) -> Any:
    """Numpy's scalar in place of an array of rank 0."""
    return result[()] if type(result) is np.ndarray and not result.ndim else result


def _is_for_call(out: Any, operands: Sequence[Any]) -> bool:
    """Whether the call writes into an array itself, without a cast."""
    if out is None:
        return False
    from feinsum.calling.reading.forms import as_array, has_sparse
    from feinsum.device_arrays import is_cuda_array

    if any(map(is_cuda_array, (out, *operands))):
        return True
    if not isinstance(out, np.ndarray) or has_sparse(operands):
        return False
    return bool(out.dtype == np.result_type(*map(as_array, operands)))


def _is_path(optimize: Any) -> bool:
    return isinstance(optimize, Sequence) and not isinstance(optimize, str)


def check_call_options(
    caller: str,
    given: Iterable[str],
    known: Collection[str] = HOW | {"dtype", *CHECKED},
) -> None:
    """Refuse an option that a function does not take, with the most similar name.

    Raises:
        TypeError: naming the function that was called.
    """
    unknown = sorted(set(given) - set(known))
    if not unknown:
        return
    names = sorted({"out", "dtype", "optimize", *CHECKED, *HOW} - {unknown[0]})
    from difflib import get_close_matches

    near = get_close_matches(unknown[0], names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    raise TypeError(f"{caller}() has no option {unknown[0]!r}; {hint}")


def _check_optimize(optimize: Any) -> None:
    if optimize is None or isinstance(optimize, bool) or _is_path(optimize):
        return
    if isinstance(optimize, str):
        from feinsum.paths import is_path_name

        if is_path_name(optimize):
            return
    kind = InvalidEinsumError if isinstance(optimize, str) else InvalidTypeError
    raise kind(
        f"optimize={optimize!r:.60} is not a boolean, a search of opt_einsum such as "
        "'greedy', or a path such as [(0, 1), (0, 1)]",
        rules=("option",),
    )


def _name(option: str, value: Any) -> str:
    """One of the names that an option has; of an order in any case, or None for K."""
    known = CASTINGS if option == "casting" else ORDERS
    name = value.decode() if isinstance(value, bytes) else value
    if option == "order":
        name = "K" if name is None else name.upper() if isinstance(name, str) else name
    if isinstance(name, str) and name in known:
        return name
    kind = InvalidEinsumError if isinstance(name, str) else InvalidTypeError
    raise kind(
        f"{option}={value!r}; expected one of {', '.join(known)}", rules=("option",)
    )


def _check_out(out: Any) -> None:
    """Refuse what cannot take a result, before one is computed."""
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise InvalidEinsumError(
            "out is read-only; expected a writable array", rules=("shape",)
        )
    if out is None or isinstance(out, np.ndarray) or hasattr(out, "__dlpack_device__"):
        return
    raise InvalidTypeError(
        f"out is {type_in_words(out)}; expected an array, of numpy or where the "
        "operands are",
        rules=("shape",),
    )


def _check_symbolic(given: Sequence[Any], n_symbolic: int, is_plain: bool) -> None:
    """Refuse options that only apply to numbers."""
    if n_symbolic < len(given):
        from feinsum.ir import Operand

        other = next(k for k, x in enumerate(given) if not isinstance(x, Operand))
        raise InvalidEinsumError(
            f"operand {other} is of type {type(given[other]).__name__}, while others "
            "are symbolic; pass only arrays to compute a result, or only operands from "
            "feinsum.array for a symbolic einsum",
            rules=("operand",),
        )
    if not is_plain:
        raise InvalidEinsumError(
            "options such as out, dtype and device apply to arrays; a symbolic einsum "
            "takes only subscripts and operands",
            rules=("option",),
        )


def _cast(
    text: str,
    operands: Sequence[Any],
    out: Any,
    dtype: DTypeLike | None,
    casting: Any,
    *,
    in_steps: bool,
) -> tuple[Any, ...]:
    """Operands in the dtype of the computation; an object given twice stays one.

    Sparse operands stay as they are: dense ones of a wider dtype suffice.

    Args:
        text: the subscripts; if they do not fit, either, that is said first.
        in_steps: whether a path is followed, whose steps share a dtype.
    """
    is_free = dtype is None and casting in ("safe", "same_kind", "unsafe")
    has_target = in_steps or isinstance(out, np.ndarray)
    if is_free and not (has_target and _is_mixed(out, operands)):
        return tuple(operands)
    from feinsum.calling.reading.forms import as_array, has_sparse
    from feinsum.calling.reading.terms import read_terms

    is_kept = {id(x): is_free and has_sparse([x]) for x in operands}
    arrays = {id(x): x if is_kept[id(x)] else as_array(x) for x in operands}
    dtypes = [_dtype_of(array) for array in arrays.values()]
    wanted = _common_dtype(dtypes, out, dtype)
    for position, operand in enumerate(operands):
        found = _dtype_of(arrays[id(operand)])
        if not np.can_cast(found, wanted, casting):
            read_terms(text, [np.shape(arrays[id(x)]) for x in operands])
            raise InvalidTypeError(
                f"operand {position} has dtype {found}; casting={casting!r} does not "
                f"allow a cast to {wanted}",
                rules=("dtype",),
            )
    if isinstance(out, np.ndarray) and not np.can_cast(wanted, out.dtype, casting):
        raise InvalidTypeError(
            f"out has dtype {out.dtype}; casting={casting!r} does not allow a cast "
            f"from {wanted}",
            rules=("dtype",),
        )
    with np.errstate(all="ignore"):
        made = {
            at: array if is_kept[at] else array.astype(wanted, copy=False)
            for at, array in arrays.items()
        }
    return tuple(made[id(operand)] for operand in operands)


def _is_mixed(out: Any, operands: Sequence[Any]) -> bool:
    """Whether arrays on the host, with ``out``, may have several dtypes."""
    dtypes = {x.dtype if type(x) is np.ndarray else None for x in operands}
    if isinstance(out, np.ndarray):
        dtypes.add(out.dtype)
    if len(dtypes) == 1 and None not in dtypes:
        return False
    from feinsum.device_arrays import is_cuda_array, is_device_array

    return not any(is_cuda_array(x) or is_device_array(x) for x in operands)


def _dtype_of(array: Any) -> np.dtype[Any]:
    """The dtype of entries; of a tree, or several of one tensor, that of its values."""
    tree = array[0] if isinstance(array, (list, tuple)) else array
    values: Any = getattr(tree, "values", tree)
    dtype: np.dtype[Any] = values.dtype
    return dtype


def _common_dtype(
    dtypes: Sequence[np.dtype[Any]], out: Any, dtype: DTypeLike | None
) -> np.dtype[Any]:
    """The dtype asked for; else that of numpy for the operands and ``out``."""
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


def _finished(result: Any, out: Any, order: str, given: Sequence[Any]) -> Any:
    """The result in ``out``, or in the requested memory order."""
    if out is None:
        return _as_scalar(_in_order(result, order, given))
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


def _in_order(result: Any, order: str, given: Sequence[Any]) -> Any:
    if order == "K":
        return result
    if not hasattr(result, "flags"):
        raise InvalidEinsumError(
            f"order={order!r} is for results that are arrays of numpy or CuPy; omit it "
            f"for {type_in_words(result)}",
            rules=("option",),
        )
    if order == "A":
        order = "F" if all(map(_is_fortran, given)) else "C"
    flags = result.flags
    is_so = flags.c_contiguous if order == "C" else flags.f_contiguous
    return result if is_so else result.copy(order)


def _is_fortran(operand: Any) -> bool:
    return isinstance(operand, np.ndarray) and operand.flags.f_contiguous
