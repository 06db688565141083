"""``use_in_pyscf``: einsums of PySCF, computed by feinsum.

PySCF's own einsum transposes operands, and computes one matrix product at a time. Its
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
from feinsum.extras import require_extra

Einsum = Callable[..., Any]


def use_in_pyscf() -> AbstractContextManager[None]:
    """Make PySCF compute its einsums with feinsum.

    PySCF still computes calls with options, such as a function for products of tensors.

    Returns:
        A context; at its end, PySCF uses its own einsum again. Without ``with``, the
        change is permanent.

    Raises:
        FeinsumError: if PySCF is not installed.
    """
    with require_extra("pyscf", None, "the einsums of PySCF"):
        from pyscf import lib

    original = lib.einsum
    if hasattr(original, "__wrapped__"):
        return _restore_at_end(original, original)  # in use already: change nothing

    @wraps(original)
    def evaluate(subscripts: str, *tensors: Any, **options: Any) -> Any:
        # a contraction order is only a hint
        if {*options} <= {"optimize"}:
            return einsum(subscripts, *tensors)
        return original(subscripts, *tensors, **options)

    _replace(original, evaluate)
    return _restore_at_end(original, evaluate)


@contextmanager
def _restore_at_end(original: Einsum, replacement: Einsum) -> Iterator[None]:
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
