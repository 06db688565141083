"""What the tests of integrations share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _private_compiler_cache(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Caches shared between test processes have crashed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POCL_CACHE_DIR", str(tmp_path_factory.mktemp("pocl")))
        yield
