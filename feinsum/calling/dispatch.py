"""``einsum``: a result for arrays, a symbolic einsum for symbolic operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_overloads, overload

from feinsum.contraction.direct import compute
from feinsum.libraries import is_compiling
from feinsum.options import with_options_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from feinsum.db import Database
    from feinsum.ir import BatchedEinsum, Operand
    from feinsum.options import Effort
    from feinsum.records import Policy
    from feinsum.retrieval import OnMiss

FEW_OPERANDS = 6
"""Up to this number, operands are contracted in the best order, whatever search is
named."""


@overload
def einsum(subscripts: str, *operands: Operand) -> BatchedEinsum: ...


@overload
def einsum(
    subscripts: Any,
    *operands: Any,
    out: Any = None,
    dtype: DTypeLike | None = None,
    order: str | None = "K",
    casting: str = "safe",
    optimize: Any = True,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    on_miss: OnMiss = "return",
    effort: Effort | None = None,
) -> Any: ...


def einsum(subscripts: Any, *operands: Any, **options: Any) -> Any:
    """Evaluate an einsum of arrays, like numpy, or build one of symbolic operands.

    Args:
        subscripts: as for :func:`numpy.einsum`; or the first operand, where operands
            alternate with index lists.
        operands: arrays, as for :func:`feinsum.call_einsum`; or all of them symbolic,
            made by :func:`feinsum.array`.
        options: the keyword arguments below.

    Keyword Args:
        out: an array for the result: on the host, or with the operands on a GPU, where
            its dtype has to be that of the result.
        dtype: dtype of the computation; by default numpy's result type of the operands
            and of ``out``.
        order: memory order of the result. ``K``, the default, means C order here.
            Unlike in numpy, ``dtype`` and ``order`` also apply to what would be a view.
        casting: allowed casts of operands to ``dtype``, and of the result to ``out``.
        optimize: a path to follow, such as one from :func:`feinsum.contract_path`; or a
            pair such as ``("greedy", 10**6)`` of a search for a path and the maximum
            entries of an intermediate; or, for more than six operands, the name of a
            search of opt_einsum or cotengra. With booleans, ``"auto"``, or up to six
            operands, feinsum chooses the order itself.
        device: as for :func:`feinsum.call_einsum`.
        database: as for :func:`feinsum.call_einsum`.
        policy: as for :func:`feinsum.call_einsum`.
        on_miss: as for :func:`feinsum.call_einsum`.
        effort: as for :func:`feinsum.call_einsum`.

    Returns:
        For arrays, a new array, or a numpy scalar if the result has no index; a view of
        a single operand without a sum; or ``out``. For symbolic operands, a
        :class:`feinsum.BatchedEinsum` of one row.

    Raises:
        InvalidEinsumError: as :func:`feinsum.call_einsum`; for an unknown option; for a
            mix of arrays and symbolic operands.
        InvalidTypeError: for a cast that ``casting`` does not allow, and an argument of
            a wrong type.
        MeasurementError, FeinsumError: as :func:`feinsum.call_einsum`.

    >>> import numpy as np
    >>> from feinsum.records import InMemoryStore
    >>> A, x = np.eye(2), np.array([3.0, 4.0])
    >>> einsum("ij,j", A, x, database=InMemoryStore())
    array([3., 4.])
    >>> from feinsum import array
    >>> print(einsum("ij,j->i", array("A", ("n", 4)), array("x", 4)))
    ij,j->i of (A x) with A[n,4]:<f8, x[4]:<f8
    """
    if (not options or _are_direct(options, len(operands))) and not is_compiling():
        # the extension parses the call itself, so that no Python code runs between the
        # caller and the kernel
        result = compute(subscripts, operands, False, options.get("out"))
        if result is not NotImplemented:
            return result
    from feinsum.calling.numpy_options import einsum_with_options  # takes 20 ms to load

    return einsum_with_options(subscripts, operands, **options)


with_options_of(get_overloads(einsum)[-1])(einsum)


def _are_direct(options: dict[str, Any], n_operands: int) -> bool:
    """Return whether the extension takes the options: ``out``, and the best order."""
    if not options.keys() <= {"out", "optimize"}:
        return False
    optimize = options.get("optimize", True)
    # numpy's searches would take longer than a call of few operands
    is_name = isinstance(optimize, str) and optimize in ("greedy", "optimal", "auto")
    return isinstance(optimize, bool) or (is_name and n_operands <= FEW_OPERANDS)
