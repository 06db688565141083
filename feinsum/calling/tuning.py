"""``tune``: the search for the recipe of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from feinsum.calling.kernel_cache import clear_call_cache
from feinsum.calling.reading.interleaved import as_subscripts
from feinsum.errors import InvalidEinsumError
from feinsum.extras import requiring
from feinsum.ir import BatchedEinsum, Operand
from feinsum.ir import einsum as symbolic_einsum
from feinsum.sparse import is_sparse

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.tune import Finalist, TuningProgress, TuningReport, TuningStart

__all__ = ["tune"]


def tune(
    target: str | BatchedEinsum | lp.TranslationUnit | Any,
    *operands: Any,
    progress: bool | None = None,
    on_start: Callable[[TuningStart], None] | None = None,
    on_progress: Callable[[TuningProgress], None] | None = None,
    on_final: Callable[[tuple[Finalist, ...]], None] | None = None,
    **options: Any,
) -> TuningReport:
    """Search for the fastest recipe of a call, an einsum or a kernel, and record it.

    Later calls of :func:`feinsum.einsum` use the result.

    Args:
        target, operands: the arguments of :func:`feinsum.einsum`, with arrays or
            symbolic operands; or one symbolic einsum; or a kernel that is an einsum.
        progress: whether to show a progress bar; by default in terminals and notebooks.
        on_start, on_progress, on_final, options: as for :func:`feinsum.autotune`, such
            as ``n_trials``, ``budget_s`` and ``database``.

    Raises:
        InvalidEinsumError: as :func:`feinsum.einsum`; for a call without sums or
            products, or without entries; for sparse arrays, which must be tuned as
            symbolic einsums.
        TransformError, MeasurementError, StoreError: as :func:`feinsum.autotune`.

    >>> import feinsum
    >>> from feinsum.errors import FeinsumError
    >>> try:
    ...     feinsum.tune("ij->ji", [[1.0, 2.0]])
    ... except FeinsumError as error:
    ...     print(error)
    the result is a view of the operand: there is nothing to tune
    """
    from feinsum.tune import autotune
    from feinsum.tune.progress import both

    with requiring("rich", "tune", "a progress bar"):
        from feinsum.tune.bar import TuningBar, can_show

    einsum, sizes = _einsum_of(target, operands)
    given = options.pop("sizes", None)
    if not (given is None or isinstance(given, Mapping)):
        raise InvalidEinsumError(
            f"sizes={given!r:.60}; expected sizes by name, such as {{'n': 1000}}",
            rules=("size",),
        )
    sizes |= given or {}
    bar = TuningBar(is_hidden=not (can_show() if progress is None else progress))
    with bar:
        report = autotune(
            einsum,
            sizes=sizes,
            on_start=both(bar.begin, on_start),
            on_progress=both(bar.show, on_progress),
            on_final=both(bar.final, on_final),
            **options,
        )
    clear_call_cache()
    return report


def _einsum_of(target: Any, operands: tuple[Any, ...]) -> tuple[Any, dict[str, int]]:
    """The tuned einsum or kernel, and the sizes of a call."""
    if not operands and not isinstance(target, str):
        return target, {}
    text, given = as_subscripts((target, *operands))
    if any(isinstance(operand, Operand) for operand in given):
        return symbolic_einsum(text, *given), {}
    if any(is_sparse(operand) for operand in given):
        raise InvalidEinsumError(
            "a sparse array was given; tune a symbolic einsum with "
            "feinsum.sparse_array and the sizes of its profile",
            rules=("storage",),
        )
    from feinsum.calling.host.simple import read_call

    reading = read_call(text, *given)
    if reading.is_empty:
        raise InvalidEinsumError(
            "an array has no entries: there is nothing to tune", rules=("extent",)
        )
    (term, *others), output = reading.einsum.inputs, reading.einsum.output
    if not others and {*term} == {*output}:
        raise InvalidEinsumError(
            "the result is a view of the operand: there is nothing to tune",
            rules=("subscripts",),
        )
    return reading.einsum, dict(reading.sizes)
