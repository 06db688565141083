"""Commands that a message recommends, to be copied into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum

__all__ = ["more_trials", "tune_command"]


def more_trials(n_tried: int) -> int:
    """How many trials to ask for after some that found nothing; they count, too."""
    return max(20, 2 * n_tried)


def tune_command(
    einsum: BatchedEinsum,
    sparse: Path | None = None,
    sizes: Sequence[str] | None = None,
    database: str | None = None,
    device: str | None = None,
    n_tried: int = 0,
) -> str:
    """The command that tunes an einsum, in one line.

    Args:
        sparse, sizes: of an einsum whose first operand is a sparse tensor of a file:
            that file, and what was said of the other indices.
        n_tried: recipes that were tried before; more are asked for.

    >>> from feinsum.ir import array, einsum
    >>> print(tune_command(einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))))
    feinsum tune 'i j, j -> i | A[n,4]:<f8 x[4]:<f8 | A x'
    """
    from feinsum.ir import to_text

    words = ["feinsum", "tune"]
    if sparse is None:
        words.append(to_text(einsum))
    else:
        words += [einsum.subscripts, "--sparse", str(sparse)]
        for text in sizes or ():
            words += ["--sizes", text]
        if einsum.batch_size > 1:
            rows = [",".join(operand.name for operand in row) for row in einsum.rows]
            words += ["--rows", ";".join(rows)]
    for option, value in (("--database", database), ("--device", device)):
        if value is not None:
            words += [option, value]
    if n_tried:
        words += ["--trials", str(more_trials(n_tried))]
    return shlex.join(words)
