"""The result of a retrieval, and its explanation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import loopy as lp

from feinsum.db import LayerState
from feinsum.raising import RaisedKernel, RefusedNest
from feinsum.records import Level, Policy, TransformSpec, TuningRecord
from feinsum.retrieval.selection import NestSelection
from feinsum.words import brief, counted


@dataclass(frozen=True)
class Retrieval:
    """How a kernel was looked up, and the result.

    Attributes:
        t_unit: the transformed kernel; the given one if nothing was applied.
        raised: the given kernel, with its operands behind substitution rules.
        nests: its einsums, in kernel order.
        facts: for each workload that was queried, the ids of all its records.
        policy: the worst acceptable match.
        layers: the layers that were queried.
        gain: what the user has of the recipes, in words: the times of the given kernel
            and of this one. Empty if they were not timed.
        batch: the number of cells that a loop over cells computes together, if any;
            then no nest has its own recipe.
    """

    t_unit: lp.TranslationUnit
    raised: RaisedKernel
    nests: tuple[NestSelection, ...]
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    policy: Policy = "default"
    layers: tuple[LayerState, ...] = ()
    gain: str = ""
    batch: int = 0

    @property
    def is_changed(self) -> bool:
        return bool(self.applied) or self.batch > 1

    @property
    def applied(self) -> tuple[TransformSpec, ...]:
        """The recipes in :attr:`t_unit`."""
        return tuple(n.applied for n in self.nests if n.applied is not None)

    @property
    def unchanged(self) -> tuple[NestSelection, ...]:
        """The nests that got no recipe."""
        return tuple(n for n in self.nests if n.applied is None)

    @property
    def is_settled(self) -> bool:
        """Whether the next retrieval would make the same choice."""
        return all(nest.is_settled for nest in self.nests)

    def __repr__(self) -> str:
        applied = ", ".join(map(str, self.applied)) or "unchanged"
        return brief(self, f"{self.raised.kernel_name}: {applied}")

    def __str__(self) -> str:
        return "\n".join(_explanation(self))


def _explanation(found: Retrieval) -> Iterator[str]:
    kernel = found.raised.t_unit[found.raised.kernel_name]
    for nest in found.nests:
        yield from _nest_explanation(nest)
    for refused in found.raised.refused:
        yield from _refusal(refused, kernel)
    yield f"policy: {found.policy}"
    for layer in found.layers:
        yield f"layer {layer}"
    if found.batch > 1:
        yield f"gain: {found.gain}"
        yield f"kernel: cells in batches of {found.batch}"
        return
    n = len(found.applied)
    if n and found.gain:
        yield f"gain: {found.gain}"
    yield (
        f"kernel: {n} of {len(found.nests)} nests transformed"
        if n
        else ("kernel: unchanged")
    )


def _nest_explanation(found: NestSelection) -> Iterator[str]:
    nest, match = found.nest, found.match
    yield f"raised: {nest.einsum.subscripts}, {counted(nest.einsum.batch_size, 'row')}"
    yield f"instructions: {', '.join(nest.instructions)}"
    yield f"scaled by: {', '.join(map(str, nest.scale))}"
    if any(str(shift) != "0" for shift in nest.shift):
        yield f"shifted by: {', '.join(map(str, nest.shift))}"
    for operand in nest.einsum.operands:
        yield f"operand {operand}: {nest.functional.functions[operand.name]}"
    yield f"canonical: {nest.form.text}"
    names = nest.relabeling
    for kind in (names.indices, names.operands, names.size_params):
        if kind:
            yield "relabeling: " + ", ".join(f"{k} -> {v}" for k, v in kind.items())
    yield f"key: {nest.key}"
    yield f"match: {match.level} ({match.reason})"
    for record in match.ranking:
        low, high = record.measurement.speedup_interval
        yield (
            f"  candidate {record.spec}: {record.measurement.median_s * 1e3:.3f} ms, "
            f"speed-up {record.measurement.speedup:.1f} ({low:.1f} to {high:.1f}), "
            f"record {record.id[:12]}"
        )
        yield f"    {_origin(record, is_own=record.id in found.own)}"
        if record.workload_text != nest.form.text:
            yield f"    in the names of {record.workload_text}"
    for spec, why in found.failures:
        yield f"  skipped {spec}: {why}"
    for spec, words in found.seen:
        yield f"  seen here {spec}: {words}"
    if found.applied is not None:
        yield f"applied: {found.applied} ({_why_first(found)})"
        yield f"trusted: {found.judgement}"
    elif match.level != Level.MISS:
        yield f"not applied: {found.why_unchanged}"


def _origin(record: TuningRecord, *, is_own: bool) -> str:
    """Who measured a record: this installation, or the claimed recorder."""
    if is_own:
        return f"measured by this installation at {record.recorded_at}"
    who = record.provenance.get("recorded_by", "an unknown recorder")
    where = record.environment.device
    return f"recorded by {who:.100} on {where!s:.200} at {record.recorded_at:.40}"


def _why_first(found: NestSelection) -> str:
    if found.seen:
        return f"the fastest of {len(found.seen) + 1} timed here"
    return "the first of those tied as fastest"


def _refusal(refused: RefusedNest, kernel: lp.LoopKernel) -> Iterator[str]:
    yield f"not raised: {refused.reason}"
    yield f"broken rule: {refused.rule}"
    for insn_id in refused.instructions:
        yield f"instruction {insn_id}: {_source(kernel, insn_id)}"


def _source(kernel: lp.LoopKernel, insn_id: str) -> str:
    """An instruction on one line, as Loopy writes it."""
    insn = kernel.id_to_insn.get(insn_id)
    return " ".join(str(insn).split()) if insn is not None else "(unknown)"
