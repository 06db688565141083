"""Repeated calls of arrays on a GPU, by keys that are quick to compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feinsum.calling.kernel_cache import CACHE_BOUND, Calls, make_database_key
from feinsum.calling.operands import find_first_uses, is_differentiating
from feinsum.libraries import ALIGNMENT
from feinsum.memory import get_remembered
from feinsum.options import EFFORT_VARIABLE

if TYPE_CHECKING:
    from feinsum.calling.gpu.flat import FlatCall
    from feinsum.calling.gpu.prepared import GpuCall


@dataclass(frozen=True)
class Ready:
    """A prepared call whose operands are arrays of CuPy."""

    call: GpuCall
    session: Any

    def run(self, operands: Sequence[Any]) -> Any:
        """Run on CuPy's current stream; None if another GPU is the current one."""
        stream = self.session.current_stream()
        return None if stream is None else self.call(operands, stream)


@dataclass(frozen=True)
class ReadyForTensors:
    """A prepared call of tensors of torch; launches take their addresses."""

    call: FlatCall
    session: Any
    torch: Any

    def run(self, operands: Sequence[Any]) -> Any:
        """Run on torch's current stream; None if another GPU is the current one."""
        if self.session.current_stream() is None:
            return None
        torch, call, device = self.torch, self.call, operands[0].device
        dtype = getattr(torch, call.dtype.name)
        try:
            result = torch.empty(call.written.shape, dtype=dtype, device=device)
            addresses = [tensor.data_ptr() for tensor in (*operands, result)]
            # it may be freed while launches still run: torch reuses it in stream order
            if call.n_bytes:
                room = torch.empty(call.n_bytes, dtype=torch.uint8, device=device)
                addresses.append(room.data_ptr())
        except RuntimeError as error:
            _raise_cuda_error(error, call)
            raise
        stream = torch.cuda.current_stream().cuda_stream
        call.launch(addresses, self.session.stream_at(stream))
        return result if call.is_in_order else result.permute(call.written.axes)


def _raise_cuda_error(error: RuntimeError, call: FlatCall) -> None:
    """Convert torch's error to one of feinsum if torch is out of memory."""
    from feinsum.targets.cuda.cupy_errors import (
        CudaErrors,
    )  # not for arrays of the host

    failure = "a result of {} entries of {} with {} bytes of intermediate results"
    CudaErrors(failure, call.written.shape, call.dtype, call.n_bytes).explain(error)


def get_tensor_form(tensor: Any) -> Hashable:
    """Return the properties of a torch tensor on which a call depends."""
    return (
        tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(),
        tensor.data_ptr() % ALIGNMENT,
        # entries in memory do not show gradients, conjugation or negation
        tensor.requires_grad or tensor.is_conj() or tensor.is_neg(),
        is_differentiating(),
    )  # fmt: skip


def make_quick_key(
    subscripts: str, operands: Sequence[Any], n_objects: int, *options: Any
) -> Hashable | None:
    """Build the key of a call; None if no calls of such operands are kept.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: the operands as given.
        n_objects: number of distinct objects among the operands.
        options: the options as given: database, policy, ``on_miss`` and effort.
    """
    kind = type(operands[0]) if operands else None
    # a type has a form once a call with it was prepared
    form = get_remembered(Calls).forms.get(kind)
    if form is None:
        return None
    for operand in operands:
        if type(operand) is not kind:
            return None
    # an object given twice is one operand of another einsum, with another kernel
    first = find_first_uses(operands) if n_objects < len(operands) else None
    database, policy, on_miss, effort = options
    if effort is None:
        effort = os.environ.get(EFFORT_VARIABLE)
    try:
        forms = [*map(form, operands)]
    except RuntimeError:  # a sparse tensor of torch has no strides
        return None
    return (
        subscripts,
        first,
        make_database_key(database),
        policy,
        on_miss,
        effort,
        os.getpid(),
        *forms,
    )


def run_ready(key: Hashable | None, operands: Sequence[Any]) -> Any:
    """Run the call that is kept under a key; None if there is none."""
    ready: Ready | ReadyForTensors | None = get_remembered(Calls).ready.get(key)
    return None if ready is None else ready.run(operands)


def keep_ready(key: Hashable | None, ready: Ready | ReadyForTensors) -> None:
    calls = get_remembered(Calls)
    # dropping all is faster than tracking which one was used last
    if len(calls.ready) >= CACHE_BOUND:
        calls.ready.clear()
    if key is not None:
        calls.ready[key] = ready


def register_form(kind: type, form: Callable[[Any], Hashable]) -> None:
    """Register the function that returns the form of arrays of a type."""
    get_remembered(Calls).forms[kind] = form
