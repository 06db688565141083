"""Run tests of numpy, opt_einsum and JAX with ``feinsum.einsum`` in place of theirs.

Run by ``make test-peers``. Those of numpy and opt_einsum are in their packages. JAX has
its tests in its repository only: those of the installed version are downloaded into
``.cache``, or read from a file that is given.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "peers"
JAX_TESTS = "https://raw.githubusercontent.com/jax-ml/jax/jax-v{}/tests/{}"
JAX_FILE = "lax_numpy_einsum_test.py"
SUITES = {
    "numpy": ["--pyargs", "numpy._core.tests.test_einsum"],
    "opt_einsum": [
        "--pyargs",
        *(
            f"opt_einsum.tests.test_{name}"
            for name in ("contract", "edge_cases", "input")
        ),
    ],
}


def jax_tests() -> list[str] | None:
    """The file of JAX's tests of einsums; None, with a line, if there is none."""
    try:
        path = CACHE / version("jax") / JAX_FILE
    except PackageNotFoundError:
        print("jax: left out, since it is not installed")
        return None
    if not path.exists():
        try:
            with urlopen(
                JAX_TESTS.format(version("jax"), JAX_FILE), timeout=60
            ) as page:
                text = page.read()
        except (URLError, TimeoutError) as error:
            print(f"jax: left out, since its tests cannot be downloaded: {error}")
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return [str(path)]


def run(peer: str, tests: list[str], home: str) -> int:
    """The exit status of the tests of a peer, run from an empty folder."""
    print(f"{peer}:", flush=True)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-rfE"),
        *("-c", os.devnull, "--rootdir", home, "-p", "no:cacheprovider"),
        *("-p", "tests.peers.substitutes", "--peer", peer, *tests),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": home,
        "FEINSUM_CACHE_DIR": home,
        "FEINSUM_DATABASE": f"{home}/facts.sqlite",
        "JAX_PLATFORMS": "cpu",
    }
    return subprocess.run(command, cwd=home, env=environment, check=False).returncode


def main(peers: list[str], jax: str | None) -> None:
    suites: dict[str, list[str] | None] = dict(SUITES)
    if not peers or "jax" in peers:
        suites["jax"] = jax_tests() if jax is None else [str(Path(jax).resolve())]
    with tempfile.TemporaryDirectory() as home:
        failed = [
            peer
            for peer, tests in suites.items()
            if tests is not None and (not peers or peer in peers)
            if run(peer, tests, home)
        ]
    if failed:
        sys.exit(f"other than expected: {', '.join(failed)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", help="numpy, opt_einsum, jax; or all")
    parser.add_argument("--jax", help="a file of JAX's tests")
    given = parser.parse_args()
    main(given.peers, given.jax)
