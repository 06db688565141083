"""What is tuned: a canonical einsum at given sizes on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from constantdict import constantdict

from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, SizeParam, from_text, generalize, with_extents
from feinsum.measure import footprint_bytes
from feinsum.records.document import STRICT

__all__ = ["Problem", "default_sizes", "make_problem", "ragged_cases"]

DEFAULT_FOOTPRINT_BYTES = 64_000_000
RAGGED_EXTENTS = (37, 53, 29, 45, 61, 23)


@dataclass(frozen=True)
class Problem:
    """A workload with everything that a trial needs to know.

    Attributes:
        workload_text: the canonical einsum as text.
        sizes: the value of each of its size parameters.
        device: selector of the device; see :func:`feinsum.measure.open_device`.
    """

    __pydantic_config__ = STRICT

    workload_text: str
    sizes: Mapping[str, int]
    device: str | None = None
    rounds: int = 20
    warmup: int = 3
    max_total_s: float = 3.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", constantdict(self.sizes))

    @cached_property
    def einsum(self) -> BatchedEinsum:
        return from_text(self.workload_text)

    @property
    def form(self) -> CanonicalForm:
        return canonicalize(self.einsum)


def make_problem(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    device: str | None = None,
) -> Problem:
    """The problem of tuning ``einsum``, long extents as parameters.

    Args:
        sizes: values of size parameters in the names of ``einsum``; by default
            its long literal extents, and else :func:`default_sizes`.

    Raises:
        InvalidEinsumError: if a size names no parameter or is not positive.
    """
    general, literal = generalize(einsum)
    form = canonicalize(general)
    given = {**literal, **(sizes or {})}
    known = {x.name for x in general.size_params}
    for name, value in given.items():
        if name not in known or not isinstance(value, int) or value < 1:
            raise InvalidEinsumError(
                f"size {name}={value!r}; expected positive values of {sorted(known)}",
                rules=("size",),
            )
    renamed = {form.relabeling.size_params[name]: v for name, v in given.items()}
    full = {**default_sizes(form.einsum), **renamed}
    return Problem(form.text, full, device)


def default_sizes(einsum: BatchedEinsum) -> dict[str, int]:
    """Equal sizes for which all arrays together take about 64 MB."""
    names = [x.name for x in einsum.size_params]
    size = 1_000_000 if names else 0
    while size > 100 and _bytes(einsum, names, size) > DEFAULT_FOOTPRINT_BYTES:
        size = size * 9 // 10
    return dict.fromkeys(names, size)


def _bytes(einsum: BatchedEinsum, names: list[str], size: int) -> int:
    return footprint_bytes(einsum, dict.fromkeys(names, size))


def ragged_cases(einsum: BatchedEinsum) -> tuple[BatchedEinsum, list[dict[str, int]]]:
    """An einsum with run-time extents, and sizes that no tile divides.

    An einsum with size parameters is its own variant. Otherwise the free
    indices get parameters (contraction indices where arrays tie them).
    """
    if not einsum.size_params:
        einsum = _parametric(einsum)
    names = [x.name for x in einsum.size_params]
    if not names:
        return einsum, []
    ragged = {n: RAGGED_EXTENTS[k % len(RAGGED_EXTENTS)] for k, n in enumerate(names)}
    return einsum, [
        dict.fromkeys(names, 1),
        ragged,
        dict.fromkeys(names[:1], 301) | dict.fromkeys(names[1:], 5),
    ]


def _parametric(einsum: BatchedEinsum) -> BatchedEinsum:
    params = {i: SizeParam(f"N{k}") for k, i in enumerate(einsum.free_indices)}
    try:
        return with_extents(einsum, {**einsum.extents, **params})
    except InvalidEinsumError:
        return einsum
