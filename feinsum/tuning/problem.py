"""Tuning problems: a canonical einsum at given sizes on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from constantdict import constantdict

from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.errors import InvalidEinsumError
from feinsum.ir import (
    BatchedEinsum,
    Workload,
    check_profile,
    from_text,
    generalize,
    list_profile_names,
    list_size_names,
)
from feinsum.measure import count_footprint_bytes
from feinsum.records.document import STRICT
from feinsum.transforms.nests import assume_sizes

DEFAULT_FOOTPRINT_BYTES = 64_000_000
"""Size of arrays that exceeds the caches of most processors, as in real runs."""


@dataclass(frozen=True)
class TuningProblem:
    """A workload with everything that a trial needs.

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
    def workload(self) -> Workload:
        return Workload(self.einsum, self.sizes)

    @property
    def form(self) -> CanonicalForm:
        return canonicalize(self.einsum)


def make_problem(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    device: str | None = None,
) -> TuningProblem:
    """Build the problem of tuning ``einsum``, with long extents as size parameters.

    Args:
        einsum: the einsum to tune.
        sizes: values of size parameters, named as in ``einsum``; by default its long
            literal extents, else :func:`choose_default_sizes`. For a sparse operand
            also its
            profile: ``nodes.0`` and so on, from the root.
        device: selector of the device; see :func:`feinsum.measure.open_device`.

    Raises:
        InvalidEinsumError: if a size names no parameter or is not positive, or no tree
            can have the profile.
    """
    if not (sizes is None or isinstance(sizes, Mapping)):
        raise InvalidEinsumError(
            f"sizes={sizes!r:.60}; expected sizes by name", rules=("size",)
        )
    # Long extents become parameters, so that one fact serves kernels of other sizes.
    general, literal = generalize(einsum)
    form = canonicalize(general)
    values = {**literal, **(sizes or {})}
    parameters = {*list_size_names(general)}
    for name, value in values.items():
        if name not in parameters or not _is_size(value):
            wanted = f"positive values of {sorted(parameters)}"
            raise InvalidEinsumError(
                f"size {name}={value!r}; expected "
                f"{wanted if parameters else 'none, for every extent is a number'}",
                rules=("size",),
            )
    if any(0 in operand.shape for operand in general.operands):
        raise InvalidEinsumError(
            "an extent is 0: nothing is computed, so there is nothing to tune",
            rules=("size",),
        )
    names = form.relabeling.size_params
    renamed = {names.get(name, name): int(v) for name, v in values.items()}
    if general.sparse_position is None:
        return TuningProblem(
            form.text, choose_default_sizes(form.einsum, renamed), device
        )
    return TuningProblem(form.text, _complete_profile(form.einsum, renamed), device)


def _complete_profile(
    einsum: BatchedEinsum, values: Mapping[str, int]
) -> dict[str, int]:
    """Complete the given sizes with usual ones."""
    missing = [name for name in list_profile_names(einsum) if name not in values]
    if 0 < len(missing) < len(list_profile_names(einsum)):
        raise InvalidEinsumError(
            f"the profile lacks {missing}; expected the number of nodes at every level",
            rules=("size",),
        )
    sizes = assume_sizes(einsum, values)
    if problem := check_profile(einsum, sizes):
        raise InvalidEinsumError(f"no tree has the profile: {problem}", rules=("size",))
    return sizes


def _is_size(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return False
    return bool(value >= 1)


def choose_default_sizes(
    einsum: BatchedEinsum, fixed: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Choose equal values for the other sizes such that arrays take about 64 MB."""
    fixed = dict(fixed or {})
    names = [x.name for x in einsum.size_params]
    size = 1_000_000 if set(names) - set(fixed) else 1
    # Steps of a tenth: the footprint is no simple function of the sizes.
    sizes = {**dict.fromkeys(names, size), **fixed}
    while size > 1 and count_footprint_bytes(einsum, sizes) > DEFAULT_FOOTPRINT_BYTES:
        size = size * 9 // 10
        sizes = {**dict.fromkeys(names, size), **fixed}
    return sizes
