"""Phases: the order in which the nests of a kernel can run one after another.

A recipe makes the loops of a nest parallel. So every nest with a recipe runs alone, and
the device waits until it is complete. All other instructions stay unchanged, in phases
between these. The kernel ::

    for e, q:  t[e, q] = sum(j, D[q, j]*u[e, j])      {id=interpolate}
    for e, q:  s[e, q] = t[e, q]**2                   {id=square, dep=interpolate}
    for e, i:  v[e, i] = sum(q, D[q, i]*s[e, q])      {id=integrate, dep=square}

has three phases if both sums get a recipe: ``interpolate``, then ``square``, then
``integrate``; loops that they share are duplicated.

A nest is *separable* if it can be extracted: no other instruction has to run in the
middle of it; and if it shares loops with other instructions, they exchange no values
between iterations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import islpy as isl
import loopy as lp
from loopy.kernel.data import ConcurrentTag
from loopy.symbolic import SubstitutionRuleExpander
from pytools.graph import compute_topological_order, get_reachable_nodes

from feinsum.raising import RaisedKernel
from feinsum.raising.dependences import Exchanges, Part
from feinsum.raising.expressions import collect_loops
from feinsum.retrieval.result import NestSelection

PartGraph: TypeAlias = Mapping[Part, Collection[Part]]
"""For each part of a kernel, the parts that wait for it."""


def mark_separable(
    raised: RaisedKernel, nests: Sequence[NestSelection]
) -> tuple[NestSelection, ...]:
    """Mark the nests that cannot run in a separate phase."""
    kernel = raised.t_unit[raised.kernel_name]
    nests_to_separate = [nest.instructions for nest in nests if nest.chosen]
    _, inseparable = order_phases(kernel, nests_to_separate)
    return tuple(
        replace(nest, is_separable=frozenset(nest.instructions) not in inseparable)
        for nest in nests
    )


def order_phases(
    kernel: lp.LoopKernel, nests: Sequence[Collection[str]]
) -> tuple[list[Part], list[Part]]:
    """Order the instructions of a kernel into phases.

    Args:
        kernel: the kernel to order.
        nests: instructions of each nest that needs a separate phase.

    Returns:
        The phases in order; and the nests that are not separable, whose instructions
        share phases with others.
    """
    separate_nests = [frozenset(nest) for nest in nests]
    # most kernels are a single nest, which needs no order
    everything = frozenset(kernel.id_to_insn)
    if everything not in separate_nests and _is_indivisible(kernel, separate_nests):
        return [everything], separate_nests
    if set(separate_nests) <= {everything}:
        return [everything], []
    exchanges = Exchanges(kernel)
    inseparable: list[Part] = []
    while True:
        groups = exchanges.groups(frozenset().union(*separate_nests))
        graph = _build_order_graph(kernel, [*separate_nests, *groups])
        later = {part: get_reachable_nodes(graph, part) for part in graph}
        entangled = (
            nest for nest in separate_nests if _is_entangled(nest, later, exchanges)
        )
        # without this nest, other groups form: check all nests again
        if (nest := next(entangled, None)) is None:
            return _merge_phases(kernel, graph, later, separate_nests), inseparable
        inseparable.append(nest)
        separate_nests.remove(nest)


def _is_indivisible(kernel: lp.LoopKernel, nests: Sequence[Part]) -> bool:
    """Return whether Loopy could not keep the parts of a kernel apart.

    It cannot if, outside of the nests,

    - loops are parallel already;
    - a loop has a computed bound;
    - instructions are in C, which may name variables that have to move;
    - there are barriers and predicates, which Loopy may evaluate on the host;

    or if temporaries share their storage.
    """
    temporaries = kernel.temporary_variables
    inside = frozenset().union(*nests)
    other_insns = [insn for insn in kernel.instructions if insn.id not in inside]
    bounds = kernel.get_inames_domain(find_all_loops(kernel, other_insns))
    params = {*bounds.get_var_names(isl.dim_type.param)}
    if params & set(temporaries) or any(
        temporary.base_storage is not None for temporary in temporaries.values()
    ):
        return True
    kinds = {type(insn) for insn in other_insns}
    if lp.CInstruction in kinds or (
        lp.BarrierInstruction in kinds and any(insn.predicates for insn in other_insns)
    ):
        return True
    return any(
        isinstance(tag, ConcurrentTag)
        for iname in find_all_loops(kernel, other_insns)
        for tag in kernel.inames[iname].tags
    )


def find_all_loops(
    kernel: lp.LoopKernel, insns: Iterable[lp.InstructionBase]
) -> frozenset[str]:
    """Return the loops of instructions, reductions and calls, also inside rules."""
    expand = SubstitutionRuleExpander(kernel.substitutions)
    expanded = [insn.with_transformed_expressions(expand) for insn in insns]
    of_calls = (insn.sub_array_ref_inames() for insn in expanded)
    return collect_loops(*expanded).union(*of_calls)


def _build_order_graph(kernel: lp.LoopKernel, parts: Iterable[Part]) -> PartGraph:
    """Build the graph of the parts that must wait for each part."""
    part_of = {insn_id: part for part in parts for insn_id in part}
    graph: dict[Part, set[Part]] = {part: set() for part in part_of.values()}
    for insn in kernel.instructions:
        for before in insn.depends_on:
            if part_of[before] != part_of[insn.id]:
                graph[part_of[before]].add(part_of[insn.id])
    return graph


def _is_entangled(nest: Part, later: PartGraph, exchanges: Exchanges) -> bool:
    """Return whether other parts must run in the middle of a nest or in its iterations.

    Args:
        nest: the part that may be a phase.
        later: for each part, itself and all parts that must run after it.
        exchanges: the values that the parts of the kernel exchange.
    """
    for part in later:
        is_before, is_after = part in later[nest], nest in later[part]
        if part == nest:
            continue
        if is_before and is_after:
            return True
        if not exchanges.are_separable(nest, part):
            return True
        if not (is_before or is_after) and exchanges.find_conflicts(nest, part):
            return True
    return False


def _merge_phases(
    kernel: lp.LoopKernel,
    graph: PartGraph,
    later: PartGraph,
    nests: Collection[Part],
) -> list[Part]:
    """Order the parts, and merge those between two nests into one phase."""
    position = {insn.id: k for k, insn in enumerate(kernel.instructions)}
    # parts that wait for each other form one part; none of them is a nest
    cycle_of = {
        part: frozenset().union(*(x for x in later[part] if part in later[x]))
        for part in graph
    }
    cycles: dict[Part, set[Part]] = {cycle: set() for cycle in cycle_of.values()}
    for part, waiting in graph.items():
        cycles[cycle_of[part]] |= {cycle_of[x] for x in waiting} - {cycle_of[part]}
    phases: list[Part] = []
    # ties are broken by program order, so that every process finds the same phases
    for part in compute_topological_order(
        cycles, key=lambda cycle: min(position[i] for i in cycle)
    ):
        if phases and part not in nests and phases[-1] not in nests:
            phases[-1] |= part
        else:
            phases.append(part)
    return phases
