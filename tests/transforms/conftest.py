"""Golden files, compared with what is generated; devices that are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transforms.support import device

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what was generated to tests/transforms/golden/",
    )


@pytest.fixture(autouse=True)
def _device_is_there(request: pytest.FixtureRequest) -> None:
    """A test on a CPU device that is missing is skipped before a kernel is made."""
    if "cpu" in request.fixturenames:
        device(request.getfixturevalue("cpu"))


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> Golden:
    """Asserts that a text is that of the golden file of a name, or updates it."""
    is_update = request.config.getoption("--update-golden", default=False)

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if is_update:
            path.write_text(text)
        assert path.exists(), f"no {path}; run with --update-golden"
        assert text == path.read_text(), f"{path} differs; see --update-golden"

    return check
