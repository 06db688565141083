"""Groups: the statements into which a contraction path splits an einsum.

Every group is one einsum over operands and results of earlier groups. A step that sums
over nothing is merged into the step that uses its product, so the Khatri-Rao product of
MTTKRP is never stored.

Source: Deinsum, section IV-A (fusion, never across a reduction).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from feinsum.errors import PlanError
from feinsum.ir import BatchedEinsum, IndexList, write_subscripts
from feinsum.paths import Path, find_path
from feinsum.records.document import STRICT
from feinsum.words import counted

RESULT = "out"
"""Name of the result of an einsum, unless an operand has it."""


@dataclass(frozen=True)
class Access:
    """A tensor with the index of each of its axes."""

    __pydantic_config__ = STRICT

    tensor: str
    indices: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", tuple(self.indices))

    def __str__(self) -> str:
        return f"{self.tensor}[{','.join(self.indices)}]"


@dataclass(frozen=True)
class Group:
    """One einsum: sums over all indices that the output lacks.

    >>> mttkrp = Group((Access("X", "ijk"), Access("B", "ja"), Access("C", "ka")),
    ...                Access("M", "ia"))
    >>> mttkrp.indices, mttkrp.summed, mttkrp.subscripts
    (('i', 'a', 'j', 'k'), ('j', 'k'), 'ijk,ja,ka->ia')
    """

    __pydantic_config__ = STRICT

    inputs: tuple[Access, ...]
    output: Access

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))

    @cached_property
    def indices(self) -> IndexList:
        used = [i for access in (self.output, *self.inputs) for i in access.indices]
        return tuple(dict.fromkeys(used))

    @cached_property
    def summed(self) -> IndexList:
        return tuple(i for i in self.indices if i not in self.output.indices)

    @property
    def subscripts(self) -> str:
        terms = [access.indices for access in self.inputs]
        return write_subscripts(terms, self.output.indices)

    def n_points(self, extents: Mapping[str, int]) -> int:
        """Multiply-adds of all processes together."""
        return prod(extents[i] for i in self.indices)

    def __str__(self) -> str:
        return f"{self.output} = {' * '.join(map(str, self.inputs))}"


def default_path(einsum: BatchedEinsum, extents: Mapping[str, int]) -> Path:
    """A path with the fewest operations for up to seven operands, else a greedy one."""
    return find_path(einsum.inputs, einsum.output, extents, method="flops")


def groups_of(
    einsum: BatchedEinsum, path: Path | None, extents: Mapping[str, int]
) -> tuple[Group, ...]:
    """The groups of an einsum with one row, in execution order.

    Raises:
        PlanError: for a batch of several rows, an operand with a repeated index, or a
            path that does not fit the einsum; the rule says which.
    """
    _require_plain(einsum)
    steps = default_path(einsum, extents) if path is None else path
    return tuple(_fused(list(_steps(einsum, steps))))


def _require_plain(einsum: BatchedEinsum) -> None:
    if einsum.batch_size != 1:
        raise PlanError(
            f"a batch of {counted(einsum.batch_size, 'einsum')}; plan each of its rows",
            rules=("batch",),
        )
    if not einsum.inputs:
        raise PlanError("the einsum has no operands", rules=("batch",))
    for term in (*einsum.inputs, einsum.output):
        if len(set(term)) != len(term):
            raise PlanError(
                f"{einsum.subscripts} has a repeated index in a term; take the "
                "diagonal before planning",
                rules=("diagonal",),
            )


def _steps(einsum: BatchedEinsum, path: Path) -> Iterator[Group]:
    """One group for every step of the path."""
    names = [operand.name for operand in einsum.rows[0]]
    left = [Access(n, t) for n, t in zip(names, einsum.inputs, strict=True)]
    fresh = _fresh(names)
    for at, step in enumerate(path):
        if (
            not step
            or len(set(step)) != len(step)
            or not set(step) <= set(range(len(left)))
        ):
            raise PlanError(
                f"step {step} of the path is out of range for {len(left)} tensors",
                rules=("path",),
            )
        chosen = tuple(left[k] for k in step)
        left = [access for k, access in enumerate(left) if k not in step]
        if at + 1 == len(path):
            name = RESULT if RESULT not in names else f"{RESULT}_"
            output = Access(name, einsum.output)
        else:
            kept = {i for access in left for i in access.indices} | set(einsum.output)
            made = _in_order(chosen, kept, einsum.indices)
            output = Access(next(fresh), made)
        yield Group(chosen, output)
        left.append(output)
    if len(left) != 1:
        raise PlanError(
            f"the path leaves {len(left)} tensors; expected one", rules=("path",)
        )


def _in_order(
    chosen: Sequence[Access], kept: Iterable[str], order: IndexList
) -> IndexList:
    made = {i for access in chosen for i in access.indices} & set(kept)
    return tuple(i for i in order if i in made)


def _fresh(names: Sequence[str]) -> Iterator[str]:
    return (name for k in range(10**6) if (name := f"t{k}") not in names)


def _fused(steps: list[Group]) -> Iterator[Group]:
    """A step without a sum becomes part of the step that takes its product."""
    products = {s.output.tensor: s for s in steps[:-1] if not s.summed}
    for step in steps:
        if step.output.tensor in products:
            continue
        yield Group(tuple(_leaves(step, products)), step.output)


def _leaves(step: Group, products: Mapping[str, Group]) -> Iterator[Access]:
    for access in step.inputs:
        if access.tensor in products:
            yield from _leaves(products[access.tensor], products)
        else:
            yield access
