"""Groups: the einsums of a plan, each with its tensors and their indices.

Each group is one einsum over operands and results of earlier groups. A contraction path
splits one einsum into groups. MTTKRP, ``ijk,ja,ka->ia``, is one group along the path
that multiplies its matrices first: a step that sums over nothing joins the step that
uses its product, so the Khatri-Rao product of ``B`` and ``C`` is never stored::

    t0[j,k,a] = B[j,a] * C[k,a]          no sum: joins the next step
    out[i,a]  = A[i,j,k] * t0[j,k,a]     becomes A[i,j,k] * B[j,a] * C[k,a]

Several groups, of a path or of a program, are a graph of statements; see
:mod:`feinsum.distributed.statement_graph`.

Source: Deinsum, section IV-A (fusion, never across a reduction).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from constantdict import constantdict

from feinsum.contraction.paths import Path, check_path, find_path
from feinsum.contraction.steps import find_steps
from feinsum.errors import InvalidPathError, PlanError
from feinsum.ir import BatchedEinsum, IndexList, write_subscripts
from feinsum.ir.statement import Statement
from feinsum.records.document import Part
from feinsum.words import format_count

RESULT = "out"
"""Name of the result of an einsum, unless an operand has this name."""


@dataclass(frozen=True)
class Access(Part):
    """A tensor with the index of each of its axes."""

    tensor: str
    indices: tuple[str, ...]

    sequences = ("indices",)

    def __str__(self) -> str:
        return f"{self.tensor}[{','.join(self.indices)}]"


@dataclass(frozen=True)
class Group(Part):
    """One einsum of a plan, in the form that documents store.

    >>> mttkrp = Group((Access("X", "ijk"), Access("B", "ja"), Access("C", "ka")),
    ...                Access("M", "ia"))
    >>> mttkrp.indices, mttkrp.summed, mttkrp.subscripts
    (('i', 'a', 'j', 'k'), ('j', 'k'), 'ijk,ja,ka->ia')
    """

    inputs: tuple[Access, ...]
    output: Access

    sequences = ("inputs",)

    @cached_property
    def statement(self) -> Statement:
        """The group as a statement of a program: the summed product of all inputs."""
        terms = tuple(access.indices for access in self.inputs)
        operands = tuple(access.tensor for access in self.inputs)
        return Statement(self.output.tensor, self.output.indices, terms, operands)

    @property
    def indices(self) -> IndexList:
        """Every index once: those of the result, then the summed ones."""
        return self.statement.indices

    @cached_property
    def summed(self) -> IndexList:
        return self.statement.reduced_indices

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The inputs and the output."""
        return (*self.inputs, self.output)

    @property
    def subscripts(self) -> str:
        return write_subscripts(self.statement.inputs, self.output.indices)

    def n_points(self, extents: Mapping[str, int]) -> int:
        """Return the multiply-adds of all processes together."""
        return prod(extents[i] for i in self.indices)

    def __str__(self) -> str:
        return f"{self.output} = {' * '.join(map(str, self.inputs))}"


def get_shape(access: Access, extents: Mapping[str, int]) -> tuple[int, ...]:
    """Return the extent of each axis."""
    return tuple(extents[i] for i in access.indices)


def find_default_path(einsum: BatchedEinsum, extents: Mapping[str, int]) -> Path:
    """Find a path: an optimal one for up to seven operands, else a greedy one.

    An einsum with a sparse operand has a single step, because its leaf multiplies all
    operands at once, entry by entry, and stores no intermediate product.
    """
    if einsum.sparse_position is not None:
        return (tuple(range(len(einsum.inputs))),)
    return find_path(einsum.inputs, einsum.output, extents, method="flops")


def groups_of(
    einsum: BatchedEinsum, path: Path | None, extents: Mapping[str, int]
) -> tuple[Group, ...]:
    """Return the groups of an einsum with one row, in execution order.

    Raises:
        PlanError: for a batch of several rows, an operand with a repeated index, or a
            path that does not fit the einsum; the rule says which.
    """
    _require_plain(einsum)
    steps = find_default_path(einsum, extents) if path is None else path
    return tuple(_fuse_products(list(_split_along(einsum, steps))))


def _require_plain(einsum: BatchedEinsum) -> None:
    if einsum.batch_size != 1:
        raise PlanError(
            f"a batch of {format_count(einsum.batch_size, 'einsum')}; plan each "
            "of its rows",
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


def _split_along(einsum: BatchedEinsum, path: Path) -> Iterator[Group]:
    """Yield one group for every step of the path."""
    try:
        check_path(path, len(einsum.inputs))
    except InvalidPathError as error:
        raise PlanError(str(error), rules=("path",)) from None
    operands = [operand.name for operand in einsum.rows[0]]
    fresh_names = (name for k in range(10**6) if (name := f"t{k}") not in operands)
    # the results of steps follow the operands
    arrays = [Access(n, t) for n, t in zip(operands, einsum.inputs, strict=True)]
    *steps, last = find_steps(
        einsum.inputs, einsum.output, path, is_pairwise=False, has_sums_first=False
    )
    for step in steps:
        indices = tuple(i for i in einsum.indices if i in step.output)
        arrays.append(Access(next(fresh_names), indices))
        yield Group(tuple(arrays[k] for k in step.operands), arrays[-1])
    name = RESULT if RESULT not in operands else f"{RESULT}_"
    output = Access(name, einsum.output)
    yield Group(tuple(arrays[k] for k in last.operands), output)


def _fuse_products(steps: list[Group]) -> Iterator[Group]:
    """Merge each step without a sum into the step that takes its product."""
    # the last step computes the result, even if it sums over nothing
    # a fused sum would be computed again for every value of the other indices
    products = {s.output.tensor: s for s in steps[:-1] if not s.summed}

    def list_factors(step: Group) -> Iterator[Access]:
        for access in step.inputs:
            if access.tensor in products:
                yield from list_factors(products[access.tensor])
            else:
                yield access

    for step in steps:
        if step.output.tensor not in products:
            yield Group(tuple(list_factors(step)), step.output)


def get_extents(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the extent of every index, as a number.

    Raises:
        PlanError: if a size is missing or invalid.
    """
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise PlanError(
                f"size {name}={value!r}; expected an integer from 0", rules=("sizes",)
            )
    parameters = {p.name for p in einsum.size_params}
    if missing := sorted(parameters - set(sizes)):
        raise PlanError(
            f"no value of {', '.join(missing)}; a plan needs the value of every size, "
            f"as in sizes={{{missing[0]!r}: 512}} or --size {missing[0]}=512",
            rules=("sizes",),
        )
    if unknown := sorted(set(sizes) - parameters):
        raise PlanError(
            f"there is no size parameter {', '.join(unknown)}; there are "
            f"{', '.join(sorted(parameters)) or 'none'}",
            rules=("sizes",),
        )
    return constantdict(
        {
            index: extent if isinstance(extent, int) else sizes[extent.name]
            for index, extent in einsum.extents.items()
        }
    )
