"""``call_einsum``: :func:`numpy.einsum` with a retrieved kernel."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import numpy as np
from numpy import ndarray

from feinsum.calling.by_numpy import StepsCall, numpy_call, steps_call
from feinsum.calling.compilers import outside_of_compilers
from feinsum.calling.fallback import (
    answer_by_numpy,
    start_build,
)
from feinsum.calling.host.general import GeneralCall
from feinsum.calling.kernel_cache import CACHE_BOUND, GENERAL_BOUND, Call, Calls
from feinsum.calling.options import CallOptions
from feinsum.calling.place import name_of, place_of
from feinsum.calling.reading.dtypes import first_uses
from feinsum.calling.reading.forms import Form, as_array, form_of, has_sparse
from feinsum.calling.reading.libraries import (
    as_given,
    by_override,
    has_override,
    is_tensor,
    memory_of,
)
from feinsum.calling.reading.terms import read_terms
from feinsum.device_arrays import is_cuda_array, is_device_array
from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.memory import remembered
from feinsum.options import (
    DEVICE_VARIABLE,
    EFFORT_VARIABLE,
    Effort,
    effort_of,
    named_intermediate_bytes,
)
from feinsum.words import type_in_words

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from feinsum.calling.host.builder import BuildRequest
    from feinsum.calling.host.general import Built
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.reading import Reading
    from feinsum.db import Database
    from feinsum.records import Policy
    from feinsum.retrieval import OnMiss


class _Options(TypedDict, total=False):
    device: str | None
    database: Database
    policy: Policy | None
    on_miss: OnMiss
    effort: Effort | None


@overload
def call_einsum(
    subscripts: str,
    *operands: NDArray[Any],
    out: NDArray[Any] | None = None,
    **options: Unpack[_Options],
) -> NDArray[Any]: ...


@overload
def call_einsum(
    subscripts: str, *operands: Any, out: Any = None, **options: Unpack[_Options]
) -> Any: ...


@outside_of_compilers
def call_einsum(
    subscripts: str,
    *operands: Any,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    on_miss: OnMiss = "return",
    effort: Effort | None = None,
    out: Any = None,
) -> Any:
    """Evaluate an einsum of arrays with the best known or predicted recipe.

    Calls with these subscripts, shapes and dtypes are computed without a kernel of
    their own until one pays off, and wait for none; see
    :mod:`feinsum.calling.host.general`. Then they run it, even after new facts: see
    :func:`feinsum.calling.clear_call_cache`.

    Args:
        subscripts: as for :func:`numpy.einsum`; any other character is an index, too,
            and longer names are in braces. Axes of extent 1 are broadcast.
        operands: arrays, including views with any strides; anything that numpy can
            convert to an array, or that supports DLPack; or all of them C-contiguous
            :class:`pyopencl.array.Array` of one context. An object passed twice is one
            operand of the kernel. The host reads arrays of the result's dtype in place.
            One operand may be sparse, from :mod:`feinsum.sparse`, ``scipy.sparse`` or
            pydata's ``sparse``.
        device: part of a device name, for operands on the host; see
            :func:`feinsum.measure.open_device`.
        database, policy, on_miss: as for :func:`feinsum.retrieve`.
        effort: as for :func:`feinsum.retrieve`. The default is ``amortized``: a
            process of its own builds the kernel. With any other effort, and with a
            device, policy, ``on_miss`` or a database that is an object, the first call
            builds the kernel.
        out: an array for the result, where the operands are, of exactly its shape and
            dtype.

    Returns:
        A new array of numpy's result type (of rank 0 for a scalar), on the device if
        the operands are there. For a single operand without a sum, a view of it. With
        ``out``, that array. If the output has exactly the indices of a sparse operand,
        a :class:`feinsum.sparse.CSF` with its pattern.

    Raises:
        InvalidEinsumError: if subscripts and shapes do not match; operands are counted
            from 0.
        InvalidTypeError: if a dtype, or the type of an argument, is not possible.
        MeasurementError: if there is no memory; if the given device is not there,
            refuses or fails. Without a device, numpy answers: see
            :mod:`feinsum.calling.fallback`.
        FeinsumError: with ``on_miss="raise"``, the reason why there is no recipe; also
            for an unknown effort.

    >>> from feinsum.records import InMemoryStore
    >>> facts = InMemoryStore()
    >>> call_einsum("ij,j", np.eye(2), [3.0, 4.0], database=facts).tolist()
    [3.0, 4.0]
    """
    n_objects = len({id(x) for x in operands})
    how = database, policy, on_miss, effort
    gpu_key = None
    if out is None:
        # an array given twice makes another einsum, which the key there cannot tell
        if n_objects == len(operands) and all(type(x) is ndarray for x in operands):
            return _of_arrays(subscripts, operands, device, how)
        if device is None:
            from feinsum.calling.gpu.quick import quick_key, ready_result

            gpu_key = quick_key(subscripts, operands, n_objects, *how)
            result = None if gpu_key is None else ready_result(gpu_key, operands)
            if result is not None:
                return result
    return _called(subscripts, operands, device, _options(how), out, gpu_key)


_How: TypeAlias = "tuple[Database, Policy | None, OnMiss, Effort | None]"
"""How a kernel is looked up, as it was given."""


def _of_arrays(
    subscripts: str, operands: Sequence[Any], device: str | None, how: _How
) -> Any:
    """The result for arrays of numpy, by keys that are quick to compute."""
    key = _quick_key(subscripts, operands, device, how)
    calls = remembered(Calls)
    call: Call | None = calls.quick.get(key) or calls.general.get(key)
    if type(call) is GeneralCall and call.built is not None:
        calls.general.pop(key, None)
        call = _keep(calls.quick, key, call.built, CACHE_BOUND)
    if call is None:
        call = _prepared(subscripts, operands, operands, device, _options(how), None)
        if isinstance(call, GeneralCall | StepsCall):
            _keep(calls.general, key, call, GENERAL_BOUND)
        else:
            _keep(calls.quick, key, call, CACHE_BOUND)
    try:
        return call.run(operands)
    except Exception as error:
        if isinstance(call, StepsCall) or device is not None or how[2] == "raise":
            raise
        return answer_by_numpy(call.reading, operands, None, error)


def known_result(subscripts: str, operands: Sequence[Any]) -> Any:
    """The result of a call without options whose like was made before.

    What takes a call without a kernel its time is to find out what it is: this is that
    part of :func:`call_einsum`, again, with as few steps as can be.

    Returns:
        NotImplemented for any other call.
    """
    for operand in operands:
        if type(operand) is not ndarray:
            return NotImplemented
    known = remembered(Calls).general
    call = known.get(_quick_key(subscripts, operands, None, _USUAL))
    if type(call) is not GeneralCall or call.built is not None:
        return NotImplemented
    return call.run(operands)


T = TypeVar("T")


def _keep(kept: dict[Hashable, T], key: Hashable, call: T, bound: int) -> T:
    """No LRU cache, which is slower to read: ``prepared`` still has the calls."""
    if len(kept) >= bound:
        kept.clear()
    kept[key] = call
    return call


_USUAL: _How = (None, None, "return", None)


def _quick_key(
    subscripts: str, operands: Sequence[Any], device: str | None, how: _How
) -> tuple[Hashable, ...]:
    database, policy, on_miss, effort = how
    return (
        subscripts,
        os.environ.get(DEVICE_VARIABLE, "") if device is None else device,
        name_of(database),
        policy,
        on_miss,
        os.environ.get(EFFORT_VARIABLE) if effort is None else effort,
        os.getpid(),
        *[(x.shape, x.strides, x.dtype, x.flags.aligned) for x in operands],
    )


def _options(how: _How) -> CallOptions:
    database, policy, on_miss, effort = how
    amount = effort_of(effort, default="amortized")
    return CallOptions(database, policy, on_miss, amount)


def _called(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None,
    options: CallOptions,
    out: Any,
    gpu_key: Hashable | None,
) -> Any:
    """A call with any operands and any ``out``.

    Args:
        gpu_key: the key of calls on a GPU.
    """
    if any(type(x) is not np.ndarray and is_cuda_array(x) for x in operands):
        from feinsum.calling.gpu.call import call_on_gpu  # loads Loopy, for a second

        return call_on_gpu(subscripts, operands, device, options, out, gpu_key)
    if has_sparse(operands):
        return _called_sparse(subscripts, operands, device, options, out)
    if has_override(operands):
        given = {} if out is None else {"out": out}
        return by_override(subscripts, operands, **given)
    if is_tensor(out):
        memory = memory_of(out)
        _called(subscripts, operands, device, options, memory, gpu_key)
        return out
    arrays = [_as_array(operand) for operand in operands]
    if out is not None:
        _check_out(out)
    call = _prepared(subscripts, operands, arrays, device, options, out)
    try:
        result = call.run(arrays, out)
    except Exception as error:
        is_on_host = all(type(x) is ndarray for x in arrays)
        if isinstance(call, StepsCall) or not is_on_host:
            raise
        if device is not None or options.on_miss == "raise":
            raise
        result = answer_by_numpy(call.reading, arrays, out, error)
    return as_given(result, operands) if out is None else out


def _called_sparse(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None,
    options: CallOptions,
    out: Any,
) -> Any:
    """A call with a sparse operand and any ``out``."""
    from feinsum.calling.sparse.call import call_sparse

    if out is not None:
        _check_out(out)
    with np.errstate(all="ignore"):
        result = call_sparse(subscripts, operands, device, options, out)
    if out is None:
        return as_given(result, operands)
    if type(result) is not ndarray or (out.shape, out.dtype) != (
        result.shape,
        result.dtype,
    ):
        raise InvalidEinsumError(
            f"out has shape {out.shape} and dtype {out.dtype}, the result is "
            f"{type_in_words(result)} of shape {result.shape}",
            rules=("shape",),
        )
    if not np.may_share_memory(out, result):
        np.copyto(out, result)
    return out


def prepare_call(
    subscripts: str,
    *operands: Any,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    on_miss: OnMiss = "return",
    effort: Effort | None = None,
    out: Any = None,
) -> PreparedCall | StepsCall:
    """Build what :func:`call_einsum` keeps for these arguments, without computing."""
    arrays = [_as_array(operand) for operand in operands]
    options = _options((database, policy, on_miss, effort))
    call = _prepared(subscripts, operands, arrays, device, options, out)
    if isinstance(call, GeneralCall):
        call = call.with_kernel(arrays)
    return call.settled


def find_call(subscripts: str, arrays: Sequence[Any]) -> Call | None:
    """What this process has kept for a call without options; None for nothing."""
    key = _quick_key(subscripts, arrays, None, _USUAL)
    calls = remembered(Calls)
    return calls.quick.get(key) or calls.general.get(key)


def prepare_without_kernel(subscripts: str, arrays: Sequence[Any]) -> StepsCall:
    """A call in steps of one or two arrays.

    Raises:
        InvalidEinsumError: if subscripts and shapes do not match.
    """
    terms = read_terms(subscripts, [array.shape for array in arrays])
    dtypes = [array.dtype for array in arrays]
    return steps_call(terms, dtypes, _max_entries(dtypes))


def _as_array(operand: Any) -> Any:
    if type(operand) is np.ndarray or is_device_array(operand):
        return operand
    return as_array(operand)


def _prepared(
    subscripts: str,
    operands: Sequence[Any],
    arrays: Sequence[Any],
    device: str | None,
    options: CallOptions,
    out: Any,
) -> Call:
    place = place_of(arrays, device)
    forms = tuple(map(form_of if place.is_host else _form_there, arrays))
    target = None if out is None else form_of(out)
    first = first_uses(operands)
    where = (
        place,
        name_of(options.database),
        options.policy,
        options.on_miss,
        options.effort,
    )

    def make() -> Call:
        given = [(form.shape, form.dtype) for form in forms]
        # another process, which would build the kernel, has no object of this one
        usual = CallOptions(
            None if is_in_process(options.database) else options.database
        )
        is_usual = place.is_host and options == usual and not place.selector
        steps = None
        if place.is_host and options.on_miss != "raise":
            terms = read_terms(subscripts, [shape for shape, _ in given])
            dtypes = [dtype for _, dtype in given]
            may_predict = options.effort in ("amortized", "estimate")
            call = numpy_call(terms, dtypes, may_predict=may_predict)
            if call is not None:
                return call
            if is_usual:
                steps = steps_call(terms, dtypes, _max_entries(dtypes))
                steps.subscripts = subscripts

        def read() -> Reading:
            from feinsum.calling.reading import read_shapes  # steps need no einsum

            return read_shapes(subscripts, given, first)

        def build(arrays: Sequence[Any]) -> Future[Built]:
            def build_with_kernel() -> PreparedCall:
                # loads Loopy, for a second
                from feinsum.calling.host.building import build_call

                # of what is computed to check a kernel
                with np.errstate(all="ignore"):
                    return build_call(read(), arrays, forms, target, where, options)

            is_optional = device is None and options.on_miss != "raise"
            return start_build(
                build_with_kernel, read(), is_optional=is_optional and place.is_host
            )

        database = options.database

        def request() -> BuildRequest | None:
            if not (database is None or isinstance(database, str | os.PathLike)):
                return None
            from feinsum.calling.host.builder import BuildRequest

            return BuildRequest.of(subscripts, forms, first, database)

        if steps is not None:
            _check_form(target, steps.shape, steps.result_dtype)
        else:
            reading = read()
            _check_form(target, reading.shape, reading.dtype)
        return GeneralCall(read, steps, build, request)

    key = (str(subscripts), forms, target, first, where)
    call = remembered(Calls).prepared.get(key, make)
    if isinstance(call, GeneralCall) and call.steps is None:
        # not while making it: what is built may call einsum, from another thread
        return call.with_kernel(arrays)
    return call


def _form_there(array: Any) -> Form:
    """The form of an array on a device, in C order."""
    return Form(array.shape, (), array.dtype, True)


def _check_out(out: Any) -> None:
    if not isinstance(out, np.ndarray):
        raise InvalidTypeError(
            f"out is {type_in_words(out)}; expected a numpy array", rules=("shape",)
        )
    if not out.flags.writeable:
        raise InvalidEinsumError(
            "out is read-only; expected a writable array", rules=("shape",)
        )


def is_in_process(database: Database) -> bool:
    """Whether facts were given that no other process has."""
    return not (database is None or isinstance(database, str | os.PathLike))


def _check_form(out: Form | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if out is not None and (out.shape, out.dtype) != (shape, dtype):
        raise InvalidEinsumError(
            f"out has shape {out.shape} and dtype {out.dtype}, the result has "
            f"{shape} and {dtype}",
            rules=("shape",),
        )


def _max_entries(dtypes: Sequence[np.dtype[Any]]) -> int | None:
    """Of an intermediate, where a limit is set.

    Raises:
        MeasurementError: if that is no number.
    """
    limit = named_intermediate_bytes() if len(dtypes) > 2 else None
    return None if limit is None else limit // np.result_type(*dtypes).itemsize
