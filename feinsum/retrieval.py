"""Retrieval: a user's kernel in, the kernel with the best known recipe out.

Three values lead from one to the other: what the kernel is (raised), what is
known about it (a match), and the kernel that results.

Source: paper, section 7 (figure 2, listing 4).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import loopy as lp
from constantdict import constantdict

from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.db import Database, opened_store
from feinsum.errors import (
    FeinsumError,
    FeinsumWarning,
    NotAnEinsumError,
    RecordNotFoundError,
    TransformError,
)
from feinsum.ir import BatchedEinsum, from_text, generalize
from feinsum.measure import open_device
from feinsum.raising import RaisedKernel, RaisedNest, raise_kernel, single_nest
from feinsum.records import (
    Environment,
    Level,
    Match,
    Policy,
    TransformSpec,
    TuningRecord,
    best_match,
)
from feinsum.transforms import apply_spec

__all__ = ["OnMiss", "Retrieval", "explain", "look_up", "query", "retrieve"]

logger = logging.getLogger(__name__)

OnMiss = Literal["warn", "raise", "return"]
ISLPY_WARNING = ".*with implicit conversion of self"


class FramedSpec(NamedTuple):
    """A recipe, and the text of the workload whose names it speaks of."""

    spec: TransformSpec
    frame: str


@dataclass(frozen=True)
class Retrieval:
    """How a kernel was looked up, and what came of it.

    Attributes:
        t_unit: the transformed kernel; the given one if nothing was applied.
        raised: the given kernel with its operands behind substitution rules.
        nest: the einsum that the kernel is.
        match: what the database knows of it.
        applied: the recipe in :attr:`t_unit`, if any.
        failures: recipes that could not be applied, and why.
    """

    t_unit: lp.TranslationUnit
    raised: RaisedKernel
    nest: RaisedNest
    match: Match
    applied: TransformSpec | None = None
    failures: tuple[tuple[TransformSpec, str], ...] = ()

    def __str__(self) -> str:
        return "\n".join(_explanation(self))


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
    """Transform a kernel with the best recipe known for the einsum that it is.

    Never breaks a build: where there is nothing to apply, the kernel comes back
    unchanged and, by default, with a :class:`feinsum.FeinsumWarning` that says why.

    Args:
        t_unit: a kernel that evaluates one batched einsum.
        arguments: see :func:`feinsum.raise_kernel`. Short sizes that they tell are
            fixed in the result, and are no arguments of it any more.
        device: part of an OpenCL device's name; default as in
            :func:`feinsum.measure.open_device`.
        database: path, URL or store; default is the user's own.
        instructions: a Loopy match expression that selects the einsum.
        kernel_name: which kernel of the unit, if it has several.
        on_miss: ``warn``, ``raise`` the reason as an error, or just ``return``.
        policy: the worst level of match accepted: ``strict`` (this device and
            driver), ``default`` (its architecture), ``loose`` (any).

    Raises:
        FeinsumError: only with ``on_miss="raise"``.
        ValueError: if ``on_miss`` or ``policy`` is none of those named above.

    Source: paper, section 7, listing 4.
    """
    _check_choice("on_miss", on_miss, get_args(OnMiss))
    _check_choice("policy", policy, get_args(Policy))
    try:
        found = look_up(
            t_unit,
            arguments=arguments,
            device=device,
            database=database,
            instructions=instructions,
            kernel_name=kernel_name,
            policy=policy,
        )
        if found.applied is None:
            raise RecordNotFoundError(_miss(found))
    except FeinsumError as error:
        if on_miss == "raise":
            raise
        logger.info("kernel given back unchanged: %s", error)
        reason = str(error)
    except Exception as error:  # a build must never break for want of a recipe
        if on_miss == "raise":
            raise
        logger.exception("retrieval failed; the kernel is given back unchanged")
        reason = f"retrieval failed with {type(error).__name__}: {error}"
    else:
        logger.info("applied %s: %s", found.applied, found.match.reason)
        return found.t_unit
    if on_miss == "warn":
        warnings.warn(
            f"kernel given back unchanged: {reason}", FeinsumWarning, stacklevel=2
        )
    return t_unit


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
        FeinsumError: if the kernel is no einsum, or device or database fail.
    """
    raised = raise_kernel(
        t_unit, arguments=arguments, instructions=instructions, kernel_name=kernel_name
    )
    nest = single_nest(raised)
    _check_is_whole_kernel(raised, nest)
    environment = open_device(device).environment({})
    records = _known(nest.form, database)
    given = Retrieval(t_unit, raised, nest, best_match(records, environment, policy))
    return _apply_best(given, records, environment, policy)


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
    form = canonicalize(generalize(einsum)[0])
    environment = open_device(device).environment({})
    records = _known(form, database)
    return best_match(records, environment, policy)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}; expected one of {', '.join(choices)}")


def _known(form: CanonicalForm, database: Database) -> list[TuningRecord]:
    """The records of a workload; those of another one under its key are logged."""
    with opened_store(database) as store:
        records = store.query(form.key)
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


def _check_is_whole_kernel(raised: RaisedKernel, nest: RaisedNest) -> None:
    """A recipe makes loops parallel: for OpenCL, and without other instructions."""
    kernel = raised.t_unit[raised.kernel_name]
    if not isinstance(raised.t_unit.target, lp.OpenCLTarget):
        raise NotAnEinsumError(
            f"kernel {raised.kernel_name!r} is for {raised.t_unit.target}; recipes "
            "are for OpenCL targets",
            rule="target",
            instructions=nest.instructions,
        )
    others = {insn.id for insn in kernel.instructions} - set(nest.instructions)
    if others:
        raise NotAnEinsumError(
            f"kernel {raised.kernel_name!r} has instructions {sorted(others)} beside "
            f"the einsum {sorted(nest.instructions)}; move them to another kernel",
            rule="other-instructions",
            instructions=tuple(sorted(others)),
        )


def _apply_best(
    given: Retrieval,
    records: Sequence[TuningRecord],
    environment: Environment,
    policy: Policy,
) -> Retrieval:
    """Apply the first recipe that can be, of the best level that has one."""
    raised, nest = given.raised, given.nest
    failures: dict[FramedSpec, str] = {}
    match = given.match
    while match.ranking:
        for recipe in dict.fromkeys(map(_framed, match.ranking)):
            try:
                result = _applied(recipe, raised, nest)
            except TransformError as error:
                logger.warning("recipe %s was passed over: %s", recipe.spec, error)
                failures[recipe] = str(error)
                continue
            passed_over = _passed_over(failures)
            return Retrieval(result, raised, nest, match, recipe.spec, passed_over)
        left = [record for record in records if _framed(record) not in failures]
        match = best_match(left, environment, policy)
    return replace(given, failures=_passed_over(failures))


def _framed(record: TuningRecord) -> FramedSpec:
    return FramedSpec(record.spec, record.workload_text)


def _passed_over(
    failures: Mapping[FramedSpec, str],
) -> tuple[tuple[TransformSpec, str], ...]:
    return tuple((recipe.spec, why) for recipe, why in failures.items())


def _applied(
    recipe: FramedSpec, raised: RaisedKernel, nest: RaisedNest
) -> lp.TranslationUnit:
    """The unit with the recipe applied to the one kernel that has the nest.

    Loopy's transformations reach all kernels of a unit, so the kernel is
    transformed alone. Loops that the recipe replaced are removed.

    Raises:
        TransformError: if the recipe cannot be applied.
    """
    unit, name = raised.t_unit, raised.kernel_name
    callables = {
        key: known
        for key, known in unit.callables_table.items()
        if key == name or not isinstance(known, lp.CallableKernel)
    }
    alone = unit.copy(
        callables_table=constantdict(callables), entrypoints=frozenset({name})
    )
    with warnings.catch_warnings():
        # Loopy's use of islpy is not the user's, even where warnings are errors
        warnings.filterwarnings("ignore", ISLPY_WARNING, DeprecationWarning)
        kernel = apply_spec(recipe.spec, alone, nest.in_frame(recipe.frame))[name]
        left = kernel.all_inames() & set(nest.nest.inames.values())
        kernel = lp.remove_unused_inames(kernel, left)
    return unit.with_kernel(kernel)


def _miss(found: Retrieval) -> str:
    if found.match.level == Level.MISS:
        return (
            f"{found.match.reason} (workload {found.nest.form.text}, key "
            f"{found.nest.key}); tune it with feinsum.autotune or 'feinsum tune'"
        )
    reasons = "; ".join(why for _, why in found.failures)
    return f"no recorded recipe could be applied: {reasons}"


def _explanation(found: Retrieval) -> Iterator[str]:
    nest, match = found.nest, found.match
    yield f"raised: {nest.einsum.subscripts}, {nest.einsum.batch_size} rows"
    yield f"instructions: {', '.join(nest.instructions)}"
    yield f"scaled by: {', '.join(map(str, nest.scale))}"
    for operand in nest.einsum.operands:
        yield f"operand {operand}: {nest.functional.functions[operand.name]}"
    yield f"canonical: {nest.form.text}"
    names = nest.relabeling
    for kind in (names.indices, names.operands, names.size_params):
        if kind:
            yield "relabeling: " + ", ".join(f"{k} -> {v}" for k, v in kind.items())
    yield f"key: {nest.key}"
    yield f"match: {match.level} ({match.reason})"
    for record in match.ranking:
        low, high = record.measurement.speedup_interval
        yield (
            f"  candidate {record.spec}: {record.measurement.median_s * 1e3:.3f} ms, "
            f"speed-up {record.measurement.speedup:.1f} ({low:.1f} to {high:.1f}), "
            f"record {record.id[:12]}"
        )
        if record.workload_text != nest.form.text:
            yield f"    in the names of {record.workload_text}"
    for spec, why in found.failures:
        yield f"  passed over {spec}: {why}"
    if found.applied is None:
        yield "kernel: unchanged"
    else:
        yield f"applied: {found.applied} (first among those that are tied as fastest)"
