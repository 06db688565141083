"""DISTAL's scheduling commands, lowered to a plan.

Commands divide the loops of an einsum, distribute them over processes, and place
communication. No command changes the result. They are lowered to a normal form, a
``GroupSchedule``; the commands themselves are not stored. The loops of ``ij,jk->ik``::

    i k j                        start_commands(einsum)
    io ko | ii ki j              distribute i, k over 3 x 3 processes
    io ko | jo | ii ki ji        divide j in 3 parts, reorder
    io ko | js | ii ki ji        rotate jo by io, ko: Cannon

The loops before the first bar are machine axes, the one between is sequential, and
those after are the leaf.

Source: DISTAL, section 3.3, and sections 4.1 to 4.5 for applications.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from feinsum.distributed.assembly import assemble, assemble_statements
from feinsum.distributed.distribution import Distribution, Machine
from feinsum.distributed.groups import (
    Access,
    Group,
    get_extents,
    groups_of,
)
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import (
    GroupSchedule,
    Loop,
    derive_distribution,
    without_copies,
)
from feinsum.distributed.statement_graph import Statements
from feinsum.ir import BatchedEinsum
from feinsum.words import format_count


@dataclass(frozen=True)
class _Variable:
    """A loop over a part of an index, and its number of values.

    ``parts`` is None for what is left of an index below its divisions.
    """

    indices: tuple[str, ...]
    parts: tuple[int | None, ...]


@dataclass(frozen=True)
class Commands:
    """A schedule under construction; every command returns a new one.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (576, 576)), feinsum.array("B", (576, 576))
    >>> cannon = (
    ...     start_commands(feinsum.einsum("ij,jk->ik", A, B))
    ...     .distribute(["i", "k"], ["io", "ko"], ["ii", "ki"], [3, 3])
    ...     .divide("j", "jo", "ji", 3)
    ...     .reorder("io", "ko", "jo", "ii", "ki", "ji")
    ...     .rotate("jo", ["io", "ko"], "js")
    ...     .communicate(["A", "B"], "js")
    ...     .communicate(["out"], "ko")
    ...     .substitute(["ii", "ki", "ji"])
    ...     .format("A", "ij->ij").format("B", "jk->jk")
    ... )
    >>> plan = cannon.plan()
    >>> plan.counts.moved, plan.counts.most_requests
    (1327104, 1)
    """

    einsum: BatchedEinsum
    sizes: Mapping[str, int]
    loops: Mapping[str, _Variable]
    distributed: tuple[str, ...] = ()
    rotated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    communicated: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    products: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def divide(self, index: str, outer: str, inner: str, parts: int) -> Commands:
        """Split a loop in two; the outer one has the given number of values."""
        loop = self.loop(index)
        if len(loop.indices) != 1:
            raise ValueError(
                f"divide {index}: a collapsed loop cannot be divided into boxes"
            )
        if parts < 1:
            raise ValueError(
                f"divide {index} in {format_count(parts, 'part')}; expected 1 or more"
            )
        if loop.parts[0] is not None:
            raise ValueError(
                f"divide {index}: this loop counts parts; divide the loop below it"
            )
        loops = {outer: _Variable(loop.indices, (parts,)), inner: loop}
        return self._replace_loops([index], loops)

    def split(self, index: str, outer: str, inner: str, size: int) -> Commands:
        """Split a loop in two; the inner one has the given number of values."""
        loop = self.loop(index)
        extents = get_extents(self.einsum, self.sizes)
        if size < 1:
            raise ValueError(f"split {index} by {size}; expected 1 or more")
        length = extents[loop.indices[0]]
        # earlier divisions have shortened the loop already
        for other in self.loops.values():
            if other.indices == loop.indices and other.parts[0] is not None:
                length = -(-length // other.parts[0])
        return self.divide(index, outer, inner, max(1, -(-length // size)))

    def collapse(self, first: str, second: str, fused: str) -> Commands:
        """Fuse two adjacent loops into one over the pairs of their values."""
        a, b = self.loop(first), self.loop(second)
        names = list(self.loops)
        if names.index(second) != names.index(first) + 1:
            raise ValueError(f"collapse {first}, {second}: they are not adjacent")
        variable = _Variable((*a.indices, *b.indices), (*a.parts, *b.parts))
        return self._replace_loops([first, second], {fused: variable})

    def reorder(self, *names: str) -> Commands:
        """Permute these loops among their positions, in the given order."""
        for name in names:
            self.loop(name)
        if len(set(names)) != len(names):
            raise ValueError(f"reorder {', '.join(names)}: a loop is named twice")
        # other loops keep their positions
        order = iter(names)
        reordered = [next(order) if name in names else name for name in self.loops]
        return replace(self, loops={name: self.loops[name] for name in reordered})

    def distribute(
        self,
        targets: Sequence[str],
        outer: Sequence[str] | None = None,
        inner: Sequence[str] | None = None,
        grid: Sequence[int] | None = None,
    ) -> Commands:
        """Run these loops in parallel, each along a machine axis.

        With ``outer``, ``inner`` and ``grid``, loops are divided first, and the
        distributed ones come before all other loops.
        """
        start_commands, names = self, list(targets)
        if outer is not None or inner is not None or grid is not None:
            parts = (outer or (), inner or (), grid or ())
            if {len(part) for part in parts} != {len(names)}:
                raise ValueError("distribute: lists of different lengths")
            for name, first, second, n in zip(names, *parts, strict=True):
                start_commands = start_commands.divide(name, first, second, n)
            names = list(parts[0])
            rest = [name for name in start_commands.loops if name not in names]
            start_commands = replace(
                start_commands,
                loops={n: start_commands.loops[n] for n in (*names, *rest)},
            )
        for name in names:
            if None in start_commands.loop(name).parts:
                raise ValueError(
                    f"distribute {name}: divide it, so that it counts parts"
                )
        return replace(
            start_commands, distributed=(*start_commands.distributed, *names)
        )

    def communicate(self, tensors: Sequence[str], loop: str) -> Commands:
        """Fetch the required parts of these tensors in every iteration of a loop."""
        self.loop(loop)
        tensor_names = {op.name for op in self.einsum.operands} | {
            self._group.output.tensor
        }
        if unknown := sorted(set(tensors) - tensor_names):
            raise ValueError(f"communicate {', '.join(unknown)}: no such tensor")
        new = dict.fromkeys(tensors, loop)
        return replace(self, communicated={**self.communicated, **new})

    def rotate(self, loop: str, by: Sequence[str], result: str) -> Commands:
        """Start a sequential loop at the value given by the sum of other loops."""
        rotated = self.loop(loop)
        if wrong := sorted(set(by) - set(self.distributed)):
            raise ValueError(
                f"rotate {loop} by {', '.join(wrong)}, which is not distributed"
            )
        if collapsed := [n for n in by if len(self.loops[n].indices) != 1]:
            raise ValueError(f"rotate {loop} by {collapsed[0]}, which is collapsed")
        if None in rotated.parts or len(rotated.parts) != 1:
            raise ValueError(f"rotate {loop}: divide it, so that it counts parts")
        start_commands = self._replace_loops([loop], {result: rotated})
        return replace(
            start_commands, rotated={**start_commands.rotated, result: tuple(by)}
        )

    def precompute(self, tensors: Sequence[str], name: str) -> Commands:
        """Compute the product of some operands first, locally."""
        names = {op.name for op in self.einsum.operands}
        if not set(tensors) <= names or len(tensors) < 2:
            raise ValueError(f"precompute {', '.join(tensors)}: expected operands")
        return replace(self, products=(*self.products, (name, tuple(tensors))))

    def substitute(self, loops: Sequence[str], key: str | None = None) -> Commands:
        """Make these innermost loops the leaf, whose recipe is looked up.

        Args:
            key: the expected workload key of the leaf, if known.
        """
        # nothing may run inside a leaf
        names = list(self.loops)
        if set(names[len(names) - len(loops) :]) != set(loops):
            raise ValueError(f"substitute {', '.join(loops)}: not the innermost loops")
        if key is not None and self.plan().leaves[-1].key != key:
            raise ValueError(f"substitute: the leaf is {self.plan().leaves[-1].key}")
        return self

    def format(self, tensor: str, notation: str) -> Commands:
        """Set the initial distribution of an operand, or the final one of a result."""
        return replace(self, formats={**self.formats, tensor: notation})

    def plan(self, processes: int | None = None, name: str = "by commands") -> Plan:
        """Lower the commands to a plan.

        Args:
            processes: number of processes; by default that of the grid.

        Raises:
            ValueError: if plans do not support the order of the loops.
            PlanError: with any other rule of plans.
        """
        axes, machine = self._find_axes()
        # the sequential loop, just below the distributed ones
        loop = self._find_sequential_loop()
        group = self._group
        result = self._choose_result_distribution(group.output, machine, axes)
        schedule = GroupSchedule(machine, axes, result, loop)
        starts = {
            access.tensor: Distribution.parse(self.formats[access.tensor], machine)
            for access in group.inputs
            if access.tensor in self.formats
        }
        n = machine.n_processes if processes is None else processes
        # without products computed first, the einsum is one group
        if not self.products:
            path = (tuple(range(len(group.inputs))),)
            return assemble(
                self.einsum, self.sizes, n, path, [schedule], starts=starts, name=name
            )
        groups = list(self._split_products(group))
        # products are computed locally, without communication
        schedules = [
            *(self._schedule_locally(g, machine, axes) for g in groups[:-1]),
            schedule,
        ]
        dtypes = {op.name: op.dtype.str for op in self.einsum.operands}
        extents = get_extents(self.einsum, self.sizes)
        outputs = (group.output.tensor,)
        statements = Statements(tuple(groups), extents, dtypes, outputs)
        return assemble_statements(statements, n, schedules, starts=starts, name=name)

    @property
    def _group(self) -> Group:
        extents = get_extents(self.einsum, self.sizes)
        path = (tuple(range(len(self.einsum.inputs))),)
        return groups_of(self.einsum, path, extents)[0]

    def _find_axes(self) -> tuple[tuple[str, ...], Machine]:
        names = list(self.loops)
        if names[: len(self.distributed)] != list(self.distributed):
            raise ValueError(
                f"distributed loops {', '.join(self.distributed)} are not the first "
                f"of {', '.join(names)}; reorder them"
            )
        # a collapsed loop is an axis for each of its indices
        pairs = [
            (index, parts)
            for name in self.distributed
            for index, parts in zip(
                self.loops[name].indices, self.loops[name].parts, strict=True
            )
        ]
        axes = tuple(index for index, _ in pairs)
        return axes, Machine(tuple(parts or 1 for _, parts in pairs))

    def _find_sequential_loop(self) -> Loop | None:
        """Return the sequential loop, with communication or a rotation."""
        inside = [name for name in self.loops if name not in self.distributed]
        # a loop is sequential if something happens at each of its iterations
        timed = [
            name
            for name in inside
            if name in self.rotated or name in self.communicated.values()
        ]
        if not timed:
            return None
        name, loop = timed[0], self.loops[timed[0]]
        if len(timed) > 1 or name != inside[0] or len(loop.indices) != 1:
            raise ValueError(
                f"sequential loops {', '.join(timed)}; expected one, just below the "
                f"distributed loops: {', '.join(self.distributed) or 'none'}"
            )
        if loop.parts[0] is None:
            raise ValueError(
                f"communicate at {name}: divide it, so that it counts parts"
            )
        index = loop.indices[0]
        # a tensor that changes with the loop cannot be fetched outside of it
        for access in self._group.inputs:
            at = self.communicated.get(access.tensor, name)
            if index in access.indices and at != name:
                raise ValueError(
                    f"{access} changes with {name}; it cannot be fetched only at {at}"
                )
        axes = [n for n in self.distributed for _ in self.loops[n].indices]
        by = (axes.index(n) for n in self.rotated.get(name, ()))
        return Loop(index, loop.parts[0], tuple(by))

    def _choose_result_distribution(
        self, access: Access, machine: Machine, axes: tuple[str, ...]
    ) -> Distribution:
        """Return the distribution of the result: its format, or where it is computed
        first.
        """
        if access.tensor in self.formats:
            return Distribution.parse(self.formats[access.tensor], machine)
        return without_copies(derive_distribution(axes, access, machine))

    def _split_products(self, group: Group) -> Iterator[Group]:
        """Yield the products that are computed first, then the remaining group."""
        left = {access.tensor: access for access in group.inputs}
        for name, tensors in self.products:
            if not set(tensors) <= set(left):
                raise ValueError(
                    f"precompute {name}: {', '.join(tensors)} are used before"
                )
            inputs = tuple(left.pop(tensor) for tensor in tensors)
            needed = {i for a in (*left.values(), group.output) for i in a.indices}
            used = dict.fromkeys(i for a in inputs for i in a.indices if i in needed)
            left[name] = Access(name, tuple(used))
            yield Group(inputs, left[name])
        yield Group(tuple(left.values()), group.output)

    def _schedule_locally(
        self, group: Group, machine: Machine, axes: tuple[str, ...]
    ) -> GroupSchedule:
        """Return a schedule by which every process computes what it needs."""
        if summed := sorted(set(group.summed) & set(axes)):
            raise ValueError(
                f"precompute {group.output.tensor}: its sum over {summed[0]} is "
                "distributed; give it its own statement and schedule"
            )
        axes_of_group = tuple(i if i in group.indices else None for i in axes)
        return GroupSchedule(
            machine,
            axes_of_group,
            derive_distribution(axes_of_group, group.output, machine),
        )

    def loop(self, name: str) -> _Variable:
        """Return the loop with this name."""
        if name not in self.loops:
            raise ValueError(
                f"there is no loop {name!r}; expected one of {', '.join(self.loops)}"
            )
        return self.loops[name]

    def _replace_loops(
        self, names: Sequence[str], new: Mapping[str, _Variable]
    ) -> Commands:
        if used := (set(new) & set(self.loops)) - set(names):
            raise ValueError(f"a loop is called {sorted(used)[0]!r} already")
        if distributed := sorted(set(names) & set(self.distributed)):
            raise ValueError(
                f"{distributed[0]} is already distributed; change it before "
                "distributing"
            )
        loops: dict[str, _Variable] = {}
        for name, loop in self.loops.items():
            if name == names[0]:
                loops.update(new)
            elif name not in names:
                loops[name] = loop
        return replace(self, loops=loops)


def start_commands(
    einsum: BatchedEinsum, sizes: Mapping[str, int] | None = None
) -> Commands:
    """Return the loops of an einsum, from left to right, before any command.

    Args:
        einsum: an einsum with one row, computed as one statement.
        sizes: the value of every size parameter.
    """
    extents = get_extents(einsum, sizes or {})
    path = (tuple(range(len(einsum.inputs))),)
    (group,) = groups_of(einsum, path, extents)
    loops = {i: _Variable((i,), (None,)) for i in group.indices}
    return Commands(einsum, sizes or {}, loops)
