"""Plans as functions of JAX: XLA sends the messages, between CPUs, GPUs or TPUs.

Each machine of a plan becomes a mesh over the same devices, each distribution a
``NamedSharding``, and each group a ``shard_map`` in which devices compute their leaves
and add partial sums. For ``C[i,k] = A[i,j] * B[j,k]`` on ``x=2 y=2`` with x at i and y
at j::

    plan                     JAX
    A starts as ij->ij       NamedSharding(mesh, PartitionSpec(("x",), ("y",)))
    B is needed as jk->*j    in_specs of the leaf: PartitionSpec(("y",), None)
    leaf                     einsum("ij,jk->ik", A, B), then psum over y
    C ends as ik->ii         with_sharding_constraint(PartitionSpec(("x", "y"), None))

XLA chooses the collectives between these shardings. It has no sequential loops and no
tensor at one coordinate of an axis: the first are left out, the second are replicated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.distributed.distribution import Distribution, Machine, get_axis_name
from feinsum.distributed.groups import Access, Group, get_shape
from feinsum.distributed.local import replace_names
from feinsum.distributed.plans import Plan, require_dense_plan
from feinsum.distributed.schedule import GroupSchedule
from feinsum.errors import PlanError
from feinsum.extras import require_extra
from feinsum.words import format_count

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding


@dataclass(frozen=True, eq=False)
class ShardedFunction:
    """A function of JAX arrays that computes the results of a plan.

    It can be called within ``jax.jit``, and be differentiated.

    Attributes:
        plan: the plan that it carries out.
        meshes: the mesh of each machine of the plan.
    """

    plan: Plan
    meshes: Mapping[Machine, Mesh]

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the results by name.

        Args:
            arrays: the operands by name. JAX moves them to :attr:`starts` first.
        """
        import jax

        # a constraint names what may be elsewhere: arrays of numpy, or other shardings
        values = {
            name: jax.lax.with_sharding_constraint(arrays[name], start)
            for name, start in self.starts.items()
        }
        for group, schedule in self.plan.scheduled:
            result = self._compute(group, schedule, values)
            sharding = self._get_sharding(schedule.result)
            values[group.output.tensor] = jax.lax.with_sharding_constraint(
                result, sharding
            )
        return {
            name: jax.lax.with_sharding_constraint(values[name], sharding)
            for name, sharding in self.results.items()
        }

    @property
    def starts(self) -> dict[str, NamedSharding]:
        """The sharding of each operand, for ``jax.device_put``."""
        return {name: self._get_sharding(d) for name, d in self.plan.starts.items()}

    @property
    def results(self) -> dict[str, NamedSharding]:
        """The sharding of each result."""
        final = self.plan.final_distributions
        return {name: self._get_sharding(final[name]) for name in self.plan.outputs}

    def _get_sharding(self, distribution: Distribution) -> NamedSharding:
        from jax.sharding import NamedSharding

        mesh = self.meshes[distribution.machine]
        return NamedSharding(mesh, make_partition(distribution))

    def _compute(
        self, group: Group, schedule: GroupSchedule, values: Mapping[str, Any]
    ) -> Any:
        """Compute a group: a leaf on each device, then the sum of partial sums."""
        import jax

        subscripts = replace_names(group.subscripts)
        need, target = schedule.needs(group.output), schedule.result
        scattered = _list_scattered_axes(schedule, group)
        if scattered is None:
            scattered, target = [], need
        others = {*schedule.summed_axes(group)} - {k for k, _ in scattered}
        summed = tuple(get_axis_name(k) for k in sorted(others))

        def compute_leaf(*blocks: Any) -> Any:
            block = jax.numpy.einsum(subscripts, *blocks)
            for k, axis in scattered:
                block = jax.lax.psum_scatter(
                    block, get_axis_name(k), scatter_dimension=axis, tiled=True
                )
            return jax.lax.psum(block, summed) if summed else block

        compute = jax.shard_map(
            compute_leaf,
            mesh=self.meshes[schedule.machine],
            in_specs=tuple(make_partition(schedule.needs(a)) for a in group.inputs),
            out_specs=make_partition(target),
        )
        return compute(*(values[access.tensor] for access in group.inputs))


def _list_scattered_axes(
    schedule: GroupSchedule, group: Group
) -> list[tuple[int, int]] | None:
    """Return the machine axes of partial sums that subdivide the result's blocks.

    Returns:
        Each with the axis of the result, in the order of subdivision; None if the
        result has other blocks than subdivided ones.
    """
    summed, scattered = schedule.summed_axes(group), []
    need, target = schedule.needs(group.output), schedule.result
    pairs = zip(need.cuts, target.cuts, strict=True)
    for axis, (cuts, subdivided) in enumerate(pairs):
        added = subdivided[len(cuts) :]
        if subdivided[: len(cuts)] != cuts or not {*added} <= {*summed}:
            return None
        scattered += [(k, axis) for k in added]
    return scattered


def make_partition(distribution: Distribution) -> Any:
    """Return the ``PartitionSpec`` of a distribution, with axes x, y, z, w.

    >>> tuple(make_partition(Distribution.parse("ij->ji*", Machine((2, 2, 2)))))
    ('y', 'x')
    """
    from jax.sharding import PartitionSpec

    cuts = [tuple(map(get_axis_name, cuts)) for cuts in distribution.cuts]
    return PartitionSpec(*(names or None for names in cuts))


def convert_to_jax(plan: Plan, devices: Sequence[Any] | None = None) -> ShardedFunction:
    """Convert a plan to a function of JAX arrays on several devices.

    Args:
        plan: a plan of dense operands, whose extents its machines divide evenly.
        devices: one for each process, in the order of ranks; by default the first of
            ``jax.devices()``.

    Raises:
        PlanError: with the rule ``jax``, if JAX is not installed, has too few devices,
            or cannot express a distribution; ``sparse``, if an operand is sparse.
    """
    refusal = partial(PlanError, rules=("jax",))
    with require_extra("jax", None, "a plan on devices of JAX", refusal):
        import jax
        from jax.sharding import Mesh
    require_dense_plan(plan, "converted to JAX")
    machines = {schedule.machine for schedule in plan.schedules}
    machines |= {d.machine for d in plan.final_distributions.values()}
    (n_devices, *others) = {machine.n_processes for machine in machines}
    if others:
        raise refusal(
            f"the machines of this plan have {', '.join(m.text for m in machines)}; "
            "JAX needs the same devices in all of them; plan for another number of "
            "processes"
        )
    available = list(jax.devices() if devices is None else devices)
    if len(available) < n_devices:
        raise refusal(
            f"the plan needs {format_count(n_devices, 'device')}; JAX has "
            f"{len(available)}"
        )
    _check_even(plan)
    used = np.array(available[:n_devices])
    meshes = {
        machine: Mesh(
            used.reshape(machine.sizes), [*map(get_axis_name, range(machine.n_axes))]
        )
        for machine in machines
    }
    return ShardedFunction(plan, meshes)


def _check_even(plan: Plan) -> None:
    """Refuse blocks of different sizes, and cyclic distributions, which JAX lacks."""
    accesses: list[tuple[Access, Distribution]] = []
    for group, schedule in plan.scheduled:
        accesses += [(access, schedule.needs(access)) for access in group.inputs]
        accesses.append((group.output, schedule.result))
        for access in group.accesses:
            if (final := plan.final_distributions.get(access.tensor)) is not None:
                accesses.append((access, final))
    for access, distribution in accesses:
        if distribution.cyclic:
            raise PlanError(
                f"{access} is distributed cyclically; JAX has blocks only",
                rules=("jax",),
            )
        shape = get_shape(access, plan.extents)
        for index, extent, cuts in zip(
            access.indices, shape, distribution.cuts, strict=True
        ):
            n_parts = int(np.prod([distribution.machine.sizes[k] for k in cuts]))
            if extent % n_parts:
                raise PlanError(
                    f"{access} has {extent} values of {index} in "
                    f"{format_count(n_parts, 'part')}; JAX needs parts of equal size: "
                    "pad the array, or plan for another number of processes",
                    rules=("jax",),
                )
