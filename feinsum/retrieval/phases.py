"""Phases: the order in which the nests of a kernel can run one after another.

A recipe parallelizes the loops of a nest. So every nest with a recipe runs alone, and
the device waits for it to finish. Other instructions are unchanged, in phases between.

A nest is *separable* if it can be extracted: no other instruction has to run in the
middle of it, and where it shares loops with others, they exchange no values across
iterations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import islpy as isl
import loopy as lp
from loopy.kernel.data import ConcurrentTag
from loopy.symbolic import SubstitutionRuleExpander

from feinsum.raising import RaisedKernel
from feinsum.retrieval.selection import NestSelection

Phase = frozenset[str]
"""Ids of the instructions that run together."""


def mark_separable(
    raised: RaisedKernel, nests: Sequence[NestSelection]
) -> tuple[NestSelection, ...]:
    """The nests, marking those that cannot run in a separate phase."""
    kernel = raised.t_unit[raised.kernel_name]
    wanted = [one.nest.instructions for one in nests if one.chosen]
    _, stuck = phases_of(kernel, wanted)
    return tuple(
        replace(one, is_separable=frozenset(one.nest.instructions) not in stuck)
        for one in nests
    )


def phases_of(
    kernel: lp.LoopKernel, nests: Sequence[Collection[str]]
) -> tuple[list[Phase], list[Phase]]:
    """Order the instructions of a kernel into phases.

    Args:
        nests: instructions of each nest that needs a separate phase.

    Returns:
        the phases in order, and those of the nests that are not separable;
        their instructions are in phases with others.
    """
    wanted = [frozenset(nest) for nest in nests]
    everything = frozenset(kernel.id_to_insn)
    if everything not in wanted and _is_indivisible(kernel, wanted):
        return [everything], wanted
    if set(wanted) <= {everything}:
        return [everything], []
    # Most kernels are one nest, and importing the library of graphs takes time.
    from feinsum.retrieval.phase_order import ordered

    return ordered(kernel, wanted)


def _is_indivisible(kernel: lp.LoopKernel, nests: Sequence[Phase]) -> bool:
    """Whether Loopy could not keep the parts of a kernel apart.

    So it is where others have made loops parallel, where a loop of others has a bound
    that is computed, where temporaries share their storage, where others are written
    in C, which may name variables that have to move, and where there are barriers
    already and predicates, which Loopy may leave to the host.
    """
    temporaries = kernel.temporary_variables
    inside = frozenset().union(*nests)
    others = [insn for insn in kernel.instructions if insn.id not in inside]
    bounds = kernel.get_inames_domain(loops_of(kernel, others))
    params = {*bounds.get_var_names(isl.dim_type.param)}
    if params & set(temporaries) or any(
        temporary.base_storage is not None for temporary in temporaries.values()
    ):
        return True
    kinds = {type(insn) for insn in others}
    if lp.CInstruction in kinds or (
        lp.BarrierInstruction in kinds and any(insn.predicates for insn in others)
    ):
        return True
    return any(
        isinstance(tag, ConcurrentTag)
        for iname in loops_of(kernel, others)
        for tag in kernel.inames[iname].tags
    )


def loops_of(
    kernel: lp.LoopKernel, insns: Iterable[lp.InstructionBase]
) -> frozenset[str]:
    """The loops of instructions, reductions and calls, including those in rules."""
    expand = SubstitutionRuleExpander(kernel.substitutions)
    expanded = [insn.with_transformed_expressions(expand) for insn in insns]
    return frozenset[str]().union(
        *(
            insn.within_inames | insn.reduction_inames() | insn.sub_array_ref_inames()
            for insn in expanded
        )
    )
