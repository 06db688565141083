"""One retrieval: raise, look up, select, verify, apply."""

from __future__ import annotations

from dataclasses import replace

from feinsum.db import looked_up_store, states_of
from feinsum.errors import TransformError
from feinsum.predict import MEASURING
from feinsum.raising import RaisedKernel
from feinsum.records import WORST_ACCEPTED, Level
from feinsum.retrieval.applying import mark_separable
from feinsum.retrieval.building import build_transformed
from feinsum.retrieval.cell_forms import fastest_form
from feinsum.retrieval.facts import Facts
from feinsum.retrieval.generating import refusal
from feinsum.retrieval.matching import select_candidates
from feinsum.retrieval.request import Request
from feinsum.retrieval.result import Retrieval
from feinsum.retrieval.trust import Trust

__all__ = ["in_caller", "perform_retrieval"]


def perform_retrieval(request: Request, *, has_batches: bool = True) -> Retrieval:
    """Raise, look up, select, verify, apply; of a kernel that calls one, that one.

    Args:
        has_batches: whether cells may be computed together, if that is faster.
    """
    if callee := request.of_callee():
        found = in_caller(request, perform_retrieval(callee))
        return _in_batches(request, found) if has_batches else found
    raised = request.raised()
    if not raised.raised:
        return Retrieval(request.t_unit, raised, ())
    if request.effort in MEASURING:
        _measure(request, raised)
    environment = request.opened().environment({})
    with looked_up_store(request.database) as store:
        facts = Facts(store, environment.device, request.policy)
        facts.ask(nest.form for nest in raised.raised)
        nests = tuple(
            select_candidates(nest, facts, environment, request.policy, request.effort)
            for nest in raised.raised
        )
        layers = states_of(store)
    trust = Trust(environment, is_on=request.verify)
    unit, nests = build_transformed(
        request, raised, mark_separable(raised, nests), trust
    )
    is_changed = any(nest.chosen for nest in nests)
    found = unit if is_changed else request.t_unit
    return Retrieval(found, raised, nests, facts.ids, request.policy, layers)


def _in_batches(request: Request, found: Retrieval) -> Retrieval:
    """The fastest form of a loop over cells, where it may be timed and predicted."""
    is_accepted = WORST_ACCEPTED[request.policy] >= Level.PREDICTED
    is_tried = request.verify and is_accepted and request.effort != "recorded"
    return fastest_form(request.t_unit, found) if found.nests and is_tried else found


def _measure(request: Request, raised: RaisedKernel) -> None:
    """Make the facts that are missing."""
    # most retrievals need no tuner
    from feinsum.tune import measure_if_possible

    for nest in raised.raised:
        measure_if_possible(
            nest.einsum,
            nest.generalized,
            request.effort,
            device=request.opened().device.id,
            database=request.database,
        )


def in_caller(request: Request, found: Retrieval) -> Retrieval:
    """The given unit, with the retrieved kernel as the callee.

    Raises:
        TransformError: if no code can be generated for it.
    """
    if not found.applied:
        return replace(found, t_unit=request.t_unit)
    (name,), (caller,) = found.t_unit.entrypoints, request.t_unit.entrypoints
    kernel = found.t_unit[name]
    around = request.t_unit[caller].copy(index_dtype=kernel.index_dtype)
    unit = request.t_unit.with_kernel(kernel).with_kernel(around)
    unit = unit.copy(target=found.t_unit.target)
    error = refusal(unit)
    if error is not None and refusal(request.t_unit) is None:
        raise TransformError(f"kernel {name!r} does not fit its caller: {error}")
    return replace(found, t_unit=unit)
