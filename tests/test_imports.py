"""What is imported when: look-ups need no tuner, no migrations, and no command line."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import pytest

from feinsum.db import open_store
from feinsum.db.exchange.files import write_parquet
from feinsum.distributed.mpi import get_world
from feinsum.drawing.plots import check_plots
from feinsum.errors import FeinsumError
from feinsum.extras import require_extra
from feinsum.records.signature import create_signing_key
from feinsum.run import create_arrays
from feinsum.tuning.connection import Connection

SPARED = {
    "alembic", "dask", "distributed", "fastapi", "jinja2", "matplotlib", "mpi4py",
    "networkx", "optuna", "pyarrow", "rich", "scipy", "sklearn", "sqlalchemy.orm",
    "torch", "typer",
}  # fmt: skip
"""Packages that no look-up of a kernel with one nest imports."""

MATVEC = """
import feinsum
e = feinsum.einsum("ij,j->i", feinsum.array("A", ("n", 4)), feinsum.array("x", 4))
"""
LOOK_UP = f"""{MATVEC}
feinsum.query(e)
feinsum.retrieve(feinsum.generate_loopy(e), effort="recorded")
"""


def _run(code, database, *, without=()):
    """Run code where some packages are not installed."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in sorted(without))
    command = [sys.executable, "-W", "ignore", "-c", f"import sys\n{blocked}{code}"]
    return subprocess.run(
        command,
        env={"FEINSUM_DATABASE": str(database), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def database(tmp_path):
    """One that is there, at the newest version."""
    path = tmp_path / "facts.sqlite"
    open_store(path).close()
    return path


def test_the_package_alone_imports_next_to_nothing(database):
    """Neither arrays nor kernels nor databases."""
    heavy = SPARED | {"loopy", "numpy", "pynauty", "pyopencl", "sqlalchemy"}
    code = f"import feinsum\nprint(sorted({heavy!r} & set(sys.modules)))"
    assert _run(code, database).stdout == "[]\n"


def test_a_look_up_imports_nothing_else(database):
    """And works where those packages are not installed."""
    code = f"{LOOK_UP}\nprint(sorted({SPARED!r} & set(sys.modules)))"
    said = _run(code, database)
    assert (said.stdout, said.returncode) == ("[]\n", 0), said.stderr
    said = _run(f"{LOOK_UP}\nprint('found')", database, without=SPARED)
    assert (said.stdout, said.returncode) == ("found\n", 0), said.stderr


CHAIN = """
letters = [chr(0x100 + k) for k in range(101)]
text = ",".join(map("".join, zip(letters, letters[1:])))
feinsum.contract(f"{text}->{letters[0]}{letters[-1]}", *[np.ones((4, 4))] * 100)
"""


@pytest.mark.parametrize(
    ("call", "n_most"),
    [("feinsum.einsum('ij,jk->ik', *2 * [np.ones((2, 2))])", 12), (CHAIN, 25)],
    ids=["einsum", "contract"],
)
def test_calls_load_few_modules(database, call, n_most):
    """No representation of einsums, no code generator, no library of other numbers."""
    code = f"""
import feinsum
import numpy as np
{call}
ours = [name for name in sys.modules if name.partition('.')[0] == 'feinsum']
print(len(ours) <= {n_most}, sorted({{'feinsum.ir', 'ml_dtypes'}} & set(sys.modules)))
"""
    done = _run(code, database)
    assert done.stdout == "True []\n", done.stderr


TUNE = MATVEC + "feinsum.autotune(e, sizes={'n': 8}, n_trials=1)"
SHOW = "import feinsum\nfeinsum.tune('ij,j->i', [[1.0, 2.0]], [1.0, 2.0])"
SERVE = (
    "import sys\nsys.argv = ['feinsum', 'serve']\nfrom feinsum.__main__ import main"
    "\nmain()"
)
RUN = "import runpy\nrunpy.run_module('feinsum', run_name='__main__')"


@pytest.mark.parametrize(
    ("package", "extra", "code"),
    [
        ("optuna", "tune", TUNE),
        ("rich", "tune", SHOW),
        ("typer", "cli", RUN),
        ("fastapi", "service", SERVE),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(
    database, package, extra, code, monkeypatch
):
    """In one line, where it is needed."""
    monkeypatch.chdir(database.parent)
    said = _run(code, database, without=[package])
    assert said.returncode == 1
    last = said.stderr.strip().splitlines()[-1]
    assert f" needs {package}, which is not installed; " in last
    assert last.endswith(f"run: pip install 'feinsum[{extra}]'")


USES = {
    "cryptography": ("signatures", lambda path: create_signing_key(path / "key")),
    "distributed": ("cluster", lambda _: Connection("tcp://localhost:1")),
    "h5py": ("files", lambda path: create_arrays(path / "a.h5", {}, float)),
    "matplotlib": ("plots", lambda _: check_plots("a report")),
    "mpi4py": ("mpi", lambda _: get_world()),
    "psycopg": ("postgresql", lambda _: open_store("postgresql://ada@host/facts")),
    "pyarrow": ("parquet", lambda _: write_parquet([], BytesIO())),
}


@pytest.mark.parametrize("package", USES)
def test_every_optional_package_is_refused_alike(package, tmp_path, monkeypatch):
    """Where it is missing, the error names the extra that installs it."""
    extra, use = USES[package]
    module = package
    loaded = [name for name in sys.modules if name.startswith(f"{module}.")]
    for name in (module, *loaded):  # another test may have imported its submodules
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FeinsumError) as caught:
        use(tmp_path)
    assert f" needs {package}, which " in str(caught.value)
    assert str(caught.value).endswith(f"; run: pip install 'feinsum[{extra}]'")


def test_an_import_that_fails_inside_is_told():
    """A package that is there and broken is not said to be missing."""
    with (
        pytest.raises(FeinsumError, match=r"cannot be imported \(no libfoo.so\)"),
        require_extra("foo", None, "a foo"),
    ):
        raise ImportError("no libfoo.so")
