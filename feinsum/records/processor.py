"""Processors: what tells CPUs apart that have one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from constantdict import constantdict

from feinsum.records.document import STRICT

__all__ = ["Processor"]

SHOWN = (
    "avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile",
    "asimd", "sve", "sve2",
)  # fmt: skip
"""Features that people look for first."""

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class Processor:
    """A CPU as the system describes it; what is not told is -1 or empty.

    Attributes:
        family, model, stepping: the numbers by which the vendor tells its processors
            apart; on ARM the architecture, the part and the revision.
        microarchitecture: archspec's name, such as ``zen5``; that of a generic one,
            such as ``x86_64_v4``, where no other fits.
        features: sorted names of the instruction sets that decide what code a
            compiler makes.
        n_cores: physical cores.
        cache_bytes: the data caches that a core uses: ``L1d``, ``L2``, ``L3``.
    """

    __pydantic_config__ = STRICT

    vendor: str
    family: int
    model: int
    stepping: int
    microarchitecture: str
    features: tuple[str, ...]
    n_cores: int
    cache_bytes: Mapping[str, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_bytes", constantdict(self.cache_bytes))

    @property
    def is_known(self) -> bool:
        """Whether there is enough to tell it from others: numbers may be masked."""
        return bool(self.features)

    @property
    def caches(self) -> str:
        """The caches in words.

        >>> Processor("", -1, -1, -1, "", (), 1, {"L1d": 49152, "L2": 2**20}).caches
        'L1d 48 KiB, L2 1 MiB'
        """
        sizes = sorted(self.cache_bytes.items())
        return ", ".join(f"{name} {_size(n_bytes)}" for name, n_bytes in sizes)

    @property
    def vector_bytes(self) -> int:
        """Of a register, of what a compiler makes use of; 16 at least.

        >>> Processor("", -1, -1, -1, "", ("avx", "avx2"), 1, {}).vector_bytes
        32
        """
        widths = {"avx512f": 64, "avx2": 32}
        return max((widths.get(name, 16) for name in self.features), default=16)

    @property
    def shown_features(self) -> tuple[str, ...]:
        """Those of :data:`SHOWN` that it has."""
        return tuple(name for name in SHOWN if name in self.features)

    def __str__(self) -> str:
        """What people ask for, in one line.

        >>> str(Processor("", 26, 2, 1, "zen5", ("avx2", "fma"), 8, {"L2": 2**20}))
        'zen5, 8 cores, L2 1 MiB, avx2 fma'
        """
        cores = "" if self.n_cores < 0 else f"{self.n_cores} cores"
        name = self.microarchitecture or "unknown microarchitecture"
        parts = (name, cores, self.caches, " ".join(self.shown_features))
        return ", ".join(part for part in parts if part)


def _size(n_bytes: int) -> str:
    for unit, name in UNITS:
        if n_bytes >= unit and n_bytes % unit == 0:
            return f"{n_bytes // unit} {name}"
    return f"{n_bytes} B"
