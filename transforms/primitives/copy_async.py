"""Copies from global to shared memory that run while something else is computed.

Copies that were begun since the last group was closed are a group. Who awaits groups
knows that its own copies are done; for those of others it takes a barrier as well.
Where there are no such instructions, copies are done at once. Arrays of others need not
be aligned as vectors are; those in shared memory are.

Source: NVIDIA, PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import loopy as lp
from pymbolic import primitives as p
from pytools.tag import Tag

VECTOR_BYTES = 16
"""The most that one copy moves."""

# .cg, which bypasses the first-level cache, exists for 16 bytes only; a source of 0
# bytes writes zeros and reads nothing, so guards need no branch
COPIES = (
    "10_feinsum_async_copies",
    """\
#if defined(feinsum_has_cuda) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <int BYTES>
inline __device__ void feinsum_copy_bytes(void *to, void const *from, bool is_inside)
{
  unsigned const place = (unsigned) __cvta_generic_to_shared(to);
  int const n_bytes = is_inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(place), "l"(from), "r"(n_bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(place), "l"(from), "n"(BYTES), "r"(n_bytes) : "memory");
}
template <int LANES, typename T>
inline __device__ void feinsum_copy_lanes(T *to, T const *from, bool is_inside)
{
  constexpr int BYTES = LANES * sizeof(T);
  if (LANES == 1 || (size_t) from % BYTES == 0)
    feinsum_copy_bytes<BYTES>(to, from, is_inside);
  else
    _Pragma("unroll")
    for (int k = 0; k < LANES; ++k)
      feinsum_copy_bytes<sizeof(T)>(to + k, from + k, is_inside);
}
#define feinsum_copy(lanes, to, from, is_inside) \\
  feinsum_copy_lanes<lanes>(to, from, is_inside);
#define feinsum_close_group() asm volatile("cp.async.commit_group;" ::: "memory");
#define feinsum_await_groups(n) \\
  asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory");
#else
#define feinsum_copy(lanes, to, from, is_inside) \\
  for (int feinsum_lane = 0; feinsum_lane < lanes; ++feinsum_lane) \\
    (to)[feinsum_lane] = (is_inside) ? (from)[feinsum_lane] : 0;
#define feinsum_close_group()
#define feinsum_await_groups(n)
#endif
""",
)


@dataclass(frozen=True)
class AsyncCopy(Tag):  # type: ignore[misc]
    """The copy that a C statement starts, for readers of the kernel that skip C.

    Attributes:
        lanes: contiguous entries.
        target, source: arrays in shared and in global memory, each with the private
            scalar that holds the offset of the first entry, in C order.
        inside: the private scalar that is 0 where the entries shall be zero.
    """

    lanes: int
    target: tuple[str, str]
    source: tuple[str, str]
    inside: str


@dataclass(frozen=True)
class CloseGroup(Tag):  # type: ignore[misc]
    """All copies that were begun and are in no group yet become one."""


@dataclass(frozen=True)
class AwaitGroups(Tag):  # type: ignore[misc]
    """Wait until all groups of a work-item are done but the last ``n_left``."""

    n_left: int


def copy_async(
    copy: AsyncCopy, insn_id: str, loops: Sequence[str], after: Collection[str]
) -> lp.CInstruction:
    """Begin to copy.

    Rewrite::

        tile[target_at] = array[source_at] if inside else 0

        feinsum_copy(1, tile + target_at, array + source_at, inside);

    The kernel needs the macros ``COPIES``, as for the next two.
    """
    pointers = [f"{array} + {at}" for array, at in (copy.target, copy.source)]
    return _statement(
        f"feinsum_copy({copy.lanes}, {', '.join(pointers)}, {copy.inside});",
        copy, insn_id, loops, after,
        read_variables=frozenset({*copy.target, *copy.source, copy.inside}),
        assignees=(p.Variable(copy.target[0]),),
    )  # fmt: skip


def close_group(
    insn_id: str, loops: Sequence[str], after: Collection[str]
) -> lp.CInstruction:
    """Make a group of what was begun."""
    return _statement("feinsum_close_group()", CloseGroup(), insn_id, loops, after)


def await_groups(
    n_left: int, insn_id: str, loops: Sequence[str], after: Collection[str]
) -> lp.CInstruction:
    """Wait for all groups but the last ``n_left``."""
    code = f"feinsum_await_groups({n_left})"
    return _statement(code, AwaitGroups(n_left), insn_id, loops, after)


def _statement(
    code: str,
    tag: Tag,
    insn_id: str,
    loops: Sequence[str],
    after: Collection[str],
    **accesses: object,
) -> lp.CInstruction:
    return lp.CInstruction(
        [],
        code,
        id=insn_id,
        within_inames=frozenset(loops),
        depends_on=frozenset(after),
        tags=frozenset({tag}),
        **accesses,
    )
