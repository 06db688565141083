"""``query`` and ``bound``: the facts about one einsum, and lower bounds on its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from feinsum.bounds import Bound, MemoryLevel, compute_bound, list_levels
from feinsum.canonical import canonicalize
from feinsum.db import Database, opened_store
from feinsum.errors import MeasurementError
from feinsum.ir import (
    BatchedEinsum,
    FunctionalBatchedEinsum,
    generalize,
    require_dense,
    require_einsum,
)
from feinsum.ir.program import Program
from feinsum.measure import count_operations
from feinsum.predict import Effort, get_effort
from feinsum.records import (
    DevicePeaks,
    Match,
    Policy,
    compute_operations_s,
    find_best_match,
)
from feinsum.retrieval.matching import MatchingFacts, find_nearest, list_lookup_forms
from feinsum.retrieval.request import choose_policy
from feinsum.targets.devices import open_device


def bound(
    einsum: BatchedEinsum | FunctionalBatchedEinsum | Program,
    sizes: Mapping[str, int] | None = None,
    *,
    levels: Sequence[MemoryLevel] | None = None,
    device: str | None = None,
    database: Database = None,
) -> Bound:
    """Compute lower bounds on the cost of an einsum, at every level of the memory.

    The bound for a level has the bytes that any execution moves, the minimum time, and
    the tile that attains it. It is at least the size of all arrays. For more than two
    operands, it is the minimum over the contraction orders and fusions considered,
    which the result names.

    Args:
        einsum: the einsum, one with functions as operands, or a program, whose
            statements are executed as written, in any order.
        sizes: the value of every size parameter.
        levels: memory levels, the nearest first; by default those of the device.
        device: part of a device name; see :func:`feinsum.measure.open_device`.
        database: database with the measured limits of the device. Without them, there
            are no times; ``feinsum devices --measure`` measures them.

    Raises:
        BoundError: if a size has no value, or the nearest memory is too small for one
            step.

    Source: Ziogas et al., *Deinsum*, section IV; see ``docs/explanation/bounds.md``.

    >>> import feinsum
    >>> from feinsum.bounds import MemoryLevel
    >>> A, B = feinsum.array("A", (1000, 1000)), feinsum.array("B", (1000, 1000))
    >>> levels = [MemoryLevel("cache", 80_000), MemoryLevel("memory", None, 1, 32e9)]
    >>> found = feinsum.bound(feinsum.einsum("ij,jk->ik", A, B), levels=levels)
    >>> found.level("memory").n_bytes, dict(found.level("memory").tile)
    (159840228, {'i': 100, 'k': 100, 'j': 100})
    >>> found.compulsory_bytes, found.limit, round(found.seconds * 1e3, 3)
    (24000000, 'memory', 4.995)
    """
    if not isinstance(einsum, FunctionalBatchedEinsum | Program):
        require_dense(require_einsum(einsum))
    if levels is not None:
        return compute_bound(einsum, sizes or {}, levels)
    opened = open_device(device)
    with opened_store(database, has_shipped=True) as store:
        peaks = store.peaks(opened.device.id)
    return compute_device_bound(
        einsum, sizes or {}, list_levels(opened.device, peaks), peaks
    )


def compute_device_bound(
    einsum: BatchedEinsum | FunctionalBatchedEinsum | Program,
    sizes: Mapping[str, int],
    levels: Sequence[MemoryLevel],
    peaks: DevicePeaks | None,
) -> Bound:
    """Compute the bound for given levels and measured limits of the processor."""
    bound_of_data = compute_bound(einsum, sizes, levels)
    if peaks is None or isinstance(einsum, Program):
        return bound_of_data
    plain = einsum.einsum if isinstance(einsum, FunctionalBatchedEinsum) else einsum
    try:
        least_s = compute_operations_s(count_operations(plain, sizes), peaks)
    except MeasurementError:  # a dtype whose rate was not measured
        return bound_of_data
    return bound_of_data.with_operations(least_s)


def query(
    einsum: BatchedEinsum,
    *,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    effort: Effort | None = "recorded",
    sizes: Mapping[str, int] | None = None,
) -> Match:
    """Look up the facts about an einsum on a device.

    Long literal extents count as size parameters, as in raising.

    Args:
        einsum: the einsum to look up.
        device: as for :func:`retrieve`.
        database: as for :func:`retrieve`.
        policy: as for :func:`retrieve`.
        effort: by default only facts are looked up. Any other effort, or None for that
            of ``FEINSUM_EFFORT``, also gives the recipes that would be used without
            one; nothing is measured here.
        sizes: values of its size parameters, and the profile of a sparse operand, as
            for :func:`feinsum.tune`; facts at nearer sizes come first.

    Raises:
        StoreError: if the database cannot be read.
        DeviceUnavailableError: if there is no such device.
        InvalidOptionError: for an unknown ``policy`` or ``effort``.
    """
    policy_name, effort_name = choose_policy(policy), get_effort(effort)
    environment = open_device(device).environment({})
    # as raising does, so that a query finds the facts that a retrieval would
    general, literal = generalize(einsum)
    forms = list_lookup_forms(general, {**literal, **(sizes or {})})
    with opened_store(database, has_shipped=True) as store:
        facts = MatchingFacts(store, environment.device, policy_name)
        best, match = find_nearest(forms, facts, environment, policy_name, effort_name)
        if match.is_hit or best.records:
            return match
        # A service leaves out recipes that are no faster; listing all facts finds them.
        records = store.query(canonicalize(general).key)
    slower = find_best_match(records, environment, policy_name)
    return match if slower.is_hit else slower
