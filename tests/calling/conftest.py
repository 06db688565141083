"""What the tests of calls share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from feinsum.calling import clear_call_cache


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
