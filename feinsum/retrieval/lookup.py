"""Retrieval: a user's kernel in, the kernel with the best known recipe out.

Three values lead from one to the other: what the kernel is (raised), what is
known about it (a match), and the kernel that results.

Source: paper, section 7 (figure 2, listing 4).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, get_args

import loopy as lp

from feinsum.canonical import CanonicalForm, WorkloadKey, canonicalize
from feinsum.db import Database, opened_store
from feinsum.errors import (
    FeinsumError,
    FeinsumWarning,
    NotAnEinsumError,
    RecordNotFoundError,
)
from feinsum.ir import BatchedEinsum, from_text, generalize, generalize_each
from feinsum.measure import open_device
from feinsum.raising import RaisedKernel, RaisedNest, raise_kernel
from feinsum.records import (
    Environment,
    Level,
    Match,
    Policy,
    TuningRecord,
    best_match,
)
from feinsum.retrieval.kept import Answer, Place, place_of, unless_it_fails
from feinsum.retrieval.recipes import Known, with_recipes
from feinsum.retrieval.result import Retrieval
from feinsum.transforms import suits_device

__all__ = ["OnMiss", "explain", "look_up", "query", "retrieve"]

logger = logging.getLogger(__name__)

OnMiss = Literal["warn", "raise", "return"]
Ask = Callable[[WorkloadKey], Sequence[TuningRecord]]
"""What a store knows of a workload."""


def retrieve(
    t_unit: lp.TranslationUnit,
    *,
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    database: Database = None,
    instructions: str | None = None,
    kernel_name: str | None = None,
    on_miss: OnMiss = "warn",
    policy: Policy = "default",
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
        database: path, URL or store; default is the user's own.
        instructions: a Loopy match expression that selects einsums.
        kernel_name: which kernel of the unit, if it has several.
        on_miss: without a recipe, ``warn``, ``raise`` the reason, or ``return``.
        policy: the worst match accepted: ``strict`` (this device and driver),
            ``default`` (its architecture), ``loose`` (any).

    Raises:
        FeinsumError: only with ``on_miss="raise"``.
        ValueError: if ``on_miss`` or ``policy`` is none of those named above.

    Source: paper, section 7, listing 4.
    """
    _check_choice("on_miss", on_miss, get_args(OnMiss))
    _check_choice("policy", policy, get_args(Policy))
    options = {
        "arguments": arguments,
        "instructions": instructions,
        "kernel_name": kernel_name,
        "policy": policy,
    }
    try:
        found = _answer(t_unit, device, database, options)
        if found.unchanged and on_miss == "raise":
            raise RecordNotFoundError(_joined(found.unchanged))
    except Exception as error:  # a build must never break for want of a recipe
        if on_miss == "raise":
            raise
        reason = _logged_reason(error)
        if on_miss == "warn":
            _warn(f"kernel given back unchanged: {reason}")
        return t_unit
    if found.unchanged and on_miss == "warn":
        n = f"{len(found.unchanged)} of {found.n_nests} einsums"
        _warn(f"{n} of the kernel left unchanged: {_joined(found.unchanged)}")
    return found.t_unit


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
    warnings.warn(text, FeinsumWarning, stacklevel=3)


def look_up(
    t_unit: lp.TranslationUnit,
    *,
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    database: Database = None,
    instructions: str | None = None,
    kernel_name: str | None = None,
    policy: Policy = "default",
) -> Retrieval:
    """What :func:`retrieve` does, with everything that it found out.

    Raises:
        FeinsumError: if it is no kernel for OpenCL, or device or database fail.
    """
    raised = raise_kernel(
        t_unit, arguments=arguments, instructions=instructions, kernel_name=kernel_name
    )
    _check_target(raised)
    if not raised.raised:
        return Retrieval(t_unit, raised, ())
    environment = open_device(device).environment({})
    facts: dict[str, tuple[str, ...]] = {}
    with opened_store(database, has_shipped=True) as store:

        def ask(workload: WorkloadKey) -> Sequence[TuningRecord]:
            records = store.query(workload)
            facts[workload] = tuple(record.id for record in records)
            return records

        known = [_known_of(n, ask, environment, policy) for n in raised.raised]
    unit, nests = with_recipes(
        raised.t_unit, raised.kernel_name, known, environment, policy
    )
    is_changed = any(nest.applied for nest in nests)
    return Retrieval(unit if is_changed else t_unit, raised, tuple(nests), facts)


def explain(t_unit: lp.TranslationUnit, **options: Any) -> str:
    """Say what a kernel is and what :func:`retrieve` would do, as text.

    Args:
        options: those of :func:`retrieve`, but ``on_miss``.

    Raises:
        ValueError: if ``policy`` is none of those that :func:`retrieve` names.
    """
    _check_choice("policy", options.get("policy", "default"), get_args(Policy))
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
    policy: Policy = "default",
) -> Match:
    """What the database knows about an einsum on a device.

    Long literal extents count as size parameters, as they do in raising.

    Raises:
        StoreError: if the database cannot be read.
        DeviceUnavailableError: if there is no such device.
        ValueError: if ``policy`` is none of those that :func:`retrieve` names.
    """
    _check_choice("policy", policy, get_args(Policy))
    environment = open_device(device).environment({})
    general, _ = generalize(einsum)
    others = (canonicalize(other) for other, _ in generalize_each(general))
    with opened_store(database, has_shipped=True) as store:
        forms = chain([canonicalize(general)], others)
        return _nearest(forms, store.query, environment, policy)[2]


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}; expected one of {', '.join(choices)}")


def _known_of(
    nest: RaisedNest, ask: Ask, environment: Environment, policy: Policy
) -> Known:
    """What is known of a nest, or else of the same one at other extents."""
    nests = [nest, *nest.generalized_each()]
    forms = (one.form for one in nests)
    k, records, _ = _nearest(forms, ask, environment, policy)
    return Known(nests[k], records, is_nearest=k > 0)


def _nearest(
    forms: Iterable[CanonicalForm],
    ask: Ask,
    environment: Environment,
    policy: Policy,
) -> tuple[int, list[TuningRecord], Match]:
    """Which form has the best match: its number, its records and the match.

    Args:
        forms: of an einsum, and then of the same one at other extents.

    Recipes for other kinds of devices than this one are left out.
    """
    best: tuple[int, list[TuningRecord], Match] | None = None
    kind = environment.device.kind
    for k, form in enumerate(forms):
        records = [r for r in _known(form, ask) if suits_device(r.spec, kind)]
        match = best_match(records, environment, policy, is_nearest=k > 0)
        if best is None or match.level < best[2].level:
            best = k, records, match
        if best[2].level <= Level.NEAREST_EXTENTS:
            break
    assert best is not None
    return best


def _known(form: CanonicalForm, ask: Ask) -> list[TuningRecord]:
    """The records of a workload; those of another one under its key are logged."""
    records = ask(form.key)
    frames = {record.workload_text for record in records}
    doubts = {frame: _doubt(frame, form) for frame in frames}
    for record in records:
        if doubt := doubts[record.workload_text]:
            logger.error("record %s is left out: %s", record.id, doubt)
    return [record for record in records if not doubts[record.workload_text]]


def _doubt(frame: str, form: CanonicalForm) -> str | None:
    """Why a text is not the workload, as written now or by an older canonicalizer."""
    if frame == form.text:
        return None
    try:
        found = canonicalize(from_text(frame)).text
    except FeinsumError as error:
        return f"its text {frame!r} is no einsum that can be canonicalized: {error}"
    if found == form.text:
        return None
    return f"it has the key of another workload: {frame!r} is not {form.text!r}"


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
