"""Code generation for retrieved kernels, whose failures must not reach the user.

Settings of the user, such as an array layout or an assumption, can make Loopy refuse a
kernel that a recipe wrote. The user's build must not be the one to find out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import islpy as isl
import loopy as lp
import numpy as np
from loopy.target import TargetBase

from feinsum.cache import default_cache
from feinsum.errors import TransformError
from feinsum.raising import RaisedKernel
from feinsum.retrieval.applying import Applied, applied
from feinsum.retrieval.phases import Phase, loops_of
from feinsum.retrieval.selection import NestSelection
from feinsum.targets.devices import target_of
from feinsum.targets.quiet import quicker, quiet, uncached
from feinsum.targets.units import CodedUnit, HeldCode, LibraryUnit
from feinsum.words import first_lines


def generation_failures(
    raised: RaisedKernel,
    nests: Sequence[NestSelection],
    made: Applied,
    unit: lp.TranslationUnit,
) -> Mapping[int, Exception]:
    """The nests whose recipes make code generation fail, and why.

    For identical nests, code is generated once, since there may be many. Arguments that
    get their dtypes in a call have some others here.

    Args:
        unit: the result, as the user gets it.
    """
    target, some = raised.t_unit.target, sample(raised, nests, made)
    error = refusal(_typed(unit if some is made.unit else delivered(some, target)))
    if error is not None and some is not made.unit:
        error = refusal(_typed(unit))  # what a sample lacks is no fault of it
    if error is None:
        return {}
    chosen = [k for k, one in enumerate(nests) if one.chosen]
    if len(chosen) == 1:
        return {chosen[0]: error}
    alone = {
        k: refusal(_typed(delivered(_with_one(raised, nests, k), target)))
        for k in chosen
    }
    found = {k: reason for k, reason in alone.items() if reason is not None}
    return found or dict.fromkeys(chosen, error)


def _typed(unit: lp.TranslationUnit) -> lp.TranslationUnit:
    """A unit whose arguments all have dtypes; itself if they have."""
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


def _with_one(
    raised: RaisedKernel, nests: Sequence[NestSelection], k: int
) -> lp.TranslationUnit:
    """The kernel in which one nest has its recipe."""
    alone = [
        one if k == j else replace(one, is_separable=False)
        for j, one in enumerate(nests)
    ]
    return applied(raised, alone).unit


def delivered(unit: lp.TranslationUnit, target: TargetBase) -> lp.TranslationUnit:
    """A unit as the user gets it, for the target of the given kernel."""
    return target_of(target).delivered(unit, target)


def in_caller(
    given: lp.TranslationUnit, unit: lp.TranslationUnit
) -> lp.TranslationUnit:
    """The given unit with the transformed kernel as its callee, if it calls that.

    Args:
        unit: the transformed unit, delivered; its entry points are the given ones if
            there is no caller.

    Raises:
        TransformError: if no code can be generated for it.
    """
    if unit.entrypoints == given.entrypoints:
        return unit
    (name,), (caller,) = unit.entrypoints, given.entrypoints
    kernel = unit[name]
    around = given[caller].copy(index_dtype=kernel.index_dtype)
    joined = given.with_kernel(kernel).with_kernel(around).copy(target=unit.target)
    error = refusal(joined)
    if error is not None and refusal(given) is None:
        raise TransformError(f"kernel {name!r} does not fit its caller: {error}")
    return joined


def with_shelf(unit: lp.TranslationUnit) -> lp.TranslationUnit:
    """A unit that stores its code once generated, for its executor to use.

    Running the unit then does not wait for Loopy a second time.
    """
    target = target_of(unit.target)
    is_run_here = target.is_in_process and target.runs_programs(unit.target)
    is_plain = not isinstance(unit, LibraryUnit) and len(unit.entrypoints) == 1
    return CodedUnit.of(unit, HeldCode()) if is_run_here and is_plain else unit


def refusal(unit: lp.TranslationUnit) -> Exception | None:
    """Why Loopy cannot generate code; None if it can. Nothing is printed."""
    if isinstance(unit, LibraryUnit):
        return None
    try:
        generated(unit)
    except TransformError as error:
        return error
    return None


def generated(unit: lp.TranslationUnit) -> str:
    """The code that Loopy generates. Nothing is printed.

    Raises:
        TransformError: if there is none.
    """
    try:
        is_cached_here = default_cache() is not None
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
            f"no code can be generated: {type(error).__name__}: {first_lines(error)}"
        ) from error


_NAME_OR_NUMBER = re.compile(r"[A-Za-z_]\w*|\d+")


def sample(
    raised: RaisedKernel, nests: Sequence[NestSelection], made: Applied
) -> lp.TranslationUnit:
    """The unit with one of each set of identical nests; itself if there are none."""
    kernels = [
        known
        for known in made.unit.callables_table.values()
        if isinstance(known, lp.CallableKernel)
    ]
    if isinstance(made.unit, LibraryUnit) or len(kernels) > 1:
        return made.unit  # one that others call keeps its arguments
    alike = duplicates(raised, nests)
    if not alike:
        return made.unit
    name, table = raised.kernel_name, made.unit.callables_table
    kernel = _without(made.unit[name], made.parts, alike)
    # it may have more arguments, of which Loopy has inferred nothing
    fresh = table[name].copy(
        subkernel=kernel, arg_id_to_dtype=None, arg_id_to_descr=None
    )
    return made.unit.copy(callables_table=table.set(name, fresh))


def duplicates(raised: RaisedKernel, nests: Sequence[NestSelection]) -> frozenset[int]:
    """The numbers of nests with a recipe that are identical to an earlier one.

    They have the same workload and recipe, and their expressions differ only in
    integers and in the names of arrays of the same shape, dtype and layout.
    """
    kernel = raised.t_unit[raised.kernel_name]
    seen: set[tuple[Any, ...]] = set()
    found: set[int] = set()
    for k, one in enumerate(nests):
        if one.chosen is None:
            continue
        likeness = _likeness(one, kernel)
        if likeness in seen:
            found.add(k)
        seen.add(likeness)
    return frozenset(found)


def _likeness(one: NestSelection, kernel: lp.LoopKernel) -> tuple[Any, ...]:
    nest = one.nest
    described = dict.fromkeys(nest.nest.loops, ":")

    def text(expression: Any) -> str:
        return _NAME_OR_NUMBER.sub(lambda m: word(m[0]), str(expression))

    def word(name: str) -> str:
        if name.isdigit():
            return "#"
        if name not in described:
            described[name] = _description(name, kernel)
        return described[name]

    relabeling, functions = nest.relabeling, nest.functional.functions
    bodies = {
        relabeling.operands[name]: text(function.body)
        for name, function in functions.items()
        if name in relabeling.operands
    }
    insns = [kernel.id_to_insn[i] for i in nest.instructions]
    return (
        one.chosen,
        tuple(sorted(nest.generalized.values())),
        tuple(sorted(bodies.items())),
        tuple(map(text, (*nest.nest.assignees, *nest.scale, *nest.shift))),
        tuple(sorted(str(sorted(map(str, insn.tags))) for insn in insns)),
    )


def _description(name: str, kernel: lp.LoopKernel) -> str:
    """Everything about an array but its name; other names stand for themselves."""
    array = kernel.arg_dict.get(name, kernel.temporary_variables.get(name))
    if not isinstance(array, (lp.ArrayArg, lp.TemporaryVariable)):
        return name
    layout = (type(array).__name__, array.dtype, array.shape, array.dim_tags)
    place = (array.address_space, array.offset, getattr(array, "base_storage", None))
    return f"<{', '.join(map(str, (*layout, *place)))}>"


def _without(
    kernel: lp.LoopKernel, parts: Mapping[int, Phase], dropped: Collection[int]
) -> lp.LoopKernel:
    """The kernel without the parts of some nests.

    Arrays that only they assign become arguments for the others.

    Args:
        parts: the instructions of each nest; the sets are disjoint.
    """
    gone = frozenset[str]().union(*(parts[k] for k in dropped))
    left = [
        insn.copy(depends_on=insn.depends_on - gone)
        for insn in kernel.instructions
        if insn.id not in gone
    ]
    rest = frozenset(insn.id for insn in left)
    loops = loops_of(kernel, left)
    unassigned = _assigned_in(kernel, gone) - _assigned_in(kernel, rest)
    missing = sorted(unassigned & _read_in(kernel, rest))
    temporaries = kernel.temporary_variables
    return kernel.copy(
        instructions=left,
        args=[*kernel.args, *(_as_argument(temporaries[name]) for name in missing)],
        temporary_variables={
            name: t for name, t in temporaries.items() if name not in unassigned
        },
        domains=[d for d in kernel.domains if _is_of(d, loops)],
        inames={name: kernel.inames[name] for name in sorted(loops)},
        loop_priority=frozenset(
            order for order in kernel.loop_priority if loops.issuperset(order)
        ),
    )


def _assigned_in(kernel: lp.LoopKernel, part: Phase) -> frozenset[str]:
    """The temporaries that a part of a kernel assigns."""
    insns = [kernel.id_to_insn[i] for i in part]
    names = frozenset[str]().union(*(insn.assignee_var_names() for insn in insns))
    return frozenset(n for n in names if n in kernel.temporary_variables)


def _read_in(kernel: lp.LoopKernel, part: Phase) -> frozenset[str]:
    insns = [kernel.id_to_insn[i] for i in part]
    return frozenset[str]().union(*(insn.read_dependency_names() for insn in insns))


def _as_argument(temporary: lp.TemporaryVariable) -> lp.GlobalArg:
    return lp.GlobalArg(
        temporary.name,
        temporary.dtype,
        shape=temporary.shape,
        dim_tags=temporary.dim_tags,
        is_input=True,
        is_output=False,
    )


def _is_of(domain: isl.BasicSet, loops: frozenset[str]) -> bool:
    """Whether a domain has no loops but these; it may have none."""
    return loops.issuperset(domain.get_var_names(isl.dim_type.set))
