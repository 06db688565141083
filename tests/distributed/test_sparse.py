"""Sparse operands on many processes: volumes by formulas, results by numpy."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import feinsum
from feinsum.distributed import (
    GroupSchedule,
    Machine,
    Plan,
    assemble,
    groups_of,
    plan,
    with_cyclic,
)
from feinsum.distributed.grids import list_grids
from feinsum.distributed.local import compute_with_numpy
from feinsum.distributed.schedule import (
    derive_distribution,
    list_result_choices,
    without_copies,
)
from feinsum.distributed.storage import take_box
from feinsum.errors import PlanError
from feinsum.ir import sparse_array
from feinsum.sparse import COO, CSF, random_uniform, to_dense, to_scipy

KERNELS = {
    "mttkrp": ("ijk,ja,ka->ia", {"i": 8, "j": 12, "k": 8, "a": 3}),
    "ttmc": ("ijk,jr,ks->irs", {"i": 8, "j": 8, "k": 12, "r": 3, "s": 2}),
    "last mode": ("ijk,ia,ja->ka", {"i": 8, "j": 12, "k": 8, "a": 3}),
    "total": ("ij,jr->r", {"i": 8, "j": 12, "r": 3}),
    "turned": ("ij,rj->ri", {"i": 7, "j": 5, "r": 3}),
    "beside": ("ij,ja,ab->ib", {"i": 7, "j": 5, "a": 3, "b": 2}),
    "sddmm": ("ij,ia,ja->ij", {"i": 8, "j": 12, "a": 3}),
    "tttp": ("ijk,ia,ja,ka->ijk", {"i": 8, "j": 6, "k": 5, "a": 3}),
    "tttp turned": ("ij,ia,ja->ji", {"i": 8, "j": 12, "a": 3}),
}
"""Kernels of the first operand, which is sparse, and dense factors."""


def einsum_of(subscripts: str, extents):
    first, *terms = subscripts.split("->")[0].split(",")
    operands = [sparse_array("T", [extents[i] for i in first])]
    for name, term in zip("ABC", terms, strict=False):
        operands.append(feinsum.array(name, [extents[i] for i in term]))
    return feinsum.einsum(subscripts, *operands)


def arrays_of(einsum, seed: int = 0):
    """The entries of the sparse operand, a fifth of all, and the factors."""
    rng = np.random.default_rng(seed)
    arrays = {
        op.name: rng.integers(-4, 5, op.shape).astype(float) for op in einsum.operands
    }
    shape = arrays["T"].shape
    arrays["T"] = random_uniform(shape, int(0.2 * np.prod(shape)), seed=seed)
    return arrays


def on_processes(processes: int):
    """The plan and the arrays of every kernel."""
    for name, kernel in KERNELS.items():
        einsum = einsum_of(*kernel)
        arrays = arrays_of(einsum)
        nonzeros = arrays["T"].nnz
        yield name, plan(einsum, processes=processes, nonzeros=nonzeros), arrays


def by_numpy(made: Plan, arrays):
    einsum = made.batched_einsum
    dense = [as_dense(arrays[op.name]) for op in einsum.rows[0]]
    return np.einsum(einsum.subscripts, *dense)


def as_dense(array):
    return to_dense(array) if isinstance(array, COO | CSF) else array


def is_numpys(made: Plan, arrays) -> bool:
    found = made.simulate(arrays)
    is_tree = made.is_sparse(made.outputs[0])
    return isinstance(found, CSF) == is_tree and np.allclose(
        as_dense(found), by_numpy(made, arrays)
    )


@pytest.mark.parametrize("processes", [1, 6, 7])
def test_results_are_numpys_and_counts_those_of_the_run(processes):
    """Plans give numpy's result; what ranks receive is what was counted."""
    for name, made, arrays in on_processes(processes):
        assert is_numpys(made, arrays), name
        report = made.prepare("local").run(arrays).report
        assert report.counted == report.predicted == made.counts.moved, name
        assert made.counts.points <= 1.5 * arrays["T"].nnz * prod_of_dense(made) + 12


def prod_of_dense(made: Plan) -> int:
    """Multiply-adds of an entry."""
    (group,) = made.groups
    others = set(group.indices) - set(made.first_accesses["T"].indices)
    return int(np.prod([made.extents[i] for i in others]))


def on_grid(kernel, grid) -> Plan:
    """A plan on a grid over the axes of the sparse operand; sums end on one rank."""
    einsum, machine = einsum_of(*kernel), Machine(grid)
    path = (tuple(range(len(einsum.inputs))),)
    axes = einsum.inputs[0]
    (group,) = groups_of(einsum, path, einsum.extents)
    result = without_copies(derive_distribution(axes, group.output, machine))
    blocks = assemble(
        einsum, {}, machine.n_processes, path,
        [GroupSchedule(machine, axes, result)], nonzeros=9,
    )  # fmt: skip
    return with_cyclic(blocks, axes)


def test_volumes_of_ttmc_are_those_of_the_formulas():
    """Factors beyond one copy are fetched, and partial sums beyond one are reduced."""
    n = KERNELS["ttmc"][1]
    for grid in product((1, 2, 4), repeat=3):
        p, counts = int(np.prod(grid)), on_grid(KERNELS["ttmc"], grid).counts
        copies = p * n["j"] // grid[1] * n["r"] + p * n["k"] // grid[2] * n["s"]
        assert counts.received == copies - n["j"] * n["r"] - n["k"] * n["s"]
        assert counts.reduced == (p // grid[0] - 1) * n["i"] * n["r"] * n["s"]


@pytest.mark.parametrize("name", KERNELS)
def test_any_grid_gives_numpys_result(name):
    """All grids of axes of one and three give numpy's result, with ragged parts too."""
    einsum = einsum_of(*KERNELS[name])
    arrays = arrays_of(einsum)
    for grid in product((1, 3), repeat=len(einsum.inputs[0])):
        assert is_numpys(on_grid(KERNELS[name], grid), arrays), grid


@pytest.mark.parametrize("name", KERNELS)
def test_no_grid_is_faster(name):
    """The slowest process of no other grid is clearly faster."""
    subscripts, extents = KERNELS[name]
    modes = subscripts.partition(",")[0]
    for processes in (2, 6, 8):
        made = plan(einsum_of(subscripts, extents), processes=processes, nonzeros=9)
        for grid in list_grids(processes, modes, extents).tolist():
            other = on_grid(KERNELS[name], tuple(grid)).estimate()
            assert made.estimate().seconds <= other.seconds * 1.02


def test_dense_regions_are_dealt_out():
    """Entries that lie together are on all ranks, equally many."""
    corner = np.indices((10, 10, 10)).reshape(3, -1)
    tensor = COO((100, 100, 100), tuple(corner), np.ones(1000))
    einsum = einsum_of("ijk,ja,ka->ia", {"i": 100, "j": 100, "k": 100, "a": 4})
    made = plan(einsum, processes=8, nonzeros=1000)
    held = [take_box(tensor, made.start_box("T", rank)).nnz for rank in range(8)]
    assert sum(held) == 1000
    assert max(held) <= 1.25 * 1000 / 8


def test_memory_is_that_of_the_entries():
    """A tensor of 1000 cubed elements fits where a million of them are stored."""
    einsum = einsum_of("ijk,ja,ka->ia", {"i": 1000, "j": 1000, "k": 1000, "a": 16})
    made = plan(einsum, processes=8, nonzeros=10**6, memory="8 MB")
    assert 8 * 4 * 10**6 / 8 <= made.peak_bytes <= 8 * 10**6
    with pytest.raises(PlanError, match="bytes would do"):
        plan(einsum, processes=8, nonzeros=10**6, memory="3 MB")


@pytest.mark.parametrize("name", ["mttkrp", "sddmm", "tttp"])
def test_loops_give_numpys_result(name):
    """Factors that are fetched part by part need less memory."""
    subscripts, extents = KERNELS[name]
    einsum = einsum_of(subscripts, extents | {"a": 64})
    arrays = arrays_of(einsum)
    free = plan(einsum, processes=4, nonzeros=arrays["T"].nnz)
    tight = plan(
        einsum, processes=4, nonzeros=arrays["T"].nnz, memory=free.peak_bytes * 9 // 10
    )
    assert tight.schedules[0].loop or tight.schedules != free.schedules
    assert is_numpys(tight, arrays)


def test_a_sparse_plan_is_a_document():
    """It comes back from its text; scipy's matrices are operands."""
    einsum = einsum_of(*KERNELS["turned"])
    arrays = arrays_of(einsum)
    made = plan(einsum, processes=4, nonzeros=arrays["T"].nnz)
    again = Plan.from_json(made.to_json())
    assert (again, again.id) == (made, made.id)
    assert "csf" in made.leaves[0].text
    assert is_numpys(again, arrays | {"T": arrays["T"]})
    ours, scipys = (made.simulate(arrays | {"T": T})
                    for T in (arrays["T"], to_scipy(arrays["T"])))  # fmt: skip
    assert (ours == scipys).all()


def test_leaves_are_calls_of_the_database():
    """The default leaf, feinsum's call, gives the reference's result."""
    for name in ("mttkrp", "sddmm"):
        einsum = einsum_of(*KERNELS[name])
        arrays = arrays_of(einsum)
        made = plan(einsum, processes=3, nonzeros=arrays["T"].nnz)
        found = made.simulate(arrays, leaf=feinsum.call_einsum)
        assert np.allclose(as_dense(found), by_numpy(made, arrays))


MTTKRP = einsum_of(*KERNELS["mttkrp"])


@pytest.mark.parametrize("nonzeros", [None, -1, 8 * 12 * 8 + 1])
def test_the_number_of_entries_is_required(nonzeros):
    """Without it, or with an impossible one, an error says what is expected."""
    with pytest.raises(PlanError, match="from 0 to 768") as caught:
        plan(MTTKRP, processes=2, nonzeros=nonzeros)
    assert caught.value.rules == ("sparse",)


def test_entries_that_would_move_are_refused():
    """Another start, an axis without an index of the operand, other ends."""
    made = plan(MTTKRP, processes=4, nonzeros=9)
    machine = made.schedules[0].machine
    access = made.first_accesses["T"]
    elsewhere = derive_distribution((None,) * machine.n_axes, access, machine)
    wrong = [replace(made, starts={**made.starts, "T": without_copies(elsewhere)})]
    (group,) = made.groups
    axes = ("a",) * machine.n_axes
    result = next(list_result_choices(group, axes, machine))
    wrong.append(replace(made, schedules=(GroupSchedule(machine, axes, result),)))
    for other in wrong:
        with pytest.raises(PlanError) as caught:
            other.check()
        assert "sparse" in caught.value.rules
    dense = plan(feinsum.einsum("i->", feinsum.array("A", 4)), processes=2)
    with pytest.raises(PlanError, match="without sparse operands"):
        replace(dense, nonzeros=4).check()


def test_what_has_no_sparse_form_is_refused():
    """Programs of numpy and facts are of dense operands."""
    from feinsum.distributed.recorded import make_random_arrays

    made = plan(MTTKRP, processes=2, nonzeros=9)
    for use in (made.to_python, lambda: make_random_arrays(made)):
        with pytest.raises(PlanError, match="T is sparse") as caught:
            use()
        assert caught.value.rules == ("sparse",)


def test_wrong_blocks_are_refused():
    """Wrong shapes, and a dense array for the sparse operand."""
    made = plan(MTTKRP, processes=2, nonzeros=9)
    arrays = arrays_of(MTTKRP)
    for name, wrong in (
        ("T", random_uniform((3, 3, 3), 4, seed=0)),
        ("A", arrays["A"][1:]),
    ):
        with pytest.raises(PlanError, match="has shape") as caught:
            made.simulate(arrays | {name: wrong}, leaf=compute_with_numpy)
        assert caught.value.rules == ("blocks",)
    with pytest.raises(PlanError, match="a sparse operand") as caught:
        made.simulate(arrays | {"T": arrays["A"]}, leaf=compute_with_numpy)
    assert caught.value.rules == ("blocks",)
