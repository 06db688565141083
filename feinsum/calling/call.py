"""``call_einsum``: :func:`numpy.einsum` with a retrieved kernel.

A call of ``"ij,jk->ik", A, B`` goes through these values::

    quick key  ->  kept call  ------------------------------------------->  result
       | first call
    CallKey    ->  GeneralCall: steps, and a kernel once it pays off  ---->  result
       | effort, device, policy or store given
    EinsumCall ->  CallKernel  ->  PreparedCall  ------------------------->  result

Operands on a GPU and sparse ones leave this path early, for packages of their own.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack, overload

import numpy as np
from numpy import ndarray

from feinsum.calling.by_numpy import (
    FallbackCall,
    NumpyStepsCall,
    answer_by_numpy,
    build_numpy_call,
    build_steps_call,
)
from feinsum.calling.host.general import CallFamily, GeneralCall
from feinsum.calling.kernel_cache import (
    CACHE_BOUND,
    GENERAL_BOUND,
    CallKey,
    Calls,
    LookupOptions,
    make_database_key,
    make_device_key,
)
from feinsum.calling.operands import (
    ArrayForm,
    as_array,
    as_given,
    check_fit,
    check_out,
    evaluate_by_override,
    find_first_uses,
    get_form,
    get_memory,
    has_override,
    has_sparse,
    is_tensor,
)
from feinsum.calling.terms import read_terms
from feinsum.contraction.direct import end_budget
from feinsum.errors import BuildError
from feinsum.libraries import exclude_from_compilers, is_cuda_array, is_device_array
from feinsum.memory import get_remembered
from feinsum.options import (
    DEVICE_VARIABLE,
    EFFORT_VARIABLE,
    Effort,
    get_effort,
    get_intermediate_bytes,
)
from feinsum.subscripts import parse_subscripts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.db import Database
    from feinsum.records import Policy
    from feinsum.retrieval import OnMiss


Call: TypeAlias = "PreparedCall | FallbackCall | GeneralCall | NumpyStepsCall"


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


@exclude_from_compilers
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
    their own until one pays off, and never wait for it; see
    :mod:`feinsum.calling.host.general`. From then on they run this kernel, even if new
    facts are recorded: see :func:`feinsum.calling.clear_call_cache`.

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
        database: as for :func:`feinsum.retrieve`.
        policy: as for :func:`feinsum.retrieve`.
        on_miss: as for :func:`feinsum.retrieve`.
        effort: as for :func:`feinsum.retrieve`. By default ``amortized``: a separate
            process builds the kernel. With any other effort, and with a device, policy,
            ``on_miss`` or a database that is an object, the first call builds the
            kernel.
        out: an array for the result, where the operands are, with exactly the shape and
            dtype of the result.

    Returns:
        A new array of numpy's result type (of rank 0 for a scalar), on the device if
        the operands are there. For a single operand without a sum, a view of it. With
        ``out``, that array. If the output has exactly the indices of a sparse operand,
        a :class:`feinsum.sparse.CSF` with its pattern.

    Raises:
        InvalidEinsumError: if subscripts and shapes do not match; operands are counted
            from 0.
        InvalidTypeError: if a dtype, or the type of an argument, is not possible.
        MeasurementError: if there is not enough memory; if the given device does not
            exist, refuses or fails. If no device is given, numpy computes the result
            instead: see :mod:`feinsum.calling.by_numpy`.
        FeinsumError: with ``on_miss="raise"``, the reason why there is no recipe; also
            for an unknown effort.

    >>> from feinsum.records import InMemoryStore
    >>> facts = InMemoryStore()
    >>> call_einsum("ij,j", np.eye(2), [3.0, 4.0], database=facts).tolist()
    [3.0, 4.0]
    """
    are_arrays = all(type(x) is ndarray for x in operands)
    n_objects = len({id(x) for x in operands})
    # an array given twice makes another einsum, which the quick key cannot tell apart
    if are_arrays and n_objects == len(operands) and _is_array_or_none(out):
        key = _make_quick_key(
            subscripts, operands, out, device, database, policy, on_miss, effort
        )
        call = _find_ready(key)
        if call is None:
            if out is not None:
                check_out(out)
            options = make_lookup_options(database, policy, on_miss, effort)
            call = _keep_ready(
                key, _prepare(subscripts, operands, operands, device, options, out)
            )
        try:
            return call.run(operands, out)
        except Exception as error:  # noqa: BLE001  (raised again if it has to be)
            return _run_by_numpy(call, operands, device, on_miss, out, error)
    gpu_key = None
    if out is None and device is None and not are_arrays:
        from feinsum.calling.gpu.quick import make_quick_key, run_ready

        gpu_key = make_quick_key(
            subscripts, operands, n_objects, database, policy, on_miss, effort
        )
        result = None if gpu_key is None else run_ready(gpu_key, operands)
        if result is not None:
            return result
    options = make_lookup_options(database, policy, on_miss, effort)
    return _call_any(subscripts, operands, device, options, out, gpu_key)


def _is_array_or_none(out: Any) -> bool:
    return out is None or type(out) is ndarray


def known_result(subscripts: str, operands: Sequence[Any], out: Any = None) -> Any:
    """Evaluate a call without options, if this process has cached an equal one.

    A small call without a kernel spends most of its time on its key. This function
    repeats that part of :func:`call_einsum` in as few steps as possible.

    Returns:
        The result; NotImplemented for any other call.
    """
    for operand in operands:
        if type(operand) is not ndarray:
            return NotImplemented
    if not _is_array_or_none(out):
        return NotImplemented
    calls = get_remembered(Calls).general
    call = calls.get(_make_quick_key(subscripts, operands, out))
    if type(call) is not GeneralCall or call.built is not None:
        return NotImplemented
    return call.run(operands, out)


def _make_quick_key(
    subscripts: str,
    operands: Sequence[Any],
    out: Any = None,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    on_miss: OnMiss = "return",
    effort: Effort | None = None,
) -> tuple[Hashable, ...]:
    """Build the key of a call of arrays: the options as given, and the arrays' forms.

    The form of ``out`` includes whether it is writable, which is checked only once.
    The key contains the values of environment variables, which are read at every call,
    and the process id, since kernels do not survive a fork.
    """
    return (
        subscripts,
        os.environ.get(DEVICE_VARIABLE, "") if device is None else device,
        make_database_key(database),
        policy,
        on_miss,
        os.environ.get(EFFORT_VARIABLE) if effort is None else effort,
        os.getpid(),
        None
        if out is None
        else (
            out.shape,
            out.strides,
            out.dtype,
            out.flags.aligned,
            out.flags.writeable,
        ),
        *[(x.shape, x.strides, x.dtype, x.flags.aligned) for x in operands],
    )


def _find_ready(key: Hashable) -> Call | None:
    """Return the call kept under a quick key; its kernel, once that is faster."""
    calls = get_remembered(Calls)
    call: Call | None = calls.quick.get(key) or calls.general.get(key)
    if type(call) is GeneralCall and call.built is not None:
        calls.general.pop(key, None)
        return _keep_ready(key, call.built)
    return call


def _keep_ready(key: Hashable, call: Call) -> Call:
    """Keep a call under a quick key.

    A plain dictionary is faster to read than an LRU cache. It may drop calls, since
    ``Calls.prepared`` still has them.
    """
    calls = get_remembered(Calls)
    ready: dict[Hashable, Any] = calls.quick
    bound = CACHE_BOUND
    if isinstance(call, GeneralCall | NumpyStepsCall):
        ready, bound = calls.general, GENERAL_BOUND
    if len(ready) >= bound:
        ready.clear()
    ready[key] = call
    return call


def make_lookup_options(
    database: Database, policy: Policy | None, on_miss: OnMiss, effort: Effort | None
) -> LookupOptions:
    chosen = get_effort(effort, default="amortized")
    return LookupOptions(database, policy, on_miss, chosen)


def _call_any(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None,
    options: LookupOptions,
    out: Any,
    gpu_key: Hashable | None,
) -> Any:
    """Evaluate a call with any operands and any ``out``."""
    # a GPU first: its arrays must not be read as arrays of the host
    if any(type(x) is not np.ndarray and is_cuda_array(x) for x in operands):
        from feinsum.calling.gpu.call import call_on_gpu  # not for arrays of numpy

        return call_on_gpu(subscripts, operands, device, options, out, gpu_key)
    if has_sparse(operands):
        return _call_sparse(subscripts, operands, device, options, out)
    if has_override(operands):
        out_option = {} if out is None else {"out": out}
        return evaluate_by_override(subscripts, operands, **out_option)
    if is_tensor(out):
        memory = get_memory(out)
        _call_any(subscripts, operands, device, options, memory, gpu_key)
        return out
    arrays = _as_arrays(operands)
    if out is not None:
        check_out(out)
    call = _prepare(subscripts, operands, arrays, device, options, out)
    try:
        result = call.run(arrays, out)
    except Exception as error:  # noqa: BLE001  (raised again if it has to be)
        result = _run_by_numpy(call, arrays, device, options.on_miss, out, error)
    return as_given(result, operands) if out is None else out


def _run_by_numpy(
    call: Call,
    arrays: Sequence[Any],
    device: str | None,
    on_miss: OnMiss,
    out: Any,
    error: Exception,
) -> Any:
    """Evaluate a call whose kernel failed; raise the error if that was required."""
    is_required = device is not None or on_miss == "raise"
    is_on_host = all(type(x) is ndarray for x in arrays)
    if isinstance(call, NumpyStepsCall) or is_required or not is_on_host:
        raise error
    return answer_by_numpy(call.parsed, arrays, out, error)


def _call_sparse(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None,
    options: LookupOptions,
    out: Any,
) -> Any:
    """Evaluate a call with a sparse operand and any ``out``."""
    from feinsum.calling.sparse.call import call_sparse

    if out is not None:
        check_out(out)
    with np.errstate(all="ignore"):
        result = call_sparse(subscripts, operands, device, options, out)
    if out is None:
        return as_given(result, operands)
    check_fit(out, result.shape, result.dtype if type(result) is ndarray else None)
    # a kernel may have written into out already; a result of numpy has to be copied
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
) -> PreparedCall | NumpyStepsCall:
    """Build the kernel that :func:`call_einsum` caches for these arguments."""
    arrays = _as_arrays(operands)
    options = make_lookup_options(database, policy, on_miss, effort)
    call = _prepare(subscripts, operands, arrays, device, options, out)
    if isinstance(call, GeneralCall):
        call = call.with_kernel(arrays)
        end_budget()
    if isinstance(call, FallbackCall):
        raise call.error or BuildError("the process is ending")
    return call


def find_call(key: CallKey) -> Call | None:
    """Find the cached call of a key; None if there is none."""
    calls = get_remembered(Calls)
    call: Call | None = calls.prepared.find(key)
    # calls without a kernel outlive that cache
    same = (x for x in calls.general.values() if getattr(x, "key", None) == key)
    return call or next(same, None)


def make_call_key(
    subscripts: str,
    operands: Sequence[Any],
    arrays: Sequence[Any],
    device: str | None,
    options: LookupOptions,
    out: Any = None,
) -> CallKey:
    """Build the key of a call; for the arguments, see :func:`_prepare`."""
    device_id = make_device_key(arrays, device)
    return CallKey(
        # an instance of a subclass of str compares equal, but may change what methods
        # do
        str(subscripts),
        # arrays on a device are in C order
        tuple(map(get_form, arrays))
        if device_id.is_host
        else tuple(ArrayForm(x.shape, (), x.dtype, True) for x in arrays),
        None if out is None else get_form(out),
        find_first_uses(operands),
        device_id,
        options,
    )


def prepare_without_kernel(subscripts: str, arrays: Sequence[Any]) -> NumpyStepsCall:
    """Build a call in steps of one or two arrays.

    Raises:
        InvalidEinsumError: if subscripts and shapes do not match.
    """
    terms = read_terms(subscripts, [array.shape for array in arrays])
    dtypes = [array.dtype for array in arrays]
    return build_steps_call(terms, dtypes, _get_max_entries(dtypes))


def _as_arrays(operands: Sequence[Any]) -> list[Any]:
    return [
        operand if is_device_array(operand) else as_array(operand, position)
        for position, operand in enumerate(operands)
    ]


def _prepare(
    subscripts: Any,
    operands: Sequence[Any],
    arrays: Sequence[Any],
    device: str | None,
    options: LookupOptions,
    out: Any = None,
) -> Call:
    """Return the call: the cached one, or a new one if none is equal.

    An object in ``operands`` twice is one operand; ``arrays`` are their entries.
    """
    if not isinstance(subscripts, str):
        parse_subscripts(subscripts)  # raises the error
    key = make_call_key(subscripts, operands, arrays, device, options, out)
    is_optional = key.device.is_host and device is None and options.on_miss != "raise"
    call: Call = get_remembered(Calls).prepared.get(
        key, lambda: _build_call(key, is_optional)
    )
    if isinstance(call, GeneralCall) and call.steps is None:
        # not in `_build_call`, under the lock of the cache: a build may call einsum
        # from another thread
        return call.with_kernel(arrays)
    return call


def _build_call(key: CallKey, is_optional: bool) -> Call:
    """Build the call: in steps without a kernel, or with a kernel from the first run.

    A call is computed in steps if no kernel can compute it, and until one pays off.
    """
    steps = None
    if key.device.is_host and key.options.on_miss != "raise":
        terms = read_terms(key.subscripts, [form.shape for form in key.forms])
        dtypes = [form.dtype for form in key.forms]
        # a prediction generates a loop for every index; a look-up only compares keys
        may_predict = key.options.effort in ("amortized", "estimate")
        call = build_numpy_call(terms, dtypes, may_predict=may_predict)
        if call is not None:
            return call
        # all others get a kernel at their first call, so that they need no steps
        if key.is_usual:
            steps = build_steps_call(terms, dtypes, _get_max_entries(dtypes))
            steps.subscripts = key.subscripts
    if steps is not None:
        shape, dtype = steps.shape, steps.result_dtype
    else:
        parsed = key.parse()
        shape, dtype = parsed.shape, parsed.dtype
    if key.target is not None:
        check_fit(key.target, shape, dtype)
    return GeneralCall(key, steps, is_optional, _get_family(key))


def _get_family(key: CallKey) -> CallFamily:
    """Return the family of this call: calls that differ in sizes only."""
    families = get_remembered(Calls).families
    if len(families) >= GENERAL_BOUND:
        families.clear()
    dtypes = tuple(form.dtype for form in key.forms)
    likeness = key.subscripts, dtypes, key.first, key.options
    family: CallFamily = families.setdefault(likeness, CallFamily())
    return family


def _get_max_entries(dtypes: Sequence[np.dtype[Any]]) -> int | None:
    """Return the maximum entries of an intermediate; None if there is no limit."""
    # a product of two operands has no intermediate
    limit = get_intermediate_bytes() if len(dtypes) > 2 else None
    return None if limit is None else limit // np.result_type(*dtypes).itemsize
