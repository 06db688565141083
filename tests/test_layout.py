"""The tree, the packaging and the public interface say the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAPPED = ("db", "service", "transforms")


def packages_in_the_tree():
    folders = [p.parent for p in (ROOT / "feinsum").rglob("__init__.py")]
    names = {".".join(p.relative_to(ROOT).parts) for p in folders}
    for mapped in MAPPED:
        folders = [p.parent for p in (ROOT / mapped).rglob("__init__.py")]
        names |= {".".join(("feinsum", *p.relative_to(ROOT).parts)) for p in folders}
    return names


def test_every_package_of_the_tree_is_packaged():
    """A package that is missing from the list would be missing from the wheel."""
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_in_the_tree()


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapped_folder_is_linked_and_mapped(name):
    """Static tools follow the link, the build follows the map: both say the same."""
    link = ROOT / "feinsum" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name
    assert PROJECT["tool"]["setuptools"]["package-dir"][f"feinsum.{name}"] == name


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapped_folder_cannot_be_imported_by_its_bare_name(name):
    """``import db`` from the root of the project fails and says what to do."""
    code = [sys.executable, "-c", f"import {name}"]
    result = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert f"import it as feinsum.{name}" in result.stderr


def test_the_public_interface_is_small_and_true():
    """At most 35 names, those of opt_einsum among them, each of them there."""
    import feinsum

    assert len(feinsum.__all__) <= 36
    assert all(getattr(feinsum, name) is not None for name in feinsum.__all__)
    assert set(feinsum.__all__) <= set(dir(feinsum))
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        feinsum.nothing_of_this_name  # noqa: B018


HEAVY = {
    "import feinsum.tuning.worker": {"sqlalchemy", "optuna", "feinsum.db"},
    "import feinsum.service, feinsum.db, feinsum.canonical": {
        *("loopy", "pyopencl", "islpy", "pymbolic"),
    },
    "from feinsum.db import looked_up_store as of\nof(None).__enter__().query('x')": {
        "urllib3"
    },
}
"""What no process imports for a trial, for the service, or without a service."""


def test_parts_of_the_package_load_what_they_need():
    """A crash of a trial begins a process anew; look-ups need no code generator."""
    own = {"FEINSUM_DATABASE": "", "FEINSUM_LAYERS": "memory,packaged"}
    environment = {n: v for n, v in os.environ.items() if n != "FEINSUM_REMOTE"} | own
    for code, heavy in HEAVY.items():
        code = f"import sys\n{code}\nassert not {heavy!r} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_every_dependency_has_a_lower_bound():
    """``make oldest`` tries it; what is of a fixed version has that one."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cli"], *extras["tune"]]
    assert not [w for w in wanted if not re.search(r">=|==|^feinsum\[", w)]


def test_constraints_pin_names_and_versions_only():
    """``constraints.txt`` holds exact versions, no address."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert all(line.count("==") == 1 and "/" not in line for line in pins)
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in pins}
    for requirement in PROJECT["project"]["dependencies"]:
        name = requirement.split(">")[0].split("<")[0].split("=")[0].split("[")[0]
        assert name.lower().replace("_", "-") in pinned
