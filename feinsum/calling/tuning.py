"""``tune``: the search for the recipe of a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feinsum.calling.kernel_cache import clear_call_cache
from feinsum.calling.terms import as_subscripts
from feinsum.contraction.direct import end_budget
from feinsum.errors import FeinsumError, InvalidEinsumError
from feinsum.extras import require_extra
from feinsum.ir import BatchedEinsum, Operand
from feinsum.ir import einsum as symbolic_einsum
from feinsum.sparse import is_sparse

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.db import Database
    from feinsum.records import TransformSpec
    from feinsum.tuning import (
        Finalist,
        Strategy,
        TuningProgress,
        TuningReport,
        TuningStart,
    )

logger = logging.getLogger(__name__)


def tune(
    target: str | BatchedEinsum | lp.TranslationUnit | Any,
    *operands: Any,
    sizes: Mapping[str, int] | None = None,
    device: str | None = None,
    database: Database = None,
    n_trials: int | None = None,
    budget_s: float | None = None,
    strategy: Strategy = "tpe",
    seed: int = 0,
    first: Sequence[TransformSpec] = (),
    trial_limit_s: float = 60.0,
    resume: bool = True,
    scheduler: str | None = None,
    progress: bool | None = None,
    on_start: Callable[[TuningStart], None] | None = None,
    on_progress: Callable[[TuningProgress], None] | None = None,
    on_final: Callable[[tuple[Finalist, ...]], None] | None = None,
    on_stop: Callable[[TuningReport], None] | None = None,
) -> TuningReport:
    """Search for the fastest recipe of a call, an einsum or a kernel, and record it.

    Later calls of :func:`feinsum.einsum` try the result once they have taken a third
    of a second, and at once with ``effort="estimate"``. ``feinsum.autotune`` is the
    same function. See
    :func:`feinsum.tuning.tune_einsum` for how recipes are tried, timed and recorded.

    Args:
        target: the subscripts of :func:`feinsum.einsum`; or one symbolic einsum; or a
            kernel that is an einsum.
        operands: the operands of :func:`feinsum.einsum`, arrays or symbolic.
        sizes: values of size parameters; those of arrays are known. Others get their
            defaults, see :func:`feinsum.tuning.make_problem`.
        device: part of the name of a device.
        database: where facts and trials are read and recorded.
        n_trials: maximum number of trials, including known ones; by default 20, or all
            if the strategy is ``exhaustive``.
        budget_s: no new trial starts after this time.
        strategy: ``tpe``, ``random`` or ``exhaustive``.
        seed: seed of the search.
        first: recipes to try before all others, if they fit.
        trial_limit_s: time limit of a trial.
        resume: False to repeat known trials.
        scheduler: the address of a Dask scheduler, whose workers run the trials.
        progress: whether to show a progress bar; by default in terminals and notebooks.
        on_start: called before the first trial.
        on_progress: called after every trial.
        on_final: called with the finalists, best first.
        on_stop: called at an early end with the results so far.

    Raises:
        InvalidEinsumError: as :func:`feinsum.einsum`; for a call without sums or
            products, or without entries; for sparse arrays, which must be tuned as
            symbolic einsums; for ``sizes`` that do not match the einsum.
        NotAnEinsumError: if the kernel is not an einsum.
        TransformError: if no transform fits the einsum.
        MeasurementError: if the problem cannot be set up on the device, or needs more
            memory or time than available.
        StoreError: if the database cannot be written.

    >>> import feinsum
    >>> from feinsum.errors import FeinsumError
    >>> try:
    ...     feinsum.tune("ij->ji", [[1.0, 2.0]])
    ... except FeinsumError as error:
    ...     print(error)
    the result is a view of the operand: there is nothing to tune
    """
    from feinsum.tuning import tune_einsum
    from feinsum.tuning.progress import combine_callbacks

    with require_extra("rich", "tune", "a progress bar"):
        from feinsum.tuning.bar import TuningBar, can_show

    einsum, call_sizes, text, arrays = _read_target(target, operands)
    bar = TuningBar(is_hidden=not (can_show() if progress is None else progress))
    with bar:
        report = tune_einsum(
            einsum,
            sizes=call_sizes | _check_sizes(sizes),
            device=device,
            database=database,
            n_trials=n_trials,
            budget_s=budget_s,
            strategy=strategy,
            seed=seed,
            first=first,
            trial_limit_s=trial_limit_s,
            resume=resume,
            scheduler=scheduler,
            subscripts=text,
            on_start=combine_callbacks(bar.begin, on_start),
            on_progress=combine_callbacks(bar.show, on_progress),
            on_final=combine_callbacks(bar.final, on_final),
            on_stop=on_stop,
        )
    clear_call_cache()
    end_budget()
    if arrays and not device:
        _build_for_later(text, arrays, database)
    return report


def _build_for_later(text: str, arrays: Sequence[Any], database: Database) -> None:
    """Build the kernel of a call of arrays, for calls in all later processes to try.

    Such calls try it once they have taken a while; without it, they would build a
    kernel themselves, but much later.
    """
    from feinsum.calling.host.builder import BuildRequest, build_elsewhere
    from feinsum.calling.operands import as_array, find_first_uses, get_form

    forms = [get_form(as_array(x, k)) for k, x in enumerate(arrays)]
    request = BuildRequest.of(text, forms, find_first_uses(arrays), database)
    try:
        if request is not None:
            build_elsewhere(request)
    except FeinsumError as error:  # the result of tuning is recorded all the same
        logger.warning("no kernel was built for later calls: %s", error)


autotune = tune
"""The name that tuners usually have."""


def _check_sizes(sizes: Any) -> dict[str, int]:
    if not (sizes is None or isinstance(sizes, Mapping)):
        raise InvalidEinsumError(
            f"sizes={sizes!r:.60}; expected sizes by name, such as {{'n': 1000}}",
            rules=("size",),
        )
    return dict(sizes or {})


def _read_target(
    target: Any, operands: tuple[Any, ...]
) -> tuple[Any, dict[str, int], str, Sequence[Any]]:
    """Return the einsum or kernel to tune; of a call also sizes, subscripts, arrays."""
    if not operands and not isinstance(target, str):
        return target, {}, "", ()
    text, arrays = as_subscripts((target, *operands))
    if any(isinstance(operand, Operand) for operand in arrays):
        return symbolic_einsum(text, *arrays), {}, text, ()
    if any(is_sparse(operand) for operand in arrays):
        raise InvalidEinsumError(
            "a sparse array was given; tune a symbolic einsum with "
            "feinsum.sparse_array and the sizes of its profile",
            rules=("storage",),
        )
    from feinsum.calling.structure import read_call

    parsed = read_call(text, *arrays)
    if parsed.is_empty:
        raise InvalidEinsumError(
            "an array has no entries: there is nothing to tune", rules=("extent",)
        )
    (term, *other_terms), output = parsed.einsum.inputs, parsed.einsum.output
    if not other_terms and {*term} == {*output}:
        raise InvalidEinsumError(
            "the result is a view of the operand: there is nothing to tune",
            rules=("subscripts",),
        )
    return parsed.einsum, dict(parsed.sizes), text, arrays
