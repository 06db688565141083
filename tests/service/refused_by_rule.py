"""Hooks of Schemathesis: what fits its schema is refused by rules that no schema says.

A document of a fact may fit and say what nobody can have measured; subscripts may be a
text and no einsum. Of other routes ``positive_data_acceptance`` holds as it is.
"""

from __future__ import annotations

import re

import schemathesis

from feinsum.records import CODES

FACTS = "implausible"

KEY = "invalid-request: .* is not a workload key"

NAMES = "invalid-request: the (device|architecture) .* no NUL"

REASON = "invalid-request: no reason was given|invalid-record: .* reason: "

RULES = {
    "POST /v1/facts": f"{FACTS}|{KEY}",
    "POST /v1/peaks": FACTS,
    "POST /v1/plans": f"{FACTS}|{KEY}",
    "POST /v1/retractions": "invalid-record: the time",
    "POST /v1/facts:retract": f"{REASON}|invalid-request: (no fact was named|"
    ".* was given; expected|.* is not the id)",
    "DELETE /v1/facts/{record_id}": REASON,
    "POST /v1/canonicalize": "invalid-(request|einsum)|canonicalization-failed",
    "POST /v1/best:batch": NAMES,
    "GET /v1/best/{key}": NAMES,
}
"""By route, how the refusals of such rules begin, after their codes."""

NUMBERS = re.compile(
    "invalid-record: .*Input should be "
    "(a valid integer|(less|greater) than or equal to -?92233)",
    re.DOTALL,
)
"""A schema takes 2.0 for an integer, and has no integers of 64 bits."""


@schemathesis.check
def refused_by_rule(ctx, response, case) -> None:
    """A refusal is one of these; one of a fact names the rules of plausibility."""
    rule = RULES.get(case.operation.label)
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    if rule is None or not is_valid or response.status_code != 422:
        return
    problem = response.json()
    said = f"{problem['code']}: {problem['detail']}"
    is_rule = re.match(rule, said, re.DOTALL) or NUMBERS.match(said)
    assert is_rule, f"schema-valid, but {said}"
    if problem["code"] == FACTS:
        assert problem["findings"]
        assert {finding["code"] for finding in problem["findings"]} <= {*CODES}
