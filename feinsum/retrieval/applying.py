"""Applying a selection: extract each nest, transform it, and put it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import islpy as isl
import loopy as lp
from constantdict import constantdict

from feinsum.errors import TransformError
from feinsum.raising import RaisedKernel, RaisedNest
from feinsum.records import FramedSpec, TransformSpec
from feinsum.retrieval.assembly import extract_nest, insert_nest, with_barriers
from feinsum.retrieval.phases import Phase, loops_of, phases_of
from feinsum.retrieval.selection import NestSelection
from feinsum.targets.devices import target_of
from feinsum.targets.quiet import quiet
from feinsum.targets.units import HostProgram, LibraryUnit
from feinsum.transforms import apply_spec
from feinsum.transforms.primitives.compiler_hints import sums_in_order


class Part(NamedTuple):
    """A nest with a recipe applied.

    Attributes:
        program: the host program that replaces the kernel, if the recipe requires one.
    """

    kernel: lp.LoopKernel
    program: HostProgram | None


class Applied(NamedTuple):
    """A unit with recipes applied.

    Attributes:
        failures: for each nest whose recipe cannot be applied, the reason.
        parts: the instructions that each nest became.
    """

    unit: lp.TranslationUnit
    failures: Mapping[int, Exception]
    parts: Mapping[int, Phase]


def applied(raised: RaisedKernel, nests: Sequence[NestSelection]) -> Applied:
    """Apply its recipe to each nest. Nests run in phases of their own."""
    name = raised.kernel_name
    unit = _with_output_dtypes(_unscheduled(raised.t_unit, name), name, nests)
    kernel = unit[name]
    everything = frozenset(kernel.id_to_insn)
    is_alone = unit.entrypoints == {name}
    program: HostProgram | None = None
    phases, _ = phases_of(kernel, [n.nest.instructions for n in nests if n.chosen])
    failures: dict[int, Exception] = {}
    parts: dict[int, Phase] = {}
    loops = {insn.id: loops_of(kernel, [insn]) for insn in kernel.instructions}
    for k, one in enumerate(nests):
        if not (recipe := one.chosen):
            continue
        ids = frozenset(one.nest.instructions)
        try:
            left = {i: used for i, used in loops.items() if i not in ids}
            used = frozenset[str]().union(*left.values())
            alone, nest = extract_nest(kernel, one.nest, used)
            part = _transformed(
                recipe, _unit_of(unit, alone), nest, is_alone and ids == everything
            )
            gone = frozenset[str]().union(*(loops[i] for i in ids)) - used
            kernel, new_ids = insert_nest(kernel, ids, part.kernel, gone)
        except Exception as error:  # noqa: BLE001  (no recipe may break a build)
            failures[k] = error
            continue
        program = part.program
        parts[k] = new_ids
        phases = [new_ids if phase == ids else phase for phase in phases]
        loops = left
    if failures:
        return Applied(raised.t_unit, failures, {})
    unit = unit.with_kernel(with_barriers(kernel, phases))
    return Applied(LibraryUnit.of(unit, program) if program else unit, {}, parts)


def _with_output_dtypes(
    unit: lp.TranslationUnit, name: str, nests: Sequence[NestSelection]
) -> lp.TranslationUnit:
    """With the dtypes of results that are left to inference, as Loopy infers them.

    Recipes declare tiles of their dtypes.
    """
    kernel = unit[name]
    outputs = {
        output for one in nests if one.chosen for output in one.nest.nest.outputs
    }
    if all(kernel.get_var_descriptor(output).dtype is not None for output in outputs):
        return unit
    inferred = lp.infer_unknown_types(unit, expect_completion=False)[name]
    dtypes = {output: inferred.get_var_descriptor(output).dtype for output in outputs}
    return lp.add_dtypes(unit, {n: dtype for n, dtype in dtypes.items() if dtype})


def _unscheduled(unit: lp.TranslationUnit, name: str) -> lp.TranslationUnit:
    """Without the order in which Loopy put the loops, which change.

    The kernel is one that Loopy has not preprocessed: what a recipe writes needs that,
    and so does another target.
    """
    kernel = unit[name]
    if kernel.state == lp.KernelState.INITIAL:
        return unit
    state = lp.KernelState.INITIAL
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


def _transformed(
    recipe: FramedSpec, alone: lp.TranslationUnit, nest: RaisedNest, is_whole: bool
) -> Part:
    """A nest with a recipe applied; loops that it replaced are removed.

    Args:
        is_whole: the nest is all that its unit does.

    Raises:
        TransformError: if the recipe cannot be applied.
    """
    name = nest.nest.kernel_name
    with quiet():
        unit = apply_spec(recipe.spec, alone, nest.in_frame(recipe.frame))
        program = unit.program if isinstance(unit, LibraryUnit) else None
        if program is not None:
            _check_program(recipe.spec, alone, name, is_whole)
        kernel = unit[name] if is_whole else sums_in_order(unit[name])
        kernel = lp.expand_subst(kernel)  # once: what removes loops would do it again
        left = kernel.all_inames() & nest.nest.loops
        kernel = lp.remove_unused_inames(kernel, left)
        _check_loops(recipe.spec, kernel)
        return Part(kernel, program)


def _check_program(
    spec: TransformSpec, alone: lp.TranslationUnit, name: str, is_whole: bool
) -> None:
    """A program takes the place of a kernel, where this process runs it."""
    if not is_whole:
        raise TransformError(
            f"{spec} computes whole kernels; kernel {name!r} does more than this einsum"
        )
    if not target_of(alone.target).runs_programs(alone.target):
        raise TransformError(
            f"{spec} has no code, but kernel {name!r}, for {alone.target}, is run "
            "outside of this process"
        )


def _check_bounds(kernel: lp.LoopKernel, iname: str, inames: frozenset[str]) -> None:
    """Where a loop depends on two axes of a work-group, Loopy looks at the domain of
    neither; so those of all loops around it are taken, too.

    Raises:
        isl.Error, KeyError: if it has no bounds.
    """
    try:
        kernel.get_iname_bounds(iname)
    except isl.Error:
        domain = kernel.get_inames_domain(inames).to_set()
        _, axis = domain.get_var_dict()[iname]
        domain.dim_max(axis)


def _check_loops(spec: TransformSpec, kernel: lp.LoopKernel) -> None:
    """Loopy finds no bounds for some loops that run once under the assumptions."""
    for insn in kernel.instructions:
        inames = insn.within_inames | insn.reduction_inames()
        for iname in inames:
            try:
                _check_bounds(kernel, iname, inames)
            except (isl.Error, KeyError) as error:
                raise TransformError(
                    f"{spec} makes a loop {iname!r} in kernel {kernel.name!r} that has "
                    f"no bounds under {kernel.assumptions}: {error}"
                ) from None
