"""Compare two versions of feinsum: does a change make anything slower?

``python -m benchmarks.revisions OLD [NEW]`` takes revisions of the repository or
folders with a checkout; NEW is by default the working tree. Programs of users run as
whole processes, alternating between the versions: with empty caches (*first*), and with
the caches of the first process (*second*). The table has medians and ratios::

    program          old s   new s   new / old
    einsum, first     0.09    0.09        1.00
    retrieve, first   2.40    1.70        0.71

The exit status is 1 if the interval of a ratio is above ``--limit``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.processes import ROOT, make_empty_caches, run_command
from benchmarks.tables import make_table
from benchmarks.timing import time_call
from feinsum.select import Ratio, compute_time_ratio

__all__ = ["PROGRAMS", "main"]

PROGRAMS = {
    "import": "import feinsum",
    "einsum": """
import feinsum, numpy as np
feinsum.einsum("ij,jk->ik", np.ones((30, 40)), np.ones((40, 50)))
""",
    "einsum, 300 sizes": """
import feinsum, numpy as np
for n in range(1, 301):
    feinsum.einsum("bij,bjk->bik", np.ones((n, 9, 9)), np.ones((n, 9, 9)))
""",
    "einsum, a large product, 200 times": """
import feinsum, numpy as np
A, B = np.ones((8, 24, 24, 24)), np.ones((24, 24))
for _ in range(200):
    feinsum.einsum("pqrs,si->pqri", A, B)
""",
    "contract, 100 operands": """
import feinsum, numpy as np
letters = [chr(0x100 + k) for k in range(101)]
text = ",".join(a + b for a, b in zip(letters, letters[1:])) + "->"
feinsum.contract(text + letters[0] + letters[-1], *[np.ones((4, 4))] * 100)
""",
    "canonicalize": """
import feinsum
A, B = feinsum.array("A", ("n", 20)), feinsum.array("B", (20, 20))
feinsum.canonicalize(feinsum.einsum("ej,ij->ei", A, B)).key
""",
    "retrieve": """
import feinsum, loopy as lp, numpy as np
kernel = lp.make_kernel(
    "{[e,f,i,j]: 0<=e<n and 0<=f<4 and 0<=i<20 and 0<=j<10}",
    "v[e,i] = sum([f,j], L[i,f,j]*(a[f,e,j] + b[f,e,j]))",
    [lp.GlobalArg("L", np.float64, shape="20,4,10"),
     lp.GlobalArg("a,b", np.float64, shape="4,n,10"),
     lp.GlobalArg("v", np.float64, shape="n,20"), lp.ValueArg("n", np.int32)],
    lang_version=(2018, 2), target=lp.ExecutableCTarget())
feinsum.retrieve(kernel).executor()
""",
    "plan": """
import feinsum
A, B = feinsum.array("A", (600, 600)), feinsum.array("B", (600, 600))
feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=16).counts
""",
    "trace": """
import numpy as np
from feinsum.programs import trace
softmax = trace(lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True))
softmax(np.ones((64, 64)))
""",
}
"""Programs of users, as scripts."""


@dataclass(frozen=True)
class Comparison:
    """The seconds of a program with both versions, a sample for each round."""

    program: str
    old_s: list[float]
    new_s: list[float]

    @property
    def ratio(self) -> Ratio:
        """Return the new version's time over the old one's."""
        return compute_time_ratio(self.new_s, self.old_s)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse_options(arguments)
    with check_out(options.old) as old, check_out(options.new) as new:
        comparisons = [
            comparison
            for name in PROGRAMS
            if options.only in name
            for comparison in compare(name, old, new, options.rounds)
        ]
    show(comparisons)
    return int(any(c.ratio.low > options.limit for c in comparisons))


@contextmanager
def check_out(version: str) -> Iterator[Path]:
    """Check out and build a version, and yield its folder.

    Raises:
        ChildFailedError: if it is neither a folder nor a revision, or if the extension
            cannot be compiled.
    """
    if (Path(version) / "feinsum").is_dir():
        yield Path(version).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkout"
        run_command(["git", "worktree", "add", "--detach", path, version])
        try:
            command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            run_command(command, folder=path)
            yield path
        finally:
            run_command(["git", "worktree", "remove", "--force", path])


def compare(name: str, old: Path, new: Path, rounds: int) -> list[Comparison]:
    """Time the first and the second process of a program with both versions."""
    samples: dict[tuple[int, Path], list[float]] = {}
    for k in range(rounds):
        # alternate: the first version may find the processor at another clock
        for folder in (old, new) if k % 2 else (new, old):
            with tempfile.TemporaryDirectory() as caches:
                environment = {**os.environ, **make_empty_caches(caches)}
                environment["PYTHONPATH"] = str(folder)
                for process in (1, 2):
                    elapsed_s = time_program(name, environment)
                    samples.setdefault((process, folder), []).append(elapsed_s)
    return [
        Comparison(f"{name}, {which}", samples[process, old], samples[process, new])
        for process, which in ((1, "first"), (2, "second"))
    ]


def time_program(name: str, environment: dict[str, str]) -> float:
    """Time a program as a process.

    Raises:
        ChildFailedError: if it ends with an error.
    """
    # -P: import from PYTHONPATH, not from the current folder
    command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAMS[name]]
    return time_call(run_command, command, environment)


def show(comparisons: Sequence[Comparison]) -> None:
    """Print a table; a ratio above 1 means that the new version is slower."""
    rows = [
        (
            c.program,
            f"{median(c.old_s):.2f}",
            f"{median(c.new_s):.2f}",
            f"{c.ratio.median:.2f}",
            f"{c.ratio.low:.2f} to {c.ratio.high:.2f}",
        )
        for c in comparisons
    ]
    heads = ("old s", "new s", "new / old", "interval")
    Console().print(make_table(["program"], heads, rows))


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.revisions",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("old", help="revision, or folder with a checkout")
    parser.add_argument("new", nargs="?", default=str(ROOT), help="likewise")
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of each program")
    parser.add_argument("--limit", type=float, default=1.05, help="largest ratio")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
