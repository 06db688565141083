"""``explain``: what computes a call of arrays, and why.

For a kernel or a symbolic einsum, it describes what :func:`feinsum.retrieve` would do.

>>> import numpy as np
>>> print(explain("ij,jk,kl->il", *[np.ones((20, 20))] * 3).splitlines()[2])
step 1: ij,jk->ik, 8e+03 multiplications
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import TYPE_CHECKING, Any, get_overloads, overload

import numpy as np

from feinsum.calling.call import find_call, prepare_without_kernel
from feinsum.calling.host.general import GAIN, LOOK_UP_S, GeneralCall
from feinsum.calling.kernel_cache import Calls
from feinsum.calling.operands import as_array
from feinsum.contraction.direct import compute
from feinsum.memory import get_remembered
from feinsum.options import DEVICE_VARIABLE, EFFORT_VARIABLE, with_options_of
from feinsum.words import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    import loopy as lp

    from feinsum.calling.by_numpy import NumpyStepsCall
    from feinsum.calling.call import Call
    from feinsum.db import Database
    from feinsum.ir import BatchedEinsum
    from feinsum.options import Effort
    from feinsum.records import Policy


@overload
def explain(target: str, *operands: Any) -> str: ...


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

    The text of a call has its steps and what computes them, how long its calls have
    taken in this process, and whether its kernel is being built, tried or used.

    Args:
        target: the subscripts of a call; or a kernel, or an einsum, for its
            untransformed kernel.
        operands: the arrays of the call, of any values.
        options: ``arguments``, ``device``, ``database``, ``instructions``,
            ``kernel_name``, ``policy``, ``verify`` and ``effort`` of a kernel, as for
            :func:`feinsum.retrieve`.

    Raises:
        InvalidEinsumError: if subscripts and shapes do not match.
        NotAKernelError: if the target is neither of these.
        InvalidOptionError: for an unknown ``policy`` or ``effort``.
    """
    if isinstance(target, str) and operands:
        return "\n".join(_describe_call(target, operands))
    from feinsum.retrieval import explain as explain_kernel  # loads Loopy

    return explain_kernel(target, *operands, **options)


with_options_of(get_overloads(explain)[-1])(explain)


def _describe_call(subscripts: str, operands: Sequence[Any]) -> Iterator[str]:
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
    call = find_call(subscripts, arrays)
    yield f"computed by: {_describe_computation(subscripts, arrays, steps, call)}"
    yield f"kernel: {_describe_kernel(call)}"


def _describe_computation(
    subscripts: str, arrays: Sequence[Any], steps: NumpyStepsCall, call: Call | None
) -> str:
    is_first_built = call is None and _find_setting() is not None
    if is_first_built or (
        not isinstance(call, GeneralCall) and getattr(call, "kernel", None)
    ):
        return "a kernel of its own"
    # Empty operands take no time, and show whether the extension computes such calls.
    empty = tuple(np.empty((0,) * x.ndim, x.dtype) for x in arrays)
    if compute(subscripts, empty, True) is not NotImplemented:
        order = ", perhaps in another order" if len(arrays) > 2 else ""
        return (
            "the compiled extension, in "
            f"{format_count(_count_steps(steps), 'step')}{order}"
        )
    if steps.path is None:
        return "numpy.einsum"
    return f"Python, in {format_count(_count_steps(steps), 'step')}"


def _find_setting() -> str | None:
    """Return the set variable that makes the first call build its kernel, if any."""
    effort = os.environ.get(EFFORT_VARIABLE, "") not in ("", "amortized")
    device = os.environ.get(DEVICE_VARIABLE, "") != ""
    return EFFORT_VARIABLE if effort else DEVICE_VARIABLE if device else None


def _count_steps(steps: NumpyStepsCall) -> int:
    return 1 if steps.path is None else len(steps.steps)


def _describe_kernel(call: Call | None) -> str:
    """Describe the kernel of a call, or say when it gets one."""
    if call is None and (setting := _find_setting()) is not None:
        return f"built by the first call, since {setting} is set"
    if call is None:
        return (
            "none; the calls of this process have not yet taken so long that one is "
            "looked for"
        )
    if not isinstance(call, GeneralCall):
        if error := getattr(call, "error", None):
            return f"none: {error}"
        kernel = getattr(call, "kernel", None)
        if kernel is None:
            return "none fits such calls"
        if kernel.spec is not None:
            return str(kernel.spec)
        # of a recorded recipe, only the transformed kernel is kept
        return "a recorded recipe" if kernel.is_retrieved else "untransformed"
    spent = f"{format_count(call.n_calls, 'call')} took {call.spent_s:.2g} s"
    if call.built is not None:
        return "used: it was faster than the steps"
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
    due_s = builds.expected_s / GAIN
    return (
        f"none; one of an earlier process is tried after {LOOK_UP_S:g} s of calls with "
        f"these subscripts, and one is built after {due_s:.2g} s of calls of this "
        f"structure, whatever their sizes; {spent}"
    )
