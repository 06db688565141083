"""The look-up of a kernel, from the request to the kernel with the best recipes.

A chain of values leads from one to the other: the request, the kernel with its einsums
(raised), the candidate recipes for each einsum (selections), and the kernel with the
best candidates that could be verified and applied. :mod:`feinsum.retrieval` follows one
kernel through this chain.

Source: paper, section 7 (figure 2, listing 4).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack, get_args

import loopy as lp

from feinsum.causes import is_known_cause
from feinsum.codegen import generate_loopy
from feinsum.db import Database, list_layer_states
from feinsum.errors import (
    FeinsumError,
    FeinsumWarning,
    NotAnEinsumError,
    RecordNotFoundError,
)
from feinsum.ir import BatchedEinsum
from feinsum.memory import get_remembered
from feinsum.options import check_option
from feinsum.predict import MEASURING, Effort, get_effort
from feinsum.raising import RaisedKernel, check_unit
from feinsum.records import Environment, Policy, Store
from feinsum.retrieval.answer_cache import RetrievalAnswer, open_cache_entry
from feinsum.retrieval.applying import apply_selected
from feinsum.retrieval.decision import (
    Decision,
    Ranks,
    agree,
    make_decision,
    make_selections,
)
from feinsum.retrieval.einsum_trials import EinsumTrials, choose_by_einsums
from feinsum.retrieval.generating import (
    Variants,
    build_selected,
    deliver_unit,
    put_in_caller,
)
from feinsum.retrieval.kernel_trials import (
    KernelTrials,
    NestTrials,
    can_time,
    choose_in_kernel,
)
from feinsum.retrieval.matching import MatchingFacts, select_candidates
from feinsum.retrieval.phases import mark_separable
from feinsum.retrieval.request import (
    Request,
    RetrievalOptions,
    check_option_names,
    choose_policy,
)
from feinsum.retrieval.result import NOTHING_FASTER, NestSelection, Retrieval
from feinsum.retrieval.search import recall_trials, select_first_valid
from feinsum.settings import quick_collections
from feinsum.words import format_count

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

    It never breaks a build: if there is nothing to apply, the kernel is returned
    unchanged and, by default, a :class:`feinsum.FeinsumWarning` says why. Reasons
    that hold for every kernel on this machine are reported once per process, like a
    lack of faster recipes. Instructions that are not einsums, and
    einsums without a known recipe, stay unchanged; barriers separate them from the
    transformed ones.

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
            With ``raise``, a missing ``database`` is an error, too.
        policy: the worst acceptable match: ``strict`` (this device and driver),
            ``default`` (its architecture, or predicted), ``loose`` (any). By default
            ``FEINSUM_POLICY``.
        verify: whether to verify before the first use, in a separate process: a recipe
            that this installation did not measure is compared with numpy, and the
            kernel with recipes is timed against the given one, which is returned unless
            the other is certainly faster. By default yes, unless ``FEINSUM_VERIFY`` is
            ``off``.
        effort: what to do for an einsum without a record. ``recorded``: nothing;
            ``estimate``: apply the recipe predicted to be the fastest; ``measure``:
            time the few best predictions, and record the fastest; ``patient`` and
            ``exhaustive``: tune it. By default ``FEINSUM_EFFORT``, else ``estimate``.
        comm: an mpi4py communicator, or an object with its methods. All its ranks call
            this function, and all get the recipes that rank 0 finds.

    Raises:
        NotAKernelError: if ``t_unit`` is no translation unit.
        InvalidOptionError: for an unknown ``on_miss``, ``policy`` or ``effort``.
        FeinsumError: any other only with ``on_miss="raise"``.

    Source: paper, section 7, listing 4.
    """
    check_unit(t_unit)
    check_option("on_miss", on_miss, get_args(OnMiss))
    _check_arguments(policy, effort)

    def answer() -> RetrievalAnswer:
        # inside answer(), because even this may fail, and no failure may break a build
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
        request = replace(request, must_find=on_miss == "raise")
        # a retrieval makes many objects; garbage collections can skip the older ones
        with quick_collections():
            if comm is None:
                return _find_answer(request)
            return _agree_on_answer(request, comm)

    return _answer_or_unchanged(t_unit, answer, on_miss, comm)


def look_up(
    t_unit: lp.TranslationUnit, **options: Unpack[RetrievalOptions]
) -> Retrieval:
    """Look up as :func:`retrieve` does, and return everything found.

    Raises:
        FeinsumError: if no target on this machine runs such kernels, or if the device
            or the database fails.
    """
    return perform_retrieval(Request.of(t_unit, **options))


def explain(
    target: lp.TranslationUnit | BatchedEinsum, **options: Unpack[RetrievalOptions]
) -> str:
    """Describe a kernel, and what :func:`retrieve` would do with it, as text.

    Args:
        target: the kernel; or an einsum, for its untransformed kernel.
        options: as for :func:`retrieve`.

    Raises:
        NotAKernelError: if ``target`` is neither of these.
        InvalidOptionError: for an unknown option, ``policy`` or ``effort``.
    """
    check_option_names(options)
    _check_arguments(options.get("policy"), options.get("effort"))
    is_einsum = isinstance(target, BatchedEinsum)
    if not is_einsum:
        check_unit(target)
    try:
        unit = generate_loopy(target) if is_einsum else target
        return str(look_up(unit, **options))
    except NotAnEinsumError as error:
        return f"not raised: {error}\nbroken rule: {error.rule}\nkernel: unchanged"
    except Exception as error:  # noqa: BLE001  (retrieve returns the kernel, too)
        return f"not looked up: {_log_reason(error)}\nkernel: unchanged"


def perform_retrieval(request: Request, *, has_batches: bool = True) -> Retrieval:
    """Raise a kernel, look up its einsums, select and verify recipes, and apply them.

    If the kernel only calls another one in a loop over cells, the callee is raised.

    Args:
        request: the kernel and the options.
        has_batches: whether cells may be computed together, if that is faster.
    """
    raised = request.raised()
    if not raised.raised:
        return Retrieval(request.t_unit, raised, ())
    # tune first, so that the look-up finds the new records
    if request.effort in MEASURING:
        request.measure_missing(raised)
    environment = request.opened.environment({})
    with request.look_up_store() as store:
        facts, variants = _select(request, raised, store, environment)
        layers = list_layer_states(store)
    is_timed = variants.are_timed
    if not request.verify:
        transformed = build_selected(variants, select_first_valid)
    elif is_timed:
        transformed = choose_in_kernel(variants, environment, has_batches=has_batches)
    else:
        transformed = choose_by_einsums(variants, environment)
    return Retrieval(
        transformed.unit,
        raised,
        transformed.nests,
        facts.ids,
        request.policy,
        layers,
        transformed.gain,
        transformed.batch,
    )


def _select(
    request: Request,
    raised: RaisedKernel,
    store: Store,
    environment: Environment,
    *,
    counts: bool = True,
) -> tuple[MatchingFacts, Variants]:
    """Select the candidates for every nest of a kernel; a miss may count as demand."""
    # one query for all nests, since the store may be remote
    forms = [nest.form for nest in raised.raised]
    facts = MatchingFacts(store, environment.device, request.policy, forms)
    facts.query_forms(forms, counts=counts)
    nests = tuple(
        select_candidates(nest, facts, environment, request.policy, request.effort)
        for nest in raised.raised
    )
    is_timed = request.verify and can_time(request)
    return facts, Variants(request, raised, mark_separable(raised, nests), is_timed)


def recall_selection(
    einsum: BatchedEinsum, **options: Unpack[RetrievalOptions]
) -> NestSelection | None:
    """Return what earlier retrievals of an einsum's kernel leave of its candidates.

    Nothing is run: recipes that failed here are among the failures, and those that have
    not been tried stay candidates.

    Args:
        einsum: the einsum.
        options: as for :func:`retrieve`.

    Returns:
        The selection; None without verification, or if the kernel is not one nest.
    """
    request = Request.of(generate_loopy(einsum), **options)
    raised = request.raised()
    if not request.verify or len(raised.raised) != 1:
        return None
    environment = request.opened.environment({})
    with request.look_up_store() as store:
        _, variants = _select(request, raised, store, environment, counts=False)
    (nest,) = variants.nests
    if variants.are_timed:
        return recall_trials(nest, NestTrials(KernelTrials(variants, environment), [0]))
    return recall_trials(nest, EinsumTrials(environment))


def follow_decision(request: Request, decision: Decision) -> Retrieval:
    """Raise a kernel, and apply the recipes that another rank selected and verified.

    Raises:
        FeinsumError: if a recipe cannot be applied.
    """
    raised = request.raised()
    nests = make_selections(decision, raised.raised)
    result = apply_selected(raised, nests)
    for error in result.failures.values():
        raise error
    unit = deliver_unit(result.unit, raised.t_unit.target)
    return Retrieval(put_in_caller(request.t_unit, unit), raised, nests)


def _find_answer(request: Request) -> RetrievalAnswer:
    """Return the answer cached by an earlier process, or compute it.

    Raises:
        NotAnEinsumError: if the kernel has no einsum.
        RecordNotFoundError: if there is no recipe to apply.
    """
    entry = open_cache_entry(request)
    if entry and (cached := entry.recall(request)):
        return cached
    retrieval = perform_retrieval(request)
    if not (retrieval.nests or retrieval.is_changed):
        raised = retrieval.raised
        raise raised.first_refusal or NotAnEinsumError(
            f"kernel {raised.kernel_name!r} has no instructions", rule="kernel"
        )
    if not retrieval.is_changed:
        problems = (layer.problem for layer in retrieval.layers if layer.problem)
        unchanged = make_decision(retrieval.nests).unchanged
        raise RecordNotFoundError(_join_reasons([*unchanged, *problems]))
    return (entry and entry.store(retrieval)) or RetrievalAnswer.of(retrieval)


def _agree_on_answer(request: Request, comm: Any) -> RetrievalAnswer:
    """Compute the answer on rank 0, and share it with all ranks.

    Batches of cells are not among its decisions, so no rank computes them.
    """
    perform = partial(perform_retrieval, request, has_batches=False)
    follow = partial(follow_decision, request)
    return RetrievalAnswer.of(agree(Ranks(comm), perform, follow))


def _answer_or_unchanged(
    t_unit: lp.TranslationUnit,
    answer: Callable[[], RetrievalAnswer],
    on_miss: OnMiss,
    comm: Any,
) -> lp.TranslationUnit:
    """Return the transformed kernel, or the given one on a miss or any error.

    With several ranks, only rank 0 reports misses.
    """
    try:
        result = answer()
        unchanged = result.decision.unchanged
        if unchanged and on_miss == "raise":
            raise RecordNotFoundError(_join_reasons(unchanged))
    except Exception as error:  # a missing recipe must never break a build
        if on_miss == "raise":
            raise
        reason = _log_reason(error)
        is_miss = isinstance(error, RecordNotFoundError)
        is_reported = is_miss and _is_reported_elsewhere(comm)
        if on_miss != "warn" or is_reported or is_known_cause(error, "retrieve"):
            return t_unit
        if _is_news(reason):
            _warn(f"kernel returned unchanged: {reason}")
        return t_unit
    if unchanged and on_miss == "warn" and not _is_reported_elsewhere(comm):
        n = f"{len(unchanged)} of {format_count(len(result.decision.nests), 'einsum')}"
        if _is_news(reason := _join_reasons(unchanged)):
            _warn(f"{n} of the kernel left unchanged: {reason}")
    return result.t_unit


def _is_reported_elsewhere(comm: Any) -> bool:
    return comm is not None and Ranks(comm).rank != 0


class _Reported(set[str]):
    """Reasons that this process has reported and that would recur with every kernel."""


def _is_news(reason: str) -> bool:
    """Return whether to report a reason; report once that no recipe is faster."""
    if not reason.startswith(NOTHING_FASTER):
        return True
    reported = get_remembered(_Reported)
    is_new = reason not in reported
    reported.add(reason)
    return is_new


def _check_arguments(policy: Policy | None, effort: Effort | None) -> None:
    """Check given options; a wrong environment variable is reported as a miss."""
    if policy is not None:
        choose_policy(policy)
    if effort is not None:
        get_effort(effort)


def _log_reason(error: Exception) -> str:
    if isinstance(error, FeinsumError):
        logger.info("kernel returned unchanged: %s", error)
        return str(error)
    logger.exception("retrieval failed; the kernel is returned unchanged")
    return f"retrieval failed with {type(error).__name__}: {error}"


def _warn(text: str) -> None:
    warnings.warn(text, FeinsumWarning, stacklevel=4)  # the caller of retrieve


def _join_reasons(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))
