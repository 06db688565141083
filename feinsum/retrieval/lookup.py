"""Retrieval: a user's kernel in, the kernel with the best known recipe out.

A chain of values leads from one to the other: the request, the kernel with its einsums
(raised), the candidate recipes for each of them (selections), and the kernel with the
best of these that could be verified and applied.

Source: paper, section 7 (figure 2, listing 4).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import loopy as lp

from feinsum.canonical import canonicalize
from feinsum.causes import is_known_cause
from feinsum.codegen import generate_loopy
from feinsum.db import Database, looked_up_store, opened_store, states_of
from feinsum.errors import (
    FeinsumError,
    FeinsumWarning,
    NotAnEinsumError,
    RecordNotFoundError,
)
from feinsum.ir import BatchedEinsum, generalize
from feinsum.memory import remembered
from feinsum.options import check_option
from feinsum.predict import MEASURING, Effort, effort_of
from feinsum.raising import RaisedKernel, check_unit
from feinsum.records import Match, Policy, best_match
from feinsum.retrieval.answer_cache import Answer, place_of
from feinsum.retrieval.applying import applied
from feinsum.retrieval.choice import choose_recipes
from feinsum.retrieval.decision import Decision, decision_of, selections_of
from feinsum.retrieval.facts import Facts
from feinsum.retrieval.generating import delivered, in_caller
from feinsum.retrieval.matching import forms_of, nearest, select_candidates
from feinsum.retrieval.phases import mark_separable
from feinsum.retrieval.ranks import Ranks, agreed
from feinsum.retrieval.request import Request, policy_of
from feinsum.retrieval.result import Retrieval
from feinsum.retrieval.selection import NOTHING_FASTER
from feinsum.settings import quick_collections
from feinsum.targets.devices import open_device
from feinsum.words import counted

logger = logging.getLogger(__name__)

OnMiss = Literal["warn", "raise", "return"]


def retrieve(
    t_unit: lp.TranslationUnit,
    *,
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    database: Database = None,
    instructions: str | None = None,
    kernel_name: str | None = None,
    on_miss: OnMiss = "warn",
    policy: Policy | None = None,
    verify: bool | None = None,
    effort: Effort | None = None,
    comm: Any = None,
) -> lp.TranslationUnit:
    """Transform every einsum of a kernel with the best known recipe.

    Never breaks a build: if there is nothing to apply, the kernel is returned unchanged
    and, by default, a :class:`feinsum.FeinsumWarning` says why; that nothing is faster
    here than the loops of an einsum, and what fails on this machine for every kernel,
    it says once per process. Instructions that are
    not einsums, and einsums without a known recipe, are unchanged; barriers separate
    them from the others.

    Args:
        t_unit: a kernel that evaluates batched einsums.
        arguments: see :func:`feinsum.raise_kernel`. Short sizes are fixed in the
            result, and are no longer arguments.
        device: part of a device name, see :func:`feinsum.measure.open_device`; by
            default a device that runs kernels for the unit's target.
        database: a path, the URL of a database or service, or a store; by default the
            user's own database and the other layers.
        instructions: a Loopy match expression that selects einsums.
        kernel_name: which kernel of the unit, if it has several.
        on_miss: if there is no recipe, ``warn``, ``raise`` the reason, or ``return``.
        policy: the worst acceptable match: ``strict`` (this device and driver),
            ``default`` (its architecture, or predicted), ``loose`` (any). By default
            ``FEINSUM_POLICY``.
        verify: whether, before the first use, a recipe that this installation did not
            measure is compared with numpy, and the kernel with recipes is timed against
            the given one, in a separate process; the given one is returned unless the
            other is certain to be faster. By default yes, unless ``FEINSUM_VERIFY`` is
            ``off``.
        effort: for an einsum without a record: ``recorded``, do nothing; ``estimate``,
            apply the recipe predicted to be the fastest; ``measure``, time the few best
            of these and record the fastest; ``patient`` and ``exhaustive``, tune it. By
            default ``FEINSUM_EFFORT``, else ``estimate``.
        comm: an mpi4py communicator, or an object with its methods. All its ranks call
            this function and get the same recipes, found by rank 0.

    Raises:
        NotAKernelError: if ``t_unit`` is no translation unit.
        InvalidOptionError: for an unknown ``on_miss``, ``policy`` or ``effort``.
        FeinsumError: any other only with ``on_miss="raise"``.

    Source: paper, section 7, listing 4.
    """
    check_unit(t_unit)
    check_option("on_miss", on_miss, get_args(OnMiss))
    _check_given(policy, effort)

    def find() -> Answer:
        request = Request.of(
            t_unit,
            arguments=arguments,
            device=device,
            database=database,
            instructions=instructions,
            kernel_name=kernel_name,
            policy=policy,
            verify=verify,
            effort=effort,
        )
        with quick_collections():
            if comm is not None:
                find = partial(perform_retrieval, request, has_batches=False)
                follow = partial(follow_decision, request)
                return Answer.of(agreed(Ranks(comm), find, follow))
            return _answer(request)

    return _or_unchanged(t_unit, find, on_miss, comm)


def _check_given(policy: Policy | None, effort: Effort | None) -> None:
    """Misspelt arguments are errors; misspelt variables leave the kernel unchanged."""
    if policy is not None:
        policy_of(policy)
    if effort is not None:
        effort_of(effort)


def _or_unchanged(
    t_unit: lp.TranslationUnit, find: Callable[[], Answer], on_miss: OnMiss, comm: Any
) -> lp.TranslationUnit:
    """The transformed kernel; the given one if there is none, or on any error.

    Of several ranks, rank 0 reports the misses.
    """
    try:
        found = find()
        unchanged = found.decision.unchanged
        if unchanged and on_miss == "raise":
            raise RecordNotFoundError(_joined(unchanged))
    except Exception as error:  # a build must never break for want of a recipe
        if on_miss == "raise":
            raise
        reason = _logged_reason(error)
        is_common = isinstance(error, RecordNotFoundError)
        is_reported = is_common and _is_reported_elsewhere(comm)
        if on_miss != "warn" or is_reported or is_known_cause(error, "retrieve"):
            return t_unit
        if _is_news(reason):
            _warn(f"kernel returned unchanged: {reason}")
        return t_unit
    if unchanged and on_miss == "warn" and not _is_reported_elsewhere(comm):
        n = f"{len(unchanged)} of {counted(len(found.decision.nests), 'einsum')}"
        if _is_news(reason := _joined(unchanged)):
            _warn(f"{n} of the kernel left unchanged: {reason}")
    return found.t_unit


class _Reported(set[str]):
    """What this process has reported, and would report with every kernel or call."""


def _is_news(reason: str) -> bool:
    """Whether to report it: tiny einsums are reported once."""
    if not reason.startswith(NOTHING_FASTER):
        return True
    reported = remembered(_Reported)
    is_new = reason not in reported
    reported.add(reason)
    return is_new


def _is_reported_elsewhere(comm: Any) -> bool:
    return comm is not None and Ranks(comm).rank != 0


def _answer(request: Request) -> Answer:
    """The answer that an earlier process cached, or one that is found now.

    Raises:
        NotAnEinsumError: if the kernel has no einsum.
        RecordNotFoundError: if there is no recipe to apply.
    """
    place = place_of(request)
    if place and (known := place.recall(request.database)):
        return known
    found = perform_retrieval(request)
    if not (found.nests or found.is_changed):
        raise _refusal(found.raised)
    if not found.is_changed:
        raise RecordNotFoundError(_joined(decision_of(found.nests).unchanged))
    return (place and place.store(found)) or Answer.of(found)


def _logged_reason(error: Exception) -> str:
    if isinstance(error, FeinsumError):
        logger.info("kernel returned unchanged: %s", error)
        return str(error)
    logger.exception("retrieval failed; the kernel is returned unchanged")
    return f"retrieval failed with {type(error).__name__}: {error}"


def _warn(text: str) -> None:
    warnings.warn(text, FeinsumWarning, stacklevel=4)


def look_up(
    t_unit: lp.TranslationUnit,
    *,
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    database: Database = None,
    instructions: str | None = None,
    kernel_name: str | None = None,
    policy: Policy | None = None,
    verify: bool | None = None,
    effort: Effort | None = None,
) -> Retrieval:
    """Do what :func:`retrieve` does, and return everything that it found.

    Raises:
        FeinsumError: if no target here runs such kernels, or the device or database
            fails.
    """
    return perform_retrieval(
        Request.of(
            t_unit,
            arguments=arguments,
            device=device,
            database=database,
            instructions=instructions,
            kernel_name=kernel_name,
            policy=policy,
            verify=verify,
            effort=effort,
        )
    )


def explain(
    target: lp.TranslationUnit | BatchedEinsum,
    *,
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    database: Database = None,
    instructions: str | None = None,
    kernel_name: str | None = None,
    policy: Policy | None = None,
    verify: bool | None = None,
    effort: Effort | None = None,
) -> str:
    """Describe a kernel, and what :func:`retrieve` would do with it, as text.

    Args:
        target: the kernel; or an einsum, for its untransformed kernel.
        arguments, device, database, instructions, kernel_name, policy, verify, effort:
            as for :func:`retrieve`.

    Raises:
        NotAKernelError: if ``t_unit`` is no translation unit.
        InvalidOptionError: for an unknown ``policy`` or ``effort``.
    """
    _check_given(policy, effort)
    is_einsum = isinstance(target, BatchedEinsum)
    if not is_einsum:
        check_unit(target)
    try:
        found = look_up(
            generate_loopy(target) if is_einsum else target,
            arguments=arguments,
            device=device,
            database=database,
            instructions=instructions,
            kernel_name=kernel_name,
            policy=policy,
            verify=verify,
            effort=effort,
        )
        return str(found)
    except NotAnEinsumError as error:
        return f"not raised: {error}\nbroken rule: {error.rule}\nkernel: unchanged"
    except FeinsumError as error:
        return f"not looked up: {error}\nkernel: unchanged"
    except Exception as error:  # retrieve gives the kernel back unchanged, too
        logger.exception("look-up failed")
        reason = f"look-up failed with {type(error).__name__}: {error}"
        return f"not looked up: {reason}\nkernel: unchanged"


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
        device, database, policy: as for :func:`retrieve`.
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
    chosen, wanted = policy_of(policy), effort_of(effort)
    environment = open_device(device).environment({})
    general, literal = generalize(einsum)
    forms = forms_of(general, {**literal, **(sizes or {})})
    with opened_store(database, has_shipped=True) as store:
        facts = Facts(store, environment.device, chosen)
        found, match = nearest(forms, facts, environment, chosen, wanted)
        if match.is_hit or found.records:
            return match
        # A service does not answer with facts of recipes that are no faster; it lists
        # them.
        rest = store.query(canonicalize(general).key)
    slower = best_match(rest, environment, chosen)
    return match if slower.is_hit else slower


def _refusal(raised: RaisedKernel) -> NotAnEinsumError:
    """Why a kernel has no einsum: the first refusal."""
    for refused in raised.refused:
        return NotAnEinsumError(
            refused.reason, rule=refused.rule, instructions=refused.instructions
        )
    return NotAnEinsumError(
        f"kernel {raised.kernel_name!r} has no instructions", rule="kernel"
    )


def _joined(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))


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
