"""Checking that the blocks of a plan fit into memory."""

from __future__ import annotations

from feinsum.distributed.plan import Plan
from feinsum.errors import PlanError


def free_bytes() -> int:
    """Memory available to this process: of the machine, or of its container."""
    from feinsum.tuning.requirements import free_memory_bytes

    return free_memory_bytes()


def check_room(plan: Plan, free: int, *, n_ranks: int = 1) -> None:
    """Refuse a run before anything is allocated.

    Args:
        free: bytes available to all ranks together.
        n_ranks: number of ranks that share them.

    Raises:
        PlanError: with the rule ``memory``.
    """
    needed = plan.peak_bytes * n_ranks
    if needed > free:
        raise PlanError(
            f"the blocks of {n_ranks} process{'es' * (n_ranks > 1)} of {plan.title} "
            f"take {needed:,} bytes; {free:,} are free. Plan for more processes, or "
            "with memory=",
            rules=("memory",),
        )
