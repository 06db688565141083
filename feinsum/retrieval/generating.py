"""Builds of the given kernel with recipes, so that no failure reaches the user.

A variant of the given kernel is built in four steps, each of which may fail for one of
its recipes ::

    apply the recipes --> generate code --> put the kernel into its caller --> compile

Settings of the user, such as an array layout or an assumption, can make Loopy refuse a
transformed kernel. Then the variant fails here, and not the user's build.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import islpy as isl
import loopy as lp
import numpy as np
from loopy.target import TargetBase

from feinsum.cache import get_default_cache
from feinsum.errors import BuildError, FeinsumError, TransformError
from feinsum.raising import RaisedKernel
from feinsum.raising.dependences import Part
from feinsum.records import FramedSpec, Match, MatchLevel, TransformSpec
from feinsum.retrieval.applying import Applied, apply_selected
from feinsum.retrieval.cell_batches import batch_cells
from feinsum.retrieval.phases import find_all_loops
from feinsum.retrieval.request import Request
from feinsum.retrieval.result import Candidate, NestSelection
from feinsum.targets.devices import find_target
from feinsum.targets.quiet import quicker, quiet, uncached
from feinsum.targets.units import CodedUnit, HeldCode, LibraryUnit
from feinsum.words import get_first_lines

logger = logging.getLogger(__name__)

N_UNBUILT = 5
"""Recipes of a nest that may fail to build before the nest is left unchanged."""

Variant: TypeAlias = Mapping[int, Candidate]
"""The given kernel in which some nests have recipes, as a map from the numbers of these
nests to candidates. See also :func:`make_batch_variant`."""
BATCH = -1
"""The number that stands for the loop over cells, in place of that of a nest."""

Built: TypeAlias = tuple[lp.TranslationUnit, Mapping[int, Exception]]
"""A variant as the user gets it; and by nest, the errors of recipes that failed."""


class Transformed(NamedTuple):
    """A kernel with the best recipes, as the user gets it.

    Attributes:
        unit: the kernel; the given one if no nest has a recipe.
        gain: the gain of the recipes, in words; empty if it was not timed.
        batch: the number of cells that a loop over cells computes together, if that
            gains most; then no nest has a recipe.
    """

    unit: lp.TranslationUnit
    nests: tuple[NestSelection, ...]
    gain: str = ""
    batch: int = 0


def make_variant(nests: Iterable[NestSelection]) -> Variant:
    """Return the variant of the first candidate of each nest that has one."""
    return {k: nest.candidates[0] for k, nest in enumerate(nests) if nest.chosen}


def make_batch_variant(width: int) -> Variant:
    """Describe the given loop over cells, with this many computed together."""
    spec = TransformSpec("cells", 1, {"width": width})
    match = Match(MatchLevel.MISS, "no record is about batches of cells")
    return {BATCH: Candidate(FramedSpec(spec, ""), match, is_builtin=True)}


def get_batch_width(variant: Variant) -> int:
    """Return how many cells a :func:`make_batch_variant` computes together."""
    return int(str(variant[BATCH].recipe.spec.parameters["width"]))


@dataclass(frozen=True)
class Variants:
    """The variants of a given kernel, each built once.

    Attributes:
        are_timed: whether a trial compiles each variant together with the given kernel;
            otherwise each is compiled when it is built.
    """

    request: Request
    raised: RaisedKernel
    nests: tuple[NestSelection, ...]
    are_timed: bool = False
    _built: dict[object, Built] = field(default_factory=dict)

    @property
    def is_in_loop(self) -> bool:
        """Whether the einsums are those of a kernel that the given one calls."""
        return bool(self.raised.t_unit.entrypoints != self.request.t_unit.entrypoints)

    def build(self, variant: Variant) -> Built:
        """Build a variant.

        Its code is generated and, unless a trial does that, compiled; the first run
        finds the result in the cache.
        """
        key = tuple(sorted((k, c.recipe) for k, c in variant.items()))
        if key not in self._built:
            try:
                built = self._build(variant)
            except Exception as error:  # noqa: BLE001  (no recipe may break a build)
                built = self.request.t_unit, dict.fromkeys(variant, error)
            self._built[key] = built
        return self._built[key]

    def _build(self, variant: Variant) -> Built:
        given_unit = self.request.t_unit
        if BATCH in variant:
            return batch_cells(given_unit, get_batch_width(variant)), {}
        nests = _keep_recipes(variant, self.nests)
        for k, candidate in variant.items():
            nests[k] = replace(nests[k], candidates=(candidate,))
        result = apply_selected(self.raised, nests)
        if result.failures:
            return given_unit, result.failures
        unit = with_shelf(deliver_unit(result.unit, self.raised.t_unit.target))
        failures = find_generation_failures(self.raised, nests, result, unit)
        if failures:
            return unit, failures
        unit = put_in_caller(given_unit, unit)
        error = None if self.are_timed else find_build_failure(self.request, unit)
        return unit, {} if error is None else dict.fromkeys(variant, error)


def find_build_failure(request: Request, unit: lp.TranslationUnit) -> BuildError | None:
    """Return the error of a unit that does not compile here; None if it compiles."""
    is_coded = isinstance(unit, CodedUnit) and unit.shelf.code()
    # without a cache, the first run would have to compile the same code again
    if not is_coded or get_default_cache() is None:
        return None
    try:
        with quiet(Warning):  # Loopy's, as when code is generated
            request.opened.build(unit)
    except BuildError as error:
        return error
    except FeinsumError:  # such as for a missing compiler, which the first run reports
        return None
    return None


def build_selected(
    variants: Variants, select: Callable[[NestSelection], NestSelection]
) -> Transformed:
    """Build the kernel with selected recipes, dropping those that fail to build."""
    nests = variants.nests
    n_left = [N_UNBUILT] * len(nests)
    while True:
        nests = tuple(map(select, nests))
        variant = make_variant(nests)
        if not variant:
            return Transformed(variants.request.t_unit, nests)
        unit, failures = variants.build(variant)
        if not failures:
            return Transformed(unit, nests)
        changed_nests = [*nests]
        for k, error in failures.items():
            n_left[k] -= 1
            skipped = changed_nests[k].without_first(error)
            logger.warning("recipe %.200s was skipped: %s", *skipped.failures[-1])
            changed_nests[k] = skipped if n_left[k] else replace(skipped, candidates=())
        nests = tuple(changed_nests)


def find_generation_failures(
    raised: RaisedKernel,
    nests: Sequence[NestSelection],
    result: Applied,
    unit: lp.TranslationUnit,
) -> Mapping[int, Exception]:
    """Find the nests whose recipes break code generation, with the errors.

    For identical nests, code is generated once, since there may be many. Arguments get
    double precision if their dtypes are only known in a call.

    Args:
        raised: the raised kernel.
        nests: its nests with the chosen recipes.
        result: the kernel with the recipes applied.
        unit: the result, as delivered to the user.
    """
    # a program of 500 right-hand sides would take minutes
    target, sampled = raised.t_unit.target, sample_nests(raised, nests, result)
    is_whole = sampled is result.unit
    tried = unit if is_whole else deliver_unit(sampled, target)
    error = find_refusal(_add_dtypes(tried))
    if error is not None and not is_whole:
        # the sample may lack what the rest needs
        error = find_refusal(_add_dtypes(unit))
    if error is None:
        return {}
    chosen = [k for k, selection in enumerate(nests) if selection.chosen]
    # with several recipes, each is built alone to find the ones that fail
    if len(chosen) == 1:
        return {chosen[0]: error}
    failures = {}
    for k in chosen:
        alone = apply_selected(raised, _keep_recipes({k}, nests)).unit
        reason = find_refusal(_add_dtypes(deliver_unit(alone, target)))
        if reason is not None:
            failures[k] = reason
    return failures or dict.fromkeys(chosen, error)


def _add_dtypes(unit: lp.TranslationUnit) -> lp.TranslationUnit:
    """Give every argument a dtype; return a fully typed unit unchanged."""
    for name in () if isinstance(unit, LibraryUnit) else unit.entrypoints:
        kernel = unit[name]
        dtypes = {
            arg.name: kernel.index_dtype if isinstance(arg, lp.ValueArg) else np.float64
            for arg in kernel.args
            if arg.dtype is None
        }
        if dtypes:
            args = [
                arg.copy(dtype=dtypes[arg.name]) if arg.name in dtypes else arg
                for arg in kernel.args
            ]
            unit = unit.with_kernel(kernel.copy(args=args))
    return unit


def _keep_recipes(
    numbers: Collection[int], nests: Sequence[NestSelection]
) -> list[NestSelection]:
    """Keep the recipes of the given nests only."""
    return [
        nest if k in numbers else replace(nest, is_separable=False)
        for k, nest in enumerate(nests)
    ]


def deliver_unit(unit: lp.TranslationUnit, target: TargetBase) -> lp.TranslationUnit:
    """Convert a unit to what the user gets, for the target of the given kernel."""
    return find_target(target).delivered(unit, target)


def put_in_caller(
    given_unit: lp.TranslationUnit, unit: lp.TranslationUnit
) -> lp.TranslationUnit:
    """Put the transformed kernel into the caller of the given one, if there is one.

    Args:
        given_unit: the unit that the user gave.
        unit: the transformed unit, delivered; its entry points are the given ones if
            there is no caller.

    Raises:
        TransformError: if no code can be generated for it.
    """
    if unit.entrypoints == given_unit.entrypoints:
        return unit
    (name,), (caller,) = unit.entrypoints, given_unit.entrypoints
    kernel = unit[name]
    # Loopy requires one index dtype for an entry point and all of its callees
    around = given_unit[caller].copy(index_dtype=kernel.index_dtype)
    joined = given_unit.with_kernel(kernel).with_kernel(around).copy(target=unit.target)
    error = find_refusal(joined)
    if error is not None and find_refusal(given_unit) is None:
        raise TransformError(f"kernel {name!r} does not fit its caller: {error}")
    return joined


def with_shelf(unit: lp.TranslationUnit) -> lp.TranslationUnit:
    """Make a unit keep its generated code for its executor to reuse.

    Running the unit then does not wait for Loopy a second time.
    """
    target = find_target(unit.target)
    is_run_here = target.is_in_process and target.runs_programs(unit.target)
    is_plain = not isinstance(unit, LibraryUnit) and len(unit.entrypoints) == 1
    return CodedUnit.of(unit, HeldCode()) if is_run_here and is_plain else unit


def find_refusal(unit: lp.TranslationUnit) -> Exception | None:
    """Return why Loopy cannot generate code; None if it can. Print nothing."""
    if isinstance(unit, LibraryUnit):
        return None
    try:
        generate_code(unit)
    except TransformError as error:
        return error
    return None


def generate_code(unit: lp.TranslationUnit) -> str:
    """Generate code with Loopy; print nothing.

    Raises:
        TransformError: if there is none.
    """
    try:
        is_cached_here = get_default_cache() is not None
        # Loopy's cache would keep every kernel that is tried; ours keeps those in use
        with (
            quiet(Warning),
            uncached() if is_cached_here else nullcontext(),
            quicker(),
        ):
            if isinstance(unit, CodedUnit):
                return str(unit.executor().generated().source)
            return str(lp.generate_code_v2(unit).device_code())
    except Exception as error:  # Loopy raises errors of many kinds
        raise TransformError(
            f"no code can be generated: {type(error).__name__}: "
            f"{get_first_lines(error)}"
        ) from error


_NAME_OR_NUMBER = re.compile(r"[A-Za-z_]\w*|\d+")


def sample_nests(
    raised: RaisedKernel, nests: Sequence[NestSelection], result: Applied
) -> lp.TranslationUnit:
    """Keep one of each set of identical nests; return the unit if there are none."""
    kernels = [
        callable_
        for callable_ in result.unit.callables_table.values()
        if isinstance(callable_, lp.CallableKernel)
    ]
    if isinstance(result.unit, LibraryUnit) or len(kernels) > 1:
        return result.unit  # a called kernel must keep its arguments, for its callers
    alike = find_duplicates(raised, nests)
    if not alike:
        return result.unit
    name, table = raised.kernel_name, result.unit.callables_table
    kernel = _without(result.unit[name], result.parts, alike)
    # it may have more arguments than Loopy has inferred types for
    fresh = table[name].copy(
        subkernel=kernel, arg_id_to_dtype=None, arg_id_to_descr=None
    )
    return result.unit.copy(callables_table=table.set(name, fresh))


def find_duplicates(
    raised: RaisedKernel, nests: Sequence[NestSelection]
) -> frozenset[int]:
    """Return the numbers of nests with a recipe that are identical to an earlier one.

    They have the same workload and recipe, and their expressions differ only in
    integers and in the names of arrays of the same shape, dtype and layout.
    """
    kernel = raised.t_unit[raised.kernel_name]
    seen: set[tuple[Any, ...]] = set()
    repeated: set[int] = set()
    for k, selection in enumerate(nests):
        if selection.chosen is None:
            continue
        likeness = _make_likeness(selection, kernel)
        if likeness in seen:
            repeated.add(k)
        seen.add(likeness)
    return frozenset(repeated)


def _make_likeness(selection: NestSelection, kernel: lp.LoopKernel) -> tuple[Any, ...]:
    nest = selection.nest
    described = dict.fromkeys(nest.nest.loops, ":")

    def normalize_text(expression: Any) -> str:
        return _NAME_OR_NUMBER.sub(lambda m: normalize_word(m[0]), str(expression))

    def normalize_word(name: str) -> str:
        if name.isdigit():
            return "#"
        if name not in described:
            described[name] = _describe_array(name, kernel)
        return described[name]

    relabeling, functions = nest.relabeling, nest.functional.functions
    bodies = {
        relabeling.operands[name]: normalize_text(function.body)
        for name, function in functions.items()
        if name in relabeling.operands
    }
    insns = [kernel.id_to_insn[i] for i in nest.instructions]
    return (
        selection.chosen,
        # the recipe's frame has size parameters for these extents, and equal frames may
        # hide different extents
        tuple(sorted(nest.generalized.values())),
        tuple(sorted(bodies.items())),
        tuple(map(normalize_text, (*nest.nest.assignees, *nest.scale, *nest.shift))),
        tuple(sorted(str(sorted(map(str, insn.tags))) for insn in insns)),
    )


def _describe_array(name: str, kernel: lp.LoopKernel) -> str:
    """Describe an array by everything but its name."""
    array = kernel.arg_dict.get(name, kernel.temporary_variables.get(name))
    if not isinstance(array, (lp.ArrayArg, lp.TemporaryVariable)):
        return name
    layout = (type(array).__name__, array.dtype, array.shape, array.dim_tags)
    memory = (array.address_space, array.offset, getattr(array, "base_storage", None))
    return f"<{', '.join(map(str, (*layout, *memory)))}>"


def _without(
    kernel: lp.LoopKernel, parts: Mapping[int, Part], dropped: Collection[int]
) -> lp.LoopKernel:
    """Remove the parts of some nests from the kernel.

    Arrays that only they assign become arguments for the others.

    Args:
        kernel: the kernel of all nests.
        parts: the instructions of each nest; the sets are disjoint.
        dropped: the numbers of the nests to remove.
    """
    removed_ids = frozenset[str]().union(*(parts[k] for k in dropped))
    remaining = [
        insn.copy(depends_on=insn.depends_on - removed_ids)
        for insn in kernel.instructions
        if insn.id not in removed_ids
    ]
    loops = find_all_loops(kernel, remaining)
    temporaries = kernel.temporary_variables
    assigned, removed = (
        {name for insn in insns for name in insn.assignee_var_names()}
        for insns in (remaining, map(kernel.id_to_insn.__getitem__, removed_ids))
    )
    unassigned = (removed - assigned) & temporaries.keys()
    read = {name for insn in remaining for name in insn.read_dependency_names()}
    arguments = [
        lp.GlobalArg(
            name,
            temporaries[name].dtype,
            shape=temporaries[name].shape,
            dim_tags=temporaries[name].dim_tags,
            is_input=True,
            is_output=False,
        )
        for name in sorted(unassigned & read)
    ]
    return kernel.copy(
        instructions=remaining,
        args=[*kernel.args, *arguments],
        temporary_variables={
            name: t for name, t in temporaries.items() if name not in unassigned
        },
        # a domain may have no loops at all
        domains=[
            domain
            for domain in kernel.domains
            if loops.issuperset(domain.get_var_names(isl.dim_type.set))
        ],
        inames={name: kernel.inames[name] for name in sorted(loops)},
        loop_priority=frozenset(
            order for order in kernel.loop_priority if loops.issuperset(order)
        ),
    )
