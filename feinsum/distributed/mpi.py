"""Plans on MPI ranks: every rank interprets its own steps.

mpi4py is imported only if no communicator is given; otherwise only methods of the
communicator are called.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, box_shape, box_size
from feinsum.distributed.collectives import Collective, Pieces
from feinsum.distributed.local import (
    Buffers,
    LeafFunction,
    Meaning,
    Products,
    after_leaves,
    tensor_of,
)
from feinsum.distributed.plan import Plan
from feinsum.distributed.room import check_room, free_bytes
from feinsum.distributed.steps import Free, Leaf, Receive, Reduce, Send, Step, Take
from feinsum.distributed.traffic import Traffic
from feinsum.errors import PlanError
from feinsum.extras import requiring
from feinsum.words import counted

MOST_TAGS = 32_000
"""The least upper limit of tags that MPI guarantees is 32767."""

SUMMED = "bBhHiIlLqQfdgFDG"
"""Codes of the dtypes that MPI adds."""

REASONS = ("", "mpi", "blocks", "memory")
"""Rules by which one rank keeps all from beginning; the first one by none."""

FAILED = 1
"""With which all ranks end if one cannot go on."""


class Agreed(Protocol):
    """A plan of any kind, as ranks compare it before they begin."""

    @property
    def processes(self) -> int:
        """Number of processes."""

    @property
    def id(self) -> str:
        """The digest of its document."""


def world() -> Any:
    """The communicator of all processes.

    Raises:
        PlanError: with the rule ``mpi``, if mpi4py or MPI is not installed.
    """
    refusal = partial(PlanError, rules=("mpi",))
    try:
        with requiring("mpi4py", "mpi", "a plan on ranks", refusal):
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
    meaning: Meaning | None = None,
    traffic: Traffic | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """This rank's part of the result, computed together with all other ranks.

    Before computing anything, all ranks compare the digest of the plan and tell each
    other whether their blocks fit: if any rank disagrees, all raise. A rank that fails
    later aborts all of them, with one message.

    Args:
        blocks: for each operand, the block of this rank given by
            :meth:`Plan.start_box`, with that shape and dtype, or a function that
            returns it for the box; None or missing if the rank has none.
        comm: an mpi4py communicator; by default ``COMM_WORLD``. It must have as many
            ranks as the plan has processes.
        leaf: computes a block; by default :func:`feinsum.call_einsum`.
        meaning: computes statements that are not einsums.
        traffic: records what this rank did.
        progress: called with the number of this rank's finished leaves, and the total.

    Returns:
        A new array: the box :meth:`Plan.result_box` of the result, or None if this rank
        has none. For a plan of statements, a dictionary of these.

    Raises:
        PlanError: on all ranks, with the rule ``mpi``, ``digest``, ``blocks`` or
            ``memory``.
    """
    comm = world() if comm is None else comm
    rank = comm.Get_rank()
    wrong = _wrong_number(plan, comm.Get_size())
    arrays: dict[str, NDArray[Any]] = {}
    if wrong is None:
        try:
            check_room(plan, free_bytes())
            arrays = checked_blocks(plan, blocks, rank)
        except PlanError as error:
            wrong = error
    meaning = meaning or Products(plan, leaf or _tuned_leaf())
    agree(plan, comm, wrong, meaning.id)
    buffers = Buffers(meaning, traffic)
    for name, array in arrays.items():
        buffers.put(name, plan.start_box(name, rank), array)
    abort_on_error(comm, lambda: _Interpreter(plan, comm, buffers).run(progress))
    found = {
        output: buffers.arrays[output][0] if output in buffers.arrays else None
        for output in plan.outputs
    }
    return found if plan.statements is not None else found[plan.outputs[0]]


def _tuned_leaf() -> LeafFunction:
    from feinsum.calling import call_einsum

    return call_einsum


def _wrong_number(plan: Plan, size: int) -> PlanError | None:
    if size == plan.processes:
        return None
    return PlanError(
        f"the plan is for {counted(plan.processes, 'process')}; the "
        f"communicator has {size}",
        rules=("mpi",),
    )


def checked_blocks(
    plan: Plan, blocks: Mapping[str, Any], rank: int
) -> dict[str, NDArray[Any]]:
    """The blocks of a rank as arrays.

    Raises:
        PlanError: naming what was given and what was expected.
    """
    known = plan.operands
    if unknown := sorted(set(blocks) - set(known)):
        raise PlanError(
            f"rank {rank} was given a block of {', '.join(unknown)}; the operands are "
            f"{', '.join(known)}",
            rules=("blocks",),
        )
    found = {}
    for name, dtype in known.items():
        box, block = plan.start_box(name, rank), blocks.get(name)
        if box is None:
            continue
        if callable(block):
            block = block(box)
        shape = box_shape(box)
        array = None if block is None else np.asarray(block)
        if array is None or (array.shape, array.dtype) != (shape, dtype):
            given = (
                "nothing" if array is None else f"shape {array.shape} of {array.dtype}"
            )
            raise PlanError(
                f"rank {rank}: operand {name} is {given}; expected shape {shape} of "
                f"{dtype}",
                rules=("blocks",),
            )
        found[name] = array
    return found


def agree(plan: Agreed, comm: Any, wrong: PlanError | None, meaning: str = "") -> None:
    """Raise on all ranks if any has another plan, or cannot take part.

    Args:
        wrong: why this rank cannot take part; None if it can.
        meaning: what its statements compute, as text.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    text = f"{plan.id}\0{meaning}"
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    theirs = np.empty((size, len(digest)), np.uint8)
    comm.Allgather(np.ascontiguousarray(digest), theirs)
    differing = [k for k in range(size) if (theirs[k] != theirs[0]).any()]
    if differing:
        raise PlanError(
            f"rank {differing[0]} has a different plan than rank 0; give all ranks the "
            "same plan",
            rules=("digest",),
        )
    reason = wrong.rules[0] if wrong else ""
    reasons = np.empty(size, np.uint8)
    comm.Allgather(np.array([REASONS.index(reason)], np.uint8), reasons)
    if reasons.any():
        first = int((reasons > 0).argmax())
        rule = REASONS[reasons[first]]
        text = f"rank {first} has blocks that do not fit; rank {rank}'s do"
        text = str(wrong) if wrong else text
        raise PlanError(text, rules=(rule,))


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
        comm.Abort(FAILED)
        raise


@dataclass(frozen=True)
class _Arriving:
    """Something that is under way to a buffer, and what puts it there."""

    request: Any
    arrive: Callable[[], None]


class _Interpreter:
    """The steps of this rank.

    Nothing is waited for until a buffer is used: leaves run while the next part of a
    sequential loop is under way. Sends never wait, so no two ranks wait for each other.
    """

    def __init__(self, plan: Plan, comm: Any, buffers: Buffers) -> None:
        self.comm, self.buffers, self.rank = comm, buffers, comm.Get_rank()
        self.steps = plan.steps[self.rank]
        self.leaving: list[tuple[Any, Any]] = []
        self.arriving: dict[str, list[_Arriving]] = {}
        self.collectives = {
            one.tag: one
            for one in plan.collectives
            if self.rank in one.ranks and self._is_usable(one)
        }
        self.coming: dict[int, list[Receive | Reduce]] = defaultdict(list)
        for step in self.steps:
            if isinstance(step, Receive | Reduce):
                self.coming[step.tag].append(step)
        self.comms: dict[tuple[int, ...], Any] = {}
        self.begun: set[int] = set()

    def _is_usable(self, one: Collective) -> bool:
        """Reductions of MPI are sums of its own numbers."""
        is_gathered = one.kind in ("allgather", "bcast")
        is_sum = isinstance(self.buffers.meaning, Products)
        return is_gathered or (is_sum and self._dtype(one).char in SUMMED)

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        """All steps."""
        done = after_leaves(self.steps, progress)
        for step in self.steps:
            self._do(step)
            done(step)
        for name in list(self.arriving):
            self._settle(name)
        for request, _ in self.leaving:
            request.Wait()
        for comm in self.comms.values():
            comm.Free()

    def _do(self, step: Step) -> None:
        match step:
            case Send(tag=tag) | Receive(tag=tag) | Reduce(tag=tag):
                if (one := self.collectives.get(tag)) is None:
                    self._pass(step)
                elif tag not in self.begun:
                    self.begun.add(tag)
                    self._begin(one)
                return
            case Leaf():
                for name, _ in step.sources:
                    self._settle(name)
            case Take(source, _, _, _):
                self._settle(source)
            case Free(buffer):
                self._settle(buffer)
                # frees copies of what has left, and gives MPI a chance to progress
                self.leaving = [one for one in self.leaving if not one[0].Test()]
        self.buffers.do(step)

    def _settle(self, name: str) -> None:
        for one in self.arriving.pop(name, ()):
            one.request.Wait()
            one.arrive()

    def _expect(self, name: str, request: Any, arrive: Callable[[], None]) -> None:
        self.arriving.setdefault(name, []).append(_Arriving(request, arrive))

    def _pass(self, step: Send | Receive | Reduce) -> None:
        """One message, point to point."""
        if isinstance(step, Send):
            self._settle(step.source)
            # MPI reads it until the request is done; leaves may write to the buffer
            value = self.buffers.view(step.source, step.box).copy()
            request = self.comm.Isend(value, step.rank, step.tag % MOST_TAGS)
            self.leaving.append((request, value))
            return
        like = self.buffers.view(step.target, step.box)
        value = np.empty(like.shape, like.dtype)
        request = self.comm.Irecv(value, step.rank, step.tag % MOST_TAGS)
        arrive = partial(
            self.buffers.receive, step.target, step.box, value, type(step) is Reduce
        )
        self._expect(step.target, request, arrive)

    def _begin(self, one: Collective) -> None:
        """All messages of a tag, by a function of MPI."""
        me = one.ranks.index(self.rank)
        if one.kind in ("allgather", "bcast"):
            self._gather(one, me)
        else:
            self._reduce(one, me)

    def _among(self, ranks: tuple[int, ...], tag: int) -> Any:
        """A communicator of some ranks; all of these come here in one order of tags."""
        if ranks not in self.comms:
            # not by Split or Create, which all ranks of the communicator have to call
            group = self.comm.Get_group().Incl(ranks)
            self.comms[ranks] = self.comm.Create_group(group, tag % MOST_TAGS)
            group.Free()
        return self.comms[ranks]

    def _packed(self, pieces: Pieces, dtype: np.dtype[Any]) -> NDArray[Any]:
        for name, _ in pieces:
            self._settle(name)
        parts = [self.buffers.view(name, box).reshape(-1) for name, box in pieces]
        return np.concatenate(parts) if parts else np.empty(0, dtype)

    def _gather(self, one: Collective, me: int) -> None:
        among = self._among(one.ranks, one.tag)
        dtype = self._dtype(one)
        sizes = [
            sum(box_size(box) for _, box in p) * dtype.itemsize for p in one.pieces
        ]
        # as bytes: what is only moved needs no type of MPI, which lacks some
        mine = self._packed(one.pieces[me], dtype).view(np.uint8)
        every = np.empty(sum(sizes), np.uint8)
        if one.kind == "bcast":
            every[: mine.size] = mine
            request = among.Ibcast(every, one.root)
        else:
            request = among.Iallgatherv(mine, [every, sizes])
        offsets: dict[tuple[int, Box], int] = {}
        at = 0
        for rank, pieces in zip(one.ranks, one.pieces, strict=True):
            for _, box in pieces:
                offsets[rank, box] = at
                at += box_size(box) * dtype.itemsize
        self.leaving.append((request, (mine, every)))
        for step in self.coming[one.tag]:
            first = offsets[step.rank, step.box]
            shape = box_shape(step.box)
            part = every[first : first + box_size(step.box) * dtype.itemsize]
            arrive = partial(self._arrive, step, part, dtype, shape)
            self._expect(step.target, request, arrive)

    def _arrive(
        self,
        step: Receive | Reduce,
        part: NDArray[Any],
        dtype: Any,
        shape: tuple[int, ...],
    ) -> None:
        value = part.view(dtype).reshape(shape)
        self.buffers.receive(step.target, step.box, value, False)

    def _dtype(self, one: Collective) -> np.dtype[Any]:
        """The dtype of all pieces, which belong to one tensor."""
        name = next(name for pieces in one.pieces for name, _ in pieces)
        found: np.dtype[Any] = np.dtype(self.buffers.meaning.dtype(tensor_of(name)))
        return found

    def _reduce(self, one: Collective, me: int) -> None:
        from mpi4py import MPI

        among = self._among(one.ranks, one.tag)
        dtype = self._dtype(one)
        sizes = [sum(box_size(box) for _, box in pieces) for pieces in one.pieces]
        # our own is added later, from the buffer
        parts = [
            np.zeros(n, dtype) if k == me else self._packed(pieces, dtype)
            for k, (n, pieces) in enumerate(zip(sizes, one.pieces, strict=True))
        ]
        mine, total = np.concatenate(parts), np.empty(sizes[me], dtype)
        if one.kind == "reduce":
            request = among.Ireduce(mine, total, MPI.SUM, one.root)
        else:
            request = among.Ireduce_scatter(mine, total, sizes, MPI.SUM)
        self.leaving.append((request, (mine, total)))
        kept = {step.box: step.target for step in self.coming[one.tag]}
        at = 0
        for _, box in one.pieces[me]:
            part = total[at : at + box_size(box)]
            at += box_size(box)
            arrive = partial(
                self._arrive_reduced, kept[box], box, part, len(one.ranks) - 1
            )
            self._expect(kept[box], request, arrive)

    def _arrive_reduced(
        self, name: str, box: Box, part: NDArray[Any], n_others: int
    ) -> None:
        for _ in range(n_others):  # each of them had that block
            self.buffers.traffic.arrived(name, part.size, is_added=True)
        value = part.reshape(box_shape(box))
        self.buffers.store(name, box, value, True)
