"""Two versions of feinsum side by side: does a change make anything slower?

``python -m benchmarks.revisions OLD [NEW]`` takes revisions of the repository or
folders with a checkout; the new one is by default the working tree. Programs of users
run as whole processes, of one version and the other in turns: with empty caches
(*first*), and again with what the first process left (*second*). The table has medians
and how the new version compares::

    program          old s   new s   new / old
    einsum, first     0.09    0.09        1.00
    retrieve, first   2.40    1.70        0.71

The exit status is 1 if a program takes more than ``--limit`` times as long, by an
interval of the ratio, with the new version.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.caches import empty_caches
from feinsum.select import Ratio, compute_time_ratio

__all__ = ["PROGRAMS", "main"]

ROOT = Path(__file__).parents[1]

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
"""What users do, as scripts."""


@dataclass(frozen=True)
class Comparison:
    """Seconds of a program with both versions, a sample for each round."""

    program: str
    old_s: list[float]
    new_s: list[float]

    @property
    def ratio(self) -> Ratio:
        """The new version's time over the old one's."""
        return compute_time_ratio(self.new_s, self.old_s)


class ProgramFailedError(Exception):
    """A program ended with an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    with checkout(options.old) as old, checkout(options.new) as new:
        comparisons = [
            comparison
            for name in PROGRAMS
            if options.only in name
            for comparison in compare(name, old, new, options.rounds)
        ]
    show(comparisons)
    return int(any(c.ratio.low > options.limit for c in comparisons))


@contextmanager
def checkout(version: str) -> Iterator[Path]:
    """The folder of a version, which has the compiled extension.

    Raises:
        ProgramFailedError: if it is neither a folder nor a revision, or if the
            extension cannot be compiled.
    """
    if (Path(version) / "feinsum").is_dir():
        yield Path(version).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkout"
        _run(["git", "worktree", "add", "--detach", str(path), version], ROOT)
        try:
            _run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], path)
            yield path
        finally:
            _run(["git", "worktree", "remove", "--force", str(path)], ROOT)


def compare(name: str, old: Path, new: Path, rounds: int) -> list[Comparison]:
    """The first and the second process of a program, in turns, in every round."""
    samples: dict[tuple[int, Path], list[float]] = {}
    for k in range(rounds):
        # whoever begins may find the processor at another clock
        for folder in (old, new) if k % 2 else (new, old):
            with tempfile.TemporaryDirectory() as caches:
                environment = {**os.environ, **empty_caches(caches)}
                environment["PYTHONPATH"] = str(folder)
                for process in (1, 2):
                    elapsed_s = seconds_of(name, environment)
                    samples.setdefault((process, folder), []).append(elapsed_s)
    return [
        Comparison(f"{name}, {which}", samples[process, old], samples[process, new])
        for process, which in ((1, "first"), (2, "second"))
    ]


def seconds_of(name: str, environment: dict[str, str]) -> float:
    """The time of a program as a process.

    Raises:
        ProgramFailedError: if it ends with an error.
    """
    start_s = time.perf_counter()
    # -P: not the folder of the caller, but that of the version
    _run(
        [sys.executable, "-P", "-W", "ignore", "-c", PROGRAMS[name]], None, environment
    )
    return time.perf_counter() - start_s


def _run(
    command: Sequence[str],
    folder: Path | None,
    environment: dict[str, str] | None = None,
) -> None:
    completed = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        raise ProgramFailedError(
            f"{' '.join(command):.200} ended with status {completed.returncode}: "
            f"{completed.stderr[-1000:]}"
        )


def show(comparisons: Sequence[Comparison]) -> None:
    """A table; a ratio above 1 means that the new version is slower."""
    table = Table(box=box.SIMPLE)
    table.add_column("program")
    for heading in ("old s", "new s", "new / old", "interval"):
        table.add_column(heading, justify="right")
    for c in comparisons:
        table.add_row(
            c.program,
            f"{median(c.old_s):.2f}",
            f"{median(c.new_s):.2f}",
            f"{c.ratio.median:.2f}",
            f"{c.ratio.low:.2f} to {c.ratio.high:.2f}",
        )
    Console().print(table)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
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
