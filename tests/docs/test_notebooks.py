"""The notebooks: every cell runs, and each has pictures, also as they are stored.

``python -m tests.docs.test_notebooks`` runs them and stores what they give.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest
from nbclient import NotebookClient

from feinsum.targets.host.compiler import find_compiler
from tests.deploy.walk import shell
from tests.docs.pages import ROOT, page
from tests.service.running import free_port

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = {"fem": "modepy", "chemistry": "pyscf", "operator": "fastapi"}
"""What each needs beyond the usual packages."""


def execute(name, folder):
    """Run a notebook as a newcomer would, in an empty folder.

    Returns:
        The notebook with its outputs, and without times.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    newcomer = shell(folder, FEINSUM_CC=shlex.join(find_compiler().command)) | {
        "XDG_DATA_HOME": str(folder / "data"),
        "FEINSUM_CACHE_DIR": str(folder / "cache"),
        "FEINSUM_SERVE_PORT": str(free_port()),
        "FEINSUM_REMOTE_BUDGET_MS": "60000",  # on a busy machine
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONWARNINGS": "ignore",
    }
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in newcomer.items():
            patch.setenv(variable, value)
        for variable in ("DATABASE", "DEVICE", "EFFORT", "VERIFY", "TRANSFORMS"):
            patch.delenv(f"FEINSUM_{variable}", raising=False)
        there = {"metadata": {"path": str(folder)}}
        NotebookClient(
            notebook, timeout=300, resources=there, record_timing=False
        ).execute()
    return notebook


def list_outputs(notebook):
    return [out for cell in notebook.cells for out in cell.get("outputs", [])]


def count_pictures(notebook):
    return sum("image/png" in out.get("data", {}) for out in list_outputs(notebook))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_draws_what_is_stored(name, tmp_path):
    """In a fresh kernel of Jupyter, with nothing on standard error."""
    pytest.importorskip(NOTEBOOKS[name])
    notebook = execute(name, tmp_path)
    stored = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    assert count_pictures(notebook) == count_pictures(stored) >= 2
    printed = "".join(out.get("text", "") for out in list_outputs(notebook))
    assert name != "operator" or printed.split().count("miss") == 2, printed
    assert name != "chemistry" or not printed


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_stored_notebook_is_small_and_is_of_no_machine(name):
    """Pictures for the site, no warnings, no paths, at most 200 kB."""
    path = FOLDER / f"{name}.ipynb"
    outputs = list_outputs(nbformat.read(path, as_version=4))
    assert not [out for out in outputs if out.get("name") == "stderr"]
    assert path.stat().st_size < 200_000
    printed = "".join(
        f"{out.get('text', '')} {out.get('data', {}).get('text/plain', '')}\n"
        for out in outputs
    )
    assert not re.search(r"(?<![\w.:/])/\w+/", printed)


def test_every_notebook_is_in_the_site():
    """The page of tutorials links them, and its hidden list has them."""
    text = page("docs/tutorials/index.md")
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {*NOTEBOOKS}
    for name in NOTEBOOKS:
        assert f"(../notebooks/{name}.ipynb)" in text
        assert f"\n../notebooks/{name}\n" in text


def store(name):
    """Write a notebook with its outputs."""
    with TemporaryDirectory() as folder:
        notebook = execute(name, Path(folder))
    notebook.metadata["language_info"] = {
        "name": "python",
        "pygments_lexer": "ipython3",
    }
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NOTEBOOKS:
        store(chosen)
