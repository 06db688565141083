"""Copies from global to shared memory that run while something else is computed.

A work-item closes a group of the copies that it has begun since the last group. When it
awaits a group, its own copies are complete; to see the copies of other work-items, it
needs a barrier as well. On devices without such instructions, a copy completes at once.
Arrays of the caller need not be aligned as vectors are; those in shared memory are::

    copy copy close          group 1
    copy copy close          group 2
    await groups, 1 left     group 1 is in shared memory, group 2 may be on its way
    barrier                  and so is group 1 of all other work-items

Source: NVIDIA, PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pytools.tag import Tag

from feinsum.transforms.primitives.schedule import add_offset

VECTOR_BYTES = 16
"""Bytes that one copy moves, at most."""

# .cg, which bypasses the first-level cache, exists for 16 bytes only. A copy of 0 bytes
# reads nothing and fills the target with zeros, so a guard needs no branch; a shorter
# one fills the rest. Two bytes are too few: such entries are copied at once.
COPIES = (
    "10_feinsum_async_copies",
    """\
#if defined(feinsum_has_cuda) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <int BYTES>
inline __device__ void feinsum_copy_bytes(void *to, void const *from, int n_bytes)
{
  unsigned const place = (unsigned) __cvta_generic_to_shared(to);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(place), "l"(from), "r"(n_bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(place), "l"(from), "n"(BYTES), "r"(n_bytes) : "memory");
}
template <int LANES, typename T>
inline __device__ void feinsum_copy_lanes(T *to, T const *from, int n_inside)
{
  constexpr int SIZE = sizeof(T), BYTES = LANES * SIZE;
  if constexpr (BYTES >= 4)
    if (BYTES == SIZE || (size_t) from % BYTES == 0) {
      feinsum_copy_bytes<BYTES>(to, from, n_inside * SIZE);
      return;
    }
  if constexpr (SIZE >= 4) {
    _Pragma("unroll")
    for (int k = 0; k < LANES; ++k)
      feinsum_copy_bytes<SIZE>(to + k, from + k, k < n_inside ? SIZE : 0);
  } else {
    _Pragma("unroll 1")
    for (int k = 0; k < LANES; ++k) {
      T entry = 0;
      if (k < n_inside)
        entry = from[k];
      to[k] = entry;
    }
  }
}
#define feinsum_copy(lanes, to, from, n_inside) \\
  feinsum_copy_lanes<lanes>(to, from, n_inside);
#define feinsum_close_group() asm volatile("cp.async.commit_group;" ::: "memory");
#define feinsum_await_groups(n) \\
  asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory");
#else
#define feinsum_copy(lanes, to, from, n_inside) \\
  for (int feinsum_lane = 0; feinsum_lane < lanes; ++feinsum_lane) \\
    if (feinsum_lane < (n_inside)) \\
      (to)[feinsum_lane] = (from)[feinsum_lane]; \\
    else \\
      (to)[feinsum_lane] = 0;
#define feinsum_close_group()
#define feinsum_await_groups(n)
#endif
""",
)


@dataclass(frozen=True)
class AsyncCopy(Tag):  # type: ignore[misc]
    """Begin to copy entries, and write zeros after those that exist.

    The kernel needs the macros ``COPIES``, as for the next two statements.

    Rewrite::

        tile[target_at] = array[source_at] if inside > 0 else 0

        feinsum_copy(1, tile + target_at, array + source_at, inside);

    Attributes:
        lanes: contiguous entries.
        target: an array in shared memory, and the private scalar that holds the offset
            of the first entry, in C order.
        source: an array in global memory, likewise.
        inside: the private scalar with the number of entries to copy; zeros are written
            after them.
    """

    lanes: int
    target: tuple[str, str]
    source: tuple[str, str]
    inside: str

    @property
    def code(self) -> str:
        pointers = ", ".join(map(add_offset, (self.target, self.source)))
        return f"feinsum_copy({self.lanes}, {pointers}, {self.inside});"

    @property
    def read_names(self) -> frozenset[str]:
        return frozenset({*self.target, *self.source, self.inside})

    @property
    def written_array(self) -> str:
        return self.target[0]


@dataclass(frozen=True)
class CloseGroup(Tag):  # type: ignore[misc]
    """Make a group of all copies that were begun and are in no group yet."""

    code = "feinsum_close_group()"
    read_names: ClassVar[frozenset[str]] = frozenset()
    written_array = ""


@dataclass(frozen=True)
class AwaitGroups(Tag):  # type: ignore[misc]
    """Wait until all groups of a work-item but the last ``n_left`` are complete."""

    n_left: int

    read_names: ClassVar[frozenset[str]] = frozenset()
    written_array = ""

    @property
    def code(self) -> str:
        return f"feinsum_await_groups({self.n_left})"
