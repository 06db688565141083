"""Everything here that determines a recipe's code: device, versions, source."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from feinsum.measure.own import machine_id
from feinsum.predict.correction import correction_in_use
from feinsum.records import Environment, TransformSpec
from feinsum.transforms import REGISTRY

_PACKAGES = ("cgen", "constantdict", "genpy", "pymbolic", "pytools")
"""Whose versions matter beside those that an environment names."""

_OURS = (
    "bounds", "canonical", "codegen", "db", "ir", "measure", "nests", "paths",
    "predict", "raising", "records", "retrieval", "select", "sparse", "targets",
    "transforms",
)  # fmt: skip
"""The rooms whose sources decide what comes out of a retrieval."""


def fingerprint(environment: Environment) -> str:
    """Machine, device, driver, versions, the model, and the registered transforms."""
    known = sorted(
        f"{t.name}@{t.version} {t.apply.__module__}" for t in REGISTRY.values()
    )
    software = sorted(environment.software.items())
    device = (environment.device, environment.driver_version)
    platform = environment.platform_version
    ours = _versions(), _source_digest(), correction_in_use().id
    return repr((machine_id(), device, platform, software, *ours, known))


def is_ours(spec: TransformSpec) -> bool:
    """Whether a recipe is one of ours; the source of others may change."""
    transform = REGISTRY.get((spec.name, spec.version))
    return transform is None or transform.apply.__module__.startswith("feinsum.")


@cache
def _versions() -> tuple[str, ...]:
    return (sys.version, *(f"{name} {version(name)}" for name in _PACKAGES))


SUFFIXES = (".c", ".jsonl", ".py")
"""Suffixes of files that decide: modules, C sources, packaged facts."""


@cache
def _source_digest() -> str:
    """Digest of the files of this installation, as its version may stay the same."""
    found = hashlib.sha256()
    for name in _OURS:
        folder = Path(import_module(f"feinsum.{name}").__path__[0])
        for path in deciding_files(folder):
            place = f"{name}/{path.relative_to(folder)}\0"
            found.update(place.encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def deciding_files(folder: Path) -> list[Path]:
    """The files of a room that decide what comes out of a retrieval, in order."""
    return sorted(path for path in folder.rglob("*.*") if path.suffix in SUFFIXES)
