"""All ranks in one process, with numpy: the reference for all other engines.

An engine interprets the steps of each rank on its :class:`Buffers`, arrays with their
boxes. The :class:`Semantics` say what a leaf computes and how partial results combine:
sums of products for einsums, bodies and reductions for statements of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count
from string import ascii_letters
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, box_shape
from feinsum.distributed.counts import Traffic
from feinsum.distributed.plans import Plan
from feinsum.distributed.steps import (
    Free,
    Leaf,
    Make,
    Receive,
    Reduce,
    Send,
    Step,
    Take,
    tensor_of,
)
from feinsum.errors import PlanError
from feinsum.ir import parse_subscripts, write_subscripts

LeafFunction: TypeAlias = Callable[..., Any]
"""From subscripts and arrays to their einsum, as :func:`feinsum.call_einsum`."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished leaves, and the total."""


def free_bytes() -> int:
    """Return the memory available to this process: of the machine or its container."""
    from feinsum.tuning.requirements import free_memory_bytes

    return free_memory_bytes()


def check_memory(plan: Plan, available: int, *, n_ranks: int = 1) -> None:
    """Refuse a run before anything is allocated.

    Args:
        available: bytes available to all ranks together.
        n_ranks: number of ranks that share them.

    Raises:
        PlanError: with the rule ``memory``.
    """
    needed = plan.peak_bytes * n_ranks
    if needed > available:
        raise PlanError(
            f"the blocks of {n_ranks} process{'es' * (n_ranks > 1)} of {plan.title} "
            f"take {needed:,} bytes; {available:,} are free. Plan for more processes, "
            "or with memory=",
            rules=("memory",),
        )


def numpy_leaf(subscripts: str, *blocks: NDArray[Any]) -> NDArray[Any]:
    """Compute the reference: numpy, with long names of indices replaced by letters."""
    result: NDArray[Any] = np.einsum(
        _replace_names(subscripts), *blocks, optimize=len(blocks) > 2
    )
    return result


def tuned_leaf() -> LeafFunction:
    """Import :func:`feinsum.call_einsum`, which brings the code generator."""
    from feinsum.calling import call_einsum

    return call_einsum


def _replace_names(subscripts: str) -> str:
    # the usual case needs no parsing
    if set(subscripts) <= {*ascii_letters, *",->"}:
        return subscripts
    inputs, output = parse_subscripts(subscripts)
    names = tuple(dict.fromkeys(name for term in inputs for name in term))
    letter = dict(zip(names, in_letters(names), strict=True))
    terms = [[letter[name] for name in term] for term in (*inputs, output)]
    return write_subscripts(terms[:-1], terms[-1])


def in_letters(indices: Sequence[str]) -> Sequence[str]:
    """Return a letter for every index; letters themselves stay.

    >>> in_letters(("i", "j")), in_letters(("row", "j"))
    (('i', 'j'), 'ab')
    """
    if all(len(i) == 1 and i in ascii_letters for i in indices):
        return indices
    if len(indices) > len(ascii_letters):
        raise PlanError(
            f"{len(indices)} indices in one group; numpy supports {len(ascii_letters)}",
            rules=("blocks",),
        )
    return ascii_letters[: len(indices)]


class Semantics(Protocol):
    """What a plan's statements compute, if they are not sums of products."""

    @property
    def id(self) -> str:
        """A digest, equal on all ranks."""

    def dtype(self, tensor: str) -> Any:
        """Return the dtype of an operand or a result."""

    def leaf(self, step: Leaf, blocks: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Compute the result of a statement for blocks of its operands."""

    def combine(self, tensor: str, left: NDArray[Any], right: NDArray[Any]) -> Any:
        """Combine two partial results, in the first or in a new array."""

    def neutral(self, tensor: str) -> Any:
        """Return the neutral element of the reduction of a tensor."""


class Products:
    """The semantics of einsums: sums of products."""

    id = "products"

    def __init__(self, plan: Plan, leaf: LeafFunction) -> None:
        # not the plan itself: its steps would travel with it to Dask's workers
        self._groups, self._leaf = plan.groups, leaf
        self._operands, self._dtype = plan.operands, plan.dtype

    def dtype(self, tensor: str) -> Any:
        return self._operands.get(tensor, self._dtype)

    def leaf(self, step: Leaf, blocks: Sequence[NDArray[Any]]) -> NDArray[Any]:
        result: NDArray[Any] = self._leaf(self._groups[step.group].subscripts, *blocks)
        return result

    def combine(self, tensor: str, left: NDArray[Any], right: NDArray[Any]) -> Any:
        return np.add(left, right, out=left)

    def neutral(self, tensor: str) -> Any:
        return 0


class Buffers:
    """The buffers of one rank: arrays with their boxes.

    Args:
        traffic: records what the rank does.
    """

    def __init__(self, semantics: Semantics, traffic: Traffic | None = None) -> None:
        self.semantics = semantics
        self.traffic = Traffic() if traffic is None else traffic
        self.arrays: dict[str, tuple[NDArray[Any], Box]] = {}
        self._shared: set[str] = set()

    def fork(self) -> Buffers:
        """Return a copy to continue with, so that these buffers are not modified.

        Arrays are copied when they are first written to.
        """
        other = Buffers(self.semantics, self.traffic.copy())
        other.arrays = dict(self.arrays)
        other._shared = set(self.arrays)
        return other

    def __sizeof__(self) -> int:
        # Dask decides by this where to compute, and when to spill
        return sum(array.nbytes for array, _ in self.arrays.values())

    def put(self, name: str, box: Box, array: NDArray[Any]) -> None:
        """Add an array, such as an initial block."""
        self.arrays[name] = (array, box)
        self.traffic.count_bytes(array.nbytes)

    def view(self, name: str, box: Box) -> NDArray[Any]:
        """Return a part of a buffer, without a copy."""
        array, whole = self.arrays[name]
        part: NDArray[Any] = array[slices(within(box, whole))]
        return part

    def do(self, step: Step) -> None:
        """Execute a step that involves no other rank."""
        match step:
            case Make(buffer, box, is_zero):
                tensor = tensor_of(buffer)
                # not zeros: what is fetched or computed overwrites all of it
                array = np.empty(box_shape(box), self.semantics.dtype(tensor))
                if is_zero:
                    array[...] = self.semantics.neutral(tensor)
                self.put(buffer, box, array)
            case Take(source, target, box, is_added):
                self.store(target, box, self.view(source, box), is_added)
            case Leaf():
                blocks = [self.view(name, box) for name, box in step.sources]
                start = perf_counter()
                result = self.semantics.leaf(step, blocks)
                self.traffic.seconds[step.group] += perf_counter() - start
                self.store(step.target, step.box, result, not step.is_first)
            case Free(buffer):
                self.traffic.count_bytes(-self.arrays.pop(buffer)[0].nbytes)
                self._shared.discard(buffer)
            case _:
                raise AssertionError(step)

    def store(self, name: str, box: Box, value: Any, is_added: bool) -> None:
        """Store values in a buffer, or reduce them into it."""
        # copy on write: another state of this rank may still read it
        if name in self._shared:
            array, whole = self.arrays[name]
            self.arrays[name] = (array.copy(), whole)
            self._shared.remove(name)
        target = self.view(name, box)
        if is_added:
            value = self.semantics.combine(tensor_of(name), target, value)
        # a reduction may have combined in place
        if value is not target:
            target[...] = value

    def receive(self, name: str, box: Box, value: Any, is_added: bool) -> None:
        """Store what was received from another rank, and count it."""
        self.traffic.count_message(name, value.size, is_added=is_added)
        self.store(name, box, value, is_added)


def run_here(
    plan: Plan,
    operands: Mapping[str, Any],
    *,
    leaf: LeafFunction | None = None,
    meaning: Semantics | None = None,
    traffic: Sequence[Traffic] | None = None,
    progress: Progress | None = None,
) -> Any:
    """Compute the whole result by running the steps of all ranks in this process.

    Args:
        operands: whole arrays by name.
        leaf: function that computes a block; by default numpy.
        meaning: computes statements that are not einsums.
        traffic: one for each rank; records what it did.
        progress: called with the number of finished leaves, and the total.

    Returns:
        An array; for a plan of statements, a dictionary of arrays.

    Raises:
        PlanError: if an operand is missing or has another shape or dtype.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (4, 6)), feinsum.array("B", (6, 5))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=4)
    >>> a, b = np.arange(24.0).reshape(4, 6), np.ones((6, 5))
    >>> bool((run_here(plan, {"A": a, "B": b}) == a @ b).all())
    True
    """
    arrays = checked_operands(plan, operands)
    semantics = meaning or Products(plan, leaf or numpy_leaf)
    records = traffic or [Traffic() for _ in range(plan.processes)]
    ranks = [Buffers(semantics, record) for record in records]
    # copies, as other engines have them: ranks must not share memory
    for name, array in arrays.items():
        for rank, buffers in enumerate(ranks):
            box = plan.start_box(name, rank)
            if box is not None:
                buffers.put(name, box, array[slices(box)].copy())
    _run_in_turns(plan, ranks, progress)

    def collect(output: str) -> NDArray[Any]:
        return assemble_result(
            plan,
            output,
            lambda rank, box: ranks[rank].view(output, box),
            semantics.dtype(output),
        )

    return by_output(plan, collect)


def by_output(plan: Plan, compute: Callable[[str], Any]) -> Any:
    """Return a value for the output; for a plan of statements, a dictionary."""
    if plan.statements is None:
        return compute(plan.outputs[0])
    return {output: compute(output) for output in plan.outputs}


def named_outputs(plan: Plan, values: Any) -> Any:
    """Return what :func:`by_output` returned, by name in any case."""
    return {plan.outputs[0]: values} if plan.statements is None else values


def assemble_result(
    plan: Plan, output: str, part_of: Callable[[int, Box], Any], dtype: Any
) -> NDArray[Any]:
    """Return the whole of an output.

    Args:
        part_of: returns what a rank has, its box of the output.
    """
    whole = np.zeros(plan.shape(output), dtype)
    for rank in range(plan.processes):
        box = plan.result_box(rank, output)
        if box is not None:
            whole[slices(box)] = part_of(rank, box)
    return whole


def checked_operands(
    plan: Plan, operands: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """Return whole operands as arrays with the plan's shapes and dtypes.

    Raises:
        PlanError: with the rule ``blocks``, saying what was given and expected.
    """
    expected = plan.operands
    if set(expected) != set(operands):
        raise PlanError(
            f"operands {', '.join(sorted(operands))} were given; expected "
            f"{', '.join(sorted(expected))}",
            rules=("blocks",),
        )
    arrays = {name: np.asarray(array) for name, array in operands.items()}
    for name, array in arrays.items():
        shape, dtype = plan.shape(name), expected[name]
        if (array.shape, array.dtype) != (shape, dtype):
            raise PlanError(
                f"operand {name} has shape {array.shape} and dtype {array.dtype}; "
                f"expected {shape} and {dtype}",
                rules=("blocks",),
            )
    return arrays


def slices(box: Box) -> tuple[Any, ...]:
    """Return the index expression for a box of an array.

    The ellipsis makes the result an array even for a scalar.

    >>> np.arange(6)[slices((range(1, 6, 2),))].tolist()
    [1, 3, 5]
    """
    return (*(slice(side.start, side.stop, side.step) for side in box), ...)


def within(box: Box, around: Box) -> Box:
    """Return a box in coordinates of one that contains it.

    >>> within((range(5, 11, 4),), (range(1, 11, 2),))
    (range(2, 5, 2),)
    """
    pairs = zip(box, around, strict=True)
    return tuple(
        range(whole.index(side[0]), whole.index(side[-1]) + 1, side.step // whole.step)
        for side, whole in pairs
    )


def count_leaves(
    steps: Sequence[Step], progress: Progress | None
) -> Callable[[Step], None]:
    """Return a callback for finished steps that reports finished leaves."""
    if progress is None:
        return lambda _: None
    n_leaves, numbers = sum(type(step) is Leaf for step in steps), count(1)

    def report(step: Step) -> None:
        if type(step) is Leaf:
            progress(next(numbers), n_leaves)

    return report


def _run_in_turns(
    plan: Plan, ranks: Sequence[Buffers], progress: Progress | None = None
) -> None:
    """Run ranks in turns; a rank that waits for a message yields to the next one."""
    mail: dict[Any, NDArray[Any]] = {}
    report = count_leaves([step for row in plan.steps for step in row], progress)
    running = [
        _run_rank(rank, plan.steps[rank], buffers, mail, report)
        for rank, buffers in enumerate(ranks)
    ]
    while running:
        n_steps = [next(steps, None) for steps in running]
        # every rank waits for another one: the steps are wrong
        if not any(n != 0 for n in n_steps):
            raise AssertionError("no rank can go on")
        pairs = zip(running, n_steps, strict=True)
        running = [steps for steps, n in pairs if n is not None]
    assert not mail, "messages that nobody received"


def _run_rank(
    rank: int,
    steps: Sequence[Step],
    buffers: Buffers,
    mail: dict[Any, NDArray[Any]],
    report: Callable[[Step], None],
) -> Generator[int]:
    """Run up to a message that is not there yet; yields the number of steps."""
    n_steps = 0
    for step in steps:
        match step:
            case Send(to, source, box, tag):
                # a copy: the sender may write to its buffer before this is read
                mail[rank, to, tag, box] = buffers.view(source, box).copy()
            case Receive(of, target, box, tag) | Reduce(of, target, box, tag):
                while (of, rank, tag, box) not in mail:
                    yield n_steps
                    n_steps = 0
                value = mail.pop((of, rank, tag, box))
                buffers.receive(target, box, value, type(step) is Reduce)
            case _:
                buffers.do(step)
                report(step)
        n_steps += 1
