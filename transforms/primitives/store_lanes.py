"""Stores of neighbouring entries, by one instruction where they are aligned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import loopy as lp
from pymbolic import primitives as p
from pytools.tag import Tag

__all__ = ["STORES", "LaneStore", "store_lanes"]

STORES = (
    "10_feinsum_lane_stores",
    """\
template <int LANES, typename T>
inline __device__ void feinsum_store_lanes(T *to, T const *from, bool is_inside)
{
  struct alignas(LANES * sizeof(T)) lanes { T s[LANES]; };
  if (is_inside && (size_t) to % sizeof(lanes) == 0) {
    lanes together;
    _Pragma("unroll")
    for (int k = 0; k < LANES; ++k)
      together.s[k] = from[k];
    *(lanes *) to = together;
  } else if (is_inside)
    _Pragma("unroll")
    for (int k = 0; k < LANES; ++k)
      to[k] = from[k];
}
""",
)


@dataclass(frozen=True)
class LaneStore(Tag):  # type: ignore[misc]
    """The store that a C statement makes, for readers of the kernel that skip C.

    Attributes:
        lanes: contiguous entries.
        target, source: arrays in global memory and of a work-item, each with the
            private scalar that holds the offset of the first entry, in C order.
        inside: the private scalar that is 0 where nothing shall be stored.
    """

    lanes: int
    target: tuple[str, str]
    source: tuple[str, str]
    inside: str


def store_lanes(
    store: LaneStore,
    n_axes: int,
    insn_id: str,
    loops: Sequence[str],
    after: Collection[str],
) -> lp.CInstruction:
    """Store entries that a work-item has.

    Rewrite::

        if inside:  array[array_at : array_at + 2] = held[held_at : held_at + 2]

        feinsum_store_lanes<2>(array + array_at, held + held_at, inside);

    The kernel needs the function in ``STORES``, and CUDA.

    Args:
        n_axes: of the array in global memory.
    """
    places = [f"{array} + {at}" for array, at in (store.target, store.source)]
    return lp.CInstruction(
        [],
        f"feinsum_store_lanes<{store.lanes}>({', '.join(places)}, {store.inside});",
        read_variables=frozenset({store.target[1], *store.source, store.inside}),
        assignees=(p.Variable(store.target[0])[(0,) * n_axes],),
        id=insn_id,
        within_inames=frozenset(loops),
        depends_on=frozenset(after),
        tags=frozenset({store}),
    )
