"""A canonicalizing tuning database for batched einsums.

The names below are the public interface. They are imported when they are first
used, so that ``import feinsum`` itself loads neither Loopy nor OpenCL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feinsum.calling import call_einsum
    from feinsum.canonical import canonicalize, canonicalize_einsum
    from feinsum.codegen import generate_loopy
    from feinsum.db import open_store
    from feinsum.errors import FeinsumError, FeinsumWarning, NotAnEinsumError
    from feinsum.ir import (
        BatchedEinsum,
        FunctionalBatchedEinsum,
        SizeParam,
        array,
        batched_einsum,
        einsum,
        evaluate,
    )
    from feinsum.measure import measure_giga_op_rate, timeit
    from feinsum.raising import identify_as_einsum, raise_kernel
    from feinsum.records import TransformSpec
    from feinsum.retrieval import explain, query, retrieve
    from feinsum.tune import autotune, record_facts

_HOME = {
    "BatchedEinsum": "ir",
    "FeinsumError": "errors",
    "FeinsumWarning": "errors",
    "FunctionalBatchedEinsum": "ir",
    "NotAnEinsumError": "errors",
    "SizeParam": "ir",
    "TransformSpec": "records",
    "array": "ir",
    "autotune": "tune",
    "batched_einsum": "ir",
    "call_einsum": "calling",
    "canonicalize": "canonical",
    "canonicalize_einsum": "canonical",
    "einsum": "ir",
    "evaluate": "ir",
    "explain": "retrieval",
    "generate_loopy": "codegen",
    "identify_as_einsum": "raising",
    "measure_giga_op_rate": "measure",
    "open_store": "db",
    "query": "retrieval",
    "raise_kernel": "raising",
    "record_facts": "tune",
    "retrieve": "retrieval",
    "timeit": "measure",
}

__all__ = [
    "BatchedEinsum",
    "FeinsumError",
    "FeinsumWarning",
    "FunctionalBatchedEinsum",
    "NotAnEinsumError",
    "SizeParam",
    "TransformSpec",
    "array",
    "autotune",
    "batched_einsum",
    "call_einsum",
    "canonicalize",
    "canonicalize_einsum",
    "einsum",
    "evaluate",
    "explain",
    "generate_loopy",
    "identify_as_einsum",
    "measure_giga_op_rate",
    "open_store",
    "query",
    "raise_kernel",
    "record_facts",
    "retrieve",
    "timeit",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'feinsum' has no attribute {name!r}")
    value = getattr(import_module(f"feinsum.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
