"""Plans on the ranks of MPI: every rank interprets its own steps.

Nothing here imports mpi4py unless no communicator is given: what is called is what
communicators offer.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feinsum.errors import PlanError
from feinsum.plans.boxes import Box
from feinsum.plans.local import Buffers, LeafFunction, Meaning, Products
from feinsum.plans.plan import Plan
from feinsum.plans.steps import Free, Leaf, Receive, Reduce, Send, Take

__all__ = ["Traffic", "agree", "or_end_all", "run_on_ranks", "world"]

MOST_TAGS = 32_000
"""The least upper limit of tags that MPI guarantees is 32767."""

FAILED = 1
"""With which all ranks end if one cannot go on."""


class Agreed(Protocol):
    """A plan of any kind: what ranks compare before they begin."""

    @property
    def processes(self) -> int:
        """That take part."""

    @property
    def id(self) -> str:
        """The digest of its document."""


class Traffic:
    """What one rank received, counted as it came."""

    def __init__(self) -> None:
        self.received = self.reduced = self.messages = 0


def world() -> Any:
    """The communicator of all processes.

    Raises:
        PlanError: with the rule ``mpi``, if mpi4py or an MPI is not installed.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise PlanError(
            f"MPI is not there ({error}); pip install 'feinsum[mpi]', or mpi4py with "
            "an MPI of the system",
            rules=("mpi",),
        ) from None
    return MPI.COMM_WORLD


def run_on_ranks(
    plan: Plan,
    blocks: Mapping[str, Any],
    comm: Any = None,
    *,
    leaf: LeafFunction | None = None,
    meaning: Meaning | None = None,
    traffic: Traffic | None = None,
) -> Any:
    """This rank's part of the result, computed together with all other ranks.

    Before anything is computed, all ranks compare the digest of the plan and tell each
    other whether their blocks are right: if one has something else, all raise. A rank
    that fails later ends all of them, with one message.

    Args:
        blocks: of each operand what :meth:`Plan.start_box` says that this rank has, in
            that shape and dtype, or a function of that box which gives it; None, or
            nothing, where it has nothing.
        comm: a communicator of mpi4py; by default that of all processes. It has as
            many ranks as the plan has processes.
        leaf: what computes a block; by default :func:`feinsum.call_einsum`.
        meaning: of statements that are no einsums.
        traffic: is filled with what this rank received.

    Returns:
        A new array: the box :meth:`Plan.result_box` of the result, or None if this rank
        has none of it. Of a plan of statements, a dictionary of these.

    Raises:
        PlanError: on all ranks, with the rule ``mpi``, ``digest`` or ``blocks``.
    """
    comm = world() if comm is None else comm
    rank = comm.Get_rank()
    wrong = _wrong_number(plan, comm.Get_size())
    arrays: dict[str, NDArray[Any]] = {}
    if wrong is None:
        try:
            arrays = checked_blocks(plan, blocks, rank)
        except PlanError as error:
            wrong = str(error)
    meaning = meaning or Products(plan, leaf or _tuned_leaf())
    agree(plan, comm, wrong, meaning.id)
    buffers = Buffers(meaning)
    for name, array in arrays.items():
        buffers.put(name, plan.start_box(name, rank), array)
    or_end_all(comm, lambda: _interpret(plan, comm, buffers, traffic or Traffic()))
    found = {
        output: buffers.arrays[output][0] if output in buffers.arrays else None
        for output in plan.outputs
    }
    return found if plan.statements is not None else found[plan.outputs[0]]


def _tuned_leaf() -> LeafFunction:
    from feinsum.calling import call_einsum

    return call_einsum


def _wrong_number(plan: Plan, size: int) -> str | None:
    if size == plan.processes:
        return None
    return f"the plan is for {plan.processes} processes; the communicator has {size}"


def checked_blocks(
    plan: Plan, blocks: Mapping[str, Any], rank: int
) -> dict[str, NDArray[Any]]:
    """The blocks of a rank as arrays.

    Raises:
        PlanError: naming what was given and what is expected.
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
        shape = tuple(end - first for first, end in box)
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


def agree(plan: Agreed, comm: Any, wrong: str | None, meaning: str = "") -> None:
    """All raise if one rank has another plan, or cannot take part.

    Args:
        meaning: what its statements compute, as a text.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    text = f"{plan.id}\0{meaning}"
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    theirs = np.empty((size, len(digest)), np.uint8)
    comm.Allgather(np.ascontiguousarray(digest), theirs)
    differing = [k for k in range(size) if (theirs[k] != theirs[0]).any()]
    if differing:
        raise PlanError(
            f"rank {differing[0]} has another plan than rank 0; give all ranks "
            "one plan",
            rules=("digest",),
        )
    are_wrong = np.empty(size, np.uint8)
    comm.Allgather(np.array([wrong is not None], np.uint8), are_wrong)
    if are_wrong.any():
        first = int(are_wrong.argmax())
        text = wrong or f"rank {first} has blocks that do not fit; rank {rank}'s do"
        rule = "mpi" if plan.processes != size else "blocks"
        raise PlanError(text, rules=(rule,))


def or_end_all(comm: Any, work: Callable[[], None]) -> None:
    """What fails on one rank ends all, for the others wait for its messages."""
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
    """A message that is under way to a box of a buffer."""

    request: Any
    value: NDArray[Any]
    box: Box
    is_added: bool


def _interpret(plan: Plan, comm: Any, buffers: Buffers, traffic: Traffic) -> None:
    """The steps of this rank.

    Nothing is waited for until a buffer is used: leaves run while the next part of a
    loop in time is under way. Sends never wait, so no two ranks wait for each other.
    """
    leaving: list[tuple[Any, NDArray[Any]]] = []
    arriving: dict[str, list[_Arriving]] = {}

    def settle(name: str) -> None:
        for one in arriving.pop(name, ()):
            one.request.Wait()
            buffers.store(name, one.box, one.value, one.is_added)

    for step in plan.steps[comm.Get_rank()]:
        match step:
            case Receive(of, target, box, tag) | Reduce(of, target, box, tag):
                like = buffers.view(target, box)
                value, is_added = np.empty(like.shape, like.dtype), type(step) is Reduce
                request = comm.Irecv(value, of, tag % MOST_TAGS)
                one = _Arriving(request, value, box, is_added)
                arriving.setdefault(target, []).append(one)
                traffic.messages += 1
                traffic.reduced += value.size * is_added
                traffic.received += value.size * (not is_added)
                continue
            case Send(to, source, box, tag):
                settle(source)
                value = buffers.view(source, box).copy()
                leaving.append((comm.Isend(value, to, tag % MOST_TAGS), value))
                continue
            case Leaf():
                for name, _ in step.sources:
                    settle(name)
            case Take(source, _, _, _):
                settle(source)
            case Free(buffer):
                settle(buffer)
                leaving = [one for one in leaving if not one[0].Test()]
        buffers.do(step)
    for name in list(arriving):
        settle(name)
    for request, _ in leaving:
        request.Wait()
