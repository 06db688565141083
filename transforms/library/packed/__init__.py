"""Contractions of packed tiles: which tiles, their loops, packing, the whole nest."""

from feinsum.transforms.library.packed.family import PACKED_CONTRACTION, suits_packing

__all__ = ["PACKED_CONTRACTION", "suits_packing"]
