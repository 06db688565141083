"""What the tests of programs share."""

from __future__ import annotations

import pytest

from feinsum.ir.evaluate import evaluate_statement
from feinsum.programs import planned


@pytest.fixture
def numpy_computes_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is built for a block, where blocks and messages are what is tested."""
    monkeypatch.setattr(planned, "contracted", evaluate_statement)
