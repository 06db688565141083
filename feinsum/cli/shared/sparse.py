"""The sparse operand of a command: a file, of which extents and profile are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from feinsum.cli.shared.notation import read_einsum
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum

USUAL_RANK = 32
"""The extent of a dense index for which no size is given."""


def read_sparse_einsum(
    subscripts: str,
    path: Path,
    sizes: Sequence[str] | None,
    operands: str | None,
    rows: str | None,
    dtype: str,
) -> tuple[BatchedEinsum, dict[str, int]]:
    """An einsum whose first operand is in a file, and the profile of its tree.

    The levels of the tree are the axes of the file, in their order. The result has its
    pattern if it has its indices and no others.

    Args:
        subscripts: as text.
        path: of a ``.tns`` or ``.tns.gz`` file.
        sizes: extents of the other indices; by default 32.
        operands: names, separated by commas.
        rows: names of the operands of each row, the tensor first.
        dtype: of every operand.

    Raises:
        InvalidSparseArrayError: if the file cannot be read.
        InvalidEinsumError: if there is no such einsum.
        typer.BadParameter: naming the option that cannot be read.
    """
    from feinsum.ir import parse_subscripts, profile_names
    from feinsum.sparse import read_tns, to_csf

    try:
        tree = to_csf(read_tns(path))
    except OSError as error:
        raise typer.BadParameter(
            f"{path} cannot be read: {error.strerror}", param_hint="--sparse"
        ) from None
    inputs, output = parse_subscripts(subscripts)
    if len(inputs[0]) != tree.order:
        raise typer.BadParameter(
            f"the first operand has {counted(len(inputs[0]), 'index')}, "
            f"{path} has entries of "
            f"{tree.order}",
            param_hint="--sparse",
        )
    extents = dict(zip(inputs[0], tree.shape, strict=True))
    known = [*(sizes or ()), *(f"{i}={n}" for i, n in extents.items())]
    named = {
        item.partition("=")[0].strip() for text in known for item in text.split(",")
    }
    others = dict.fromkeys(
        i for term in (*inputs, output) for i in term if i not in named
    )
    rest = [f"{index}={USUAL_RANK}" for index in others]
    dense = read_einsum(subscripts, [*known, *rest], operands, rows, dtype)
    storage = "csf=" if sorted(output) == sorted(inputs[0]) else "csf"
    stored = [(replace(row[0], storage=storage), *row[1:]) for row in dense.rows]
    einsum = replace(dense, rows=tuple(stored))
    return einsum, dict(zip(profile_names(einsum), tree.profile, strict=True))
