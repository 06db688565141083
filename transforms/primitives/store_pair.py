"""Stores of two neighbouring entries, by one instruction where they are aligned.

Do not rename this module: Loopy's cache on disk refers to its tag by the module's name.

Source: NVIDIA, PTX ISA, "st" with the vector ``.v2``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytools.tag import Tag

from feinsum.transforms.primitives.schedule import add_offset

STORES = (
    "10_feinsum_pair_stores",
    """\
inline __device__ void feinsum_store_pair(double *to, double const *from)
{
#if defined(__CUDA_ARCH__)
  if ((size_t) to % 16 == 0) {
    asm volatile("st.global.v2.f64 [%0], {%1, %2};"
                 :: "l"(to), "d"(from[0]), "d"(from[1]) : "memory");
    return;
  }
#endif
  to[0] = from[0];
  to[1] = from[1];
}
""",
)
HALF_STORES = (
    "10_feinsum_half_pair_stores",
    """\
template <typename T>
inline __device__ void feinsum_store_pair(T *to, float const *from)
{
  T const pair[2] = {from[0], from[1]};
#if defined(__CUDA_ARCH__)
  if ((size_t) to % 4 == 0) {
    asm volatile("st.global.v2.b16 [%0], {%1, %2};"
                 :: "l"(to), "h"(pair[0].bits), "h"(pair[1].bits) : "memory");
    return;
  }
#endif
  to[0] = pair[0];
  to[1] = pair[1];
}
""",
)
"""The same for sums in single precision, which are rounded to halves."""


@dataclass(frozen=True)
class PairStore(Tag):  # type: ignore[misc]
    """Store two sums of a work-item's private array in neighbouring entries.

    The kernel needs CUDA, and the function in ``STORES``, or that in ``HALF_STORES``.

    Rewrite::

        if inside:  array[array_at : array_at + 2] = held[held_at : held_at + 2]

        if (inside) feinsum_store_pair(array + array_at, held + held_at);

    Attributes:
        target: an array in global memory, and the private scalar that holds the offset
            of the first entry, in C order.
        source: a private array, likewise.
        inside: the private scalar that is 0 where nothing is to be stored.
    """

    target: tuple[str, str]
    source: tuple[str, str]
    inside: str

    @property
    def code(self) -> str:
        pointers = ", ".join(map(add_offset, (self.target, self.source)))
        return f"if ({self.inside}) feinsum_store_pair({pointers});"

    @property
    def read_names(self) -> frozenset[str]:
        return frozenset({self.target[1], *self.source, self.inside})

    @property
    def written_array(self) -> str:
        return self.target[0]
