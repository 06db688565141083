"""A sample of a kernel: one of each set of identical nests.

Compilers write a nest for every field and every direction. With hundreds of identical
nests, Loopy would generate code for minutes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import islpy as isl
import loopy as lp

from feinsum.raising import RaisedKernel
from feinsum.retrieval.applying import Applied
from feinsum.retrieval.phases import Phase, loops_of
from feinsum.retrieval.selection import NestSelection
from feinsum.targets.units import LibraryUnit

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
