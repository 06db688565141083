"""Statements over sparse operands: entries stay, results are numpy's, counts exact."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import feinsum
from feinsum.distributed import (
    Distribution,
    GroupSchedule,
    Machine,
    Plan,
    assemble_statements,
    factorizations,
    plan,
    plan_statements,
    statements,
    with_processes,
    with_sizes,
)
from feinsum.distributed.groups import get_shape
from feinsum.distributed.repeats import find_blocks
from feinsum.distributed.schedule import derive_distribution, list_result_choices
from feinsum.distributed.storage import as_stored, take_box
from feinsum.errors import PlanError
from feinsum.ir import sparse_array
from feinsum.sparse import COO, CSF, random_uniform, to_coo
from tests.distributed import test_sparse
from tests.distributed.cases import by_numpy, operands_of
from tests.distributed.test_sparse import as_dense

SHAPE, FACTORS = (9, 7, 5), {"B": (7, 3), "C": (5, 3)}

SWEEP = statements(
    ["GB[a,b] = B[j,a] * B[j,b]", "GC[a,b] = C[k,a] * C[k,b]",
     "HA[a,b] = GB[a,b] * GC[a,b]",
     "MA[i,a] = T[i,j,k] * B[j,a] * C[k,a]", "A[i,b] = MA[i,a] * HA[a,b]",
     "GA[a,b] = A[i,a] * A[i,b]", "HB[a,b] = GA[a,b] * GC[a,b]",
     "MB[j,a] = T[i,j,k] * A[i,a] * C[k,a]", "B2[j,b] = MB[j,a] * HB[a,b]",
     "MC[k,a] = T[i,j,k] * A[i,a] * B2[j,a]"],
    {"T": SHAPE, **FACTORS}, outputs=["A", "B2", "MC"], nonzeros={"T": 60},
)  # fmt: skip
"""Alternating least squares, with products in place of the solutions."""

CSF_PRODUCT = feinsum.einsum(
    "ij,ja->ia", sparse_array("T", (9, 8)), feinsum.array("B", (8, 3))
)

CASES = {
    "als": SWEEP,
    "sampled": statements(
        ["S[j,i] = T[i,j] * U[i,a] * V[j,a]", "O[i,b] = S[j,i] * W[j,b]",
         "P[j,b] = S[j,i] * O[i,b]"],
        {"T": (11, 8), "U": (11, 3), "V": (8, 3), "W": (8, 4)},
        outputs=["S", "O", "P"], nonzeros={"T": 30},
    ),
    "turned": statements(
        ["A[i,a] = T[i,j] * B[j,a]", "C[i,a] = T[j,i] * A[j,a]"],
        {"T": (10, 10), "B": (10, 3)}, nonzeros={"T": 25},
    ),
    "two tensors": statements(
        ["A[i,a] = T[i,j] * B[j,a]", "C[j,a] = R[j,i] * A[i,a]",
         "D[x,a] = T[x,j] * C[j,a]"],
        {"T": (11, 8), "R": (8, 11), "B": (8, 3)}, nonzeros={"T": 20, "R": 40},
    ),
}  # fmt: skip
"""Statements of which several walk the entries of one tensor."""


def arrays_of(problem, seed: int = 0):
    """Small integers; sparse operands have as many entries as planned."""
    arrays = operands_of(problem, seed)
    for name, nonzeros in problem.nonzeros.items():
        entries = to_coo(random_uniform(arrays[name].shape, nonzeros, seed=seed))
        values = np.random.default_rng(seed).integers(1, 5, nonzeros).astype(float)
        arrays[name] = COO(entries.shape, entries.indices, values)
    return arrays


def on_processes(processes: int):
    """The plan and the arrays of every case."""
    for name, problem in CASES.items():
        yield name, plan_statements(problem, processes=processes), arrays_of(problem)


def assert_lawful(made: Plan, seed: int = 0) -> None:
    """Assert what holds for every plan: also that no entry moves or is copied."""
    problem, arrays = made.problem, arrays_of(made.problem, seed)
    outcome = made.prepare("local").run(arrays)
    dense = {name: as_dense(array) for name, array in arrays.items()}
    for name, expected in by_numpy(problem, dense).items():
        found = outcome.results[name]
        assert isinstance(found, CSF) == made.is_sparse(name)
        assert np.allclose(as_dense(found), expected), (name, made.to_json())
    report = outcome.report
    assert report.counted == report.predicted == made.counts.moved
    assert not {edge.tensor for edge in report.edges} & {*problem.patterns}
    for name, nonzeros in problem.nonzeros.items():
        boxes = [made.start_box(name, rank) for rank in range(made.processes)]
        entries = as_stored(arrays[name], is_sparse=True)
        held = [take_box(entries, box).nnz for box in boxes if box is not None]
        assert sum(held) == nonzeros
    again = Plan.from_json(made.to_json())
    assert (again, again.id) == (made, made.id)


@pytest.mark.parametrize("processes", [1, 3, 6, 7])
@pytest.mark.parametrize("name", CASES)
def test_planned_results_are_numpys(name, processes):
    """At ragged extents, results are numpy's, and only dense arrays move."""
    assert_lawful(plan_statements(CASES[name], processes=processes))


def random_statements(rng: random.Random):
    """Statements that walk one tensor, or what has its pattern, or are dense."""
    modes = "ijk"[: rng.choice((2, 3))]
    extents = {index: rng.randint(1, 9) for index in "ijkab"}
    sparse, dense = {"T": modes}, {}
    shapes, lines = {"T": [extents[i] for i in modes]}, []
    for number in range(rng.randint(2, 5)):
        is_walk = number == 0 or rng.random() < 0.7
        terms = [rng.choice([*sparse.items()])] if is_walk else []
        for factor in range(rng.randint(not is_walk, 2)):
            if dense and rng.random() < 0.6:
                terms.append(rng.choice([*dense.items()]))
                continue
            indices = "".join(rng.sample(f"{modes}ab", rng.choice((1, 2))))
            terms.append((f"F{number}{factor}", indices))
            shapes[f"F{number}{factor}"] = [extents[i] for i in indices]
        read = sorted({*"".join(indices for _, indices in terms)})
        has_pattern = is_walk and rng.random() < 0.4
        of = modes if has_pattern else read
        output = rng.sample(of, min(len(of), len(modes)))
        is_sparse = is_walk and sorted(output) == [*modes]
        (sparse if is_sparse else dense)[f"R{number}"] = "".join(output)
        product_text = " * ".join(f"{name}[{','.join(i)}]" for name, i in terms)
        lines.append(f"R{number}[{','.join(output)}] = {product_text}")
    size = int(np.prod(shapes["T"]))
    return statements(lines, shapes, nonzeros={"T": rng.randint(0, size)})


@pytest.mark.parametrize("seed", range(40))
def test_any_statements_are_planned(seed):
    """Also with entries that are there already, dealt out or not, on any grid."""
    rng = random.Random(seed)
    problem, processes = random_statements(rng), rng.choice((2, 4, 6, 8))
    assert_lawful(plan_statements(problem, processes=processes), seed)
    machine = Machine(rng.choice([*factorizations(processes)]))
    n_axes = len(get_shape(problem.walked[0], problem.extents))
    where = [rng.randrange(n_axes) for _ in machine.sizes]
    cuts = [tuple(k for k, at in enumerate(where) if at == n) for n in range(n_axes)]
    dealt = tuple(k for k, at in enumerate(where) if at == 0)
    start = Distribution(machine, tuple(cuts), cyclic=dealt)
    made = plan_statements(problem, processes=processes, starts={"T": start})
    assert made.starts["T"] == start
    assert_lawful(made, seed)


@pytest.mark.parametrize("name", ["als", "sampled"])
def test_no_grid_is_faster(name):
    """The slowest process is on no other grid of the tensor clearly faster."""
    problem = CASES[name]
    made = plan_statements(problem, processes=6)
    access = problem.walked[3 if name == "als" else 0]
    for sizes in factorizations(6):
        machine = Machine(sizes)
        for axes in product(access.indices, repeat=machine.n_axes):
            start = derive_distribution(axes, access, machine, range(machine.n_axes))
            other = plan_statements(problem, processes=6, starts={"T": start})
            assert made.estimate().seconds <= other.estimate().seconds * 1.02


@pytest.mark.parametrize("processes", [1, 4, 6])
@pytest.mark.parametrize("name", ["mttkrp", "sddmm", "beside"])
def test_an_einsum_is_the_first_example(name, processes):
    """Its one statement has the same schedules, starts, leaves and counts."""
    einsum = test_sparse.einsum_of(*test_sparse.KERNELS[name])
    one = plan(einsum, processes=processes, nonzeros=9)
    shapes = {operand.name: operand.shape for operand in einsum.operands}
    problem = statements([str(*one.groups)], shapes, nonzeros={"T": 9})
    made = plan_statements(problem, processes=processes)
    assert made.problem == one.problem
    assert replace(one, einsum="", nonzeros=None, path=(), statements=problem) == made


def test_a_later_plan_reads_entries_where_they_are():
    """The next sweep begins with all arrays where the previous one left them."""
    for processes in (4, 7):
        first = plan_statements(SWEEP, processes=processes, ranks_per_host=1)
        ends = first.final_distributions
        starts = {"T": ends["T"], "B": ends["B2"], "C": ends["C"]}
        again = plan_statements(
            SWEEP, processes=processes, starts=starts, ranks_per_host=1
        )
        assert again.starts["T"] == first.starts["T"]
        assert_lawful(again)


def test_repeated_sweeps_are_planned_once():
    """Blocks of a program read the entries where the first block has them."""
    lines = [
        line
        for k in range(8)
        for line in (
            f"M{k}[i,a] = T[i,j,k] * B{k}[j,a] * C{k}[k,a]",
            f"A{k}[i,b] = M{k}[i,a] * H[a,b]",
            f"B{k + 1}[j,a] = T[i,j,k] * A{k}[i,a] * C{k}[k,a]",
            f"C{k + 1}[k,a] = T[i,j,k] * A{k}[i,a] * B{k + 1}[j,a]",
        )
    ]
    shapes = {"T": SHAPE, "B0": (7, 3), "C0": (5, 3), "H": (3, 3)}
    problem = statements(lines, shapes, nonzeros={"T": 50})
    assert len(find_blocks(problem)) >= 6
    made = plan_statements(problem, processes=4)
    pairs = zip(made.schedules, problem.walked, strict=True)
    needs = {schedule.needs(access) for schedule, access in pairs if access}
    assert needs == {made.starts["T"]}
    # products of eight sweeps would overflow
    arrays = arrays_of(problem)
    small = {name: array / 1e4 for name, array in arrays.items() if name != "T"}
    outcome = made.prepare("local").run(arrays | small)
    assert outcome.report.counted == made.counts.moved


def test_memory_limits_statements_too():
    """Factors are fetched part by part; entries count with their indices."""
    problem = CASES["sampled"]
    free = plan_statements(problem, processes=4)
    tight = plan_statements(problem, processes=4, memory=free.peak_bytes * 9 // 10)
    assert tight.peak_bytes < free.peak_bytes
    assert_lawful(tight)
    with pytest.raises(PlanError, match="bytes would do"):
        plan_statements(problem, processes=4, memory=8, starts={"T": free.starts["T"]})


@pytest.mark.parametrize("name", CASES)
def test_other_extents_and_processes(name):
    """The density stays, unless entries are given; so do the indices of the axes."""
    made = plan_statements(CASES[name], processes=4)
    assert_lawful(with_processes(made, 6))
    larger = with_sizes(made, dict.fromkeys(made.extents, 8))
    assert_lawful(larger)
    density = larger.problem.density["T"]
    assert abs(density - made.density["T"]) * 8 ** len(made.shape("T")) <= 1
    nonzeros = {"T": 3}
    assert with_sizes(made, {}, nonzeros=nonzeros).problem.nonzeros["T"] == 3
    with pytest.raises(PlanError, match="nonzeros=5 of statements") as caught:
        with_sizes(made, {}, nonzeros=5)
    assert caught.value.rules == ("sparse",)


def test_dense_statements_have_the_documents_of_before():
    """The document names entries only if there are any."""
    problem = statements(["O[i] = A[i,j] * x[j]"], {"A": (4, 4), "x": (4,)})
    assert "nonzeros" not in plan_statements(problem, processes=2).to_json()


GIVEN = {"T": (4, 4), "R": (4, 4)}


@pytest.mark.parametrize(
    ("lines", "nonzeros", "words"),
    [
        (["A[i,a] = T[i,j] * R[j,a]"], {"T": 17}, "T is sparse, with nonzeros=17"),
        (["A[i,a] = T[i,j] * R[j,a]"], {"T": None}, "from 0 to 16"),
        (["A[i,a] = T[i,j] * R[j,a]"], {"T": 2.0}, "from 0 to 16"),
        (["A[i,a] = T[i,j] * R[j,a]"], {"Q": 3}, "of Q; the operands are R, T"),
        (["A[i,a] = T[i,j] * R[j,a]"], 3, "nonzeros=3 of statements; expected"),
        (["A[i,a] = T[i,j] * R[j,a]"], {"T": 3, "R": 3}, "reads T and R, which are"),
        (["S[i,j] = T[i,j] * R[i,j]", "A[i] = T[i,j] * S[i,j]"], {"T": 3},
         "reads T and S, which are sparse"),
        (["A[i,j] = T[i,j] * T[j,i] * R[i,j]"], {"T": 3}, "reads T and T"),
    ],
)  # fmt: skip
def test_statements_without_a_sparse_form_are_refused(lines, nonzeros, words):
    """A wrong number of entries, and two sparse tensors in one statement."""
    with pytest.raises(PlanError, match=words) as caught:
        statements(lines, GIVEN, nonzeros=nonzeros)
    assert caught.value.rules == ("sparse",)


def test_numbers_of_entries_are_integers_of_any_type():
    """As libraries of sparse arrays count them, and as documents store them."""
    lines, shapes = ["A[i,a] = T[i,j] * B[j,a]"], {"T": (9, 8), "B": (8, 3)}
    plans = [
        plan_statements(statements(lines, shapes, nonzeros={"T": n}), processes=2)
        for n in (30, np.int64(30))
    ]
    assert len({made.id for made in plans}) == 1
    counted = plan(CSF_PRODUCT, processes=2, nonzeros=np.int64(30))
    assert counted == plan(CSF_PRODUCT, processes=2, nonzeros=30)
    assert with_sizes(counted, {"i": 12}, nonzeros=np.int64(40)).nonzeros == 40


def test_entries_that_would_move_are_refused():
    """Two grids of one tensor, requested copies, and another end of a pattern."""
    problem = CASES["turned"]
    machine = Machine((4,))
    schedules = [
        GroupSchedule(
            machine, ("i",), next(list_result_choices(group, ("i",), machine))
        )
        for group in problem.groups
    ]
    with pytest.raises(PlanError, match="T does not start where C needs it") as caught:
        assemble_statements(problem, 4, schedules)
    assert caught.value.rules == ("sparse",)
    for memory in (None, "1 MB"):
        with pytest.raises(PlanError, match="entries of T never move") as caught:
            plan_statements(
                problem, processes=4, starts={"T": "replicated"}, memory=memory
            )
        assert caught.value.rules == ("starts",)
    with pytest.raises(PlanError, match="S is sparse, and its entries never move"):
        plan_statements(CASES["sampled"], processes=4, results={"S": "replicated"})


def test_sparse_arrays_of_dense_operands_are_refused():
    """Without nonzeros, an operand was planned as a dense one."""
    problem = replace(CASES["turned"], nonzeros={})
    made = plan_statements(problem, processes=2)
    with pytest.raises(PlanError, match="pass nonzeros=") as caught:
        made.simulate(arrays_of(CASES["turned"]))
    assert caught.value.rules == ("blocks",)
