"""A server runs with the packages of its list, and no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from packaging.utils import canonicalize_name

from feinsum.records import to_json
from tests.db.factories import WORKLOAD, make_record
from tests.deploy.allowed import RUN_WITHOUT, closure, modules_outside
from tests.deploy.files import DEPLOY, instructions
from tests.deploy.test_files import LEFT_OUT
from tests.docs.pages import ROOT
from tests.service.running import PATIENCE_S, running

REQUIRED = (DEPLOY / "requirements.txt").read_text().splitlines()[1:]

INSTALL_S = 1200


def try_service(program: Sequence[str], folder: Path) -> None:
    """A key is made, a fact is sent with it and found, an einsum gets its key."""
    database = str(folder / "facts.sqlite")
    for command in (["db", "init"], ["keys", "create", "ci", "--scope", "record"]):
        printed = subprocess.run(
            [*program, *command, "--database", database],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        ).stdout
    headers = {
        "Authorization": f"Bearer {printed.strip()}",
        "Content-Type": "application/json",
    }
    fact = to_json(make_record()).encode()
    einsum = json.dumps(
        {"subscripts": "ij,j->i", "extents": {"i": "n", "j": 4}}
    ).encode()
    with running(database, folder, program=program) as server:
        sent = Request(f"{server.url}/v1/facts", fact, headers)
        with urlopen(sent, timeout=PATIENCE_S) as answer:
            assert answer.status == 201
        with urlopen(f"{server.url}/v1/best/{WORKLOAD}", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["facts"][0]["id"] == make_record().id
        asked = Request(f"{server.url}/v1/canonicalize", einsum, headers)
        with urlopen(asked, timeout=PATIENCE_S) as answer:
            assert json.load(answer)["key"].startswith("fe")


def test_the_service_runs_with_the_packages_of_its_list(tmp_path: Path) -> None:
    """Nothing else that is installed here is imported."""
    refused = modules_outside({*closure(REQUIRED), "feinsum"})
    assert {"loopy", "pyopencl", "islpy", "optuna", "pytest"} <= refused
    code = RUN_WITHOUT.format(modules=sorted(refused))
    try_service((sys.executable, "-c", code), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(2 * INSTALL_S)
def test_the_image_has_all_that_the_service_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of the Dockerfile, carried out here, make a service that runs."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = build(tmp_path)
    python = environment / "bin" / "python"
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    names = {canonicalize_name(one["name"]) for one in json.loads(listed.stdout)}
    assert not names & LEFT_OUT
    assert names - {"pip", "setuptools"} == {*closure(REQUIRED), "feinsum"}
    try_service((str(environment / "bin" / "feinsum"),), tmp_path)


def build(folder: Path) -> Path:
    """Carry out the first stage of the Dockerfile below a folder; the environment."""
    made, source = folder / "opt" / "feinsum", folder / "source"
    source.mkdir()
    for name, value in instructions()[0]:
        if name == "COPY":
            *what, target = value.split()
            for one in what:
                copy(ROOT / one, source / target)
        elif name == "RUN":
            command = value.replace("/opt/feinsum", str(made))
            command = command.replace("python3 ", f"{sys.executable} ", 1)
            subprocess.run(["sh", "-ec", command], cwd=source, check=True,
                           timeout=INSTALL_S, env=os.environ)  # fmt: skip
    return made


def copy(what: Path, target: Path) -> None:
    """As COPY does it: a folder's content goes into the target."""
    if what.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "secrets")
        shutil.copytree(what, target, symlinks=True, ignore=ignored)
    else:
        shutil.copy2(what, target)
