"""Placement: where a tensor must be, where a result can be, where operands start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.machine import Machine


def needed_by(
    axes: Sequence[str | None], access: Access, machine: Machine
) -> Distribution:
    cuts = tuple(
        tuple(k for k, index in enumerate(axes) if index == i) for i in access.indices
    )
    return Distribution(machine, cuts)


def without_copies(need: Distribution) -> Distribution:
    """The same blocks, on the first of the ranks that need each."""
    return replace(need, fixed=tuple((k, 0) for k in need.copied_axes))


def result_choices(
    group: Group, axes: Sequence[str | None], machine: Machine
) -> Iterator[Distribution]:
    """Where a result can be: axes of partial sums may partition it further."""
    base = needed_by(axes, group.output, machine).cuts
    summed = [k for k, i in enumerate(axes) if i in group.summed]
    for places in product((*range(len(base)), None), repeat=len(summed)):
        cuts = list(base)
        for k, place in zip(summed, places, strict=True):
            if place is not None:
                cuts[place] = (*cuts[place], k)
        fixed = [(k, 0) for k, p in zip(summed, places, strict=True) if p is None]
        yield Distribution(machine, tuple(cuts), tuple(fixed))


def spread(
    group: Group,
    axes: Sequence[str | None],
    machine: Machine,
    extents: Mapping[str, int],
) -> Distribution:
    """A result as even as possible: partial sums in blocks along the longest axes."""
    base = needed_by(axes, group.output, machine)
    summed = tuple(k for k, i in enumerate(axes) if i in group.summed)
    return _evenly(base, summed, tuple(extents[i] for i in group.output.indices))


def start_of(need: Distribution, shape: Sequence[int]) -> Distribution:
    """One copy of what is needed, spread over the ranks that need it."""
    return _evenly(need, need.copied_axes, shape)


def _evenly(
    base: Distribution, axes: Sequence[int], shape: Sequence[int]
) -> Distribution:
    """Axes cut what is longest; one that finds nothing to cut leaves place 0."""
    machine, cuts, fixed = base.machine, list(base.cuts), list(base.fixed)
    lengths = list(shape)
    for place, term in enumerate(cuts):
        for k in term:
            lengths[place] = -(-lengths[place] // machine.sizes[k])
    # the largest ones first, for which the fewest axes are long enough
    for k in sorted(axes, key=lambda k: -machine.sizes[k]):
        place = max(range(len(cuts)), key=lambda d: lengths[d], default=-1)
        if place < 0 or lengths[place] < machine.sizes[k]:
            fixed.append((k, 0))
            continue
        cuts[place] = (*cuts[place], k)
        lengths[place] = -(-lengths[place] // machine.sizes[k])
    return Distribution(machine, tuple(cuts), tuple(fixed))
