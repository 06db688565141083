"""An estimate of the time of a nest: products in vectors, loops, and fetched bytes.

Operation counts predict the time of a sparse nest badly. With short fibers, it mostly
fetches rows of dense operands. Innermost loops over nodes of the tree compute one
product at a time. A buffer in registers costs nothing. For SpMM, ``ij,jk->ik``::

    for i                    ENTER_NS for each fiber of i
      for j                  LOOP_NS, the bytes of a node, and those of the row B[j,:]
        for k                VECTOR_NS for each vector of out[i,:] += T[i,j]*B[j,:]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, prod

from feinsum.machine import TYPICAL, MachineModel
from feinsum.nests.cost import (
    TermGroup,
    count_least_products,
    count_repetitions,
    list_crossing_buffers,
)
from feinsum.nests.form import COPIES_BYTES, is_apart
from feinsum.nests.networks import Factor, FactorProduct, Network, Path, Sizes

VECTOR_NS, CHAIN_NS = 0.25, 1.0
"""Nanoseconds of a product of vectors or scalars, and of one in a chain of products
that are added to one number.
"""

LOOP_NS, ENTER_NS = 0.5, 3.0
"""Nanoseconds of an iteration that is not unrolled, and to enter a loop of varying
length. These are typical values, set by ``make bench-sparse``.
"""

LINE_BYTES = 64
"""Bytes of a cache line."""


@dataclass(frozen=True)
class EstimatedTime:
    """Nanoseconds, on one core or several.

    Cores share the loop over the root of the tree if all terms are inside it. If their
    parts of the result are not disjoint, each core needs a copy, which must fit the
    memory and takes time to add up.

    Attributes:
        network: the network to compute.
        sizes: extents, and the profile of the tree.
        machine: the processor.
        item_bytes: size of an entry.
        index_bytes: size of an index of the tree.
        n_threads: number of threads that share a loop over the root.

    >>> from feinsum.nests import find_best_nest, parse_network
    >>> mttkrp = parse_network("ijk,ja,ka->ia")
    >>> sizes = Sizes({"i": 900, "j": 800, "k": 700, "a": 32}, (900, 9000, 90_000))
    >>> print(find_best_nest(mttkrp, EstimatedTime(mttkrp, sizes)).nest)
    for i
      for j
        for k
          for a
            X0[a] += T0[i,j,k] * T2[k,a]
        for a
          out[i,a] += X0[a] * T1[j,a]
    """

    network: Network
    sizes: Sizes
    machine: MachineModel = TYPICAL
    item_bytes: int = 8
    index_bytes: int = 4
    n_threads: int = 1
    nothing: float = 0.0

    def loop(self, group: TermGroup, index: str, body: float) -> float:
        serial_ns = self._estimate_loop_ns(group, index, body)
        # only a loop over the root around all terms can be divided among threads
        is_root = not group.ancestors and index in self.network.levels[:1]
        has_all_terms = len(group.terms) == len(self.network.inputs) - 1
        if not (is_root and has_all_terms):
            return serial_ns
        return min(serial_ns, serial_ns / self.n_threads + self._copies_ns)

    @cached_property
    def _copies_ns(self) -> float:
        """The time to clear and add up a copy of the result per thread.

        It is infinite if the copies do not fit.
        """
        if is_apart(self.network):
            return 0.0
        copies = self.network.n_rows * self.n_threads
        n_bytes = copies * self._count_bytes(frozenset(self.network.output))
        if n_bytes > COPIES_BYTES:
            return inf
        return 2 * n_bytes * self.machine.get_fetched_byte_ns(n_bytes)

    def _estimate_loop_ns(self, group: TermGroup, index: str, body: float) -> float:
        # ``leaves`` are the terms for which this is the innermost loop
        times = count_repetitions(self.network, self.sizes, group, index)
        outer = group.ancestors | {index}
        leaves = [term for term in group.terms if term.indices <= outer]
        over_nodes = self.network.get_level(group.ancestors, index) is not None
        is_innermost = len(leaves) == len(group.terms)
        n_rows = self.network.n_rows
        fetched = n_rows * self._estimate_fetch_ns(group, index, innermost=is_innermost)
        # a dense innermost loop is vectorized; one over nodes gathers scattered rows
        if is_innermost and not over_nodes:
            return times * fetched + n_rows * self._estimate_vectors_ns(
                leaves, index, times
            )
        chains = n_rows * len(leaves) * CHAIN_NS
        iteration_ns = LOOP_NS + chains + fetched
        enter_ns = ENTER_NS if over_nodes else 0.0
        tree_ns = self._estimate_tree_ns(index) if over_nodes else 0.0
        return enter_ns + times * (iteration_ns + tree_ns + body)

    def combine(self, first: float, second: float) -> float:
        return first + second

    def crossing(self, group: TermGroup, split: int) -> float:
        """Estimate the time of reads and writes of buffers outside registers.

        A buffer with an axis of the tree is never in registers. Its entries are often
        read before they arrive in the cache, so it counts twice.
        """
        total = 0.0
        for producer, consumer in list_crossing_buffers(group, split):
            buffer_indices = producer.result.indices - group.ancestors
            buffer_bytes = self.network.n_rows * self._count_bytes(buffer_indices)
            # without an axis of the tree, a small buffer is in registers and is free
            has_nodes = not buffer_indices.isdisjoint(self.network.levels)
            if has_nodes or buffer_bytes > self.machine.register_bytes:
                times = 4 if has_nodes else 2
                accesses = times * self._estimate_products(producer, group.ancestors)
                accesses += self._estimate_products(consumer, group.ancestors)
                moved = buffer_bytes + accesses * self.network.n_rows * self.item_bytes
                total += moved * self.machine.get_fetched_byte_ns(buffer_bytes)
        return total

    def least(self, path: Path) -> float:
        # as if all products were in full vectors, and all threads busy: a lower bound
        lanes = self.machine.vector_bytes / self.item_bytes
        products = (
            count_least_products(self.network, self.sizes, term) for term in path
        )
        rate = lanes * self.n_threads / VECTOR_NS
        return self.network.n_rows * sum(products) / rate

    def _estimate_vectors_ns(
        self, leaves: list[FactorProduct], index: str, times: float
    ) -> float:
        """Estimate the time of products along a dense index.

        They are vectorized if the index is the last axis of every array that has it.
        """
        lanes = max(self.machine.vector_bytes // self.item_bytes, 1)
        total = 0.0
        for term in leaves:
            side_by_side = all(self._is_last(t, index) for t in term.tensors)
            count = ceil(times / lanes) if side_by_side else times
            # additions of scalars to one entry wait for each other
            is_sum = index not in term.result.indices and not side_by_side
            product_ns = CHAIN_NS if is_sum else VECTOR_NS
            total += count * product_ns
        return total

    def _is_last(self, tensor: Factor, index: str) -> bool:
        """Return whether entries along an index are contiguous, or a single entry."""
        axes = self._get_axes(tensor)
        return index not in tensor.indices or axes is None or axes[-1] == index

    def _get_axes(self, tensor: Factor) -> tuple[str, ...] | None:
        """Return a tensor's axes in memory; None for buffers, whose layout is free."""
        if len(tensor.inputs) == 1:
            return self.network.inputs[next(iter(tensor.inputs))]
        is_result = len(tensor.inputs) == len(self.network.inputs)
        return self.network.output if is_result else None

    def _estimate_fetch_ns(
        self, group: TermGroup, index: str, *, innermost: bool
    ) -> float:
        """Estimate the time to fetch the next slices of the operands and the result."""
        return sum(
            self._estimate_slice_ns(tensor, group.ancestors, index, innermost=innermost)
            * times
            for tensor, times in self._list_in_memory(group)
            if index in tensor.indices
        )

    def _estimate_slice_ns(
        self,
        tensor: Factor,
        ancestors: frozenset[str],
        index: str,
        *,
        innermost: bool,
    ) -> float:
        among = self._count_bytes(tensor.indices - ancestors)
        moved = self._count_bytes(tensor.indices - ancestors - {index})
        # scattered entries fetch whole cache lines
        if not (innermost and self._is_last(tensor, index)):
            moved = max(moved, LINE_BYTES)
        return moved * self.machine.get_fetched_byte_ns(among)

    def _list_in_memory(self, group: TermGroup) -> Iterator[tuple[Factor, int]]:
        """Yield the dense operands and the result, each with its number of accesses."""
        tree = frozenset({self.network.sparse})
        n_inputs = len(self.network.inputs)
        seen = {t.inputs: t for term in group.terms for t in term.tensors}
        for inputs, tensor in seen.items():
            if len(inputs) == 1 and inputs != tree:
                yield tensor, 1
            elif len(inputs) == n_inputs and not self.network.has_sparse_output:
                yield tensor, 2

    def _estimate_tree_ns(self, index: str) -> float:
        """Estimate the time to read a node of the tree, which is read in order."""
        nodes = self.sizes.nodes
        # a leaf has an index and a value, an inner node an index and a pointer
        is_entry = self.network.level_of[index] == len(nodes) - 1
        n_bytes = self.index_bytes + (self.item_bytes if is_entry else self.index_bytes)
        leaf_bytes = nodes[-1] * (self.index_bytes + self.item_bytes)
        return n_bytes * self.machine.get_fetched_byte_ns(leaf_bytes)

    def _estimate_products(
        self, term: FactorProduct, ancestors: frozenset[str]
    ) -> float:
        """Estimate the number of products of a term inside the given loops."""
        remaining = term.indices - ancestors
        group = TermGroup((term,), ancestors)
        total = 1.0
        for index in sorted(remaining, key=lambda i: self.network.level_of.get(i, -1)):
            total *= count_repetitions(self.network, self.sizes, group, index)
            group = TermGroup((term,), group.ancestors | {index})
        return total

    def _count_bytes(self, indices: frozenset[str]) -> float:
        return self.item_bytes * self._count_entries(indices)

    def _count_entries(self, indices: frozenset[str]) -> float:
        return float(prod(self.sizes.extents[i] for i in indices))
