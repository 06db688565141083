"""An einsum with the numbers that decide how it is best computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from constantdict import constantdict

from feinsum.ir.einsum import BatchedEinsum
from feinsum.ir.generalize import with_extents
from feinsum.ir.operand import SizeParam
from feinsum.ir.profile import nodes_of

__all__ = ["Workload", "WorkloadLike", "workload_of"]


@dataclass(frozen=True)
class Workload:
    """An einsum, and what is known of its sizes when it runs.

    Attributes:
        sizes: values of size parameters, and the profile of a sparse operand; others
            are not known.

    >>> from feinsum.ir.build import array, einsum
    >>> matvec = einsum("ij,j->i", array("A", ("N", 4)), array("x", 4))
    >>> dict(Workload(matvec, {"N": 900}).known.extents)
    {'i': 900, 'j': 4}
    """

    einsum: BatchedEinsum
    sizes: Mapping[str, int] = field(default_factory=constantdict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", constantdict(self.sizes))

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes at each level of a tree; empty if unknown, or if there is none."""
        return nodes_of(self.einsum, self.sizes)

    @property
    def known(self) -> BatchedEinsum:
        """The einsum with numbers for the extents that are known."""
        extents = {
            index: self.sizes.get(x.name, x) if isinstance(x, SizeParam) else x
            for index, x in self.einsum.extents.items()
        }
        return with_extents(self.einsum, extents)


WorkloadLike: TypeAlias = BatchedEinsum | Workload
"""A workload; or an einsum, of whose sizes nothing is known."""


def workload_of(subject: WorkloadLike) -> Workload:
    """A workload as it is; an einsum with nothing known of its sizes."""
    return subject if isinstance(subject, Workload) else Workload(subject)
