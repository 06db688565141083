"""Hints to a C compiler, on which the speed of plain loops depends.

They are preambles of the code, and so do not depend on options of the compiler. Loops
with explicit vectors need none of the first kind: options of gcc's vectorizers changed
no time of such a recipe in the packaged facts by more than a tenth.

The second kind says which vectors to hold in registers. To gcc 12, a vector in memory
is as cheap as one in a register: in a register tile, it may load every column again for
each row, and the loads then take longer than the multiply-adds. It also holds in
registers what only code after the loop reads, such as coefficients of functions, and
spills sums instead. The GCC manual describes the regions of its allocator under
``-fira-region``.
"""

from __future__ import annotations

from functools import partial

import loopy as lp

from feinsum.ir import BatchedEinsum
from feinsum.transforms.primitives.schedule import (
    Schedule,
    StatementBuilder,
    make_c_statement,
)

SUMS = ("in_order", "any_order")
"""Order of summation; the first is the order of the loops."""

VECTORS = ("usual", "widest")
"""Width of the compiler's vectors; with the first, the compiler chooses."""

_ANY_ORDER = (
    "00_any_order",
    """\
#if defined(__clang__)
#pragma clang fp reassociate(on)
#elif defined(__GNUC__)
#pragma GCC optimize ("associative-math", "no-signed-zeros", "no-trapping-math")
#endif""",
)

ROWS_APART = (
    "00_rows_apart",
    """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize ("no-tree-slp-vectorize")
#endif""",
)
"""A preamble that keeps accumulators of several rows apart: gcc may make one vector of
them, and gather its entries from as many places.
"""

# By default gcc uses half of each register on processors whose predecessors were slower
# with all of it. clang has no such pragma.
_WIDEST = (
    "00_widest",
    """\
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target ("prefer-vector-width=512")
#endif""",
)


def list_sums(einsum: BatchedEinsum) -> tuple[str, ...]:
    """Return the orders of summation to choose from; integers need only one."""
    is_inexact = any(dtype.kind in "fc" for dtype in einsum.output_dtypes)
    return SUMS if einsum.summation_indices and is_inexact else SUMS[:1]


def with_hints(schedule: Schedule, *, sums: str, vectors: str) -> Schedule:
    """Return the kernel with preambles for :data:`SUMS` and :data:`VECTORS`.

    Rewrite, for ``any_order`` and gcc::

        double f(...) { ... }

        #pragma GCC optimize ("associative-math", ...)
        double f(...) { ... }
    """
    preambles = {_ANY_ORDER: sums == SUMS[1], _WIDEST: vectors == VECTORS[1]}
    for preamble, is_chosen in preambles.items():
        schedule = schedule.with_preamble(preamble) if is_chosen else schedule
    return schedule


def remove_any_order(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """Remove the hint about sums, which applies to the whole kernel."""
    preambles = tuple(text for text in kernel.preambles if text != _ANY_ORDER)
    return kernel if preambles == kernel.preambles else kernel.copy(preambles=preambles)


_X86 = ", ".join(f'"xmm{n}"' for n in range(16))

_AVX512 = ", ".join(f'"xmm{n}"' for n in range(16, 32))

_ARM = ", ".join(f'"v{n}"' for n in range(32))

PREAMBLE = (
    "10_feinsum_registers",
    f"""\
#if defined(__GNUC__) && !defined(__OPENCL_VERSION__) && !defined(feinsum_has_cuda)
#define feinsum_hold_if(class, is_held, value) \\
  if (is_held) __asm__("" : "+" class (value));
#ifdef __AVX512F__
#define feinsum_hold_64(n, value) feinsum_hold_if("v", (n) <= 32, value)
#define feinsum_hold_32(n, value) feinsum_hold_if("v", (n) <= 32, value)
#define feinsum_hold_16(n, value) feinsum_hold_if("v", (n) <= 32, value)
#define feinsum_forget_registers \\
  __asm__ volatile("" : : : {_X86}, {_AVX512});
#elif defined(__x86_64__)
#ifdef __AVX__
#define feinsum_hold_32(n, value) feinsum_hold_if("x", (n) <= 16, value)
#endif
#define feinsum_hold_16(n, value) feinsum_hold_if("x", (n) <= 16, value)
#define feinsum_forget_registers \\
  __asm__ volatile("" : : : {_X86});
#elif defined(__aarch64__)
#define feinsum_hold_16(n, value) feinsum_hold_if("w", (n) <= 32, value)
#define feinsum_forget_registers \\
  __asm__ volatile("" : : : {_ARM});
#endif
#endif
#ifndef feinsum_forget_registers
#define feinsum_forget_registers
#endif
#ifndef feinsum_hold_64
#define feinsum_hold_64(n, value)
#endif
#ifndef feinsum_hold_32
#define feinsum_hold_32(n, value)
#endif
#ifndef feinsum_hold_16
#define feinsum_hold_16(n, value)
#endif
""",
)
"""The macros of the two statements below, for C with the extensions of GNU; in other
languages they do nothing.
"""

SIZES = (16, 32, 64)
"""Bytes of the vectors that registers hold."""


def hold_in_register(
    vectors: str, iname: str, *, n_bytes: int, n_held: int
) -> StatementBuilder:
    """Return the builder of a statement after which a vector is in a register.

    Args:
        vectors: an array of vectors.
        iname: selects one of them.
        n_bytes: bytes of a vector.
        n_held: vectors in registers at that point. If the processor has fewer of them,
            the compiler decides.
    """
    code = f"feinsum_hold_{n_bytes}({n_held}, {vectors}[{iname}]);"
    return partial(
        make_c_statement,
        code if n_bytes in SIZES else "",
        read_variables=frozenset({vectors, iname}),
    )


FORGET_REGISTERS: StatementBuilder = partial(
    make_c_statement, "feinsum_forget_registers;"
)
"""Builds a statement that clobbers all vector registers."""
