"""Blocks of 8 by 8 halves, from shared memory to the registers of a warp.

Lane ``4*g + t`` gets two neighbours of row g of each block, in a register::

    column    0 1 | 2 3 | 4 5 | 6 7        and if the block is transposed,
    row g      t=0   t=1   t=2   t=3       of column g the rows 2*t and 2*t + 1

The lanes 0 to 7 give the addresses of the rows of the first block, the next eight those
of the second one, and so on. A row is 16 bytes, and starts at a multiple of 16.

Source: NVIDIA, PTX ISA, "ldmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass

from pytools.tag import Tag

from feinsum.transforms.primitives.schedule import add_offset

SIDE = 8
"""Rows and columns of a block."""

N_BLOCKS = 4
"""Blocks that one instruction loads: one for each eight lanes."""

LOADS = (
    "10_feinsum_block_loads",
    """\
template <bool IS_TRANSPOSED, typename T>
inline __device__ void feinsum_load_blocks(T *to, T const *row)
{
#if defined(__CUDA_ARCH__)
  unsigned const place = (unsigned) __cvta_generic_to_shared(row);
  unsigned r[4];
  if constexpr (IS_TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(place) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(place) : "memory");
  _Pragma("unroll")
  for (int k = 0; k < 4; ++k) {
    to[2 * k].bits = (unsigned short) (r[k] & 0xffff);
    to[2 * k + 1].bits = (unsigned short) (r[k] >> 16);
  }
#else
  feinsum_load_blocks_without_gpu(IS_TRANSPOSED, to, row);
#endif
}
""",
)
"""Without a GPU, ``feinsum_load_blocks_without_gpu`` has to be defined."""


@dataclass(frozen=True)
class BlockLoad(Tag):  # type: ignore[misc]
    """Load four blocks to the registers of a warp.

    The kernel needs the function in ``LOADS``.

    Rewrite::

        for k < 4, e < 2:  held[2*k + e] = block[k][g, 2*t + e]

        feinsum_load_blocks<false>(held + held_at, tile + tile_at);

    Attributes:
        is_transposed: whether a lane gets two rows of a column.
        target: a private array, and the private scalar that holds the offset of the
            first of eight entries, in C order.
        source: an array in shared memory, likewise with the lane's row.
    """

    is_transposed: bool
    target: tuple[str, str]
    source: tuple[str, str]

    @property
    def code(self) -> str:
        pointers = ", ".join(map(add_offset, (self.target, self.source)))
        is_transposed = "true" if self.is_transposed else "false"
        return f"feinsum_load_blocks<{is_transposed}>({pointers});"

    @property
    def read_names(self) -> frozenset[str]:
        return frozenset({*self.source, self.target[1]})

    @property
    def written_array(self) -> str:
        return self.target[0]
