"""Do the tests of a room notice when its code is changed?

Run by ``make mutants``. A mutant is the code with one operator, number, condition or
decorator changed. One that no test fails on does the same as the code, or shows a law
that no test states. cosmic-ray makes the mutants, of which a random sample is tried in
a copy of the project, each with the tests that call the function that it changes.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import NamedTuple

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-p", "tests.reached")

# What is mutated, and the tests that concern it: those that fail soonest come first.
ROOMS = {
    "canonical": (
        ["feinsum/canonical"],
        ["feinsum/canonical", "tests/canonical/test_golden.py", "tests/canonical"],
    ),
    "contraction": (
        ["feinsum/contraction"],
        ["feinsum/contraction", "tests/contraction"],
    ),
    "distributed": (
        ["feinsum/distributed"],
        ["feinsum/distributed", "tests/distributed", "-k", "not mpi and not dask"],
    ),
    "ir": (
        ["feinsum/ir", "feinsum/subscripts.py"],
        ["feinsum/ir", "tests/ir", "tests/test_subscripts.py", "tests/programs"],
    ),
    "limits": (
        ["feinsum/service/middleware.py"],
        ["feinsum/service/middleware.py", "tests/service/test_limits.py"],
    ),
    "records": (
        ["feinsum/records"],
        ["feinsum/records", "tests/records"],
    ),
    "retrieval": (
        ["feinsum/retrieval"],
        ["feinsum/retrieval", "tests/retrieval", "-k", "not shipped"],
    ),
    "select": (
        ["feinsum/select.py"],
        ["feinsum/select.py", "tests/select"],
    ),
    "server": (
        ["feinsum/db/server"],
        [
            *("-k", "not postgresql", "feinsum/db/server"),
            *(f"tests/db/test_{n}.py" for n in ("trust", "retries", "reader")),
            *("tests/db/test_retraction.py", "tests/service/test_trust.py"),
            *("tests/service/test_demand.py", "tests/service/test_keys.py"),
            *("tests/service/test_overview.py", "tests/service/pages"),
            *("tests/hostile/test_trust.py", "tests/hostile/test_campaigns.py"),
        ],
    ),
}


class Function(NamedTuple):
    """A function by its file and its first line."""

    file: str
    line: int


def main() -> None:
    asked = arguments()
    with tempfile.TemporaryDirectory(prefix="feinsum-mutants-") as folder:
        copy = Path(folder, "project")
        copy_project(copy)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        code, tests = ROOMS[asked.room]
        tester = Tester.of([str(asked.python), *PYTEST], code, tests)
        places = mutants_by_place(code)
        rng = random.Random(asked.seed)
        chosen = rng.sample(places, min(asked.n, len(places)))
        n_noticed = sum(tester.notices(rng.choice(place)) for place in chosen)
        print(f"{asked.room}: {n_noticed} of {len(chosen)} mutants were noticed")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("-n", type=int, default=60, help="how many mutants are tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--python", type=Path, default=ROOT / ".venv/bin/python", help="of the tests"
    )
    return parser.parse_args()


@dataclass(frozen=True)
class Tester:
    """Runs the tests that call a function.

    Attributes:
        reached: the functions that each test calls, by its id.
        limit_s: beyond this a test is taken not to end.
    """

    pytest: Sequence[str]
    reached: Mapping[str, frozenset[Function]]
    limit_s: float

    @classmethod
    def of(
        cls, pytest: Sequence[str], code: Sequence[str], tests: Sequence[str]
    ) -> Tester:
        began_s, kept = time.monotonic(), Path("reached.json")
        where = [option for one in code for option in ("--reached-in", one)]
        if subprocess.run([*pytest, "--reached", kept, *where, *tests]).returncode:
            sys.exit("the tests fail without a mutant")
        reached = {
            test: frozenset(
                Function(file, n) for file, line in called for n in (0, line)
            )
            for test, called in json.loads(kept.read_text()).items()
        }
        return cls(pytest, reached, 60 + 2 * (time.monotonic() - began_s))

    def tests_of(self, function: Function) -> list[str]:
        """Those that call it, or else the file; all, where that is not seen."""

        def calling(wanted: Function) -> list[str]:
            return [t for t, called in self.reached.items() if wanted in called]

        whole_file = Function(function.file, 0)
        return calling(function) or calling(whole_file) or [*self.reached]

    def notices(self, mutant: MutationSpec) -> bool:
        """Whether a test fails; a mutant that survives is shown."""
        function = function_at(mutant)
        tests = self.tests_of(function)
        only = Path("only.json")
        only.write_text(json.dumps(tests))
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        command = [*self.pytest, "-x", "--only", str(only), *files]
        result = mutate_and_test([mutant], shlex.join(command), self.limit_s)
        is_noticed = result.test_outcome != TestOutcome.SURVIVED
        told = first_failure(result) if is_noticed else result.diff
        place = f"{function.file}:{function.line}"
        print(f"{len(tests)} tests call {place}; {told}", flush=True)
        return is_noticed


def copy_project(copy: Path) -> None:
    """Copy the project; what is compiled goes by content, not by age, as mutants do."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "_build")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    by_content = PycInvalidationMode.CHECKED_HASH
    for folder in ("db", "feinsum", "service", "transforms"):
        compileall.compile_dir(copy / folder, quiet=2, invalidation_mode=by_content)


def mutants_by_place(code: Sequence[str]) -> list[list[MutationSpec]]:
    """All mutants, by the place that they change.

    Without those of annotations, which are never evaluated, and those that compare by
    ``is``, which Python itself warns about.
    """
    files = sorted(file for one in code for file in python_files(Path(one)))
    with use_db("mutants.sqlite") as db:
        init(files, db, {})
        mutants = [mutant for item in db.work_items for mutant in item.mutations]
    annotated = {file: set(annotated_places(file)) for file in files}
    wanted = [
        mutant
        for mutant in mutants
        if mutant.start_pos not in annotated[mutant.module_path]
        and not mutant.operator_name.endswith(("_Is", "_IsNot"))
    ]
    wanted.sort(key=place)
    return [list(group) for _, group in groupby(wanted, key=place)]


def place(mutant: MutationSpec) -> tuple[str, tuple[int, int]]:
    return str(mutant.module_path), mutant.start_pos


def python_files(path: Path) -> list[Path]:
    return [path] if path.suffix else list(path.rglob("*.py"))


def annotated_places(file: Path) -> Iterator[tuple[int, int]]:
    """Lines and columns of annotations."""
    for node in ast.walk(ast.parse(file.read_text())):
        for field in ("annotation", "returns"):
            noted = getattr(node, field, None)
            if noted is not None and noted.lineno == noted.end_lineno:
                for column in range(noted.col_offset, noted.end_col_offset):
                    yield noted.lineno, column


def function_at(mutant: MutationSpec) -> Function:
    """The innermost function around a mutant; of line 0 where there is none."""
    file, line = mutant.module_path, mutant.start_pos[0]
    around = [
        min(one.lineno for one in (node, *node.decorator_list))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    return Function(str(file), max(around, default=0))


def first_failure(result: WorkResult) -> str:
    lines = (result.output or "").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return f"noticed: {(failed or lines[-1:] or ['the tests cannot be imported'])[0]}"


if __name__ == "__main__":
    main()
