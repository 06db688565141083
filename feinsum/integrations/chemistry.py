"""Einsums of PySCF, computed by feinsum.

PySCF's own einsum transposes operands into one product of matrices at a time. Its
modules import that function by name, so it is replaced in all of them::

    feinsum.integrations.use_in_pyscf()           # from now on
    with feinsum.integrations.use_in_pyscf():     # or for a while
        cc.rccsd.RCCSD(mf).run()
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from feinsum.calling import einsum
from feinsum.extras import requiring

Einsum = Callable[..., Any]


def use_in_pyscf() -> AbstractContextManager[None]:
    """Let PySCF compute its einsums by feinsum.

    Calls with options, such as a function for products of two tensors, stay PySCF's.

    Returns:
        A context at whose end PySCF computes them again; without ``with``, the change
        lasts.

    Raises:
        FeinsumError: if PySCF is not installed.
    """
    with requiring("pyscf", None, "the einsums of PySCF"):
        from pyscf import lib

    original = lib.einsum
    if hasattr(original, "__wrapped__"):
        return _restored(original, original)  # it is used already, and stays so

    @wraps(original)
    def by_feinsum(subscripts: str, *tensors: Any, **options: Any) -> Any:
        # an order of contraction is only a hint
        if {*options} <= {"optimize"}:
            return einsum(subscripts, *tensors)
        return original(subscripts, *tensors, **options)

    _replace(original, by_feinsum)
    return _restored(original, by_feinsum)


@contextmanager
def _restored(original: Einsum, replacement: Einsum) -> Iterator[None]:
    try:
        yield
    finally:
        _replace(replacement, original)


def _replace(function: Einsum, by: Einsum) -> None:
    """Replace a function wherever PySCF's modules have imported it by name."""
    modules = [m for name, m in sys.modules.items() if name.split(".")[0] == "pyscf"]
    for module in modules:
        if getattr(module, "einsum", None) is function:
            vars(module)["einsum"] = by
