"""Calls on a GPU as flat lists of launches, which need addresses only.

Between two launches, the host only looks up addresses. Intermediates share one
allocation. The call ``ij,jk,kl->il`` of A, B, C in two products::

    table       0: A    1: B    2: C    3: result    4: intermediate ik
    launches    multiply(0, 1, 4)    multiply(4, 2, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from feinsum.calling.gpu.prepared import (
    GpuCall,
    KernelCall,
    PreparedCall,
    ProductCall,
    StepsCall,
    ViewCall,
    count_result_bytes,
)
from feinsum.targets.cuda.cupy_session import CupySession
from feinsum.targets.cuda.device import CudaDevice
from feinsum.targets.cuda.launches import Launch, Prepared, prepare_launches

ALIGNMENT = 256
"""Alignment of intermediates, in bytes; that of CUDA's own allocations."""
MAX_BYTES = 1 << 30
"""Maximum bytes of all intermediates in one allocation."""

BYTE = np.dtype(np.uint8)


@dataclass
class _Program:
    """Launches, and the positions of their arguments in a table of addresses.

    The table has the operands, the result and the intermediates, in this order.

    Attributes:
        offsets: offsets of the intermediates in their allocation, in bytes.
    """

    n_operands: int
    launches: list[tuple[Launch, tuple[int, ...]]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    n_bytes: int = 0

    def room(self, n_bytes: int) -> int:
        """Reserve memory for an intermediate; return its position in the table."""
        # rounded up, so that each is aligned like a separate allocation
        self.offsets.append(self.n_bytes)
        self.n_bytes += -(-n_bytes // ALIGNMENT) * ALIGNMENT
        return self.n_operands + len(self.offsets)


class Written(NamedTuple):
    """The array that a call writes.

    Attributes:
        shape: its shape in memory, in C order.
        axes: the permutation of its axes that gives the result of the call.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True, eq=False, repr=False)
class FlatCall(PreparedCall):
    """A call whose launches are all prepared.

    Attributes:
        origin: the call that it repeats.
        launches: each with the positions of its arrays in the table.
    """

    origin: GpuCall
    launches: tuple[tuple[Launch, tuple[int, ...]], ...]
    offsets: tuple[int, ...]
    n_bytes: int
    written: Written

    def __repr__(self) -> str:
        return repr(self.origin)

    @cached_property
    def session(self) -> CupySession:
        return self.opened.session

    @cached_property
    def prepared(self) -> list[tuple[Prepared, tuple[int, ...]]]:
        """The launches in this process; this GPU has to be the current one."""
        return prepare_launches(self.launches, self.session)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return self.parsed.dtype

    @cached_property
    def is_in_order(self) -> bool:
        return self.written.axes == tuple(range(len(self.written.axes)))

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        session = self.session
        result = session.empty(self.written.shape, self.dtype)
        addresses = session.addresses((*arrays, result))
        if self.n_bytes:
            room = session.empty((self.n_bytes,), BYTE)
            addresses += session.addresses((room,))
        self.launch(addresses, stream)
        return result if self.is_in_order else result.transpose(self.written.axes)

    def launch(self, addresses: list[int], stream: Any) -> None:
        """Launch everything.

        Args:
            addresses: the addresses of the operands, of the result and, if there are
                intermediates, of the memory that they share.
            stream: CUDA stream of the launches.
        """
        if self.n_bytes:
            start = addresses.pop()
            addresses += [start + offset for offset in self.offsets]
        for launch, positions in self.prepared:
            launch([addresses[k] for k in positions], stream)


def flatten_call(call: GpuCall, opened: CudaDevice, arrays: Sequence[Any]) -> GpuCall:
    """Flatten a call into a program of launches; return it unchanged if that fails."""
    program = _Program(len(arrays))
    written = _write(program, call, [*range(len(arrays))], arrays, len(arrays))
    # one large allocation may fail where several small ones succeed
    if written is None or program.n_bytes > MAX_BYTES:
        return call
    return FlatCall(
        call.parsed,
        opened,
        call,
        tuple(program.launches),
        tuple(program.offsets),
        program.n_bytes,
        written,
    )


def count_min_bytes(call: GpuCall) -> int:
    """Return the bytes that a call allocates at least, before its first launch."""
    if type(call) is ViewCall:
        return 0
    between = call.n_bytes if isinstance(call, FlatCall) else 0
    return count_result_bytes(call.parsed) + between


def _write(
    program: _Program,
    call: GpuCall,
    operands: Sequence[int],
    arrays: Sequence[Any],
    out: int,
) -> Written | None:
    """Add the launches of a call; return None if it does more than launch kernels.

    Args:
        program: receives the launches.
        call: the call to add.
        operands: positions of its arrays in the table.
        arrays: the arrays themselves.
        out: position of its result in the table.
    """
    if isinstance(call, FlatCall):
        call = call.origin
    used = [arrays[feed.position] for feed in call.parsed.arguments]
    # an operand of another dtype needs a cast, whose launch is not prepared
    if any(array.dtype != call.parsed.dtype for array in used):
        return None
    if isinstance(call, KernelCall):
        return _write_kernel(program, call, operands, out)
    if isinstance(call, ProductCall):
        return _write_product(program, call, operands, arrays, out)
    if isinstance(call, StepsCall):
        return _write_steps(program, call, operands, arrays, out)
    return None


def _write_kernel(
    program: _Program, call: KernelCall, operands: Sequence[int], out: int
) -> Written | None:
    if not call.is_plain:
        return None
    # in the order of `LaunchList`: operands, result, temporaries
    temporaries = call.launches.temporaries
    table = [
        *(operands[feed.position] for feed in call.parsed.arguments),
        out,
        *(program.room(n * dtype.itemsize) for n, dtype in temporaries),
    ]
    for launch, order in call.launches.launches:
        program.launches.append((launch, tuple(table[k] for k in order)))
    return _make_written(call.parsed.shape)


def _make_written(shape: tuple[int, ...]) -> Written:
    return Written(shape, tuple(range(len(shape))))


def _write_product(
    program: _Program,
    call: ProductCall,
    operands: Sequence[int],
    arrays: Sequence[Any],
    out: int,
) -> Written | None:
    sides = []
    for (number, _), copy in zip(call.terms, call.copies, strict=True):
        position = call.parsed.arguments[number].position
        sides.append(operands[position])
        if copy is not None:
            # the copy is an intermediate result, which the product reads in its place
            sides[-1] = program.room(arrays[position].nbytes)
            of_copy = [operands[position]], [arrays[position]], sides[-1]
            if _write(program, copy, *of_copy) is None:
                return None
    left, right = reversed(sides) if call.product.gemm.is_swapped else sides
    if call.added is None:
        program.launches.append((call.launch, (left, right, out)))
        return Written(call.shape, call.axes)
    n_bytes = call.product.n_parts * call.product.n_results * call.dtype.itemsize
    partial_sums, like = program.room(n_bytes), _HandedOn(call.dtype, n_bytes)
    program.launches.append((call.launch, (left, right, partial_sums)))
    added = _write(program, call.added, [partial_sums], [like], out)
    return None if added is None else Written(call.shape, call.axes)


def _write_steps(
    program: _Program,
    call: StepsCall,
    operands: Sequence[int],
    arrays: Sequence[Any],
    out: int,
) -> Written | None:
    positions = [call.parsed.arguments[number].position for number, _ in call.terms]
    values: list[tuple[int, Any]] = [(operands[k], arrays[k]) for k in positions]
    written: Written | None = None
    for number, (chosen_at, step) in enumerate(call.steps, start=1):
        chosen = [values[k] for k in chosen_at]
        # views launch nothing: the last step before them writes the result
        is_last = all(type(later) is ViewCall for _, later in call.steps[number:])
        if type(step) is ViewCall and written is not None and step.axes is not None:
            return Written(written.shape, tuple(written.axes[k] for k in step.axes))
        n_bytes = count_result_bytes(step.parsed)
        target = out if is_last else program.room(n_bytes)
        inputs, like = zip(*chosen, strict=True)
        written = _write(program, step, inputs, like, target)
        if written is None:
            return None
        values.append((target, _HandedOn(step.parsed.dtype, n_bytes)))
    return written


@dataclass(frozen=True)
class _HandedOn:
    """The properties of an intermediate, in place of an array."""

    dtype: np.dtype[Any]
    nbytes: int
