"""Applying recipes: extract each nest, transform it, and put it back.

::

    kernel:  interpolate, square, integrate      recipes for the first and the last
      extract_nest   interpolate, in separate loops; other arrays are hidden
      apply_spec     the transform, in the names of the canonical einsum
      insert_nest    the transformed instructions replace interpolate
      ...            the same for integrate
      with_barriers  interpolate | square | integrate
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import islpy as isl
import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.symbolic import SubstitutionMapper, SubstitutionRuleExpander
from pymbolic import var
from pymbolic.mapper.substitutor import make_subst_func
from pytools.tag import Tag

from feinsum.errors import TransformError
from feinsum.raising import RaisedKernel, RaisedNest
from feinsum.raising.dependences import Part
from feinsum.raising.expressions import collect_loops
from feinsum.records import FramedSpec, TransformSpec
from feinsum.retrieval.phases import find_all_loops, order_phases
from feinsum.retrieval.result import NestSelection
from feinsum.targets.devices import find_target
from feinsum.targets.quiet import quiet
from feinsum.targets.units import HostProgram, LibraryUnit, drop_schedule
from feinsum.transforms import apply_spec
from feinsum.transforms.primitives.compiler_hints import remove_any_order


class TransformedNest(NamedTuple):
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
    parts: Mapping[int, Part]


def apply_selected(raised: RaisedKernel, nests: Sequence[NestSelection]) -> Applied:
    """Apply its recipe to each nest; nests with recipes run in separate phases."""
    name = raised.kernel_name
    # instructions from a recipe have to be preprocessed with the rest of the kernel
    unit = _with_output_dtypes(drop_schedule(raised.t_unit, name), name, nests)
    kernel = unit[name]
    everything = frozenset(kernel.id_to_insn)
    is_alone = unit.entrypoints == {name}
    program: HostProgram | None = None
    # computed before recipes are applied: a nest may become hundreds of instructions
    phases, _ = order_phases(kernel, [n.nest.instructions for n in nests if n.chosen])
    failures: dict[int, Exception] = {}
    parts: dict[int, Part] = {}
    loops = {insn.id: find_all_loops(kernel, [insn]) for insn in kernel.instructions}
    for k, selection in enumerate(nests):
        if not (recipe := selection.chosen):
            continue
        ids = frozenset(selection.nest.instructions)
        try:
            loops_left = {i: used for i, used in loops.items() if i not in ids}
            used = frozenset[str]().union(*loops_left.values())
            # Transforms change all instructions of a kernel, and their time grows with
            # them: each nest is transformed alone.
            alone, nest = extract_nest(kernel, selection.nest, used)
            transformed = _transform_nest(
                recipe,
                _isolate_kernel(unit, alone),
                nest,
                is_alone and ids == everything,
            )
            removed_loops = frozenset[str]().union(*(loops[i] for i in ids)) - used
            kernel, new_ids = insert_nest(
                kernel, ids, transformed.kernel, removed_loops
            )
        except Exception as error:  # noqa: BLE001  (no recipe may break a build)
            failures[k] = error
            continue
        program = transformed.program
        parts[k] = new_ids
        phases = [new_ids if phase == ids else phase for phase in phases]
        loops = loops_left
    # with one nest failing, the caller selects again and builds another kernel
    if failures:
        return Applied(raised.t_unit, failures, {})
    unit = unit.with_kernel(with_barriers(kernel, phases))
    return Applied(LibraryUnit.of(unit, program) if program else unit, {}, parts)


def _with_output_dtypes(
    unit: lp.TranslationUnit, name: str, nests: Sequence[NestSelection]
) -> lp.TranslationUnit:
    """Declare the inferred dtypes of results, with which recipes declare tiles."""
    kernel = unit[name]
    outputs = {
        output
        for selection in nests
        if selection.chosen
        for output in selection.nest.nest.outputs
    }
    if all(kernel.get_var_descriptor(output).dtype is not None for output in outputs):
        return unit
    inferred = lp.infer_unknown_types(unit, expect_completion=False)[name]
    dtypes = {output: inferred.get_var_descriptor(output).dtype for output in outputs}
    return lp.add_dtypes(unit, {n: dtype for n, dtype in dtypes.items() if dtype})


def _isolate_kernel(
    unit: lp.TranslationUnit, kernel: lp.LoopKernel
) -> lp.TranslationUnit:
    """Isolate a kernel, since Loopy's transformations change all kernels of a unit."""
    callables = {
        key: callable_
        for key, callable_ in unit.callables_table.items()
        if key == kernel.name or not isinstance(callable_, lp.CallableKernel)
    }
    alone = unit.copy(
        callables_table=constantdict(callables), entrypoints=frozenset({kernel.name})
    )
    return alone.with_kernel(kernel)


def _transform_nest(
    recipe: FramedSpec, alone: lp.TranslationUnit, nest: RaisedNest, is_whole: bool
) -> TransformedNest:
    """Apply a recipe to a nest and remove the loops that it replaced.

    Args:
        recipe: the recipe, and the text whose names it uses.
        alone: the unit with the nest alone.
        nest: the nest to transform.
        is_whole: whether the nest is all that its unit does.

    Raises:
        TransformError: if the recipe cannot be applied.
    """
    name = nest.nest.kernel_name
    with quiet():
        unit = apply_spec(recipe.spec, alone, nest.in_frame(recipe.frame))
        program = unit.program if isinstance(unit, LibraryUnit) else None
        if program is not None:
            _check_program(recipe.spec, alone, name, is_whole)
        # the hint that sums may be reordered would hold for other instructions, too
        kernel = unit[name] if is_whole else remove_any_order(unit[name])
        # once here; otherwise each step that removes loops would expand it again
        kernel = lp.expand_subst(kernel)
        loops_left = kernel.all_inames() & nest.nest.loops
        kernel = lp.remove_unused_inames(kernel, loops_left)
        _check_loops(recipe.spec, kernel)
        return TransformedNest(kernel, program)


def _check_program(
    spec: TransformSpec, alone: lp.TranslationUnit, name: str, is_whole: bool
) -> None:
    """Check that a program may replace the kernel and runs in this process."""
    if not is_whole:
        raise TransformError(
            f"{spec} computes whole kernels; kernel {name!r} does more than this einsum"
        )
    if not find_target(alone.target).runs_programs(alone.target):
        raise TransformError(
            f"{spec} has no code, but kernel {name!r}, for {alone.target}, is run "
            "outside of this process"
        )


def _check_bounds(kernel: lp.LoopKernel, iname: str, inames: frozenset[str]) -> None:
    """Check that Loopy can bound a loop.

    If a loop depends on two axes of a work-group, Loopy ignores the domains of both. So
    this check also tries the domains of all surrounding loops.

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
    """Check that Loopy can bound each loop; it cannot bound some that run once."""
    for insn in kernel.instructions:
        inames = collect_loops(insn)
        for iname in inames:
            try:
                _check_bounds(kernel, iname, inames)
            except (isl.Error, KeyError) as error:
                raise TransformError(
                    f"{spec} makes a loop {iname!r} in kernel {kernel.name!r} that has "
                    f"no bounds under {kernel.assumptions}: {error}"
                ) from None


def extract_nest(
    kernel: lp.LoopKernel, nest: RaisedNest, used: Collection[str]
) -> tuple[lp.LoopKernel, RaisedNest]:
    """Extract a nest into a kernel of its own, with loops that nothing else uses.

    Loop priorities are dropped, since the recipe chooses the order of loops.

    Args:
        kernel: the kernel with the nest.
        nest: the nest to extract.
        used: the loops of all other instructions.

    Raises:
        TransformError: if a rule of the nest has a name that the kernel uses.
    """
    ids = frozenset(nest.instructions)
    rules, names = kernel.substitutions, kernel.all_variable_names()
    for name, rule in nest.new_rules.items():
        if name in names and rules.get(name) != rule:
            raise TransformError(f"the kernel has a variable {name} already")
    loops = find_all_loops(kernel, [kernel.id_to_insn[i] for i in nest.instructions])
    # loops whose bounds other instructions compute stay with these
    gone = _list_computed_domains(kernel, ids)
    gone_inames = _list_inames(gone)
    kernel = kernel.copy(
        domains=[domain for domain in kernel.domains if domain not in gone],
        inames={n: i for n, i in kernel.inames.items() if n not in gone_inames},
        loop_priority=frozenset(),
        substitutions=constantdict({**kernel.substitutions, **nest.new_rules}),
        instructions=[
            insn.copy(
                depends_on=insn.depends_on & ids,
                no_sync_with=frozenset(x for x in insn.no_sync_with if x[0] in ids),
            )
            for insn in kernel.instructions
            if insn.id in ids
        ],
    )
    fresh = kernel.get_var_name_generator()
    news = {i: str(fresh(i)) for i in sorted(loops & frozenset(used))}
    if news:
        kernel = lp.duplicate_inames(kernel, list(news), None, list(news.values()))
    return _with_hidden_arrays(kernel), _with_inames(nest, news)


def _list_computed_domains(
    kernel: lp.LoopKernel, ids: Collection[str]
) -> list[isl.BasicSet]:
    """Return the domains with bounds that other instructions than these compute."""
    other_insns = [insn for insn in kernel.instructions if insn.id not in ids]
    written = {name for insn in other_insns for name in insn.assignee_var_names()}
    scalars = written & kernel.temporary_variables.keys()
    return [
        domain
        for domain in kernel.domains
        if not scalars.isdisjoint(domain.get_var_names(isl.dim_type.param))
    ]


def _list_inames(domains: Iterable[isl.BasicSet]) -> frozenset[str]:
    return frozenset(x for d in domains for x in d.get_var_names(isl.dim_type.set))


class _Hidden(Tag):  # type: ignore[misc]
    """Tag of a scalar that stands in for an array of the whole kernel."""


def _with_hidden_arrays(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """Replace the arrays that a kernel's instructions do not name by scalars.

    In every step, Loopy visits the shapes of all arrays; of scalars, it has none.
    """
    expand = SubstitutionRuleExpander(kernel.substitutions)
    named = frozenset[str]().union(
        *(
            insn.with_transformed_expressions(expand).dependency_names()
            for insn in kernel.instructions
        ),
        *(domain.get_var_names(isl.dim_type.param) for domain in kernel.domains),
    )
    arrays = [a for a in kernel.args if isinstance(a, lp.ArrayArg)]
    arrays += [t for t in kernel.temporary_variables.values() if not t.base_storage]
    hidden = {array.name for array in arrays} - named
    scalars = {
        name: lp.TemporaryVariable(
            name, np.int32, shape=(), tags=frozenset({_Hidden()})
        )
        for name in hidden
    }
    return kernel.copy(
        args=[arg for arg in kernel.args if arg.name not in hidden],
        temporary_variables={**kernel.temporary_variables, **scalars},
    )


def _with_inames(nest: RaisedNest, news: Mapping[str, str]) -> RaisedNest:
    renamed = SubstitutionMapper(make_subst_func({i: var(n) for i, n in news.items()}))
    given_nest = nest.nest
    renamed_nest = replace(
        given_nest,
        points=constantdict({i: renamed(x) for i, x in given_nest.points.items()}),
        assignees=tuple(map(renamed, given_nest.assignees)),
        scales=tuple(map(renamed, given_nest.scales)),
        shifts=tuple(map(renamed, given_nest.shifts)),
    )
    return replace(nest, nest=renamed_nest)


def insert_nest(
    kernel: lp.LoopKernel,
    ids: Collection[str],
    transformed: lp.LoopKernel,
    gone: Collection[str],
) -> tuple[lp.LoopKernel, Part]:
    """Replace instructions of a kernel by those of a transformed one.

    Args:
        kernel: the kernel to change.
        ids: the ids of the instructions to replace.
        transformed: the kernel with their replacements.
        gone: the loops that only the replaced instructions had.

    Returns:
        The kernel, without dependencies between old and new instructions; and the ids
        of the new ones.
    """
    other_insns = [
        insn.copy(
            depends_on=insn.depends_on - frozenset(ids),
            no_sync_with=frozenset(x for x in insn.no_sync_with if x[0] not in ids),
        )
        for insn in kernel.instructions
        if insn.id not in ids
    ]
    remaining_kernel = kernel.copy(instructions=other_insns)
    # two recipes of one family use the same ids
    fresh = remaining_kernel.get_instruction_id_generator()
    news = {insn.id: str(fresh(insn.id)) for insn in transformed.instructions}
    new_insns = [
        insn.copy(
            id=news[insn.id],
            depends_on=frozenset(news[before] for before in insn.depends_on),
            no_sync_with=frozenset((news[i], scope) for i, scope in insn.no_sync_with),
        )
        for insn in transformed.instructions
    ]
    computed = _list_computed_domains(kernel, ids)
    inames = {name: kernel.inames[name] for name in _list_inames(computed)}
    orders = {tuple(i for i in x if i not in gone) for x in kernel.loop_priority}
    joined_kernel = _with_all_arrays(kernel, transformed).copy(
        domains=[*transformed.domains, *computed],
        inames={**transformed.inames, **inames},
        instructions=[*other_insns, *new_insns],
        loop_priority=transformed.loop_priority.union(x for x in orders if len(x) > 1),
    )
    return joined_kernel, frozenset(news.values())


def _with_all_arrays(
    kernel: lp.LoopKernel, transformed: lp.LoopKernel
) -> lp.LoopKernel:
    """Restore the arrays that were hidden from a transformed kernel."""
    temporaries = transformed.temporary_variables
    hidden = {name for name, t in temporaries.items() if _Hidden() in t.tags}
    # in the original order, since callers may pass arguments by position
    order = {arg.name: k for k, arg in enumerate(kernel.args)}
    args = [*transformed.args, *(arg for arg in kernel.args if arg.name in hidden)]
    all_temporaries = kernel.temporary_variables
    return transformed.copy(
        args=sorted(args, key=lambda arg: order.get(arg.name, len(order))),
        temporary_variables={
            name: all_temporaries[name] if name in hidden else temporary
            for name, temporary in temporaries.items()
            if name not in hidden or name in all_temporaries
        },
        substitutions=constantdict(
            {**transformed.substitutions, **kernel.substitutions}
        ),
    )


def with_barriers(kernel: lp.LoopKernel, phases: Sequence[Part]) -> lp.LoopKernel:
    """Separate the phases by barriers, so that each waits for the previous one."""
    if len(phases) < 2:
        return kernel
    kernel = _with_global_exchange(kernel, phases)
    kernel, phases = _with_conditions_inside(kernel, phases)
    fresh = kernel.get_instruction_id_generator()
    # global barriers: on a GPU, each phase becomes a kernel
    barriers = [str(fresh("phase")) for _ in phases[1:]]
    phase_of = {insn_id: k for k, phase in enumerate(phases) for insn_id in phase}
    instructions = []
    for insn in kernel.instructions:
        k = phase_of[insn.id]
        waits_for = (insn.depends_on & phases[k]) | {*barriers[k - 1 : k]}
        instructions.append(
            insn.copy(depends_on=frozenset(waits_for), depends_on_is_final=True)
        )
    for k, barrier in enumerate(barriers):
        waits_for = phases[k] | {*barriers[k - 1 : k]}
        instructions.append(
            lp.BarrierInstruction(
                id=barrier,
                depends_on=frozenset(waits_for),
                depends_on_is_final=True,
                within_inames=frozenset(),
                within_inames_is_final=True,
                synchronization_kind="global",
                mem_kind="global",
            )
        )
    # Loopy would look for races of the parallel loops in the other phases as well
    options = kernel.options.copy(disable_global_barriers=True)
    return kernel.copy(instructions=instructions, options=options)


def _with_conditions_inside(
    kernel: lp.LoopKernel, phases: Sequence[Part]
) -> tuple[lp.LoopKernel, list[Part]]:
    """Add an unconditional instruction to each phase that has a common predicate.

    Otherwise Loopy would evaluate the predicate on the host, which cannot read memory
    of the device.
    """
    fresh = kernel.get_instruction_id_generator()
    instructions, complete = list(kernel.instructions), []
    for phase in phases:
        if frozenset.intersection(*(kernel.id_to_insn[i].predicates for i in phase)):
            always = lp.NoOpInstruction(
                id=str(fresh("always")),
                within_inames=frozenset(),
                within_inames_is_final=True,
            )
            instructions.append(always)
            phase |= {always.id}
        complete.append(phase)
    return kernel.copy(instructions=instructions), complete


def _with_global_exchange(
    kernel: lp.LoopKernel, phases: Sequence[Part]
) -> lp.LoopKernel:
    """Move the temporaries that outlive a phase to global memory."""
    expand = SubstitutionRuleExpander(kernel.substitutions)
    phases_using: dict[str, set[int]] = {}
    for k, phase in enumerate(phases):
        for insn_id in phase:
            insn = kernel.id_to_insn[insn_id].with_transformed_expressions(expand)
            for name in insn.dependency_names() & set(kernel.temporary_variables):
                phases_using.setdefault(name, set()).add(k)
    written = kernel.get_written_variables()
    # private memory does not outlive the kernel of a phase
    lasting = [
        name
        for name, numbers in phases_using.items()
        if len(numbers) > 1 and name in written
    ]
    return lp.set_temporary_address_space(kernel, lasting, "global")
