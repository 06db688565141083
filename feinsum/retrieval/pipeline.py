"""One retrieval, as a line: raise, look up, select, verify, apply."""

from __future__ import annotations

from feinsum.db import looked_up_store, states_of
from feinsum.predict import MEASURING
from feinsum.retrieval.applying import applied
from feinsum.retrieval.choice import choose_recipes
from feinsum.retrieval.decision import Decision, selections_of
from feinsum.retrieval.facts import Facts
from feinsum.retrieval.generating import delivered, in_caller
from feinsum.retrieval.matching import select_candidates
from feinsum.retrieval.phases import mark_separable
from feinsum.retrieval.request import Request
from feinsum.retrieval.result import Retrieval


def perform_retrieval(request: Request, *, has_batches: bool = True) -> Retrieval:
    """Raise, look up, select, verify, apply; of a kernel that calls one, that one.

    Args:
        has_batches: whether cells may be computed together, if that is faster.
    """
    raised = request.raised()
    if not raised.raised:
        return Retrieval(request.t_unit, raised, ())
    if request.effort in MEASURING:
        request.measure_missing(raised)
    environment = request.opened.environment({})
    with looked_up_store(request.database) as store:
        wanted = [nest.form for nest in raised.raised]
        facts = Facts(store, environment.device, request.policy, wanted)
        nests = tuple(
            select_candidates(nest, facts, environment, request.policy, request.effort)
            for nest in raised.raised
        )
        layers = states_of(store)
    made = choose_recipes(
        request,
        raised,
        mark_separable(raised, nests),
        environment,
        has_batches=has_batches,
    )
    return Retrieval(
        made.unit,
        raised,
        made.nests,
        facts.ids,
        request.policy,
        layers,
        made.gain,
        made.batch,
    )


def follow_decision(request: Request, decision: Decision) -> Retrieval:
    """Raise, and apply what another rank has selected and verified.

    Raises:
        FeinsumError: if a recipe cannot be applied.
    """
    raised = request.raised()
    nests = selections_of(decision, raised.raised)
    made = applied(raised, nests)
    for error in made.failures.values():
        raise error
    unit = delivered(made.unit, raised.t_unit.target)
    return Retrieval(in_caller(request.t_unit, unit), raised, nests)
