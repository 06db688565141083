"""Contractions of packed tiles: which tiles, their loops, packing, the whole nest."""
