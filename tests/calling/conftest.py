"""What the tests of calls share."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from feinsum.cache import get_default_cache
from feinsum.calling import clear_call_cache
from feinsum.calling.host import builder


@pytest.fixture(scope="package", autouse=True)
def _private_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compiler cache and a database of one's own; no kernels are left behind."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("calls")
        patch.setenv("POCL_CACHE_DIR", str(folder / "pocl"))
        patch.setenv("FEINSUM_DATABASE", str(folder / "facts.sqlite"))
        yield
        clear_call_cache()


@pytest.fixture(autouse=True)
def _estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes are predicted, and nothing is measured by the way."""
    monkeypatch.setenv("FEINSUM_EFFORT", "estimate")


@pytest.fixture
def fresh_calls() -> Iterator[None]:
    """No call knows those of other tests."""
    clear_call_cache()
    yield
    clear_call_cache()


def build_here(request: builder.BuildRequest) -> builder.BuiltKernel | None:
    """Build the kernel of a call as another process would, and store it."""
    answer = json.dumps(builder._build_answer(request))
    if answer == "{}":
        return None
    if (cache := get_default_cache()) is not None:
        cache.write(request.key, answer.encode())
    return builder.BuiltKernel.load(json.loads(answer))


@pytest.fixture
def builds_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of calls are built in this process, which has loaded Loopy already."""
    monkeypatch.setattr(builder, "build_elsewhere", build_here)
