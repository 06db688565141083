"""All ranks in one process, with numpy: the reference for all other engines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count
from string import ascii_letters
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, box_shape
from feinsum.distributed.plan import Plan
from feinsum.distributed.steps import (
    Free,
    Leaf,
    Make,
    Receive,
    Reduce,
    Send,
    Step,
    Take,
)
from feinsum.distributed.traffic import Traffic
from feinsum.errors import PlanError
from feinsum.ir import parse_subscripts, write_subscripts

LeafFunction: TypeAlias = Callable[..., Any]
"""From subscripts and arrays to their einsum, as :func:`feinsum.call_einsum`."""


def numpy_leaf(subscripts: str, *blocks: NDArray[Any]) -> NDArray[Any]:
    """The reference: numpy, with long names of indices replaced by letters."""
    found: NDArray[Any] = np.einsum(
        _letters(subscripts), *blocks, optimize=len(blocks) > 2
    )
    return found


def _letters(subscripts: str) -> str:
    if set(subscripts) <= {*ascii_letters, *",->"}:
        return subscripts
    inputs, output = parse_subscripts(subscripts)
    names = tuple(dict.fromkeys(name for term in inputs for name in term))
    letter = dict(zip(names, in_letters(names), strict=True))
    terms = [[letter[name] for name in term] for term in (*inputs, output)]
    return write_subscripts(terms[:-1], terms[-1])


def in_letters(indices: Sequence[str]) -> Sequence[str]:
    """A letter for every index; of letters themselves.

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


class Meaning(Protocol):
    """The meaning of a plan's statements, if they are not sums of products."""

    @property
    def id(self) -> str:
        """A digest, equal on all ranks."""

    def dtype(self, tensor: str) -> Any:
        """The dtype of an operand or a result."""

    def leaf(self, step: Leaf, blocks: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The result of a statement for blocks of its operands."""

    def combined(self, tensor: str, one: NDArray[Any], other: NDArray[Any]) -> Any:
        """Two partial results combined."""

    def neutral(self, tensor: str) -> Any:
        """The neutral element of the reduction of a tensor."""


class Products:
    """The meaning of einsums: sums of products."""

    id = "products"

    def __init__(self, plan: Plan, leaf: LeafFunction) -> None:
        self._groups, self._leaf = plan.groups, leaf
        self._operands, self._dtype = plan.operands, plan.dtype

    def dtype(self, tensor: str) -> Any:
        return self._operands.get(tensor, self._dtype)

    def leaf(self, step: Leaf, blocks: Sequence[NDArray[Any]]) -> NDArray[Any]:
        found: NDArray[Any] = self._leaf(self._groups[step.group].subscripts, *blocks)
        return found

    def combined(self, tensor: str, one: NDArray[Any], other: NDArray[Any]) -> Any:
        return np.add(one, other, out=one)

    def neutral(self, tensor: str) -> Any:
        return 0


class Buffers:
    """The buffers of one rank: arrays with their boxes.

    Args:
        traffic: records what the rank does.
    """

    def __init__(self, meaning: Meaning, traffic: Traffic | None = None) -> None:
        self.meaning = meaning
        self.traffic = Traffic() if traffic is None else traffic
        self.arrays: dict[str, tuple[NDArray[Any], Box]] = {}
        self._shared: set[str] = set()

    def fork(self) -> Buffers:
        """A copy to continue with, so that these buffers are not modified."""
        other = Buffers(self.meaning, self.traffic.copy())
        other.arrays = dict(self.arrays)
        other._shared = set(self.arrays)
        return other

    def __sizeof__(self) -> int:
        return sum(array.nbytes for array, _ in self.arrays.values())

    def put(self, name: str, box: Box, array: NDArray[Any]) -> None:
        """Add an array, such as an initial block."""
        self.arrays[name] = (array, box)
        self.traffic.holds(array.nbytes)

    def view(self, name: str, box: Box) -> NDArray[Any]:
        """A part of a buffer, without a copy."""
        array, at = self.arrays[name]
        found: NDArray[Any] = array[slices(within(box, at))]
        return found

    def do(self, step: Step) -> None:
        """Execute a step that involves no other rank."""
        match step:
            case Make(buffer, box, is_zero):
                tensor = tensor_of(buffer)
                array = np.empty(box_shape(box), self.meaning.dtype(tensor))
                if is_zero:
                    array[...] = self.meaning.neutral(tensor)
                self.put(buffer, box, array)
            case Take(source, target, box, is_added):
                self.store(target, box, self.view(source, box), is_added)
            case Leaf():
                blocks = [self.view(name, box) for name, box in step.sources]
                start = perf_counter()
                found = self.meaning.leaf(step, blocks)
                self.traffic.seconds[step.group] += perf_counter() - start
                self.store(step.target, step.box, found, not step.is_first)
            case Free(buffer):
                self.traffic.holds(-self.arrays.pop(buffer)[0].nbytes)
                self._shared.discard(buffer)
            case _:
                raise AssertionError(step)

    def store(self, name: str, box: Box, value: Any, is_added: bool) -> None:
        """Store values in a buffer, or reduce them into it."""
        if name in self._shared:
            array, at = self.arrays[name]
            self.arrays[name] = (array.copy(), at)
            self._shared.remove(name)
        target = self.view(name, box)
        if is_added:
            value = self.meaning.combined(tensor_of(name), target, value)
        if value is not target:
            target[...] = value

    def receive(self, name: str, box: Box, value: Any, is_added: bool) -> None:
        """Store what was received from another rank, and count it."""
        self.traffic.arrived(name, value.size, is_added=is_added)
        self.store(name, box, value, is_added)


def tensor_of(buffer: str) -> str:
    """The tensor of a buffer: held, fetched, or in partial results."""
    return buffer.partition("@")[0].rstrip("+")


def run_here(
    plan: Plan,
    operands: Mapping[str, Any],
    *,
    leaf: LeafFunction | None = None,
    meaning: Meaning | None = None,
    traffic: Sequence[Traffic] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """The whole result, computed by running the steps of all ranks in this process.

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
    meaning = meaning or Products(plan, leaf or numpy_leaf)
    counted = traffic or [Traffic() for _ in range(plan.processes)]
    ranks = [Buffers(meaning, one) for one in counted]
    for name, array in arrays.items():
        for rank, buffers in enumerate(ranks):
            box = plan.start_box(name, rank)
            if box is not None:
                buffers.put(name, box, array[slices(box)].copy())
    _run_all(plan, ranks, progress)
    found = {output: _gathered(plan, ranks, output) for output in plan.outputs}
    return found if plan.statements is not None else found[plan.outputs[0]]


def checked_operands(
    plan: Plan, operands: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """Whole operands as arrays with the plan's shapes and dtypes."""
    known = plan.operands
    if set(known) != set(operands):
        raise PlanError(
            f"operands {', '.join(sorted(operands))} were given; expected "
            f"{', '.join(sorted(known))}",
            rules=("blocks",),
        )
    arrays = {name: np.asarray(array) for name, array in operands.items()}
    for name, array in arrays.items():
        wanted = (plan.shape(name), known[name])
        if (array.shape, array.dtype) != wanted:
            raise PlanError(
                f"operand {name} has shape {array.shape} and dtype {array.dtype}; "
                f"expected {wanted[0]} and {wanted[1]}",
                rules=("blocks",),
            )
    return arrays


def slices(box: Box) -> tuple[Any, ...]:
    """The index expression for a box of an array.

    >>> np.arange(6)[slices((range(1, 6, 2),))].tolist()
    [1, 3, 5]
    """
    return (*(slice(side.start, side.stop, side.step) for side in box), ...)


def within(box: Box, around: Box) -> Box:
    """A box in coordinates of one that contains it.

    >>> within((range(5, 11, 4),), (range(1, 11, 2),))
    (range(2, 5, 2),)
    """
    pairs = zip(box, around, strict=True)
    return tuple(
        range(whole.index(side[0]), whole.index(side[-1]) + 1, side.step // whole.step)
        for side, whole in pairs
    )


def after_leaves(
    steps: Sequence[Step], progress: Callable[[int, int], None] | None
) -> Callable[[Step], None]:
    """A callback that counts finished leaves and reports progress."""
    if progress is None:
        return lambda _: None
    n_leaves, numbers = sum(type(step) is Leaf for step in steps), count(1)

    def tell(step: Step) -> None:
        if type(step) is Leaf:
            progress(next(numbers), n_leaves)

    return tell


def _run_all(
    plan: Plan,
    ranks: Sequence[Buffers],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Run ranks in turns; a rank that waits for a message yields to the next one."""
    mail: dict[Any, NDArray[Any]] = {}
    done = after_leaves([step for row in plan.steps for step in row], progress)
    running = [
        _rank(rank, plan.steps[rank], buffers, mail, done)
        for rank, buffers in enumerate(ranks)
    ]
    while running:
        went_on = [next(steps, None) for steps in running]
        if not any(moves != 0 for moves in went_on):
            raise AssertionError("no rank can go on")
        running = [
            steps
            for steps, moves in zip(running, went_on, strict=True)
            if moves is not None
        ]
    assert not mail, "messages that nobody received"


def _rank(
    rank: int,
    steps: Sequence[Step],
    buffers: Buffers,
    mail: dict[Any, NDArray[Any]],
    done: Callable[[Step], None],
) -> Generator[int]:
    """Goes on to a message that is not there yet; yields how many steps it did."""
    n_done = 0
    for step in steps:
        match step:
            case Send(to, source, box, tag):
                mail[rank, to, tag, box] = buffers.view(source, box).copy()
            case Receive(of, target, box, tag) | Reduce(of, target, box, tag):
                while (of, rank, tag, box) not in mail:
                    yield n_done
                    n_done = 0
                value = mail.pop((of, rank, tag, box))
                buffers.receive(target, box, value, type(step) is Reduce)
            case _:
                buffers.do(step)
                done(step)
        n_done += 1


def _gathered(plan: Plan, ranks: Sequence[Buffers], output: str) -> NDArray[Any]:
    dtype = ranks[0].meaning.dtype(output)
    result = np.zeros(plan.shape(output), dtype)
    for rank, buffers in enumerate(ranks):
        box = plan.result_box(rank, output)
        if box is not None:
            result[slices(box)] = buffers.view(output, box)
    return result
