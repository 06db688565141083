"""Einsums and statements that plans are tested with, their laws, and random plans."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

import feinsum
from feinsum.distributed import (
    Distribution,
    GroupSchedule,
    Loop,
    Machine,
    Plan,
    Statements,
    assemble,
    assemble_statements,
    factorizations,
    groups_of,
    plan,
    statements,
)
from feinsum.distributed.assembly import place_operands
from feinsum.distributed.boxes import count_entries
from feinsum.distributed.counts import Counts
from feinsum.distributed.groups import find_default_path
from feinsum.distributed.local import name_outputs
from feinsum.distributed.schedule import list_result_choices
from feinsum.distributed.steps import (
    Free,
    Leaf,
    Make,
    Transfer,
)
from feinsum.ir import BatchedEinsum


def einsum_of(
    subscripts: str, names: str = "ABCDEFGH", **extents: int
) -> BatchedEinsum:
    """Return an einsum of 8-byte operands; ``every`` is the extent of other indices."""
    terms = subscripts.split("->")[0].split(",")
    return feinsum.einsum(
        subscripts,
        *(
            feinsum.array(
                name, tuple(extents.get(i, extents.get("every", 0)) for i in term)
            )
            for name, term in zip(names, terms, strict=False)
        ),
    )


def operands_of(problem, seed: int = 0) -> dict[str, np.ndarray]:
    """Return small integers, so that sums in any order are equal.

    Args:
        problem: an einsum or statements.
        seed: seed of the numbers.
    """
    rng = np.random.default_rng(seed)
    if isinstance(problem, BatchedEinsum):
        kinds = {op.name: (op.shape, op.dtype) for op in problem.operands}
    else:
        accesses = {a.tensor: a for group in problem.groups for a in group.inputs}
        kinds = {
            name: (tuple(problem.extents[i] for i in accesses[name].indices), dtype)
            for name, dtype in problem.dtypes.items()
        }
    return {
        name: rng.integers(-4, 5, shape).astype(dtype)
        for name, (shape, dtype) in kinds.items()
    }


def by_numpy(problem, operands: dict[str, np.ndarray]) -> Any:
    """Return numpy's result of an einsum, or results of statements by name."""
    if isinstance(problem, BatchedEinsum):
        arrays = [operands[op.name] for op in problem.rows[0]]
        return np.einsum(problem.subscripts, *arrays, optimize=len(arrays) > 2)
    known = dict(operands)
    for group in problem.groups:
        arrays = [known[access.tensor] for access in group.inputs]
        known[group.output.tensor] = np.einsum(group.subscripts, *arrays)
    return {name: known[name] for name in problem.outputs}


def is_numpys(made: Plan) -> bool:
    """Return whether a simulated plan computes numpy's results."""
    problem = made.statements or made.batched_einsum
    operands = operands_of(problem)
    expected = name_outputs(made, by_numpy(problem, operands))
    found = name_outputs(made, made.simulate(operands))
    return found.keys() == expected.keys() and all(
        (found[name] == expected[name]).all() for name in expected
    )


def assert_lawful(made: Plan) -> None:
    """Assert what holds for every plan.

    It gives numpy's result; its tally equals the sum over the steps; every message has
    one sender and one receiver; and it comes back from its document.
    """
    assert is_numpys(made), made.to_json()
    assert made.counts == count_steps(made)
    sent, received = Counter(), Counter()
    for rank, row in enumerate(made.steps):
        for step in row:
            if isinstance(step, Transfer) and step.is_message:
                (sent if rank == step.sender else received)[step] += 1
                assert rank in (step.sender, step.receiver)
    assert sent == received
    assert set(sent.values()) <= {1}
    again = Plan.from_json(made.to_json())
    assert (again, again.id) == (made, made.id)


KERNELS = {
    "1mm": einsum_of("ij,jk->ik", i=10, j=7, k=9),
    "2mm": einsum_of("ij,jk,kl->il", i=6, j=9, k=8, l=7),
    "3mm": einsum_of("ij,jk,kl,lm->im", i=6, j=5, k=8, l=7, m=9),
    "mttkrp-3-0": einsum_of("ijk,ja,ka->ia", i=6, j=7, k=5, a=4),
    "mttkrp-3-1": einsum_of("ijk,ia,ka->ja", i=6, j=7, k=5, a=4),
    "mttkrp-3-2": einsum_of("ijk,ia,ja->ka", i=6, j=7, k=5, a=4),
    "mttkrp-5-0": einsum_of("ijklm,ja,ka,la,ma->ia", i=4, j=3, k=4, l=5, m=3, a=6),
    "mttkrp-5-2": einsum_of("ijklm,ia,ja,la,ma->ka", i=4, j=3, k=4, l=5, m=3, a=6),
    "mttkrp-5-4": einsum_of("ijklm,ia,ja,ka,la->ma", i=4, j=3, k=4, l=5, m=3, a=6),
    "ttmc-5-0": einsum_of(
        "ijklm,jb,kc,ld,me->ibcde", i=4, j=3, k=4, l=3, m=4, b=2, c=3, d=2, e=2
    ),
    "paper": einsum_of("ijk,ja,ka,al->il", every=10),
    "ttv": einsum_of("ijk,k->ij", i=6, j=5, k=7),
    "innerprod": einsum_of("ijk,ijk->", i=6, j=5, k=7),
    "ttm": einsum_of("ijk,kl->ijl", i=9, j=5, k=7, l=4),
    "transpose": einsum_of("ij->ji", i=9, j=8),
    "total": einsum_of("ij->", i=9, j=8),
    "outer": einsum_of("i,j->ij", i=9, j=8),
    "same twice": einsum_of("ij,kj->ik", names="AA", i=6, j=6, k=6),
    "chain of one": einsum_of("ij,jk,kl->il", names="AAA", every=6),
}
"""The ten of Deinsum's benchmarks, in small, and others."""

PROGRAMS = {
    "attention": statements(
        ["Q[s,h,d] = X[s,a] * WQ[a,h,d]", "K[s,h,e] = X[s,a] * WK[a,h,e]",
         "S[h,d,e] = Q[s,h,d] * K[s,h,e]", "Y[s,h,e] = X[s,a] * WV[a,h,d] * S[h,d,e]"],
        {"X": (6, 8), "WQ": (8, 2, 4), "WK": (8, 2, 4), "WV": (8, 2, 4)},
    ),
    "read twice": statements(
        ["T[i,k] = A[i,j] * B[j,k]", "U[i,l] = T[i,k] * C[k,l]",
         "V[k,m] = T[i,k] * D[i,m]"],
        {"A": (8, 6), "B": (6, 8), "C": (8, 4), "D": (8, 4)},
    ),
    "read three times": statements(
        ["T[i,k] = A[i,j] * B[j,k]", "U[i,l] = T[i,k] * C[k,l]",
         "V[k,m] = T[i,k] * D[i,m]", "W[i,k] = T[i,k] * U[i,l] * V[k,m] * E[l,m]"],
        {"A": (8, 6), "B": (6, 8), "C": (8, 4), "D": (8, 4), "E": (4, 4)},
    ),
    "gradients": statements(
        ["H[n,h] = X[n,f] * V[f,h]", "G[n,h] = E[n,o] * W[h,o]",
         "dV[f,h] = X[n,f] * G[n,h]", "dW[h,o] = H[n,h] * E[n,o]"],
        {"X": (8, 6), "V": (6, 8), "E": (8, 4), "W": (8, 4)},
    ),
    "wanted and read": statements(
        ["T[i,k] = A[i,j] * B[j,k]", "U[i,l] = T[i,k] * C[k,l]"],
        {"A": (6, 5), "B": (5, 7), "C": (7, 4)}, outputs=["T", "U"],
    ),
}  # fmt: skip
"""Statements that read results of each other, in small."""


PROBLEMS = KERNELS | PROGRAMS
"""Einsums and statements."""


def count_steps(made: Plan) -> Counts:
    """The counts of a plan's lists of steps, one step after the other."""
    steps = made.steps
    ranks = [_count_rank(made, rank) for rank in range(made.processes)]
    received, reduced, messages, peaks, points = zip(*ranks, strict=True)
    requests = Counter(
        (rank, step.tag, step.source, step.box)
        for rank, row in enumerate(steps)
        for step in row
        if type(step) is Transfer and step.receiver != rank
    )
    return Counts(
        received=sum(received),
        reduced=sum(reduced),
        most_received=max(a + b for a, b in zip(received, reduced, strict=True)),
        messages=sum(messages),
        most_messages=max(messages),
        most_requests=max(requests.values(), default=0),
        peak=max(peaks),
        points=sum(points),
        most_points=max(points),
        busy=sum(map(bool, points)),
    )


def _count_rank(made: Plan, rank: int) -> tuple[int, int, int, int, int]:
    received = reduced = messages = points = 0
    peak = now = made.resident_elements[rank]
    live: dict[str, int] = {}
    for step in made.steps[rank]:
        kind = type(step)
        if kind is Make:
            live[step.buffer] = count_entries(step.box)
            now += live[step.buffer]
            peak = max(peak, now)
        elif kind is Free:
            now -= live.pop(step.buffer)
        elif kind is Transfer and step.sender != rank:
            reduced += count_entries(step.box) * step.is_added
            received += count_entries(step.box) * (not step.is_added)
            messages += 1
        elif kind is Leaf:
            sides: dict[str, range] = {}
            inputs = made.groups[step.group].inputs
            for access, (_, box) in zip(inputs, step.sources, strict=True):
                sides.update(zip(access.indices, box, strict=True))
            points += count_entries(tuple(sides.values()))
    return received, reduced, messages, peak, points


def make_bare(groups, extents, processes: int, **fields: Any) -> Plan:
    """Return a plan of groups without schedules."""
    made = {group.output.tensor for group in groups}
    read = dict.fromkeys(access.tensor for g in groups for access in g.inputs)
    dtypes = {name: "<f8" for name in read if name not in made}
    problem = Statements(groups, extents, dtypes, (groups[-1].output.tensor,))
    starts = fields.pop("starts", {})
    return Plan("", {}, processes, (), (), starts, (), statements=problem, **fields)


def count_moved(bare: Plan, schedules) -> int:
    """Return the elements that the steps of schedules move."""
    starts = place_operands(bare.operands, bare.groups, schedules, bare.extents)
    return replace(bare, schedules=tuple(schedules), starts=starts).counts.moved


def random_schedule(rng: random.Random, group, processes: int) -> GroupSchedule:
    """Return a legal schedule that nobody would make."""
    sizes = list(rng.choice(list(factorizations(processes))))
    rng.shuffle(sizes)
    machine = Machine(tuple(sizes))
    axes = tuple(rng.choice([*group.indices, None]) for _ in sizes)
    result = rng.choice(list(list_result_choices(group, axes, machine)))
    copied = {k for k, i in enumerate(axes) if i is None}
    moved = [(k, rng.randrange(machine.sizes[k])) for k, _ in result.fixed]
    result = replace(result, fixed=tuple((k, p) for k, p in moved if k not in copied))
    if rng.random() < 0.3:
        result = replace(result, cuts=tuple(rng.sample(result.cuts, len(result.cuts))))
    loop = None
    if group.summed and rng.random() < 0.6:
        turn = tuple(k for k in range(machine.n_axes) if rng.random() < 0.5)
        index, n_parts = rng.choice(group.summed), rng.randrange(1, 5)
        loop = Loop(index, n_parts, turn, rng.random() < 0.3)
    cyclic = tuple(k for k in _choose_axes(rng, machine) if axes[k] is not None)
    return GroupSchedule(machine, axes, _make_cyclic(rng, result), loop, cyclic)


def random_plan(rng: random.Random, problem, processes: int) -> Plan:
    """Return a legal plan of an einsum or of statements that nobody would make."""
    is_einsum = isinstance(problem, BatchedEinsum)
    path = find_default_path(problem, problem.extents) if is_einsum else None
    groups = (
        problem.groups if path is None else groups_of(problem, path, problem.extents)
    )
    schedules = [random_schedule(rng, group, processes) for group in groups]
    ranks = {a.tensor: len(a.indices) for group in groups for a in group.inputs}
    made = {group.output.tensor for group in groups}
    starts = {
        name: random_start(rng, rank, processes)
        for name, rank in sorted(ranks.items())
        if name not in made
    }
    if path is None:
        return assemble_statements(problem, processes, schedules, starts=starts)
    return assemble(problem, {}, processes, path, schedules, starts=starts)


def random_start(rng: random.Random, rank: int, processes: int) -> Distribution:
    """Return any distribution of an operand of that rank."""
    machine = Machine(rng.choice(list(factorizations(processes))))
    cuts: list[tuple[int, ...]] = [()] * rank
    fixed = []
    for k in range(machine.n_axes):
        where = rng.randrange(-2, rank)
        if where >= 0:
            cuts[where] = (*cuts[where], k)
        elif where == -1:
            fixed.append((k, rng.randrange(machine.sizes[k])))
    return _make_cyclic(rng, Distribution(machine, tuple(cuts), tuple(fixed)))


def plan_requested(einsum: BatchedEinsum, processes: int) -> Plan:
    """Plan with replicated operands and a result that moves to the other ranks."""
    free = plan(einsum, processes=processes)
    starts = dict.fromkeys(list(free.operands)[::2], "replicated")
    n_axes = len(free.groups[-1].output.indices)
    # reversed: another order of blocks than any schedule has
    machine = Machine((1, processes))
    end = Distribution(machine, (*[()] * (n_axes - 1), (1, 0)) if n_axes else ())
    return plan(einsum, processes=processes, starts=starts, result=end)


def _choose_axes(rng: random.Random, machine: Machine) -> list[int]:
    return [k for k in range(machine.n_axes) if rng.random() < 0.3]


def _make_cyclic(rng: random.Random, held: Distribution) -> Distribution:
    cutting = {k for cuts in held.cuts for k in cuts}
    chosen = (k for k in _choose_axes(rng, held.machine) if k in cutting)
    return replace(held, cyclic=tuple(chosen))
