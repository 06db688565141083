"""Hints to a C compiler about plain loops, which determine how fast its code is.

They are in a preamble, so that they reach whoever compiles the code. Loops with
explicit vectors need none: for no such recipe in the packaged facts did an option of
gcc's vectorizers change the time by more than a tenth.
"""

from __future__ import annotations

import loopy as lp

from feinsum.ir import BatchedEinsum
from feinsum.transforms.primitives.schedule import Schedule

__all__ = [
    "SUMS",
    "VECTORS",
    "sums_in_order",
    "sums_of",
    "with_hints",
    "with_rows_apart",
]

SUMS = ("in_order", "any_order")
"""Order of summation; the first is the order of the loops."""

VECTORS = ("usual", "widest")
"""Width of the vectors of a compiler; the first leaves it the choice."""

_ANY_ORDER = (
    "00_any_order",
    """\
#if defined(__clang__)
#pragma clang fp reassociate(on)
#elif defined(__GNUC__)
#pragma GCC optimize ("associative-math", "no-signed-zeros", "no-trapping-math")
#endif""",
)

# gcc may take the sums of several rows for the lanes of one vector, and gather their
# entries from as many places.
_ROWS_APART = (
    "00_rows_apart",
    """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize ("no-tree-slp-vectorize")
#endif""",
)

# gcc takes half a vector register on processors that were once slower with whole ones.
# clang has no such pragma.
_WIDEST = (
    "00_widest",
    """\
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target ("prefer-vector-width=512")
#endif""",
)


def sums_of(einsum: BatchedEinsum) -> tuple[str, ...]:
    """The orders of sums to choose from; for integers the order makes no difference."""
    is_inexact = any(dtype.kind in "fc" for dtype in einsum.output_dtypes)
    return SUMS if einsum.summation_indices and is_inexact else SUMS[:1]


def with_hints(schedule: Schedule, *, sums: str, vectors: str) -> Schedule:
    """The kernel with preambles for :data:`SUMS` and :data:`VECTORS`.

    Rewrite, for ``any_order`` and gcc::

        double f(...) { ... }

        #pragma GCC optimize ("associative-math", ...)
        double f(...) { ... }
    """
    wanted = {_ANY_ORDER: sums == SUMS[1], _WIDEST: vectors == VECTORS[1]}
    given = schedule.kernel.preambles
    added = [text for text, is_wanted in wanted.items() if is_wanted]
    missing = [text for text in added if text not in given]
    return schedule.with_kernel(preambles=(*given, *missing)) if missing else schedule


def with_rows_apart(schedule: Schedule) -> Schedule:
    """The kernel with a preamble that keeps accumulators of several rows apart."""
    given = schedule.kernel.preambles
    added = () if _ROWS_APART in given else (_ROWS_APART,)
    return schedule.with_kernel(preambles=(*given, *added))


def sums_in_order(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """A kernel without the hint about sums, which applies to the whole kernel."""
    kept = tuple(text for text in kernel.preambles if text != _ANY_ORDER)
    return kernel if kept == kernel.preambles else kernel.copy(preambles=kept)
