"""All ranks in one process, with numpy: the reference for all other engines.

An engine interprets the steps of each rank on its :class:`Buffers`, arrays with their
boxes. The :class:`Semantics` say what a leaf computes and how partial results combine:
sums of products for einsums, bodies and reductions for statements of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from string import ascii_letters
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box
from feinsum.distributed.counts import Outcome, Traffic
from feinsum.distributed.plans import Plan
from feinsum.distributed.steps import (
    Computation,
    Free,
    Leaf,
    Make,
    Step,
    Transfer,
    get_tensor,
    list_steps,
)
from feinsum.distributed.storage import (
    Stored,
    as_entries,
    as_stored,
    count_stored_bytes,
    find_prototype,
    get_dtype,
    is_on_gpu,
    join_parts,
    make_array,
    make_relative,
    synchronize,
    take_box,
)
from feinsum.errors import PlanError
from feinsum.ir import parse_subscripts, write_subscripts
from feinsum.sparse import COO

LeafFunction: TypeAlias = Callable[..., Any]
"""From subscripts and arrays to their einsum, as :func:`feinsum.call_einsum`."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished leaves, and the total."""

Wait: TypeAlias = Callable[[], Outcome]
"""Waits for a run that was begun."""


def check_memory(plan: Plan, available: int, *, n_ranks: int = 1) -> None:
    """Check that a run fits into memory, before anything is allocated.

    Args:
        plan: the plan to run.
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


def compute_with_numpy(subscripts: str, *blocks: Any) -> Any:
    """Compute the reference: numpy, with long names of indices replaced by letters."""
    text = replace_names(subscripts)
    if any(isinstance(block, COO) for block in blocks):
        from feinsum.calling.sparse.call import compute_by_entries

        return compute_by_entries(text, blocks)
    return np.einsum(text, *blocks, optimize=len(blocks) > 2)


def call_tuned(subscripts: str, *blocks: Any) -> Any:
    """Compute a leaf by :func:`feinsum.call_einsum`, imported where it is computed."""
    from feinsum.calling import call_einsum

    return call_einsum(subscripts, *blocks)


def import_tuned_leaf() -> LeafFunction:
    """Import :func:`feinsum.call_einsum`, which brings the code generator."""
    from feinsum.calling import call_einsum

    return call_einsum


def replace_names(subscripts: str) -> str:
    """Return subscripts with letters instead of long names; letters alone stay.

    >>> replace_names("ij,j->i"), replace_names("{row}j,j->{row}")
    ('ij,j->i', 'ab,b->a')
    """
    # the usual case needs no parsing
    if set(subscripts) <= {*ascii_letters, *",->"}:
        return subscripts
    inputs, output = parse_subscripts(subscripts)
    names = dict.fromkeys(name for term in inputs for name in term)
    if len(names) > len(ascii_letters):
        raise PlanError(
            f"{len(names)} indices in one group; numpy supports {len(ascii_letters)}",
            rules=("blocks",),
        )
    letter = dict(zip(names, ascii_letters, strict=False))
    terms = [[letter[name] for name in term] for term in (*inputs, output)]
    return write_subscripts(terms[:-1], terms[-1])


class Semantics(Protocol):
    """The operations of a plan's leaves and reductions, if not sums of products."""

    @property
    def id(self) -> str:
        """A digest, equal on all ranks."""

    def dtype(self, tensor: str) -> Any:
        """Return the dtype of an operand or a result."""

    def is_sparse(self, tensor: str) -> bool:
        """Return whether only some entries of a tensor are stored."""

    def leaf(self, step: Leaf, blocks: Sequence[Any]) -> Any:
        """Compute the result of a statement for blocks of its operands."""

    def combine(self, tensor: str, left: NDArray[Any], right: NDArray[Any]) -> Any:
        """Combine two partial results; the result may overwrite the first one."""

    def neutral(self, tensor: str) -> Any:
        """Return the neutral element of the reduction of a tensor."""

    def read(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the arrays of a run to the operands of the plan."""


class Products:
    """The semantics of einsums: sums of products."""

    id = "products"

    def __init__(self, plan: Plan, leaf: LeafFunction) -> None:
        # not the plan itself: its steps would travel with it to Dask's workers
        self._groups, self._leaf = plan.groups, leaf
        self._operands, self._dtype = plan.operands, plan.dtype
        self._sparse = frozenset(plan.density)

    def dtype(self, tensor: str) -> Any:
        return self._operands.get(tensor, self._dtype)

    def is_sparse(self, tensor: str) -> bool:
        return tensor in self._sparse

    def leaf(self, step: Leaf, blocks: Sequence[Any]) -> Any:
        return self._leaf(self._groups[step.group].subscripts, *blocks)

    def combine(self, tensor: str, left: NDArray[Any], right: NDArray[Any]) -> Any:
        return np.add(left, right, out=left)

    def neutral(self, tensor: str) -> Any:
        return 0

    def read(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(arrays, Mapping):
            raise PlanError(
                f"the arrays of a run are a {type(arrays).__name__}; expected arrays "
                "by name, such as {'A': a, 'B': b}",
                rules=("blocks",),
            )
        return arrays


class Buffers:
    """The buffers of one rank: arrays with their boxes.

    Args:
        blocks: the initial block of each operand, with its box.
        traffic: records what the rank does.
        like: an array on the GPU that has all buffers; by default the host has them.
    """

    def __init__(
        self,
        semantics: Semantics,
        blocks: Mapping[str, tuple[Stored, Box]],
        traffic: Traffic | None = None,
        like: Any = None,
    ) -> None:
        self.semantics, self.like = semantics, like
        self.traffic = Traffic() if traffic is None else traffic
        self.arrays: dict[str, tuple[Stored, Box]] = {}
        self._shared: set[str] = set()
        for name, (array, box) in blocks.items():
            self._put(name, box, array)

    def fork(self) -> Buffers:
        """Return a copy to continue with, so that these buffers are not modified.

        Arrays are copied when they are first written to.
        """
        copy = Buffers(self.semantics, {}, self.traffic.copy(), self.like)
        copy.arrays = dict(self.arrays)
        copy._shared = set(self.arrays)
        return copy

    def __sizeof__(self) -> int:
        # Dask schedules tasks and spills data by this size
        return sum(count_stored_bytes(array) for array, _ in self.arrays.values())

    def _put(self, name: str, box: Box, array: Stored) -> None:
        self.arrays[name] = (array, box)
        self.traffic.count_bytes(count_stored_bytes(array))

    def view(self, name: str, box: Box) -> Any:
        """Return a part of a buffer, without a copy if it is dense."""
        array, buffer_box = self.arrays[name]
        return take_box(array, make_relative(box, buffer_box))

    def do(self, step: Step) -> None:
        """Execute a step that involves no other rank."""
        match step:
            case Make(buffer, box, is_zero):
                tensor = get_tensor(buffer)
                # other buffers need no values: they are overwritten completely
                fill = self.semantics.neutral(tensor) if is_zero else None
                dtype, is_sparse = self._get_kind(tensor)
                array = make_array(
                    box, dtype, fill, is_sparse=is_sparse, like=self.like
                )
                self._put(buffer, box, array)
            case Transfer(source=source, target=target, box=box, is_added=is_added):
                self.store(target, box, self.view(source, box), is_added)
            case Leaf():
                blocks = [self.view(name, box) for name, box in step.sources]
                start = perf_counter()
                result = self.semantics.leaf(step, blocks)
                # launches return before the GPU has computed
                synchronize(result)
                self.traffic.seconds[step.group] += perf_counter() - start
                _, is_sparse = self._get_kind(get_tensor(step.target))
                value = as_entries(result, is_sparse=is_sparse)
                self.store(step.target, step.box, value, not step.is_first)
            case Free(buffer):
                self.traffic.count_bytes(
                    -count_stored_bytes(self.arrays.pop(buffer)[0])
                )
                self._shared.discard(buffer)
            case _:
                raise AssertionError(step)

    def _get_kind(self, tensor: str) -> tuple[Any, bool]:
        return self.semantics.dtype(tensor), self.semantics.is_sparse(tensor)

    def store(self, name: str, box: Box, value: Any, is_added: bool) -> None:
        """Store values in a buffer, or reduce them into it."""
        array, buffer_box = self.arrays[name]
        if isinstance(array, COO):
            # leaves write all entries, in the order of the operand with this pattern
            assert box == buffer_box
            total = array.values + value.values if is_added else value.values
            self.traffic.count_bytes(-count_stored_bytes(array))
            self._put(name, box, COO(value.shape, value.indices, total))
            return
        # copy on write: another state of this rank may still read it
        if name in self._shared:
            self.arrays[name] = (array.copy(), buffer_box)
            self._shared.remove(name)
        if self.like is not None and not is_on_gpu(value):
            # a message through the host
            value = np.asarray(value, like=self.like)
        target = self.view(name, box)
        if is_added:
            value = self.semantics.combine(get_tensor(name), target, value)
        # a reduction may have combined in place
        if value is not target:
            target[...] = value

    def receive(self, step: Transfer, value: Any) -> None:
        """Store values received from another rank, and count them."""
        self.traffic.count_message(step.target, value.size, is_added=step.is_added)
        self.store(step.target, step.box, value, step.is_added)


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
        plan: the plan to run.
        operands: whole arrays by name. If they are on a GPU, so is the result.
        leaf: function that computes a block; by default numpy.
        meaning: computes statements that are not einsums.
        traffic: one for each rank; records what it did.
        progress: called with the number of finished leaves, and the total.

    Returns:
        An array; for a plan of statements, a dictionary of arrays.

    Raises:
        PlanError: if an operand is missing or has another shape or dtype, or if some
            are on a GPU and others are not.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (4, 6)), feinsum.array("B", (6, 5))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=4)
    >>> a, b = np.arange(24.0).reshape(4, 6), np.ones((6, 5))
    >>> bool((run_here(plan, {"A": a, "B": b}) == a @ b).all())
    True
    """
    arrays = check_operands(plan, operands)
    like = find_prototype(arrays, "operands")
    semantics = meaning or Products(plan, leaf or compute_with_numpy)
    check_support(plan, semantics, like)
    records = traffic or [Traffic() for _ in range(plan.processes)]
    ranks = [
        Buffers(semantics, cut_blocks(plan, arrays, rank), record, like)
        for rank, record in enumerate(records)
    ]
    _run_events(plan, ranks, progress)

    def collect(output: str) -> Any:
        return assemble_result(
            plan,
            output,
            lambda rank, box: ranks[rank].view(output, box),
            semantics.dtype(output),
            like,
        )

    return collect_outputs(plan, collect)


def cut_blocks(
    plan: Plan, arrays: Mapping[str, Stored], rank: int
) -> dict[str, tuple[Stored, Box]]:
    """Cut a rank's blocks from whole operands, each with its box.

    Blocks share no memory, because ranks and the caller change their arrays; those of
    sparse arrays are immutable.
    """
    blocks = {}
    for name in plan.operands:
        if (box := plan.start_box(name, rank)) is not None:
            block = take_box(arrays[name], box)
            blocks[name] = (block if plan.is_sparse(name) else block.copy()), box
    return blocks


def collect_outputs(plan: Plan, compute: Callable[[str], Any]) -> Any:
    """Return a value for the output; for a plan of statements, a dictionary."""
    if plan.statements is None:
        return compute(plan.outputs[0])
    return {output: compute(output) for output in plan.outputs}


def name_outputs(plan: Plan, values: Any) -> Any:
    """Return the values of :func:`collect_outputs` by name, for every kind of plan."""
    return {plan.outputs[0]: values} if plan.statements is None else values


def assemble_result(
    plan: Plan,
    output: str,
    part_of: Callable[[int, Box], Any],
    dtype: Any,
    like: Any = None,
) -> Any:
    """Assemble a whole output from the parts of all ranks.

    Args:
        plan: the plan that ran.
        output: name of the output.
        part_of: returns the part that a rank holds, given the rank and its box.
        dtype: dtype of the output.
        like: an array on the GPU that has the parts; by default the host has them.
    """
    boxes = ((rank, plan.result_box(rank, output)) for rank in range(plan.processes))
    parts = ((box, part_of(rank, box)) for rank, box in boxes if box is not None)
    return join_parts(
        plan.shape(output), dtype, parts, is_sparse=plan.is_sparse(output), like=like
    )


def check_support(plan: Plan, semantics: Semantics, like: Any) -> None:
    """Refuse plans that cannot run on a GPU.

    Args:
        plan: the plan to run.
        semantics: computes its leaves.
        like: an array on the GPU; None on the host.

    Raises:
        PlanError: with the rule ``gpu``, for sparse operands and for programs.
    """
    if like is None or (isinstance(semantics, Products) and not plan.density):
        return
    kind = "sparse operands" if plan.density else "statements that are not einsums"
    raise PlanError(
        f"{plan.title} has {kind}, which run on the host; pass arrays of numpy",
        rules=("gpu",),
    )


def check_operands(plan: Plan, operands: Mapping[str, Any]) -> dict[str, Stored]:
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
    arrays = {
        name: as_stored(array, is_sparse=plan.is_sparse(name))
        for name, array in operands.items()
    }
    for name, array in arrays.items():
        shape, dtype = plan.shape(name), expected[name]
        if (array.shape, get_dtype(array)) != (shape, dtype):
            raise PlanError(
                f"operand {name} has shape {array.shape} and dtype {get_dtype(array)}; "
                f"expected {shape} and {dtype}",
                rules=("blocks",),
            )
    return arrays


def count_leaves(n_leaves: int, progress: Progress | None) -> Callable[[Step], None]:
    """Return a callback for finished steps that reports finished leaves."""
    numbers = count(1)

    def report(step: Step) -> None:
        if progress is not None and isinstance(step, Leaf):
            progress(next(numbers), n_leaves)

    return report


def _run_events(
    plan: Plan, ranks: Sequence[Buffers], progress: Progress | None = None
) -> None:
    """Run all ranks, one event after another, so that every message has been sent."""
    n_leaves = 0
    if progress is not None:
        computations = (e for e in plan.events() if isinstance(e, Computation))
        n_leaves = sum(len(event.boxes.ranks()) for event in computations)
    report = count_leaves(n_leaves, progress)
    for event in plan.events():
        in_transit: dict[Transfer, NDArray[Any]] = {}
        for rank, step in list_steps(event):
            if not (isinstance(step, Transfer) and step.is_message):
                ranks[rank].do(step)
                report(step)
            elif rank == step.sender:
                # a copy: ranks must not share memory
                in_transit[step] = ranks[rank].view(step.source, step.box).copy()
            else:
                ranks[rank].receive(step, in_transit.pop(step))
