"""All ranks in one process, with numpy: what every other engine is compared with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from string import ascii_letters
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.errors import PlanError
from feinsum.plans.boxes import Box
from feinsum.plans.groups import Group
from feinsum.plans.plan import Plan
from feinsum.plans.steps import Free, Leaf, Make, Receive, Reduce, Send, Step, Take

__all__ = ["Buffers", "LeafFunction", "in_letters", "numpy_leaf", "run_here"]

LeafFunction: TypeAlias = Callable[..., Any]
"""From subscripts and arrays to their einsum, as :func:`feinsum.call_einsum`."""


def numpy_leaf(subscripts: str, *blocks: NDArray[Any]) -> NDArray[Any]:
    """The reference: numpy, which knows no words for indices."""
    found: NDArray[Any] = np.einsum(
        _letters(subscripts), *blocks, optimize=len(blocks) > 2
    )
    return found


def _letters(subscripts: str) -> str:
    if " " not in subscripts:
        return subscripts
    terms = [text.split() for text in subscripts.replace("->", ",").split(",")]
    words = tuple(dict.fromkeys(word for term in terms for word in term))
    letter = dict(zip(words, in_letters(words), strict=True))
    texts = ["".join(letter[word] for word in term) for term in terms]
    return f"{','.join(texts[:-1])}->{texts[-1]}"


def in_letters(indices: Sequence[str]) -> Sequence[str]:
    """A letter for every index; of letters themselves.

    >>> in_letters(("i", "j")), in_letters(("row", "j"))
    (('i', 'j'), 'ab')
    """
    if all(len(i) == 1 and i in ascii_letters for i in indices):
        return indices
    if len(indices) > len(ascii_letters):
        raise PlanError(
            f"{len(indices)} indices in one group; numpy knows {len(ascii_letters)}",
            rules=("blocks",),
        )
    return ascii_letters[: len(indices)]


class Buffers:
    """The buffers of one rank: arrays with the box that each is of."""

    def __init__(self, groups: Sequence[Group], dtype: Any, leaf: LeafFunction) -> None:
        self.groups, self.dtype, self.leaf = groups, dtype, leaf
        self.arrays: dict[str, tuple[NDArray[Any], Box]] = {}

    def put(self, name: str, box: Box, array: NDArray[Any]) -> None:
        """An array that is there from the beginning."""
        self.arrays[name] = (array, box)

    def view(self, name: str, box: Box) -> NDArray[Any]:
        """That part of a buffer, without a copy."""
        array, at = self.arrays[name]
        places: tuple[Any, ...] = tuple(
            slice(a - first, b - first)
            for (a, b), (first, _) in zip(box, at, strict=True)
        )
        found: NDArray[Any] = array[(*places, ...)]
        return found

    def do(self, step: Step) -> None:
        """A step that needs no other rank."""
        match step:
            case Make(buffer, box, is_zero):
                shape = tuple(end - first for first, end in box)
                make = np.zeros if is_zero else np.empty
                self.put(buffer, box, make(shape, self.dtype_of(buffer)))
            case Take(source, target, box, is_added):
                self.store(target, box, self.view(source, box), is_added)
            case Leaf():
                blocks = [self.view(name, box) for name, box in step.sources]
                found = self.leaf(self.groups[step.group].subscripts, *blocks)
                self.store(step.target, step.box, found, not step.is_first)
            case Free(buffer):
                del self.arrays[buffer]
            case _:
                raise AssertionError(step)

    def dtype_of(self, buffer: str) -> Any:
        """Of what was fetched that of the tensor; of a product that of the result."""
        tensor = buffer.partition("@")[0].rstrip("+")
        return self.dtype.get(tensor, self.dtype[None])

    def store(self, name: str, box: Box, value: Any, is_added: bool) -> None:
        """Put values into a buffer, or add them."""
        target = self.view(name, box)
        if is_added:
            target += value
        else:
            target[...] = value


def dtypes_of(plan: Plan) -> dict[str | None, Any]:
    """Of every operand by name, and under None of everything else."""
    found: dict[str | None, Any] = {None: plan.dtype}
    return found | dict(plan.operands)


def run_here(
    plan: Plan, operands: Mapping[str, Any], *, leaf: LeafFunction | None = None
) -> Any:
    """The whole result, computed by the steps of all ranks in this process.

    Args:
        operands: whole arrays by name.
        leaf: what computes a block; by default numpy.

    Returns:
        An array; of a plan of statements a dictionary of arrays.

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
    ranks = [
        Buffers(plan.groups, dtypes_of(plan), leaf or numpy_leaf)
        for _ in range(plan.processes)
    ]
    for name, array in arrays.items():
        for rank, buffers in enumerate(ranks):
            box = plan.start_box(name, rank)
            if box is not None:
                buffers.put(name, box, array[_slices(box)])
    _run_all(plan, ranks)
    found = {output: _gathered(plan, ranks, output) for output in plan.outputs}
    return found if plan.statements is not None else found[plan.outputs[0]]


def checked_operands(
    plan: Plan, operands: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """Whole operands as arrays, of the plan's shapes and dtypes."""
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


def _slices(box: Box) -> tuple[Any, ...]:
    return (*(slice(first, end) for first, end in box), ...)


def _run_all(plan: Plan, ranks: Sequence[Buffers]) -> None:
    """Ranks in turns; one that waits for a message lets the next one go on."""
    mail: dict[Any, NDArray[Any]] = {}
    running = [
        _rank(rank, plan.steps[rank], buffers, mail)
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
    rank: int, steps: Sequence[Step], buffers: Buffers, mail: dict[Any, NDArray[Any]]
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
                buffers.store(target, box, value, type(step) is Reduce)
            case _:
                buffers.do(step)
        n_done += 1


def _gathered(plan: Plan, ranks: Sequence[Buffers], output: str) -> NDArray[Any]:
    result = np.zeros(plan.shape(output), plan.dtype)
    for rank, buffers in enumerate(ranks):
        box = plan.result_box(rank, output)
        if box is not None:
            result[_slices(box)] = buffers.view(output, box)
    return result
