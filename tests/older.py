"""Facts as installations with an older canonicalizer recorded them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from constantdict import constantdict

from feinsum.canonical import Relabeling, WorkloadKey
from feinsum.ir import BatchedEinsum, from_text, to_text
from feinsum.records import TuningRecord

__all__ = ["OLDER", "older_key", "respelled", "under_older_key"]

OLDER = "fe0-nauty2.7"
"""The prefix of keys of a version that never was."""


def older_key(text: str, prefix: str = OLDER) -> WorkloadKey:
    """The key of a text by that version."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:40]
    return WorkloadKey(f"{prefix}-{digest}")


def under_older_key(record: TuningRecord, prefix: str = OLDER) -> TuningRecord:
    """The fact as recorded by a version that labels alike: the same text."""
    return replace(record, workload=older_key(record.workload_text, prefix))


def respelled(record: TuningRecord, prefix: str = OLDER) -> TuningRecord:
    """The fact as recorded by a version that labels otherwise.

    Names, rows and operands of the text are in another order, and the recipe
    speaks of its indices by the names of that text.
    """
    einsum = from_text(record.workload_text)
    relabeling = _another_labelling(einsum)
    text = to_text(relabeling.apply(einsum))
    names = relabeling.indices
    parameters = {
        name: names.get(value, value) if isinstance(value, str) else value
        for name, value in record.spec.parameters.items()
    }
    spec = replace(record.spec, parameters=parameters)
    there = replace(record, workload_text=text, spec=spec)
    return under_older_key(there, prefix)


def _another_labelling(einsum: BatchedEinsum) -> Relabeling:
    """Names change places in turn; rows and operands come in reverse."""
    backwards = tuple(reversed(range(einsum.n_operands)))
    return Relabeling(
        _in_turn(einsum.indices),
        _in_turn(operand.name for operand in einsum.operands),
        _in_turn(param.name for param in einsum.size_params),
        tuple(reversed(range(einsum.batch_size))),
        (backwards,) * einsum.batch_size,
    )


def _in_turn(names: Iterable[str]) -> constantdict[str, str]:
    old = tuple(names)
    return constantdict(zip(old, (*old[1:], *old[:1]), strict=True))
