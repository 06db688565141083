"""Retrieval: a user's kernel in, the kernel with the best known recipe out.

Three values lead from one to the other: what the kernel is (raised), what is
known about it (a match), and the kernel that results.

Source: paper, section 7 (figure 2, listing 4).
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, cast, get_args

import loopy as lp

from feinsum.canonical import canonicalize
from feinsum.db import Database, looked_up_store, opened_store, states_of
from feinsum.errors import (
    FeinsumError,
    FeinsumWarning,
    NotAnEinsumError,
    RecordNotFoundError,
)
from feinsum.ir import BatchedEinsum, generalize, generalize_each
from feinsum.measure import open_device
from feinsum.raising import RaisedKernel, raise_kernel
from feinsum.records import FramedSpec, Match, Policy
from feinsum.retrieval.facts import Facts
from feinsum.retrieval.kept import Answer, Place, place_of, unless_it_fails
from feinsum.retrieval.nearest import form_of, known_of, nearest
from feinsum.retrieval.ranks import Plan, Ranks, chosen_nests, found_together
from feinsum.retrieval.recipes import Judgement, with_recipes
from feinsum.retrieval.result import Retrieval
from feinsum.retrieval.trust import Trust, is_verification_on

__all__ = ["OnMiss", "explain", "look_up", "query", "retrieve"]

logger = logging.getLogger(__name__)

OnMiss = Literal["warn", "raise", "return"]
POLICY_VARIABLE = "FEINSUM_POLICY"
"""Environment variable with the policy, where none is given."""


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
    comm: Any = None,
) -> lp.TranslationUnit:
    """Transform every einsum of a kernel with the best recipe that is known for it.

    Never breaks a build: where there is nothing to apply, the kernel comes back
    unchanged and, by default, with a :class:`feinsum.FeinsumWarning` that says why.
    Instructions that are no einsum, and einsums of which nothing is known, stay as
    they are; the others run before or after them, with barriers between.

    Args:
        t_unit: a kernel that evaluates batched einsums.
        arguments: see :func:`feinsum.raise_kernel`. Short sizes are fixed in the
            result, and are no arguments of it any more.
        device: part of a name, see :func:`feinsum.measure.open_device`.
        database: path, URL of a database or of a service, or store; default is the
            user's own, and the layers beside it.
        instructions: a Loopy match expression that selects einsums.
        kernel_name: which kernel of the unit, if it has several.
        on_miss: without a recipe, ``warn``, ``raise`` the reason, or ``return``.
        policy: the worst match accepted: ``strict`` (this device and driver),
            ``default`` (its architecture), ``loose`` (any). By default what the
            variable ``FEINSUM_POLICY`` says.
        verify: whether a recipe that was not measured here is compared with numpy in
            a process of its own, once, before it is used. By default yes, unless the
            variable ``FEINSUM_VERIFY`` is ``off``.
        comm: a communicator of mpi4py, or what has its methods: all its ranks call
            this function and get the same recipes, those that rank 0 finds.

    Raises:
        FeinsumError: only with ``on_miss="raise"``.
        ValueError: if ``on_miss`` or ``policy`` is none of those named above.

    Source: paper, section 7, listing 4.
    """
    _check_choice("on_miss", on_miss, get_args(OnMiss))
    _check_policy(policy)
    options = {
        "arguments": arguments,
        "instructions": instructions,
        "kernel_name": kernel_name,
        "policy": policy,
        "verify": verify,
    }

    def find() -> Answer:
        if comm is None:
            return _answer(t_unit, device, database, options)
        return _agreed(t_unit, Ranks(comm), device, database, options)

    return _without_breaking(t_unit, find, on_miss, comm)


def _without_breaking(
    t_unit: lp.TranslationUnit, find: Callable[[], Answer], on_miss: OnMiss, comm: Any
) -> lp.TranslationUnit:
    """The kernel that is found; the given one where there is none, or on any error.

    Of several ranks the first one says what is known of none of them.
    """
    try:
        found = find()
        if found.unchanged and on_miss == "raise":
            raise RecordNotFoundError(_joined(found.unchanged))
    except Exception as error:  # a build must never break for want of a recipe
        if on_miss == "raise":
            raise
        reason = _logged_reason(error)
        is_common = isinstance(error, RecordNotFoundError)
        if on_miss == "warn" and not (is_common and _is_told_by_another(comm)):
            _warn(f"kernel given back unchanged: {reason}")
        return t_unit
    if found.unchanged and on_miss == "warn" and not _is_told_by_another(comm):
        n = f"{len(found.unchanged)} of {found.n_nests} einsums"
        _warn(f"{n} of the kernel left unchanged: {_joined(found.unchanged)}")
    return found.t_unit


def _is_told_by_another(comm: Any) -> bool:
    return comm is not None and Ranks(comm).rank != 0


def _agreed(
    t_unit: lp.TranslationUnit,
    ranks: Ranks,
    device: str | None,
    database: Database,
    options: Mapping[str, Any],
) -> Answer:
    """What rank 0 finds, applied on all ranks or on none.

    Raises:
        FeinsumError: if no rank applies anything: what rank 0 says, or what went
            wrong here.
    """

    def find() -> Retrieval:
        return look_up(t_unit, device=device, database=database, **options)

    def apply(plan: Plan) -> Retrieval:
        given = ("arguments", "instructions", "kernel_name")
        raised = raise_kernel(t_unit, **{name: options[name] for name in given})
        _check_target(raised)
        chosen = chosen_nests(plan, raised.raised)
        unit, nests = with_recipes(
            raised.t_unit, raised.kernel_name, chosen, _trust_first_rank
        )
        return Retrieval(unit, raised, tuple(nests))

    return Answer.of(found_together(ranks, find, apply))


def _trust_first_rank(_recipe: FramedSpec, _match: Match) -> Judgement:
    return Judgement(True, "trusted by the first rank")


def _answer(
    t_unit: lp.TranslationUnit,
    device: str | None,
    database: Database,
    options: Mapping[str, Any],
) -> Answer:
    """The answer that was kept by an earlier process, or one that is found now.

    Raises:
        NotAnEinsumError: if the kernel has no einsum.
        RecordNotFoundError: if there is no recipe to apply.
    """
    options = {
        **options,
        "policy": _policy(options["policy"]),
        "verify": is_verification_on(options["verify"]),
    }

    def place() -> Place | None:
        return place_of(t_unit, open_device(device).environment({}), options)

    kept = unless_it_fails(place)
    known = unless_it_fails(lambda: kept.recall(database)) if kept else None
    if known is not None:
        return known
    found = look_up(t_unit, device=device, database=database, **options)
    if not found.nests:
        raise _refusal(found.raised)
    if not found.applied:
        raise RecordNotFoundError(_joined(Answer.of(found).unchanged))
    kept_answer = unless_it_fails(lambda: kept.keep(found)) if kept else None
    return kept_answer or Answer.of(found)


def _logged_reason(error: Exception) -> str:
    if isinstance(error, FeinsumError):
        logger.info("kernel given back unchanged: %s", error)
        return str(error)
    logger.exception("retrieval failed; the kernel is given back unchanged")
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
) -> Retrieval:
    """What :func:`retrieve` does, with everything that it found out.

    Raises:
        FeinsumError: if it is no kernel for OpenCL, or device or database fail.
    """
    chosen = _policy(policy)
    raised = raise_kernel(
        t_unit, arguments=arguments, instructions=instructions, kernel_name=kernel_name
    )
    _check_target(raised)
    if not raised.raised:
        return Retrieval(t_unit, raised, ())
    environment = open_device(device).environment({})
    with looked_up_store(database) as store:
        facts = Facts(store, environment.device, chosen)
        facts.ask(nest.form for nest in raised.raised)
        known = [known_of(n, facts, environment, chosen) for n in raised.raised]
        layers = states_of(store)
    trust = Trust(environment, is_on=is_verification_on(verify))
    unit, nests = with_recipes(raised.t_unit, raised.kernel_name, known, trust.judge)
    is_changed = any(nest.applied for nest in nests)
    return Retrieval(
        unit if is_changed else t_unit, raised, tuple(nests), facts.ids, chosen, layers
    )


def explain(t_unit: lp.TranslationUnit, **options: Any) -> str:
    """Say what a kernel is and what :func:`retrieve` would do, as text.

    Args:
        options: those of :func:`retrieve`, but ``on_miss``.

    Raises:
        ValueError: if ``policy`` is none of those that :func:`retrieve` names.
    """
    _check_policy(options.get("policy"))
    try:
        return str(look_up(t_unit, **options))
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
) -> Match:
    """What the database knows about an einsum on a device.

    Long literal extents count as size parameters, as they do in raising.

    Raises:
        StoreError: if the database cannot be read.
        DeviceUnavailableError: if there is no such device.
        ValueError: if ``policy`` is none of those that :func:`retrieve` names.
    """
    _check_policy(policy)
    chosen = _policy(policy)
    environment = open_device(device).environment({})
    general, literal = generalize(einsum)
    others = ((other, {**literal, **more}) for other, more in generalize_each(general))
    forms = (
        form_of(canonicalize(e), n) for e, n in chain([(general, literal)], others)
    )
    with opened_store(database, has_shipped=True) as store:
        facts = Facts(store, environment.device, chosen)
        return nearest(forms, facts, environment, chosen).match


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}; expected one of {', '.join(choices)}")


def _check_policy(policy: str | None) -> None:
    if policy is not None:
        _check_choice("policy", policy, get_args(Policy))


def _policy(given: Policy | None) -> Policy:
    """The policy that is given, or else that of the variable.

    Raises:
        FeinsumError: if the variable holds none.
    """
    if given is not None:
        return given
    named = os.environ.get(POLICY_VARIABLE, "").strip() or "default"
    for known in get_args(Policy):
        if named == known:
            return cast(Policy, known)
    raise FeinsumError(
        f"{POLICY_VARIABLE} is {named!r}; expected one of {', '.join(get_args(Policy))}"
    )


def _check_target(raised: RaisedKernel) -> None:
    """A recipe makes work-groups, which are OpenCL's."""
    target = raised.t_unit.target
    if not isinstance(target, lp.OpenCLTarget):
        raise NotAnEinsumError(
            f"kernel {raised.kernel_name!r} is for {target}; recipes are for OpenCL "
            "targets",
            rule="target",
            instructions=tuple(i for nest in raised.raised for i in nest.instructions),
        )


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
