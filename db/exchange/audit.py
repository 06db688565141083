"""An audit: what in a database is not plausible. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from feinsum.records import (
    FACT_KINDS,
    DocumentKind,
    Finding,
    Store,
    judge,
)
from feinsum.records.plausibility import JudgeRecipe, shipped_recipe


@dataclass(frozen=True)
class Odd:
    """A document that is not plausible, or that cannot be judged here.

    Attributes:
        findings: one or more.
    """

    kind: DocumentKind
    id: str
    findings: tuple[Finding, ...]

    @property
    def is_refused(self) -> bool:
        """Whether it would be refused if it arrived today."""
        return any(finding.is_refused for finding in self.findings)


def audit(
    store: Store,
    *,
    judge_recipe: JudgeRecipe = shipped_recipe,
    on_step: Callable[[int], None] = lambda _n: None,
) -> Iterator[Odd]:
    """Yield the facts, plans and limits with findings, by kind and id.

    Args:
        judge_recipe: judges the recipe of a fact; by default by the names of transforms
            alone, without the code generator.
        on_step: called after each document, with 1.
    """
    for kind in FACT_KINDS:
        for document in store.documents(kind):
            if findings := judge(document, judge_recipe=judge_recipe):
                yield Odd(kind, document.id, findings)
            on_step(1)
