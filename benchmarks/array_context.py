"""Time a right-hand side of three DG operators in a lazy array context, with and
without feinsum.

Prints a table of the first call, which generates and builds the program, the second
one, and the median of later ones in interleaved rounds. Requires the packages
arraycontext and pytato (see docs/how-to/integrations.md) and an OpenCL device.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.experiments.machine import describe_processor
from benchmarks.timing import time_in_turns
from feinsum.errors import FeinsumError
from feinsum.integrations import FeinsumArrayContext

N_DOFS, N_FACES, N_FACE_DOFS = 10, 4, 6
Arrays = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of other packages
    arrays = draw_arrays(options.elements)
    expected = evaluate_by_numpy(**arrays)
    calls, firsts = {}, {}
    try:
        ours = FeinsumArrayContext()
    except FeinsumError as error:
        sys.exit(f"nothing was timed: {error}")
    from arraycontext import PytatoPyOpenCLArrayContext

    plain = PytatoPyOpenCLArrayContext(ours.queue, ours.allocator)
    contexts = {"without": plain, "with": ours}
    for name, context in contexts.items():
        calls[name] = compile_call(context, arrays)
        firsts[name] = [time_call(calls[name], context) for _ in range(2)]
        check(context.to_numpy(calls[name]()), expected, name)
    runs = {name: partial(time_call, c, contexts[name]) for name, c in calls.items()}
    samples = time_in_turns(runs, options.rounds)
    platform = contexts["with"].queue.device.platform.name.strip()
    print(f"{describe_processor()}, {platform}, {options.elements} elements")
    print("feinsum  first s  second ms  later ms")
    for name, times in samples.items():
        first, second = firsts[name]
        print(f"{name:7}{first:9.2f}{second * 1e3:11.1f}{median(times) * 1e3:10.1f}")


def draw_arrays(n_elements: int) -> Arrays:
    """Draw geometry, matrices, two fields and a flux."""
    rng = np.random.default_rng(0)
    shapes = {
        "jacobian": (3, 3, n_elements),
        "derivative": (3, N_DOFS, N_DOFS),
        "lift": (N_DOFS, N_FACES, N_FACE_DOFS),
        "face_jacobian": (N_FACES, n_elements),
        "flux": (N_FACES, n_elements, N_FACE_DOFS),
        "u": (n_elements, N_DOFS),
        "v": (n_elements, N_DOFS),
    }
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def compute_right_hand_side(context: Any, a: Arrays) -> Any:
    """Compute a gradient, a divergence and a face mass of functions of the fields."""
    einsum, exp = context.einsum, context.np.exp
    gradient = einsum(
        "xre,rij,ej->xei", a["jacobian"], a["derivative"], exp(a["u"]) * a["u"]
    )
    divergence = einsum("xre,rij,xej->ei", a["jacobian"], a["derivative"], 2 * gradient)
    flux = 0.5 * (a["flux"] + a["flux"] * a["flux"])
    faces = einsum("ifj,fe,fej->ei", a["lift"], a["face_jacobian"], flux)
    return faces - divergence + a["u"] * a["v"]


def evaluate_by_numpy(**arrays: Any) -> Any:
    class Numpy:
        np = np

        @staticmethod
        def einsum(subscripts: str, *operands: Any) -> Any:
            return np.einsum(subscripts, *operands, optimize=True)

    return compute_right_hand_side(Numpy, arrays)


def compile_call(context: Any, arrays: Arrays) -> Callable[[], Any]:
    """Compile the right-hand side into a call without arguments."""
    names = list(arrays)
    inputs = [context.from_numpy(arrays[name]) for name in names]

    def evaluate(*values: Any) -> Any:
        return compute_right_hand_side(context, dict(zip(names, values, strict=True)))

    call = context.compile(evaluate)
    return lambda: call(*inputs)


def time_call(call: Callable[[], Any], context: Any) -> float:
    """Time a call until its result is complete."""
    start = perf_counter()
    call()
    context.queue.finish()
    return perf_counter() - start


def check(result: Any, expected: Any, name: str) -> None:
    scale = np.abs(expected).max()
    if not np.allclose(result / scale, expected / scale, rtol=0, atol=1e-13):
        sys.exit(f"the result {name} feinsum is wrong")


if __name__ == "__main__":
    main()
