"""The order of phases: graphs of the parts of a kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations

import loopy as lp
import networkx as nx
from loopy.symbolic import SubstitutionRuleExpander, WalkMapper
from pymbolic import primitives as p

from feinsum.raising.hazards import (
    Subscripts,
    have_own_entries,
    never_meet,
    subscripts_of,
)
from feinsum.retrieval.phases import Phase


def ordered(
    kernel: lp.LoopKernel, nests: Iterable[Phase]
) -> tuple[list[Phase], list[Phase]]:
    """The phases in order, and the nests that are not separable."""
    wanted, stuck = [*nests], list[Phase]()
    exchanges = _Exchanges(kernel)
    while True:
        others = _groups(kernel, frozenset().union(*wanted), exchanges)
        graph = _order_graph(kernel, [*wanted, *others])
        bad = [nest for nest in wanted if _is_stuck(nest, graph, exchanges)]
        if not bad:
            return _merged(kernel, graph, wanted), stuck
        stuck.append(bad[0])
        wanted.remove(bad[0])


def _groups(
    kernel: lp.LoopKernel, without: Phase, exchanges: _Exchanges
) -> list[Phase]:
    """The other instructions, in parts that stay together.

    These share a loop, or exchange something in an order that the kernel leaves
    open: it is for Loopy to choose it, as it was before.
    """
    together = nx.Graph()
    others = [insn for insn in kernel.instructions if insn.id not in without]
    before = kernel.recursive_insn_dep_map()
    for insn in others:
        together.add_node(insn.id)
        together.add_edges_from((insn.id, ("loop", i)) for i in insn.within_inames)
    for one, two in combinations([insn.id for insn in others], 2):
        is_ordered = one in before[two] or two in before[one]
        if not is_ordered and exchanges.conflict(frozenset({one}), frozenset({two})):
            together.add_edge(one, two)
    components = nx.connected_components(together)
    return [frozenset(v for v in part if isinstance(v, str)) for part in components]


def _order_graph(kernel: lp.LoopKernel, parts: Iterable[Phase]) -> nx.DiGraph:
    """Which part must wait for which; parts are vertices."""
    part_of = {insn_id: part for part in parts for insn_id in part}
    graph = nx.DiGraph()
    graph.add_nodes_from(part_of.values())
    for insn in kernel.instructions:
        for before in insn.depends_on:
            if part_of[before] != part_of[insn.id]:
                graph.add_edge(part_of[before], part_of[insn.id])
    return graph


def _is_stuck(nest: Phase, graph: nx.DiGraph, exchanges: _Exchanges) -> bool:
    """Whether others must run in the middle of a nest, or in its iterations."""
    if any(nest in cycle and len(cycle) > 1
           for cycle in nx.strongly_connected_components(graph)):  # fmt: skip
        return True
    return not all(
        exchanges.are_separable(nest, part)
        and (not exchanges.conflict(nest, part) or _is_ordered(graph, nest, part))
        for part in graph
        if part != nest
    )


def _is_ordered(graph: nx.DiGraph, first: Phase, second: Phase) -> bool:
    return bool(nx.has_path(graph, first, second) or nx.has_path(graph, second, first))


def _merged(
    kernel: lp.LoopKernel, graph: nx.DiGraph, nests: Collection[Phase]
) -> list[Phase]:
    """The parts in order; what is between two nests is one phase."""
    position = {insn.id: k for k, insn in enumerate(kernel.instructions)}
    phases: list[Phase] = []
    condensed = nx.condensation(graph)
    members = nx.get_node_attributes(condensed, "members")
    # ties by program order, so that every process finds the same phases
    order = nx.lexicographical_topological_sort(
        condensed, key=lambda c: min(position[i] for part in members[c] for i in part)
    )
    for c in order:
        part = frozenset().union(*members[c])
        if phases and part not in nests and phases[-1] not in nests:
            phases[-1] |= part
        else:
            phases.append(part)
    return phases


class _Exchanges:
    """Who reads and writes what, with which subscripts."""

    def __init__(self, kernel: lp.LoopKernel) -> None:
        self.kernel = kernel
        expand = SubstitutionRuleExpander(kernel.substitutions)
        self.accesses: dict[str, list[tuple[str, Subscripts]]] = {}
        self.written: dict[str, frozenset[str]] = {}
        for insn in kernel.instructions:
            finder = _AccessFinder()
            for expression in (*insn.assignees, *_values(insn)):
                finder(expand(expression))
            self.written[insn.id] = frozenset(insn.assignee_var_names())
            named = self.written[insn.id] | insn.read_dependency_names()
            unseen = named - {name for name, _ in finder.found}
            self.accesses[insn.id] = [*finder.found, *((name, ()) for name in unseen)]

    def conflict(self, a: Phase, b: Phase) -> list[str]:
        """The variables that one of them writes and the other one accesses.

        Left out are those of which they have no entry in common.
        """
        names = (self._written(a) & self._touched(b)) | (
            self._written(b) & self._touched(a)
        )
        return sorted(
            name
            for name in names
            if not never_meet(
                self.kernel, name, self._subscripts(a, name), self._subscripts(b, name)
            )
        )

    def are_separable(self, a: Phase, b: Phase) -> bool:
        """Whether the loops that two parts share can be run once for each.

        They can if every iteration has its own entries of what the parts
        exchange: each shared iname is a subscript at one place of all accesses.

        Args:
            a: a nest, each of whose iterations assigns to an entry of its own.
        """
        shared = self._loops(a) & self._loops(b)
        if not shared:
            return True
        insns = [self.kernel.id_to_insn[i] for i in a]
        own = [subscripts_of(e) for insn in insns for e in insn.assignees]
        return all(
            have_own_entries(self._subscripts(a | b, name), shared, own)
            for name in self.conflict(a, b)
        )

    def _loops(self, part: Phase) -> frozenset[str]:
        inames = [self.kernel.id_to_insn[i].within_inames for i in part]
        return frozenset().union(*inames)

    def _written(self, part: Phase) -> frozenset[str]:
        return frozenset().union(*(self.written[i] for i in part))

    def _touched(self, part: Phase) -> frozenset[str]:
        return frozenset(name for i in part for name, _ in self.accesses[i])

    def _subscripts(self, part: Phase, name: str) -> list[Subscripts]:
        return [s for i in part for known, s in self.accesses[i] if known == name]


def _values(insn: lp.InstructionBase) -> list[object]:
    """The expressions that an instruction reads: its value and its predicates."""
    return [getattr(insn, "expression", 0), *insn.predicates]


class _AccessFinder(WalkMapper):  # type: ignore[misc]
    """Collects variables with their subscripts; none is an empty subscript."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Subscripts]] = []

    def map_subscript(self, expr: p.Subscript, /) -> None:
        self.found.append((expr.aggregate.name, expr.index_tuple))
        for index in expr.index_tuple:
            self.rec(index)

    def map_variable(self, expr: p.Variable, /) -> None:
        self.found.append((expr.name, ()))
