"""Work-groups and work-items over the indices of an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pymbolic import primitives as p

from feinsum.ir import BatchedEinsum, Extent
from feinsum.records.environment import DeviceKind
from feinsum.transforms.primitives import NestWriter
from feinsum.transforms.primitives.schedule import Expression

GPUS: frozenset[DeviceKind] = frozenset({"gpu"})
"""The kinds of devices that these families are for."""

MOST_ITEMS = 1024
"""Of one work-group, on every GPU."""

SHARED_BYTES = 48 << 10
"""Of a work-group, which every GPU has; a kernel for CUDA may have more."""

CUT = 4
"""Values that go together: numbers of double precision that memory moves at once."""

MOST_AXES = 3
"""Of the grid."""


def has_plain_dtype(einsum: BatchedEinsum) -> bool:
    """Whether GPU kernels support all dtypes: no complex numbers."""
    return all(operand.dtype.kind in "biuf" for operand in einsum.operands)


@dataclass(frozen=True)
class Flat:
    """Several indices as one, the last of them the fastest.

    Attributes:
        indices: only the first may have an extent that is known at run time.
        extents: in terms of the kernel.
        cut: an index that is cut in pieces, which go faster than all others; it may be
            empty.
        piece: their length.
    """

    indices: tuple[str, ...]
    extents: tuple[Extent, ...]
    cut: str = ""
    piece: int = CUT

    @property
    def parts(self) -> tuple[tuple[str, int, Extent], ...]:
        """What the indices are sums of: each with a factor and an extent, fastest last.

        >>> Flat(("i", "j"), (8, 3), cut="i").parts
        (('i', 4, 2), ('j', 1, 3), ('i', 1, 4))
        """
        found: list[tuple[str, int, Extent]] = []
        for index, extent in zip(self.indices, self.extents, strict=True):
            if index == self.cut and isinstance(extent, int):
                found.append((index, self.piece, extent // self.piece))
            else:
                found.append((index, 1, extent))
        return (*found, (self.cut, 1, self.piece)) if self.cut else tuple(found)

    @property
    def size(self) -> str:
        """How many values it has, in isl's syntax."""
        fixed = prod(n for n in self.extents if isinstance(n, int))
        running = [f"{n}" for n in self.extents if not isinstance(n, int)]
        return "*".join([str(fixed), *running])

    def points(self, value: Expression) -> dict[str, Expression]:
        """The value of each index."""
        found: dict[str, Expression] = {}
        for index, extent in list(zip(self.indices, self.extents, strict=True))[:0:-1]:
            found[index] = p.Remainder(value, extent)
            value = p.FloorDiv(value, extent)
        if self.indices:
            found[self.indices[0]] = value
        return found

    @property
    def is_known(self) -> bool:
        """Whether all extents are numbers."""
        return all(isinstance(n, int) for n in self.extents)

    def number(self) -> int:
        """How many values it has, where all extents are known."""
        return prod(int(str(n)) for n in self.extents)

    def at(self, value: int) -> dict[str, int]:
        """The value of each index, as a number."""
        found = {}
        for index, extent in list(zip(self.indices, self.extents, strict=True))[::-1]:
            found[index] = value % int(str(extent))
            value //= int(str(extent))
        return found

    def held(self, n_values: int) -> dict[str, int]:
        """About how many values of each index so many neighbouring ones have.

        >>> Flat(("i", "j"), (9, 4)).held(8)
        {'j': 4, 'i': 2}
        """
        found: dict[str, int] = {}
        for index, _, extent in reversed(self.parts):
            n = int(str(extent))
            found[index] = found.get(index, 1) * min(n_values, n)
            n_values = -(-n_values // n)
        return found


def flat_of(indices: Sequence[str], extents: Mapping[str, Extent]) -> Flat | None:
    """Some indices in their order, but for the one that is known at run time, which
    comes first; None if there are several of these.
    """
    running = [i for i in indices if not isinstance(extents[i], int)]
    if len(running) > 1:
        return None
    order = (*running, *(i for i in indices if i not in running))
    return Flat(order, tuple(extents[i] for i in order))


def parts_of(
    indices: Sequence[str], extents: Mapping[str, Extent]
) -> tuple[Flat, ...] | None:
    """Indices for the axes of a grid: the fastest axis has all fixed extents.

    None if there are more run-time extents than axes.

    >>> from feinsum.ir import SizeParam
    >>> parts = parts_of("aib", {"a": SizeParam("A"), "i": 3, "b": SizeParam("B")})
    >>> [part.indices for part in parts]
    [('b', 'i'), ('a',)]
    """
    running = [i for i in indices if not isinstance(extents[i], int)]
    if len(running) > MOST_AXES:
        return None
    last = running[-1] if running else None
    others = running[:-1]
    first = flat_of([i for i in indices if i == last or i not in running], extents)
    assert first is not None
    return (first, *(Flat((i,), (extents[i],)) for i in reversed(others)))


@dataclass(frozen=True)
class Strided:
    """A loop in which neighbouring work-items have neighbouring values.

    Attributes:
        inames: outermost first.
        value: of the index.
    """

    inames: tuple[str, ...]
    value: Expression


def strided(
    writer: NestWriter, stem: str, item: str, n_items: int, *limits: str
) -> Strided:
    """All values below limits, dealt out to the items of an axis of the group.

    Args:
        item: the iname of the axis.
        limits: each a condition in isl's syntax, with ``{}`` for the value.
    """
    step = writer.loop(
        stem, *(limit.format(f"({item} + {n_items}*{{0}})") for limit in limits)
    )
    return Strided((step,), p.Sum((p.Variable(item), n_items * p.Variable(step))))
