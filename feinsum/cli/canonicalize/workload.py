"""An einsum with its canonical form, and relabelings, as they are printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from feinsum.canonical import CanonicalForm, Relabeling
    from feinsum.ir import BatchedEinsum


@dataclass(frozen=True)
class Workload:
    """An einsum as it was given, which is looked up in its general form.

    Attributes:
        einsum: as it was given.
        general: with size parameters for its long extents.
        literal: the extent behind each of these parameters.
    """

    einsum: BatchedEinsum
    general: BatchedEinsum
    literal: Mapping[str, int]

    @classmethod
    def of(cls, einsum: BatchedEinsum) -> Workload:
        from feinsum.ir import generalize

        return cls(einsum, *generalize(einsum))

    @cached_property
    def form(self) -> CanonicalForm:
        from feinsum.canonical import canonicalize

        return canonicalize(self.general)

    def document(self) -> dict[str, Any]:
        return {"einsum": str(self.einsum), "generalized": dict(self.literal)}

    def print(self, name: str) -> None:
        typer.echo(f"{name}: {self.einsum}")
        for param, extent in self.literal.items():
            typer.echo(f"generalized: extent {extent} is the size parameter {param}")


def relabeling_document(relabeling: Relabeling) -> dict[str, Any]:
    return _names(relabeling) | {
        "rows": relabeling.rows,
        "positions": relabeling.positions,
    }


def print_names(relabeling: Relabeling) -> None:
    """One line for indices, operands and size parameters each."""
    for what, names in _names(relabeling).items():
        print_pairs(what, names.items())


def print_pairs(what: str, pairs: Iterable[tuple[object, object]]) -> None:
    """Print a renaming on one line."""
    renaming = ", ".join(f"{old} -> {new}" for old, new in pairs)
    typer.echo(f"{what}: {renaming or '(none)'}")


def _names(relabeling: Relabeling) -> dict[str, dict[str, str]]:
    return {
        "indices": dict(relabeling.indices),
        "operands": dict(relabeling.operands),
        "size_params": dict(relabeling.size_params),
    }
