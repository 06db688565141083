"""Time programs of other packages, with and without feinsum: ``python -m
benchmarks.users``.

Each script runs as a separate process, unchanged and with the lines that enable
feinsum, alternately, with empty caches ("first") and with the caches of the first
("second"). Nothing is tuned. The results that scripts print are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, isclose, pi, sin
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter

from benchmarks.processes import run_command
from feinsum.targets.processor import describe_host_processor

UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that slow down numpy on some machines."""
TOLERANCE = 1e-6


@dataclass(frozen=True)
class UserProgram:
    """A script, and the lines by which it uses feinsum.

    Attributes:
        script: a template with ``{hook}`` for these lines, ``{options}`` for arguments
            of a call, and ``{size}`` for a parameter.
        hook, options: the values with feinsum.
        plain: the options without it.
        size, tiny: the size, and that of tests.
    """

    script: str
    hook: str
    size: str
    tiny: str
    options: str = ""
    plain: str = ""

    def write_text(self, *, is_ours: bool, is_tiny: bool) -> str:
        """Return the script with its values."""
        hook, options = (self.hook, self.options) if is_ours else ("", self.plain)
        size = self.tiny if is_tiny else self.size
        return self.script.format(hook=hook, options=options, size=size)


CHEMISTRY = """
import numpy as np
from pyscf import gto, scf, mp
from pyscf.cc import rccsd
{{hook}}
molecule = gto.M(atom="{atoms}",
                 basis="{{size}}", verbose=0)
field = scf.RHF(molecule).run()
{method}
"""
WATER = "O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587"
BENZENE = "; ".join(
    f"{symbol} {radius * cos(k * pi / 3):.6f} {radius * sin(k * pi / 3):.6f} 0"
    for symbol, radius in (("C", 1.397), ("H", 2.481))  # of the rings, in Angstrom
    for k in range(6)
)
RCCSD = "c = rccsd.RCCSD(field)\nc.kernel()\nprint(c.e_tot)"
MP2 = """m = mp.MP2(field).run()
print(m.e_tot, np.linalg.eigvalsh(m.make_rdm1())[-1])"""
"""Prints the energy, and the largest occupation of a natural orbital."""


def make_chemistry(atoms: str, method: str, basis: str) -> UserProgram:
    """Make a program of PySCF; its tests have the smallest basis."""
    script = CHEMISTRY.format(atoms=atoms, method=method)
    return UserProgram(script, PYSCF, basis, "sto-3g")


PYSCF = "import feinsum.integrations; feinsum.integrations.use_in_pyscf()"
NETWORK = """
import numpy as np
import cotengra
{hook}
inputs, output, _, sizes = cotengra.utils.lattice_equation([{size}], d_max=2)
rng = np.random.default_rng(0)
arrays = [rng.random([sizes[i] for i in term]) for term in inputs]
tree = cotengra.array_contract_tree(inputs, output, sizes, optimize="greedy")
tree.slice_(target_slices=8)
print(abs(tree.contract(arrays{options})))
"""
QUIMB = """
import numpy as np
import quimb.tensor as qtn
{hook}
network = qtn.TN_rand_reg({size}, 3, D=3, seed=1)
print(abs(network.contract(optimize="greedy"{options})))
"""
OPT_EINSUM = """
import numpy as np
import opt_einsum
{hook}
rng = np.random.default_rng(0)
A = [rng.random((3, 3, 3)) for _ in range({size})]
total = 0.0
for step in range(50):
    value = opt_einsum.contract("aib,bjc,ckd,dla,im,jm,kn,ln->", *A[:4],
                                *[x[0] for x in A[4:8]]{options})
    total += float(value)
print(total)
"""
PROGRAMS = {
    "pyscf-rccsd": make_chemistry(WATER, RCCSD, "cc-pvtz"),
    "pyscf-rccsd-small": make_chemistry(WATER, RCCSD, "cc-pvdz"),
    "pyscf-rccsd-benzene": make_chemistry(BENZENE, RCCSD, "6-31g"),
    "pyscf-mp2": make_chemistry(WATER, MP2, "cc-pvtz"),
    "pyscf-mp2-benzene": make_chemistry(BENZENE, MP2, "cc-pvdz"),
    "cotengra-200": UserProgram(
        NETWORK, "", "10, 20", "3, 4", ', backend="feinsum"', ', backend="numpy"'
    ),
    "quimb-60": UserProgram(
        QUIMB, "", "60", "10", ', backend="feinsum"', ', backend="numpy"'
    ),
    "opt_einsum-loop": UserProgram(
        OPT_EINSUM, "", "8", "8", ', backend="feinsum"', ', backend="numpy"'
    ),
}


def run_script(text: str, folder: Path) -> tuple[float, list[float]]:
    """Run a script in a process; return its seconds, and the numbers it prints.

    Raises:
        ChildFailedError: if it fails.
    """
    environment = {k: v for k, v in os.environ.items() if k not in UNSET}
    environment |= {
        "FEINSUM_CACHE_DIR": str(folder / "cache"),
        "FEINSUM_DATABASE": str(folder / "facts.sqlite"),
    }
    start_s = perf_counter()
    output = run_command([sys.executable, "-c", text], environment)
    return perf_counter() - start_s, [*map(float, output.split())]


def measure(program: UserProgram, n_rounds: int, *, is_tiny: bool) -> dict[str, float]:
    """Return the median seconds: plain, first and second.

    Raises:
        RuntimeError: if a script fails, or the results differ.
    """
    samples: dict[str, list[float]] = {"plain": [], "first": [], "second": []}
    results = []
    for _ in range(n_rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "cache").mkdir(mode=0o700)
            for variant in samples:
                text = program.write_text(is_ours=variant != "plain", is_tiny=is_tiny)
                seconds, result = run_script(text, folder)
                samples[variant].append(seconds)
                results.append(result)
    if not all(
        isclose(x, y, rel_tol=TOLERANCE)
        for result in results
        for x, y in zip(result, results[0], strict=True)
    ):
        raise RuntimeError(f"the results differ: {results}")
    return {variant: median(seconds) for variant, seconds in samples.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of all programs whose names match."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.users", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", default="", help="programs whose names match")
    parser.add_argument("--rounds", type=int, default=3, help="number of samples")
    parser.add_argument("--tiny", action="store_true", help="use tiny sizes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    seconds_by_name = {}
    for name, program in PROGRAMS.items():
        if not re.search(options.only, name):
            continue
        print(f"{name} ...", end="\r", file=sys.stderr)
        try:
            seconds_by_name[name] = measure(
                program, options.rounds, is_tiny=options.tiny
            )
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
    if options.json:
        print(json.dumps(seconds_by_name))
        return
    print(f"{describe_host_processor()}; seconds from start to end")
    print(f"{'program':<20}{'without':>9}{'first':>9}{'second':>9}{'ratio':>8}")
    for name, seconds in seconds_by_name.items():
        plain, first, second = (
            seconds[variant] for variant in ("plain", "first", "second")
        )
        print(f"{name:<20}{plain:9.2f}{first:9.2f}{second:9.2f}{second / plain:8.2f}")
    if seconds_by_name:
        ratios = [x["second"] / x["plain"] for x in seconds_by_name.values()]
        print(f"{'geometric mean':<47}{geometric_mean(ratios):8.2f}")


if __name__ == "__main__":
    main()
