"""Which workers of a cluster may share a tuning: those with the same environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from feinsum.errors import DeviceUnavailableError, error_from_code
from feinsum.records import Device, Environment, Processor
from feinsum.tuning.messages import Answer

__all__ = ["check_agreement", "difference"]


def check_agreement(answers: Mapping[str, Answer]) -> Environment:
    """The common environment of all workers on which the problem could be set up.

    Device, driver and software are the same, so every record describes its timings.

    Raises:
        MeasurementError: the first worker's error, if the problem could be set up on
            none.
        DeviceUnavailableError: if they differ; the message lists them.
    """
    there = {w: a.environment for w, a in sorted(answers.items()) if a.environment}
    if not there:
        worker, first = min(answers.items())
        message = f"the worker {worker}: {first.error}"
        raise error_from_code(first.error_code or "", message)
    environment = next(iter(there.values()))
    if any(other != environment for other in there.values()):
        listed = "; ".join(
            f"{worker}: {difference(other, environment) or environment.device}"
            for worker, other in there.items()
        )
        raise DeviceUnavailableError(
            "the workers have different environments, but the timings of one tuning "
            f"must come from one: {listed}. Select a device with --device, or give "
            "each kind of worker its own scheduler"
        )
    return environment


def difference(environment: Environment, expected: Environment) -> str | None:
    """How an environment differs from the expected one, in words; None if equal."""
    for name in (field.name for field in fields(Environment)):
        here, there = getattr(environment, name), getattr(expected, name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            keys = sorted(k for k in {*here, *there} if here.get(k) != there.get(k))
            if keys:
                pairs = [f"{k} {here.get(k)}, not {there.get(k)}" for k in keys]
                return f"{name}: {', '.join(pairs)}"
        elif isinstance(here, Device) and here != there:
            names = ", ".join(_fields_apart(here, there))
            return f"device {here}, not {there}: it differs in {names}"
        elif here != there:
            return f"{name.replace('_', ' ')} {here}, not {there}"
    return None


def _fields_apart(here: Device | Processor, there: Any) -> Iterator[str]:
    """The fields that differ; of processors, which are known on both sides, theirs."""
    for name in (field.name for field in fields(here)):
        one, two = getattr(here, name), getattr(there, name)
        if isinstance(one, Processor) and two is not None:
            yield from _fields_apart(one, two)
        elif one != two:
            yield name
