"""How a call looks up its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feinsum.options import Effort

if TYPE_CHECKING:
    from feinsum.db import Database
    from feinsum.records import Policy
    from feinsum.retrieval import OnMiss


@dataclass(frozen=True)
class CallOptions:
    """How a kernel is looked up; see :func:`feinsum.retrieve`."""

    database: Database = None
    policy: Policy | None = None
    on_miss: OnMiss = "return"
    effort: Effort = "amortized"
