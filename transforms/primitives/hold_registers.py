"""Which vectors a C compiler holds in registers, around and in an innermost loop.

To gcc 12, a vector in memory is as cheap as one in a register. In a register tile it
may load every column again for each row, so that the loads take longer than the
multiply-adds. It also holds in registers what is needed only after the loop, such as
the coefficients of functions, and then spills sums. The GCC manual describes the
regions of its allocator under ``-fira-region``.
"""

from __future__ import annotations

from collections.abc import Sequence

import loopy as lp

from feinsum.transforms.primitives.schedule import Schedule

__all__ = ["forget_registers", "hold_in_register", "with_register_macros"]

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
"""For C with the extensions of GNU; in other languages the macros do nothing."""

SIZES = (16, 32, 64)
"""Bytes of the vectors that registers hold."""


def hold_in_register(
    insn_id: str,
    loops: Sequence[str],
    after: frozenset[str],
    *,
    vectors: str,
    place: str,
    n_bytes: int,
    n_held: int,
) -> lp.CInstruction:
    """A statement after which a private vector is in a register, not in memory.

    Args:
        vectors: an array of vectors.
        place: the iname that selects one.
        n_held: vectors in registers at that time; if the processor has fewer, the
            compiler decides.
    """
    code = f"feinsum_hold_{n_bytes}({n_held}, {vectors}[{place}]);"
    return lp.CInstruction(
        [],
        code if n_bytes in SIZES else "",
        read_variables=frozenset({vectors, place}),
        id=insn_id,
        within_inames=frozenset(loops),
        depends_on=after,
    )


def forget_registers(
    insn_id: str, loops: Sequence[str], after: frozenset[str]
) -> lp.CInstruction:
    """A statement across which no vector stays in a register."""
    return lp.CInstruction(
        [],
        "feinsum_forget_registers;",
        id=insn_id,
        within_inames=frozenset(loops),
        depends_on=after,
    )


def with_register_macros(schedule: Schedule) -> Schedule:
    """The kernel with the macros of these statements."""
    return schedule.with_preamble(PREAMBLE)
