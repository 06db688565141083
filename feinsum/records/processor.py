"""Processors: details that distinguish CPUs with the same name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from constantdict import constantdict

from feinsum.records.document import STRICT
from feinsum.words import counted

SHOWN = (
    "avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile",
    "asimd", "sve", "sve2",
)  # fmt: skip
"""The features shown to people."""

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class Processor:
    """A CPU as the system describes it; unknown values are -1 or empty.

    Attributes:
        family, model, stepping: the vendor's numbers for its processors; on ARM the
            architecture, the part and the revision.
        microarchitecture: archspec's name, such as ``zen5``, or a generic one, such as
            ``x86_64_v4``, if no other fits.
        features: sorted names of the instruction sets that affect code generation.
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
        """Whether it can be distinguished from others: numbers may be masked."""
        # virtual machines may hide the numbers, but programs need the features
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
        """Bytes of a vector register that compilers use; at least 16.

        >>> Processor("", -1, -1, -1, "", ("avx", "avx2"), 1, {}).vector_bytes
        32
        """
        # a name that is not listed is of SSE, NEON or no vectors: 16 bytes
        widths = {"avx512f": 64, "avx2": 32}
        return max((widths.get(name, 16) for name in self.features), default=16)

    @property
    def shown_features(self) -> tuple[str, ...]:
        """Its features among :data:`SHOWN`."""
        return tuple(name for name in SHOWN if name in self.features)

    def __str__(self) -> str:
        """Describe it in one line.

        >>> str(Processor("", 26, 2, 1, "zen5", ("avx2", "fma"), 8, {"L2": 2**20}))
        'zen5, 8 cores, L2 1 MiB, avx2 fma'
        """
        cores = "" if self.n_cores < 0 else counted(self.n_cores, "core")
        name = self.microarchitecture or "unknown microarchitecture"
        parts = (name, cores, self.caches, " ".join(self.shown_features))
        return ", ".join(part for part in parts if part)


def _size(n_bytes: int) -> str:
    for unit, name in UNITS:
        # only whole units: 48 KiB is the size of a cache, 0.047 MiB is not
        if n_bytes >= unit and n_bytes % unit == 0:
            return f"{n_bytes // unit} {name}"
    return f"{n_bytes} B"
