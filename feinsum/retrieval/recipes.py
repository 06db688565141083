"""Applying the recipes of a nest: the first that can be applied, best first."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeAlias

import islpy as isl
import loopy as lp
from constantdict import constantdict

from feinsum.canonical import CanonicalForm
from feinsum.errors import FeinsumError, TransformError
from feinsum.raising import RaisedNest
from feinsum.records import (
    WORST_ACCEPTED,
    Environment,
    Extents,
    FramedSpec,
    Level,
    Match,
    Policy,
    TransformSpec,
    TuningRecord,
    best_match,
)
from feinsum.records.environment import DeviceKind
from feinsum.retrieval.assembly import joined, taken_out, with_barriers
from feinsum.retrieval.phases import phases_of
from feinsum.retrieval.result import NestRetrieval
from feinsum.transforms import (
    applicable_transforms,
    apply_spec,
    check_spec,
    configurations,
)
from feinsum.transforms.library.generic import GENERIC
from feinsum.transforms.library.library_unit import HostProgram, LibraryUnit

__all__ = [
    "ISLPY_WARNING",
    "Chosen",
    "Judge",
    "Judgement",
    "Known",
    "match_of",
    "with_recipes",
]

logger = logging.getLogger(__name__)

REASON_LENGTH = 1000

ISLPY_WARNING = ".*with implicit conversion of self"


class Judgement(NamedTuple):
    """Whether a recipe may be used, and why or why not."""

    is_good: bool
    words: str


Judge: TypeAlias = Callable[[FramedSpec, Match], Judgement]
"""Decides about a recipe of a match, before its first use on a machine."""


class Known(NamedTuple):
    """A nest and all records of its workload.

    Attributes:
        extents: those of the nest, as far as they are known.
        is_nearest: the records are of other extents than the kernel's.
        is_whole: the nest is all that its unit does.
    """

    nest: RaisedNest
    records: Sequence[TuningRecord]
    environment: Environment
    policy: Policy
    extents: Extents = constantdict()
    is_nearest: bool = False
    is_whole: bool = False

    def match(self, without: Collection[FramedSpec] = ()) -> Match:
        """The best of the records, but for recipes that are left out."""
        return match_of(
            self.nest.form,
            self.records,
            self.environment,
            self.policy,
            extents=self.extents,
            is_nearest=self.is_nearest,
            without=without,
        )

    def candidates(self, match: Match) -> tuple[FramedSpec, ...]:
        """The recipes of a match, the best first."""
        generic = (FramedSpec(spec, self.nest.form.text) for spec in match.recipes)
        recorded = (record.recipe for record in match.ranking)
        return tuple(dict.fromkeys((*recorded, *generic)))


class Chosen(NamedTuple):
    """A nest and the recipe that another process chose for it, if it chose one."""

    nest: RaisedNest
    recipe: FramedSpec | None
    reason: str
    is_whole: bool = False

    def match(self, without: Collection[FramedSpec] = ()) -> Match:
        """That recipe, unless it is left out."""
        if self.recipe is None or self.recipe in without:
            return Match(Level.MISS, self.reason)
        return Match(Level.GENERIC, self.reason, recipes=(self.recipe.spec,))

    def candidates(self, match: Match) -> tuple[FramedSpec, ...]:
        """That recipe."""
        return (self.recipe,) if match.is_hit and self.recipe else ()


def match_of(
    form: CanonicalForm,
    records: Sequence[TuningRecord],
    environment: Environment,
    policy: Policy,
    *,
    extents: Extents,
    is_nearest: bool = False,
    without: Collection[FramedSpec] = (),
) -> Match:
    """The best match of a workload, or a generic one where the policy accepts that.

    Args:
        without: recipes that are left out.
    """
    left = [record for record in records if record.recipe not in without]
    match = best_match(
        left, environment, policy, is_nearest=is_nearest, extents=extents
    )
    if match.level != Level.MISS or WORST_ACCEPTED[policy] < Level.GENERIC:
        return match
    tried = {*(record.recipe for record in records), *without}
    recipes = tuple(
        spec
        for spec in _generic_recipes(form, environment.device.kind)
        if FramedSpec(spec, form.text) not in tried
    )
    if not recipes:
        return match
    reason = f"{match.reason}; {recipes[0]} is for every einsum, and was not measured"
    return Match(Level.GENERIC, reason, recipes=recipes)


def _generic_recipes(form: CanonicalForm, kind: DeviceKind) -> list[TransformSpec]:
    """The recommended configuration of the family that fits every einsum."""
    return [
        spec
        for transform in applicable_transforms(form.einsum, kind)
        if transform.name == GENERIC.name
        for spec in islice(configurations(transform, form.einsum), 1)
    ]


Choice: TypeAlias = Known | Chosen


class Part(NamedTuple):
    """A nest with a recipe applied.

    Attributes:
        program: what the host runs in the place of the kernel, if the recipe says so.
    """

    kernel: lp.LoopKernel
    program: HostProgram | None


def with_recipes(
    unit: lp.TranslationUnit,
    kernel_name: str,
    known: Sequence[Choice],
    judge: Judge,
) -> tuple[lp.TranslationUnit, list[NestRetrieval]]:
    """Apply to each nest the best recipe that can be, of the best level that has one.

    Nests that get one run in phases of their own.

    Args:
        unit: the unit of the kernel in which the nests were raised.
        judge: asked about each recipe before it is applied.
    """
    found = [NestRetrieval(one.nest, one.match()) for one in known]
    unit = _unscheduled(unit, kernel_name)
    kernel = unit[kernel_name]
    whole = (unit.entrypoints, frozenset(kernel.id_to_insn))
    program: HostProgram | None = None
    wanted = [n.nest.instructions for n in found if n.match.is_hit]
    phases, stuck = phases_of(kernel, wanted)
    for k, one in enumerate(known):
        ids = frozenset(one.nest.instructions)
        if ids in stuck:
            found[k] = replace(found[k], is_separable=False)
        elif found[k].match.is_hit:
            alone, own = taken_out(kernel, one.nest)
            part, found[k] = _apply_best(
                _unit_of(unit, alone),
                one._replace(nest=own, is_whole=whole == ({kernel_name}, ids)),
                found[k],
                judge,
            )
            program = part.program if part else None
            # without a recipe it still needs loops of its own, in a phase of its own
            kernel, new_ids = joined(
                kernel, ids, part.kernel if part else lp.expand_subst(alone)
            )
            phases = [new_ids if phase == ids else phase for phase in phases]
    unit = unit.with_kernel(with_barriers(kernel, phases))
    return (LibraryUnit.of(unit, program) if program else unit), found


def _unscheduled(unit: lp.TranslationUnit, name: str) -> lp.TranslationUnit:
    """Without the order in which Loopy put the loops, which change."""
    kernel = unit[name]
    if kernel.linearization is None:
        return unit
    state = lp.KernelState.PREPROCESSED
    return unit.with_kernel(kernel.copy(linearization=None, state=state))


def _unit_of(unit: lp.TranslationUnit, kernel: lp.LoopKernel) -> lp.TranslationUnit:
    """A unit of one kernel; Loopy's transformations reach all kernels of a unit."""
    callables = {
        key: known
        for key, known in unit.callables_table.items()
        if key == kernel.name or not isinstance(known, lp.CallableKernel)
    }
    alone = unit.copy(
        callables_table=constantdict(callables), entrypoints=frozenset({kernel.name})
    )
    return alone.with_kernel(kernel)


def _apply_best(
    alone: lp.TranslationUnit,
    own: Choice,
    found: NestRetrieval,
    judge: Judge,
) -> tuple[Part | None, NestRetrieval]:
    """The nest with the first recipe that can be applied, if there is one."""
    failures: dict[FramedSpec, str] = {}
    match = found.match
    while match.is_hit:
        for recipe in own.candidates(match):
            try:
                check_spec(recipe.spec, own.nest.in_frame(recipe.frame).einsum)
                judgement = judge(recipe, match)
                if not judgement.is_good:
                    raise TransformError(judgement.words)
                part = _applied(recipe, alone, own)
            except Exception as error:  # noqa: BLE001  (no recipe may break a build)
                why = _in_short(error)
                logger.warning("recipe %s was passed over: %s", recipe.spec, why)
                failures[recipe] = why
                continue
            done = replace(
                found,
                match=match,
                applied=recipe.spec,
                frame=recipe.frame,
                failures=_passed_over(failures),
                judgement=judgement.words,
            )
            return part, done
        match = own.match(without=failures)
    return None, replace(found, failures=_passed_over(failures))


def _in_short(error: Exception) -> str:
    """What went wrong, in no more words than a log can bear."""
    text = str(error) if isinstance(error, FeinsumError) else repr(error)
    return text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]} ..."


def _passed_over(
    failures: Mapping[FramedSpec, str],
) -> tuple[tuple[TransformSpec, str], ...]:
    return tuple((recipe.spec, why) for recipe, why in failures.items())


def _applied(recipe: FramedSpec, alone: lp.TranslationUnit, own: Choice) -> Part:
    """A nest with a recipe applied; loops that it replaced are removed.

    Raises:
        TransformError: if the recipe cannot be applied.
    """
    nest, name = own.nest, own.nest.nest.kernel_name
    with warnings.catch_warnings():
        # Loopy's use of islpy is not the user's, even where warnings are errors
        warnings.filterwarnings("ignore", ISLPY_WARNING, DeprecationWarning)
        unit = apply_spec(recipe.spec, alone, nest.in_frame(recipe.frame))
        program = unit.program if isinstance(unit, LibraryUnit) else None
        if program is not None and not own.is_whole:
            raise TransformError(
                f"{recipe.spec} computes whole kernels; kernel {name!r} does more than "
                "this einsum"
            )
        kernel = unit[name]
        left = kernel.all_inames() & set(nest.nest.inames.values())
        kernel = lp.remove_unused_inames(kernel, left)
        _check_loops(recipe.spec, kernel)
        return Part(lp.expand_subst(kernel), program)


def _check_loops(spec: TransformSpec, kernel: lp.LoopKernel) -> None:
    """Loopy finds no bounds for some loops that run once under the assumptions."""
    for insn in kernel.instructions:
        for iname in insn.within_inames | insn.reduction_inames():
            try:
                kernel.get_iname_bounds(iname)
            except (isl.Error, KeyError) as error:
                raise TransformError(
                    f"{spec} makes a loop {iname!r} in kernel {kernel.name!r} that has "
                    f"no bounds under {kernel.assumptions}: {error}"
                ) from None
