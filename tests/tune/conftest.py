"""What the tests of tuning share: the odd transforms, here and in the trials."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from feinsum.transforms import REGISTRY
from feinsum.transforms.plugins import VARIABLE
from tests.db.conftest import public_folder
from tests.retrieval.conftest import _private_compiler_cache
from tests.tune import odd_transforms
from tests.tune.odd_transforms import ODD

__all__ = [
    "_private_compiler_cache",
    "living_in_session",
    "public_folder",
    "registered",
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package", autouse=True)
def _odd_transforms_in_trials() -> Iterator[None]:
    """The processes of trials register the odd transforms; this one does not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *_python_path()]))
        patch.setenv(VARIABLE, odd_transforms.__name__)
        yield


def _python_path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


@pytest.fixture(autouse=True)
def _without_families_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search proposes what a test registers, and nothing else."""
    fitting = ("generic", "library_contraction")
    for key in [key for key in REGISTRY if key[0] in fitting]:
        monkeypatch.delitem(REGISTRY, key)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers odd transforms in this process, until the test ends."""

    def register(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(REGISTRY, (name, 1), ODD[name])

    return register


def living_in_session(session: int) -> list[psutil.Process]:
    """The processes of a session that have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            is_member = os.getsid(process.pid) == session
            if is_member and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found
