"""Plans on MPI ranks: every rank interprets its own steps.

mpi4py is imported only if no communicator is given, or for reductions by MPI; all other
calls are methods of the communicator.

Messages overlap with leaves. A rank starts all messages of the steps up to the next
leaf, and waits for a buffer only when a step reads it::

    step       rank 0, a loop of two parts        under way
    receive    A@0.0.0 from 1                     A@0.0.0
    receive    A@0.0.1 from 1                     A@0.0.0, A@0.0.1
    compute    with A@0.0.0: wait for it                   A@0.0.1
    compute    with A@0.0.1: wait for it
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, count_entries, get_box_shape
from feinsum.distributed.counts import Traffic
from feinsum.distributed.local import (
    Buffers,
    LeafFunction,
    Products,
    Progress,
    Semantics,
    assemble_result,
    check_memory,
    check_operands,
    check_support,
    collect_outputs,
    count_leaves,
    cut_blocks,
    import_tuned_leaf,
    name_outputs,
)
from feinsum.distributed.messages import Collective, Pieces
from feinsum.distributed.plans import Plan
from feinsum.distributed.steps import Free, Leaf, Step, Transfer, get_tensor
from feinsum.distributed.storage import (
    Stored,
    as_stored,
    find_prototype,
    get_dtype,
    get_free_gpu_bytes,
    is_mpi_cuda_aware,
    make_prototype,
    synchronize,
    to_host,
)
from feinsum.errors import FeinsumError, PlanError
from feinsum.extras import require_extra
from feinsum.free_memory import get_free_memory_bytes
from feinsum.words import format_count

T = TypeVar("T")

N_TAGS = 32_000
"""Number of tags in use: MPI guarantees tags up to 32767."""

SUMMED = "bBhHiIlLqQfdgFDG"
"""Codes of the dtypes that MPI adds."""

ABORT_CODE = 1
"""Exit code of all ranks if one fails."""

SCATTER_TAG = 0
"""Tag of scattered and gathered blocks, which arrive in the order of their sends."""


def get_world() -> Any:
    """Return the communicator of all processes.

    Raises:
        PlanError: with the rule ``mpi``, if mpi4py or MPI is not installed.
    """
    refusal = partial(PlanError, rules=("mpi",))
    try:
        with require_extra("mpi4py", "mpi", "a plan on ranks", refusal):
            from mpi4py import MPI
    except RuntimeError as error:  # there is no library of MPI
        raise refusal(
            f"MPI cannot be loaded ({error}); pip install 'feinsum[mpi]', or install "
            "mpi4py with a system MPI"
        ) from error
    return MPI.COMM_WORLD


def run_on_ranks(
    plan: Plan,
    blocks: Mapping[str, Any],
    comm: Any = None,
    *,
    leaf: LeafFunction | None = None,
    meaning: Semantics | None = None,
    traffic: Traffic | None = None,
    progress: Progress | None = None,
) -> Any:
    """Compute this rank's part of the result, together with all other ranks.

    Before computing anything, all ranks compare the digest of the plan and check their
    blocks: if the check fails on any rank, all raise. A rank that fails later aborts
    all of them, with one message.

    Args:
        plan: the plan to run, the same on all ranks.
        blocks: for each operand, the block of this rank given by
            :meth:`Plan.start_box`, with that shape and dtype, or a function that
            returns it for the box; None or missing if the rank has none. If they are
            arrays of CuPy on all ranks, all buffers and the result are on their GPUs.
        comm: an mpi4py communicator; by default ``COMM_WORLD``. It must have as many
            ranks as the plan has processes.
        leaf: computes a block; by default :func:`feinsum.call_einsum`.
        meaning: computes statements that are not einsums.
        traffic: counts what this rank receives, computes and holds.
        progress: called with the number of this rank's finished leaves, and the total.

    Returns:
        A new array: the box :meth:`Plan.result_box` of the result, or None if this rank
        has none. For a plan of statements, a dictionary of these.

    Raises:
        PlanError: on all ranks, with the rule ``mpi``, ``digest``, ``blocks``, ``gpu``
            or ``memory``.
    """
    comm = get_world() if comm is None else comm
    rank = comm.Get_rank()
    semantics = meaning or Products(plan, leaf or import_tuned_leaf())
    _compare_digests(plan, comm, semantics.id)

    def check() -> tuple[dict[str, Stored], Any]:
        require_size(plan, comm)
        arrays = check_blocks(plan, blocks, rank)
        like = find_prototype(arrays, f"rank {rank}")
        check_support(plan, semantics, like)
        free = get_free_memory_bytes() if like is None else get_free_gpu_bytes(like)
        check_memory(plan, free)
        return arrays, like

    arrays, like = run_on_every_rank(comm, check)
    own_blocks = {
        name: (array, plan.start_box(name, rank)) for name, array in arrays.items()
    }
    buffers = Buffers(
        semantics, own_blocks, traffic, _agree_on_memory(comm, arrays, like)
    )
    abort_on_error(comm, lambda: _Interpreter(plan, comm, buffers).run(progress))
    return collect_outputs(plan, lambda output: buffers.arrays.get(output, (None,))[0])


def require_size(plan: Plan, comm: Any) -> None:
    """Refuse a communicator with another number of ranks.

    Raises:
        PlanError: with the rule ``mpi``.
    """
    if comm.Get_size() != plan.processes:
        raise PlanError(
            f"the plan is for {format_count(plan.processes, 'process')}, but the "
            f"communicator has {format_count(comm.Get_size(), 'rank')}: start the "
            f"program with mpiexec -n {plan.processes}",
            rules=("mpi",),
        )


def check_blocks(plan: Plan, blocks: Mapping[str, Any], rank: int) -> dict[str, Stored]:
    """Return the blocks of a rank as arrays.

    Raises:
        PlanError: naming what was given and what was expected.
    """
    operands = plan.operands
    if unknown := sorted(set(blocks) - set(operands)):
        raise PlanError(
            f"rank {rank} was given a block of {', '.join(unknown)}; the operands are "
            f"{', '.join(operands)}",
            rules=("blocks",),
        )
    arrays = {}
    for name, dtype in operands.items():
        box, block = plan.start_box(name, rank), blocks.get(name)
        if box is None:
            continue
        if callable(block):
            block = block(box)
        shape = get_box_shape(box)
        array = None
        if block is not None:
            array = as_stored(block, is_sparse=plan.is_sparse(name))
        if array is None or (array.shape, get_dtype(array)) != (shape, dtype):
            actual = "nothing"
            if array is not None:
                actual = f"shape {array.shape} of {get_dtype(array)}"
            raise PlanError(
                f"rank {rank}: operand {name} is {actual}; expected shape {shape} of "
                f"{dtype}",
                rules=("blocks",),
            )
        arrays[name] = array
    return arrays


def _compare_digests(plan: Plan, comm: Any, semantics: str) -> None:
    """Raise on all ranks if plans or semantics differ."""
    digests = comm.allgather((plan.id, semantics))
    # rank 0 is the reference, so that all ranks name the same rank
    differing = [k for k, digest in enumerate(digests) if digest != digests[0]]
    if differing:
        raise PlanError(
            f"rank {differing[0]} has a different plan than rank 0; give all ranks the "
            "same plan",
            rules=("digest",),
        )


def _agree_on_memory(comm: Any, arrays: Mapping[str, Stored], like: Any) -> Any:
    """Return an array on the GPU of this rank; None if all ranks are on the host.

    Ranks without blocks use the current GPU of CuPy if the others are on GPUs.

    Raises:
        PlanError: on all ranks, with the rule ``blocks``, if only some are on GPUs.
    """
    are_on_gpus = comm.allgather(like is not None if arrays else None)
    if True not in are_on_gpus:
        return None
    if False in are_on_gpus:
        raise PlanError(
            f"blocks of rank {are_on_gpus.index(True)} are on a GPU, those of rank "
            f"{are_on_gpus.index(False)} on the host; pass arrays of CuPy on all ranks",
            rules=("blocks",),
        )
    return run_on_every_rank(comm, lambda: make_prototype() if like is None else like)


def abort_on_error(comm: Any, work: Callable[[], None]) -> None:
    """Abort all ranks if one fails, since the others wait for its messages."""
    try:
        work()
    except BaseException as error:
        sys.stderr.write(
            f"feinsum: rank {comm.Get_rank()} failed, all ranks end: "
            f"{type(error).__name__}: {error}\n"
        )
        sys.stderr.flush()
        # the others wait in calls of MPI, where no exception reaches them
        comm.Abort(ABORT_CODE)
        raise


def run_on_every_rank(comm: Any, work: Callable[[], T]) -> T:
    """Return the result of this rank; if one fails, all raise its error.

    Collective. Only errors of feinsum are shared; others end the rank.
    """
    result, failure = None, None
    try:
        result = work()
    except FeinsumError as error:
        failure = error
    failures = [error for error in comm.allgather(failure) if error is not None]
    if failures:
        raise failures[0]
    return result  # type: ignore[return-value]  # work has returned it


class _Interpreter:
    """Interprets the steps of this rank.

    A step waits only for the buffers that it uses, so leaves run while the next part of
    a sequential loop is under way. Sends never wait, so there is no deadlock.

    Attributes:
        sending: requests, each with the array that MPI reads until it is done.
        arriving: requests of messages on their way to each buffer, each with the
            function that stores the message there.
        incoming: the receives of each tag, which a collective replaces.
        like: an array in the memory that MPI reads and writes; None on the host.
        operands: buffers that no step writes to.
    """

    def __init__(self, plan: Plan, comm: Any, buffers: Buffers) -> None:
        self.comm, self.buffers, self.rank = comm, buffers, comm.Get_rank()
        self.steps, self.operands = plan.steps[self.rank], frozenset(plan.operands)
        self.sending: list[tuple[Any, Any]] = []
        self.arriving: dict[str, list[tuple[Any, Callable[[], None]]]] = {}
        self.collectives = {
            collective.tag: collective
            for collective in plan.collectives
            if self.rank in collective.ranks and self._is_usable(collective)
        }
        self.incoming: dict[int, list[Transfer]] = defaultdict(list)
        for step in self.steps:
            if isinstance(step, Transfer) and step.sender != self.rank:
                self.incoming[step.tag].append(step)
        is_direct = buffers.like is not None and is_mpi_cuda_aware()
        self.like = buffers.like if is_direct else None
        self.comms: dict[tuple[int, ...], Any] = {}
        self.begun: set[int] = set()

    def _is_usable(self, collective: Collective) -> bool:
        """Return whether MPI has the collective: it reduces sums of its own dtypes."""
        if not collective.is_reduction:
            return True
        is_sum = isinstance(self.buffers.semantics, Products)
        return is_sum and self._get_dtype(collective).char in SUMMED

    def run(self, progress: Progress | None) -> None:
        """Run all steps."""
        n_leaves = sum(isinstance(step, Leaf) for step in self.steps)
        report = count_leaves(n_leaves, progress)
        for step in self.steps:
            self._do(step)
            report(step)
        for name in list(self.arriving):
            self._wait_for(name)
        for request, _ in self.sending:
            request.Wait()
        # MPI has a limited number of communicators
        for comm in self.comms.values():
            comm.Free()

    def _do(self, step: Step) -> None:
        match step:
            case Transfer(tag=tag) if step.is_message:
                if (collective := self.collectives.get(tag)) is None:
                    self._start_message(step)
                elif tag not in self.begun:
                    # the first step of the tag starts all of its messages
                    self.begun.add(tag)
                    self._start_collective(collective)
                return
            case Leaf():
                for name, _ in step.sources:
                    self._wait_for(name)
            case Transfer():
                self._wait_for(step.source)
            case Free(buffer):
                # no message may write to a freed buffer
                self._wait_for(buffer)
                # frees copies of what was sent, and gives MPI a chance to progress
                self.sending = [pair for pair in self.sending if not pair[0].Test()]
        self.buffers.do(step)

    def _wait_for(self, name: str) -> None:
        for request, store in self.arriving.pop(name, ()):
            request.Wait()
            store()

    def _expect(self, name: str, request: Any, store: Callable[[], None]) -> None:
        self.arriving.setdefault(name, []).append((request, store))

    def _start_message(self, step: Transfer) -> None:
        """Start one message, point to point."""
        if step.sender == self.rank:
            self._wait_for(step.source)
            value = self.buffers.view(step.source, step.box)
            # MPI reads it until the request is done; leaves may write to other buffers
            if step.source not in self.operands or not value.flags.c_contiguous:
                value = value.copy()
            value = self._prepare_sent(value)
            request = self.comm.Isend(value, step.receiver, step.tag % N_TAGS)
            self.sending.append((request, value))
            return
        target = self.buffers.view(step.target, step.box)
        is_staged = self.buffers.like is not None and self.like is None
        if step.is_added or is_staged or not target.flags.c_contiguous:
            value = np.empty(target.shape, target.dtype, like=self.like)
            store = partial(self.buffers.receive, step, value)
        else:
            # no step uses this part of the buffer before the message has arrived
            value, count = target, self.buffers.traffic.count_message
            store = partial(count, step.target, target.size, is_added=False)
        request = self.comm.Irecv(value, step.sender, step.tag % N_TAGS)
        self._expect(step.target, request, store)

    def _prepare_sent(self, value: Any) -> Any:
        """Return an array that MPI can read now, on the host unless it reads GPUs."""
        # MPI does not know the streams in which the GPU computes
        synchronize(value)
        return to_host(value) if self.like is None else value

    def _start_collective(self, collective: Collective) -> None:
        """Start all messages of a tag, by a function of MPI."""
        position = collective.ranks.index(self.rank)
        if collective.is_reduction:
            self._start_reduction(collective, position)
        else:
            self._start_gathering(collective, position)

    def _get_communicator(self, ranks: tuple[int, ...], tag: int) -> Any:
        """Return a communicator of some ranks, which call this in the same order."""
        if ranks not in self.comms:
            # not by Split or Create, which all ranks of the communicator have to call
            group = self.comm.Get_group().Incl(ranks)
            self.comms[ranks] = self.comm.Create_group(group, tag % N_TAGS)
            group.Free()
        return self.comms[ranks]

    def _pack(self, pieces: Pieces, dtype: np.dtype[Any]) -> Any:
        for name, _ in pieces:
            self._wait_for(name)
        blocks = [self.buffers.view(name, box).reshape(-1) for name, box in pieces]
        if not blocks:
            return np.empty(0, dtype, like=self.like)
        return self._prepare_sent(np.concatenate(blocks))

    def _start_gathering(self, collective: Collective, position: int) -> None:
        comm = self._get_communicator(collective.ranks, collective.tag)
        dtype = self._get_dtype(collective)
        n_bytes = [n * dtype.itemsize for n in collective.sizes]
        # as bytes, because MPI lacks some of numpy's dtypes
        sent = self._pack(collective.pieces[position], dtype).view(np.uint8)
        # the pieces of all ranks, one after the other; each step takes its section
        received = np.empty(sum(n_bytes), np.uint8, like=self.like)
        if collective.kind == "bcast":
            received[: sent.size] = sent
            synchronize(received)
            request = comm.Ibcast(received, collective.root)
        else:
            request = comm.Iallgatherv(sent, [received, n_bytes])
        self.sending.append((request, (sent, received)))
        pairs = zip(collective.ranks, collective.pieces, strict=True)
        boxes = [(rank, box) for rank, pieces in pairs for _, box in pieces]
        sections = _split_sections(received.view(dtype), [box for _, box in boxes])
        part_of = dict(zip(boxes, sections, strict=True))
        for step in self.incoming[collective.tag]:
            part = part_of[step.sender, step.box]
            self._expect(
                step.target, request, partial(self.buffers.receive, step, part)
            )

    def _get_dtype(self, collective: Collective) -> np.dtype[Any]:
        """Return the dtype of all pieces, which belong to one tensor."""
        name = next(name for pieces in collective.pieces for name, _ in pieces)
        dtype: np.dtype[Any] = np.dtype(self.buffers.semantics.dtype(get_tensor(name)))
        return dtype

    def _start_reduction(self, collective: Collective, position: int) -> None:
        from mpi4py import MPI

        comm = self._get_communicator(collective.ranks, collective.tag)
        dtype = self._get_dtype(collective)
        sizes = collective.sizes
        # this rank's own share is added later, from the buffer
        contributions = [
            np.zeros(n, dtype, like=self.like)
            if k == position
            else self._pack(pieces, dtype)
            for k, (n, pieces) in enumerate(zip(sizes, collective.pieces, strict=True))
        ]
        sent = self._prepare_sent(np.concatenate(contributions))
        total = np.empty(sizes[position], dtype, like=self.like)
        if collective.kind == "reduce":
            request = comm.Ireduce(sent, total, MPI.SUM, collective.root)
        else:
            request = comm.Ireduce_scatter(sent, total, sizes, MPI.SUM)
        self.sending.append((request, (sent, total)))
        n_others = len(collective.ranks) - 1

        def store(name: str, box: Box, part: NDArray[Any]) -> None:
            for _ in range(n_others):  # each of them sent such a block
                self.buffers.traffic.count_message(name, part.size, is_added=True)
            self.buffers.store(name, box, part, True)

        targets = {step.box: step.target for step in self.incoming[collective.tag]}
        boxes = [box for _, box in collective.pieces[position]]
        for box, part in zip(boxes, _split_sections(total, boxes), strict=True):
            self._expect(targets[box], request, partial(store, targets[box], box, part))


def _split_sections(flat: Any, boxes: Sequence[Box]) -> Iterator[Any]:
    """Yield the entries of each box, which follow each other, in its shape."""
    offset = 0
    for box in boxes:
        end = offset + count_entries(box)
        yield flat[offset:end].reshape(get_box_shape(box))
        offset = end


def scatter(
    plan: Plan,
    operands: Mapping[str, Any] | None,
    comm: Any,
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> dict[str, Stored]:
    """Return the blocks of this rank, scattered from whole operands on rank 0.

    Args:
        plan: the plan to run.
        operands: arrays by name on rank 0; ignored on other ranks.
        comm: an mpi4py communicator.
        read: converts the given arrays to the operands of the plan, on rank 0.

    Raises:
        PlanError: on all ranks, with the rule ``blocks``, if an operand is missing or
            has the wrong shape or dtype; or the error of ``read``.
    """
    rank = comm.Get_rank()

    def check() -> dict[str, Stored]:
        arrays = (
            {}
            if rank
            else check_operands(plan, read({} if operands is None else operands))
        )
        return {name: to_host(array) for name, array in arrays.items()}

    arrays = run_on_every_rank(comm, check)
    if rank:
        return {
            name: _receive_part(comm, 0, box, dtype, is_sparse=plan.is_sparse(name))
            for name, dtype in plan.operands.items()
            if (box := plan.start_box(name, rank)) is not None
        }
    # in the order in which each rank receives: by operand
    for receiver in range(1, plan.processes):
        for block, _ in cut_blocks(plan, arrays, receiver).values():
            _send_part(comm, block, receiver)
    return {name: block for name, (block, _) in cut_blocks(plan, arrays, 0).items()}


def _send_part(comm: Any, block: Stored, receiver: int) -> None:
    """Send an array; a sparse one is pickled, so that its size is sent, too."""
    if isinstance(block, np.ndarray):
        comm.Send(np.ascontiguousarray(block), receiver, SCATTER_TAG)
    else:
        comm.send(block, receiver, SCATTER_TAG)


def _receive_part(
    comm: Any, sender: int, box: Box, dtype: Any, *, is_sparse: bool
) -> Stored:
    if is_sparse:
        entries: Stored = comm.recv(source=sender, tag=SCATTER_TAG)
        return entries
    block = np.empty(get_box_shape(box), dtype)
    comm.Recv(block, sender, SCATTER_TAG)
    return block


def gather(plan: Plan, parts: Any, comm: Any, meaning: Semantics | None = None) -> Any:
    """Return the whole result on rank 0, None on all other ranks.

    Args:
        plan: the plan that ran.
        parts: the result of :func:`run_on_ranks` on this rank.
        comm: an mpi4py communicator.
        meaning: computes statements that are not einsums.

    Returns:
        On rank 0 an array, or a dictionary of arrays for a plan of statements.
    """
    named = name_outputs(plan, parts)

    def collect(output: str) -> Any:
        part = to_host(named[output])
        dtype = meaning.dtype(output) if meaning else plan.dtype
        if comm.Get_rank():
            if part is not None:
                _send_part(comm, part, 0)
            return None

        def receive_part(rank: int, box: Box) -> Any:
            if rank == 0:
                return part
            is_sparse = plan.is_sparse(output)
            return _receive_part(comm, rank, box, dtype, is_sparse=is_sparse)

        return assemble_result(plan, output, receive_part, dtype)

    result = collect_outputs(plan, collect)
    return result if comm.Get_rank() == 0 else None
