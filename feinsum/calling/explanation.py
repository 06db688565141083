"""``explain``: what computes a call of arrays, and why.

For a kernel or a symbolic einsum, it describes what :func:`feinsum.retrieve` would do.

>>> import numpy as np
>>> print(explain("ij,jk,kl->il", *[np.ones((20, 20))] * 3).splitlines()[2])
step 1: ij,jk->ik, 8e+03 multiplications
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from math import inf, prod
from typing import TYPE_CHECKING, Any, get_overloads, overload

import numpy as np

from feinsum.calling.call import (
    find_call,
    make_call_key,
    make_lookup_options,
    prepare_without_kernel,
)
from feinsum.calling.host.general import GAIN, LOOK_UP_S, GeneralCall
from feinsum.calling.kernel_cache import CallKey, Calls
from feinsum.calling.operands import as_array
from feinsum.contraction.direct import compute
from feinsum.errors import FeinsumError
from feinsum.memory import get_remembered
from feinsum.options import DEVICE_VARIABLE, EFFORT_VARIABLE, with_options_of
from feinsum.words import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    import loopy as lp

    from feinsum.calling.by_numpy import NumpyStepsCall
    from feinsum.calling.call import Call
    from feinsum.calling.einsum_call import EinsumCall
    from feinsum.db import Database
    from feinsum.ir import BatchedEinsum
    from feinsum.options import Effort
    from feinsum.records import Match, Policy


@overload
def explain(
    target: str,
    *operands: Any,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    effort: Effort | None = None,
) -> str: ...


@overload
def explain(
    target: lp.TranslationUnit | BatchedEinsum,
    *,
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    database: Database = None,
    instructions: str | None = None,
    kernel_name: str | None = None,
    policy: Policy | None = None,
    verify: bool | None = None,
    effort: Effort | None = None,
) -> str: ...


def explain(target: Any, *operands: Any, **options: Any) -> str:
    """Describe, as text, how a call of arrays is computed, or a kernel is transformed.

    The text of a call has its steps and what computes them, the recorded recipe that a
    kernel would have, how long its calls have taken in this process, and whether its
    kernel is being built, tried or used.

    Args:
        target: the subscripts of a call; or a kernel, or an einsum, for its
            untransformed kernel.
        operands: the arrays of the call, of any values.
        options: ``device``, ``database``, ``policy`` and ``effort``; of a kernel also
            ``arguments``, ``instructions``, ``kernel_name`` and ``verify``; as for
            :func:`feinsum.retrieve`.

    Raises:
        InvalidEinsumError: if subscripts and shapes do not match.
        NotAKernelError: if the target is neither of these.
        InvalidOptionError: for an unknown ``policy`` or ``effort``.
    """
    if isinstance(target, str) and operands:
        return "\n".join(_describe_call(target, operands, **options))
    from feinsum.retrieval import explain as explain_kernel  # loads Loopy

    return explain_kernel(target, *operands, **options)


with_options_of(get_overloads(explain)[-1])(explain)


def query_as_called(
    calls: Iterable[EinsumCall], database: Database = None, **options: Any
) -> tuple[EinsumCall, Match]:
    """Query the facts that a call would use.

    Args:
        calls: the call as it was written, and with as few axes as possible, in the
            order in which recipes are looked up.
        database: as for :func:`feinsum.retrieve`.
        options: further options of :func:`feinsum.query`.

    Returns:
        The first of these that has facts, and its match; the last one if none has any.
    """
    from feinsum.retrieval import query  # loads Loopy

    for call in calls:
        match = query(call.einsum, sizes=call.sizes, database=database, **options)
        if match.ranking:
            break
    return call, match


def _describe_call(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    effort: Effort | None = None,
) -> Iterator[str]:
    arrays = [as_array(x, k) for k, x in enumerate(operands)]
    steps = prepare_without_kernel(subscripts, arrays)
    shapes = ", ".join(f"{x.dtype} {x.shape}" for x in arrays)
    yield f"call: {subscripts} of {shapes}"
    yield f"result: {steps.result_dtype} {steps.shape}"
    for k, step in enumerate(steps.steps if steps.path is not None else ()):
        indices = set().union(*step.inputs)
        n_products = prod(steps.terms.extents[index] for index in indices)
        words = ",".join(map("".join, step.inputs)) + "->" + "".join(step.output)
        yield f"step {k + 1}: {words}, {n_products:.2g} multiplications"
    options = make_lookup_options(database, policy, "return", effort)
    key = make_call_key(subscripts, operands, arrays, device, options)
    call = find_call(key)
    yield f"computed by: {_describe_computation(key, arrays, steps, call)}"
    yield from _describe_facts(key)
    yield f"kernel: {_describe_kernel(key, call)}"


def _describe_facts(key: CallKey) -> Iterator[str]:
    """Describe the recorded recipe of a call, if any, and layers that were skipped."""
    from feinsum.calling.structure import CallStructure
    from feinsum.db import list_layer_states, looked_up_store

    options = key.options
    try:
        parsed = key.parse()
        if parsed.is_empty:
            return
        calls = dict.fromkeys([parsed, CallStructure(parsed, key.forms).normal.parsed])
        with looked_up_store(options.database) as store:
            call, match = query_as_called(
                calls, store, device=key.device.selector or None, policy=options.policy
            )
            layers = list_layer_states(store)
    except FeinsumError as error:  # numpy computes such calls
        yield f"not looked up: {error}"
        return
    if match.ranking:
        axes = "" if call is parsed else ", with merged axes"
        yield f"recorded{axes}: {match.level} ({match.reason})"
    yield from (f"layer {layer}" for layer in layers if layer.problem)


def _describe_computation(
    key: CallKey, arrays: Sequence[Any], steps: NumpyStepsCall, call: Call | None
) -> str:
    if _find_kernel(call) or (call is None and not key.is_usual):
        return "a kernel of its own"
    # Empty operands take no time, and show whether the extension computes such calls.
    empty = tuple(np.empty((0,) * x.ndim, x.dtype) for x in arrays)
    if compute(key.subscripts, empty, True) is not NotImplemented:
        order = ", perhaps in another order" if len(arrays) > 2 else ""
        return (
            "the compiled extension, in "
            f"{format_count(_count_steps(steps), 'step')}{order}"
        )
    if steps.path is None:
        return "numpy.einsum"
    return f"Python, in {format_count(_count_steps(steps), 'step')}"


def _find_kernel(call: Call | None) -> str:
    """Return the recipe of the kernel that computes a call; empty without one."""
    if isinstance(call, GeneralCall):
        return "" if call.built is None else call.built.recipe
    return "" if call is None else call.recipe


def _count_steps(steps: NumpyStepsCall) -> int:
    return 1 if steps.path is None else len(steps.steps)


def _describe_kernel(key: CallKey, call: Call | None) -> str:
    """Describe the kernel of a call, or say when it gets one."""
    if call is None:
        return _describe_later_kernel(key)
    recipe = _find_kernel(call)
    if isinstance(call, GeneralCall) and call.has_had_trial and recipe:
        return f"used: it was faster than the steps ({recipe})"
    if recipe:
        return recipe
    settled = call.built if isinstance(call, GeneralCall) else call
    if settled is not None:
        error = getattr(settled, "error", None)
        return f"none: {error}" if error else "none fits such calls"
    assert isinstance(call, GeneralCall)
    spent = f"{format_count(call.n_calls, 'call')} took {call.spent_s:.2g} s"
    if call.trial is not None:
        n_rounds = len(call.trial.kernel_s)
        return (
            f"in its trial against the steps, after {format_count(n_rounds, 'round')}"
        )
    builds = get_remembered(Calls).builds
    if call.has_had_trial:
        return "none: the steps were not slower than it"
    if call.is_building:
        return f"another process is building one, since {spent}"
    if builds.expected_s == inf:
        return f"none: the last build of this process failed; {spent}"
    if recipe := _find_built_recipe(key):
        return (
            f"none; one that was built earlier ({recipe}) is tried after {LOOK_UP_S:g} "
            f"s of calls with these subscripts; {spent}"
        )
    due_s = builds.expected_s / GAIN
    return (
        f"none; one of an earlier process is tried after {LOOK_UP_S:g} s of calls with "
        f"these subscripts, and one is built after {due_s:.2g} s of calls of this "
        f"structure, whatever their sizes; {spent}"
    )


def _describe_later_kernel(key: CallKey) -> str:
    """Say when a call that Python has not computed yet gets its kernel."""
    if not key.is_usual:
        variables = (x for x in (EFFORT_VARIABLE, DEVICE_VARIABLE) if os.environ.get(x))
        setting = next(variables, None)
        reason = f"{setting} is set" if setting else "its options require one"
        return f"built by the first call, since {reason}"
    if recipe := _find_built_recipe(key):
        return (
            f"none yet; one that was built earlier ({recipe}) is tried once such calls "
            "have taken a third of a second"
        )
    return (
        "none; the calls of this process have not yet taken so long that one is looked "
        "for"
    )


def _find_built_recipe(key: CallKey) -> str:
    """Return the recipe of a kernel that tuning or an earlier process has built."""
    from feinsum.calling.host.builder import BuildRequest, find_built_recipe

    database = key.options.database
    request = BuildRequest.of(key.subscripts, key.forms, key.first, database)
    try:
        return "" if request is None else find_built_recipe(request)
    except FeinsumError:  # no kernel computes such calls
        return ""
