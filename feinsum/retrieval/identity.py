"""Keys of the caches: a kernel as text, and all that determines a recipe's code.

The text of a kernel is equal in every process, and differs after any change. It
contains everything in a Loopy kernel, with sets sorted by the texts of their elements.
Loopy's own digests of kernels cannot be used, because they are stored in the objects
and pickled with them. Values without a text form, such as functions, are refused.

The fingerprint of an installation contains the device, the versions of all software
that generates or compiles code, and the digest of feinsum's own source.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import islpy as isl
import numpy as np
from loopy.target import TargetBase
from pytools.tag import Tag

from feinsum.measure.own import get_machine_id
from feinsum.records import Environment, TransformSpec
from feinsum.transforms import REGISTRY
from feinsum.words import with_article

_PACKAGES = ("cgen", "constantdict", "genpy", "pymbolic", "pytools")
"""Packages whose versions matter besides those that an environment names."""

_OURS = (
    "bounds", "canonical", "codegen", "contraction", "db", "ir", "measure", "nests",
    "predict", "raising", "records", "retrieval", "select", "sparse", "targets",
    "transforms",
)  # fmt: skip
"""The packages and modules whose sources determine the result of a retrieval."""


def compute_fingerprint(environment: Environment) -> str:
    """Digest machine, device, driver, versions, and the registered transforms."""
    transforms = sorted(
        f"{t.name}@{t.version} {t.apply.__module__}" for t in REGISTRY.values()
    )
    # with another driver or compiler, another recipe may be the fastest, or this one
    # wrong
    software = sorted(environment.software.items())
    device = (environment.device, environment.driver_version)
    platform = environment.platform_version
    ours = _list_versions(), _digest_sources()
    return repr((get_machine_id(), device, platform, software, *ours, transforms))


def is_ours(spec: TransformSpec) -> bool:
    """Return whether a recipe is feinsum's own; the source of others may change."""
    transform = REGISTRY.get((spec.name, spec.version))
    return transform is None or transform.apply.__module__.startswith("feinsum.")


@cache
def _list_versions() -> tuple[str, ...]:
    return (sys.version, *(f"{name} {version(name)}" for name in _PACKAGES))


SUFFIXES = (".c", ".jsonl", ".py")
"""Suffixes of files that influence results: modules, C sources, packaged facts."""


@cache
def _digest_sources() -> str:
    """Digest the files of this installation, which may change within one version."""
    digest = hashlib.sha256()
    ours = Path(import_module("feinsum").__path__[0])
    for name in _OURS:
        for path in list_deciding_files(ours / name) or [ours / f"{name}.py"]:
            label = f"{path.relative_to(ours)}\0"
            digest.update(label.encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def list_deciding_files(folder: Path) -> list[Path]:
    """Return the files of a folder whose content may change a retrieval."""
    return sorted(path for path in folder.rglob("*.*") if path.suffix in SUFFIXES)


_LIBRARIES = {"loopy", "numpy", "pymbolic", "pytools"}
"""Libraries whose objects are plain data, which their attributes describe in full."""

_MEMOS = (
    "_memoize_", "_cached_", "_pytools_", "_cache_manager", "_key_builder",
    "_hash_value",
)  # fmt: skip
"""Prefixes of attributes in which objects memoize results."""


class NoTextError(Exception):
    """Something in a kernel has no text form."""


def serialize_value(value: object) -> str:
    """Serialize a value and its parts to text, with the class of each.

    Raises:
        NoTextError: for values of classes that are not known to be plain data.

    >>> serialize_value({"b": 1.0, "a": (True, None)})
    "dict{str'a':tuple(bool'True',NoneType'None'),str'b':float'1.0'}"
    >>> serialize_value(frozenset("cab")) == serialize_value(frozenset("abc"))
    True
    """
    return f"{_get_kind(value)}{_write_content(value)}"


def _write_content(value: object) -> str:
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value)
    is_library = type(value).__module__.partition(".")[0] in _LIBRARIES
    if is_dataclass(value) and (is_library or isinstance(value, Tag)):
        return _write_named({f.name: getattr(value, f.name) for f in fields(value)})
    if is_library:
        return _write_named(_get_attributes(value))
    raise NoTextError(
        f"{with_article(type(value).__qualname__)} cannot be written as text"
    )


def _get_kind(value: object) -> str:
    kind = type(value)
    is_builtin = kind.__module__ == "builtins"
    return kind.__name__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"


def _write_named(attributes: Mapping[str, object]) -> str:
    lasting = {k: v for k, v in attributes.items() if not k.startswith(_MEMOS)}
    return _write_list(
        "{", (f"{k}={serialize_value(lasting[k])}" for k in sorted(lasting)), "}"
    )


def _get_attributes(value: object) -> dict[str, object]:
    """Return a library object's attributes, from its dictionary and its slots."""
    # islpy's and pymbolic's classes have slots instead of a dictionary
    slots = {n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())}
    if not slots and not hasattr(value, "__dict__"):
        raise NoTextError(
            f"{with_article(type(value).__qualname__)} cannot be written as text"
        )
    in_slots = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    return {**in_slots, **getattr(value, "__dict__", {})}


def _write_list(start: str, texts: Iterable[str], end: str) -> str:
    return f"{start}{','.join(texts)}{end}"


def _write_class(value: Any) -> str:
    if value.__module__.partition(".")[0] not in {*_LIBRARIES, "builtins"}:
        raise NoTextError(f"the class {value.__qualname__} cannot be written as text")
    return f"'{value.__module__}.{value.__qualname__}'"


def _write_mapping(value: Any) -> str:
    items = (f"{serialize_value(k)}:{serialize_value(v)}" for k, v in value.items())
    return _write_list("{", sorted(items), "}")


def _write_array(value: Any) -> str:
    if value.dtype.hasobject:
        raise NoTextError("an array of objects cannot be written as text")
    return f"'{_write_dtype(value.dtype)} {value.shape} {value.tobytes().hex()}'"


def _write_dtype(value: Any) -> str:
    return f"'{np.lib.format.dtype_to_descr(value)} {value.alignment}'"


def _write_domain(value: Any) -> str:
    """Write a set with sorted parameters, whose order differs between processes."""
    names = sorted(value.get_var_names(isl.dim_type.param))
    space = isl.Space.create_from_names(value.get_ctx(), set=[], params=names)
    return repr(str(value.align_params(space)))


def _write_target(value: Any) -> str:
    """Write a target without the C compiler that Loopy found, which nothing uses."""
    if value.__module__.partition(".")[0] not in {"loopy", "feinsum"}:
        raise NoTextError(
            f"{with_article(type(value).__qualname__)} cannot be written as text"
        )
    return _write_named(
        {k: v for k, v in _get_attributes(value).items() if k != "compiler"}
    )


_SCALARS = (type(None), bool, int, float, complex, bytes)
_WRITERS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (Enum, lambda value: f"'{value.name}'"),
    (str, repr),
    (np.dtype, _write_dtype),
    ((np.generic, np.ndarray), _write_array),
    (_SCALARS, lambda value: f"'{value!r}'"),
    (type, _write_class),
    ((tuple, list), lambda value: _write_list("(", map(serialize_value, value), ")")),
    (
        AbstractSet,
        lambda value: _write_list("{", sorted(map(serialize_value, value)), "}"),
    ),
    (Mapping, _write_mapping),
    ((isl.BasicSet, isl.Set, isl.Map, isl.BasicMap), _write_domain),
    (TargetBase, _write_target),
)
