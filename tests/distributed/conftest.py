"""Fixtures of the tests of distributed programs."""

from __future__ import annotations

import pytest

from feinsum.distributed import program_plan
from feinsum.ir.evaluation import evaluate_statement


@pytest.fixture
def numpy_computes_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is built for a block, where blocks and messages are what is tested."""
    monkeypatch.setattr(program_plan, "compute_contraction", evaluate_statement)
