"""Build the wheel from the sdist and try it in a fresh environment.

Run by ``make wheel``. Shows that what is installed is whole: every package, the
migrations, the command, a real kernel through a real database.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SMOKE = """
import warnings
from importlib.resources import files
from pathlib import Path
import numpy as np
import feinsum
from feinsum.contraction import IS_BUILT
from feinsum.db import get_shipped_facts
from feinsum.measure import compile_kernel, compute_largest_error, open_device
from feinsum.records.signature import explain_untrusted
from feinsum.suites import NAMES, read_suite

assert [len(read_suite(name)) for name in NAMES] == [48, 40]
assert "site-packages" in feinsum.__file__, feinsum.__file__
assert IS_BUILT, "the wheel has no kernel of contractions"
for name in ("py.typed", "__init__.pyi", "calling/__init__.pyi", "tuning/__init__.pyi"):
    assert (Path(feinsum.__file__).parent / name).is_file(), name
pages = Path(feinsum.__file__).parent / "service" / "pages"
for name in ("static/pages.css", "templates/base.html"):
    assert (pages / name).is_file()
A, x = feinsum.array("A", ("N", 8)), feinsum.array("x", 8)
einsum = feinsum.einsum("ij,j->i", A, x)
spec = "rowwise@1(block=64, index='a')"
record = feinsum.record_facts(einsum, spec, sizes={"N": 5000})
kernel = feinsum.generate_loopy(einsum)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    if record.measurement.speedup > 1:
        kernel = feinsum.retrieve(kernel)
values = {"A": np.random.rand(37, 8), "x": np.random.rand(8)}
bound = compile_kernel(kernel, open_device()).bind(values)
bound.run()
expected = feinsum.evaluate(einsum, values)[0]
assert compute_largest_error(bound.read()["out"], expected) < 1e-12
with feinsum.open_store() as store:
    assert len(store) == 1
packaged = list(get_shipped_facts().records())
public = files("feinsum.db") / "packaged" / "release.pub"
trusted = public.read_text().split() if public.is_file() else []
why = {}
if trusted:
    why = {fact.id: explain_untrusted(fact, trusted) for fact in packaged}
assert not any(why.values()), {k: v for k, v in why.items() if v}
print(f"the installed wheel works; facts signed: {len(why)} of {len(packaged)}")
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="feinsum-wheel-") as folder:
        try_wheel(Path(folder))


def try_wheel(folder: Path) -> None:
    dist = folder / "dist"
    run(sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT))
    (wheel,) = dist.glob("*.whl")
    python = folder / "env" / "bin" / "python"
    venv.create(folder / "env", with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    install += [
        "--disable-pip-version-check",
        "--constraint",
        str(ROOT / "constraints.txt"),
    ]
    run(*install, f"feinsum[cli,signatures,tune] @ {wheel.as_uri()}")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["FEINSUM_DATABASE"] = str(folder / "facts.sqlite")
    run(str(python), "-c", SMOKE, cwd=folder, env=environment)
    run(str(python.with_name("feinsum")), "db", "stats", cwd=folder, env=environment)


def run(*command: str, **options: object) -> None:
    result = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if result.returncode != 0:
        sys.exit(f"{' '.join(command[:4])} failed:\n{result.stdout}\n{result.stderr}")
    print(result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "ok")


if __name__ == "__main__":
    main()
