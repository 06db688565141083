"""Run the main use case on three real kernels: predict, tune, retrieve, check.

Run by ``make demo``. Two operators of a discontinuous Galerkin code on a perturbed
tetrahedral mesh, order 3, and a contraction of the TCCG suite, all with functions as
operands. They run on the host.

Retrieved kernels are compared with ``numpy.einsum(optimize=True)``, and with the
untransformed kernel, compiled with the same flags, and its outermost loop parallel.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import loopy as lp
import modepy
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import feinsum
from benchmarks.processes import ROOT
from benchmarks.tables import make_table
from feinsum.measure import (
    compile_kernel,
    compute_largest_error,
    interleave,
    open_device,
)
from feinsum.retrieval import Retrieval, look_up
from feinsum.suites import read_suite_documents

DATABASE = ROOT / ".cache" / "demo" / "facts.sqlite"
N_TRIALS = 10
CUBES_PER_SIDE = 26
BLOCK = 8
DEVICE = "host"
Arrays = dict[str, Any]
console = Console()


@dataclass(frozen=True)
class Example:
    """A user's kernel, its arguments, and the same computation in numpy."""

    name: str
    kernel: lp.TranslationUnit
    arguments: Arrays
    output: str
    by_numpy: Callable[[Arrays], np.ndarray]
    outermost: str
    sizes: dict[str, int]

    @property
    def on_threads(self) -> lp.TranslationUnit:
        """Return the kernel with a parallel outermost loop."""
        return lp.split_iname(self.kernel, self.outermost, BLOCK, outer_tag="g.0")


@dataclass(frozen=True)
class Result:
    """A row of the final table, with times in seconds."""

    example: Example
    retrieval: Retrieval
    untransformed_s: float
    retrieved_s: float
    numpy_s: float
    error: float

    @property
    def ratio(self) -> float:
        """Return the time of the faster rival over that of the retrieved kernel."""
        return min(self.untransformed_s, self.numpy_s) / self.retrieved_s

    @property
    def is_good(self) -> bool:
        return bool(self.retrieval.applied) and self.error < 1e-10 and self.ratio > 1


def compute_inverse_jacobians(n: int, rng: np.random.Generator) -> np.ndarray:
    """Compute ``dr/dx`` of the 6*n**3 tetrahedra of a cube with perturbed vertices.

    Returns:
        Shape ``(3, 3, n_elements)``: ambient axis, reference axis, element.
    """
    grid = np.linspace(0.0, 1.0, n + 1)
    points = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), axis=-1)
    points += rng.uniform(-0.15 / n, 0.15 / n, points.shape)
    corner = np.stack(np.meshgrid(*[np.arange(n)] * 3, indexing="ij"), -1).reshape(
        -1, 3
    )
    inverses = []
    for order in itertools.permutations(range(3)):  # the six tetrahedra of Kuhn
        steps = np.cumsum(np.eye(3, dtype=int)[list(order)], axis=0)
        origin = points[tuple(corner.T)]
        edges = [points[tuple((corner + step).T)] - origin for step in steps]
        jacobian = np.stack(edges, axis=-1) / 2  # the reference simplex has edges of 2
        inverses.append(np.linalg.inv(jacobian))
    return np.ascontiguousarray(np.concatenate(inverses).transpose(2, 1, 0))


def compute_derivative_matrices(order: int) -> np.ndarray:
    """Compute nodal derivative matrices on the reference tetrahedron, ``(3, 20,
    20)``.
    """
    get_shape = modepy.Simplex(3)
    basis = modepy.basis_for_space(modepy.space_for_shape(get_shape, order), get_shape)
    nodes = modepy.warp_and_blend_nodes(3, order)
    return np.stack(modepy.diff_matrices(basis, nodes))


def make_dg_examples(rng: np.random.Generator) -> list[Example]:
    """Make local divergence and gradient of an averaged flux."""
    geometry, matrices = (
        compute_inverse_jacobians(CUBES_PER_SIDE, rng),
        compute_derivative_matrices(3),
    )
    n_elements, n_dofs = geometry.shape[2], matrices.shape[1]
    shared = {"J": geometry, "D": matrices, "Nel": n_elements}

    def draw_fields(*components: int) -> Arrays:
        get_shape = (*components, n_elements, n_dofs)
        return {name: rng.normal(size=get_shape) for name in ("u_minus", "u_plus")}

    return [
        Example(
            "divergence",
            make_dg_kernel("div[e,i]", "x,r,j", "x,e,j", "3,Nel,20", "Nel,20"),
            {**shared, **draw_fields(3)},
            "div",
            lambda a: compute_dg_by_numpy("xre,rij,xej->ei", a),
            "e",
            {"Nel": n_elements},
        ),
        Example(
            "gradient",
            make_dg_kernel("grad[x,e,i]", "r,j", "e,j", "Nel,20", "3,Nel,20"),
            {**shared, **draw_fields()},
            "grad",
            lambda a: compute_dg_by_numpy("xre,rij,ej->xei", a),
            "e",
            {"Nel": n_elements},
        ),
    ]


def make_dg_kernel(
    assignee: str, summed: str, u_indices: str, u_shape: str, out_shape: str
) -> lp.TranslationUnit:
    """Make an operator as users write it, on the average of two fields."""
    output = assignee.partition("[")[0]
    return lp.make_kernel(
        "[Nel] -> {[x,r,e,i,j]: 0<=x,r<3 and 0<=e<Nel and 0<=i,j<20}",
        f"{assignee} = sum([{summed}], "
        f"J[x,r,e]*D[r,i,j]*0.5*(u_minus[{u_indices}] + u_plus[{u_indices}]))",
        [
            lp.GlobalArg("J", np.float64, shape="3,3,Nel"),
            lp.GlobalArg("D", np.float64, shape="3,20,20"),
            lp.GlobalArg("u_minus,u_plus", np.float64, shape=u_shape),
            lp.GlobalArg(output, np.float64, shape=out_shape),
            lp.ValueArg("Nel", np.int32),
        ],
        name=f"local_{output}",
        lang_version=(2018, 2),
        target=lp.ExecutableCTarget(),
    )


def compute_dg_by_numpy(subscripts: str, arrays: Arrays) -> np.ndarray:
    average = 0.5 * (arrays["u_minus"] + arrays["u_plus"])
    return np.einsum(subscripts, arrays["J"], arrays["D"], average, optimize=True)


def make_contraction_example(name: str, rng: np.random.Generator) -> Example:
    """Make an entry of the TCCG suite with the operands ``alpha*A + b``."""
    entry = next(e for e in read_suite_documents("tccg") if e["name"] == name)
    subscripts, sizes = entry["subscripts"], entry["sizes"]
    terms, output = subscripts.split("->")
    first, second = terms.split(",")
    summed = [i for i in sizes if i not in output]

    def get_shape(term: str) -> tuple[int, ...]:
        return tuple(sizes[i] for i in term)

    def join_indices(term: str) -> str:
        return ",".join(term)

    domain = " and ".join(f"0<={i}<{n}" for i, n in sizes.items())
    kernel = lp.make_kernel(
        f"{{[{','.join(sizes)}]: {domain}}}",
        f"C[{join_indices(output)}] = sum([{','.join(summed)}], "
        f"(alpha*A[{join_indices(first)}] + beta)"
        f"*(gamma*B[{join_indices(second)}] + delta))",
        [
            lp.GlobalArg("A", np.float64, shape=get_shape(first)),
            lp.GlobalArg("B", np.float64, shape=get_shape(second)),
            lp.GlobalArg("C", np.float64, shape=get_shape(output)),
            lp.ValueArg("alpha,beta,gamma,delta", np.float64),
        ],
        name="contraction",
        lang_version=(2018, 2),
        target=lp.ExecutableCTarget(),
    )
    arguments = {
        "A": rng.normal(size=get_shape(first)),
        "B": rng.normal(size=get_shape(second)),
        "alpha": 1.5,
        "beta": 0.25,
        "gamma": -0.5,
        "delta": 2.0,
    }
    return Example(
        name,
        kernel,
        arguments,
        "C",
        lambda a: np.einsum(
            subscripts,
            a["alpha"] * a["A"] + a["beta"],
            a["gamma"] * a["B"] + a["delta"],
            optimize=True,
        ),
        output[0],
        {},
    )


def show_prediction(example: Example) -> None:
    """Print the recipes that are predicted with an empty database."""
    retrieval = look_up(example.kernel, device=DEVICE, database=DATABASE)
    for nest in retrieval.nests:
        recipe = nest.applied or "no recipe"
        text = f"[bold]{example.name}[/]: {nest.match.level}: {recipe}"
        console.print(text, highlight=False, soft_wrap=True)


def tune(example: Example) -> None:
    """Tune with few trials and a progress bar, and record the best."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TextColumn("{task.fields[best]}"), console=console) as bar:
        task = bar.add_task(f"tuning {example.name}", total=N_TRIALS, best="")

        def show(progress: Any) -> None:
            best = progress.best
            text = f"best {best.median_s * 1e3:.2f} ms" if best else "none yet"
            bar.update(task, completed=progress.n_done, best=text)

        report = feinsum.autotune(
            example.kernel,
            sizes=example.sizes,
            device=DEVICE,
            database=DATABASE,
            n_trials=N_TRIALS,
            budget_s=40,
            on_progress=show,
        )
        bar.update(task, total=len(report.trials))
    for trial in report.trials:
        if not trial.is_ok:
            console.print(f"  {trial.spec}: {trial.status}", highlight=False)


def measure(example: Example) -> Result:
    """Retrieve, run, check against numpy, and time all three."""
    retrieval = look_up(example.kernel, device=DEVICE, database=DATABASE)
    opened = open_device(DEVICE)
    kernels = [
        compile_kernel(t_unit, opened).bind(example.arguments)
        for t_unit in (example.on_threads, retrieval.t_unit)
    ]
    expected = example.by_numpy(example.arguments)
    errors = []
    for kernel in kernels:
        kernel.poison()
        kernel.run()
        errors.append(compute_largest_error(kernel.read()[example.output], expected))
    untransformed, retrieved = interleave(kernels, rounds=20, warmup=2, max_total_s=4.0)
    numpy_s = []
    for _ in range(3):
        start = time.perf_counter()
        example.by_numpy(example.arguments)
        numpy_s.append(time.perf_counter() - start)
    return Result(
        example,
        retrieval,
        median(untransformed),
        median(retrieved),
        median(numpy_s),
        max(errors),
    )


def show_results(results: list[Result]) -> None:
    device = open_device(DEVICE).device
    heads = ("retrieved ms", "plain ms", "numpy ms", "ratio", "error")
    title = f"{device}: {device.processor}"
    table = make_table(("kernel", "canonical", "match"), heads, title=title, box=None)
    for r in results:
        table.add_row(
            r.example.name,
            r.retrieval.nests[0].nest.form.einsum.subscripts,
            str(r.retrieval.nests[0].match.level),
            f"{r.retrieved_s * 1e3:.2f}",
            f"{r.untransformed_s * 1e3:.1f}",
            f"{r.numpy_s * 1e3:.1f}",
            f"{r.ratio:.1f}",
            f"{r.error:.0e}",
        )
    console.print(table)
    console.print(
        "plain: the untransformed kernel on the same threads; "
        "ratio: the faster of plain and numpy over retrieved"
    )
    console.print(f"The database is {DATABASE}", soft_wrap=True, highlight=False)


def main() -> None:
    """Run the demo; exit code 1 if a kernel is not retrieved, wrong or not faster."""
    logging.basicConfig(level=logging.ERROR)
    start = time.perf_counter()
    rng = np.random.default_rng(0)
    DATABASE.parent.mkdir(parents=True, exist_ok=True)
    for old in DATABASE.parent.glob("facts.sqlite*"):
        old.unlink()
    examples = [*make_dg_examples(rng), make_contraction_example("abc-bda-dc", rng)]
    console.rule("retrieve from an empty database")
    for example in examples:
        show_prediction(example)
    console.rule("tune")
    for example in examples:
        tune(example)
    console.rule("retrieve again")
    results = [measure(example) for example in examples]
    show_results(results)
    console.print(f"in all {time.perf_counter() - start:.0f} s")
    if bad := [result.example.name for result in results if not result.is_good]:
        raise SystemExit(f"not retrieved, wrong, or not faster: {', '.join(bad)}")


if __name__ == "__main__":
    main()
