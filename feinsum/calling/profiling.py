"""``profile``: in which einsums a program spends its time, and what tuning would gain.

::

    with feinsum.profile() as found:
        run()                             # calls feinsum.einsum, or numpy.einsum
    print(found)                          # the calls that took most of the time
    found.write("calls.json")             # feinsum tune --suite calls.json

While a profile is active, the einsums of numpy and feinsum are replaced by functions
that time them. Calls are distinguished by subscripts, shapes, dtypes and strides. A
call inside another one, such as numpy's within feinsum's, counts once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, wraps
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from feinsum.calling.background import BUILD_THREAD
from feinsum.calling.einsum_call import EinsumCall, parse_call
from feinsum.calling.host.general import SHORT_S, GeneralCall
from feinsum.calling.kernel_cache import RECORDED, Calls
from feinsum.calling.operands import ArrayForm, find_first_uses, get_form
from feinsum.calling.structure import CallStructure
from feinsum.calling.terms import as_subscripts
from feinsum.errors import FeinsumError
from feinsum.extras import show_progress
from feinsum.ir import Operand, to_text
from feinsum.memory import get_remembered
from feinsum.words import format_count

logger = logging.getLogger(__name__)

MAX_LINES = 20
"""Maximum calls in a table."""
MIN_SHARE = 0.01
"""Minimum share of the time of all calls at which a call is proposed for tuning."""


@dataclass(eq=False)
class ProfiledCall:
    """Calls with equal subscripts, shapes, dtypes and strides.

    Attributes:
        caller: ``numpy`` or ``feinsum``.
        forms: forms of the operands.
        first: for each operand, the first position with the same array.
        n_calls, seconds: the number of calls, and their total time.
        fastest_s: seconds of the fastest call. Others may have waited for a first use,
            or for other programs, which no kernel makes faster.
        way: what computed the last calls: ``numpy``, ``feinsum`` in steps, or a
            kernel of feinsum: ``tuned``, by a recorded recipe, or else ``kernel``.
    """

    caller: str
    subscripts: str
    forms: tuple[ArrayForm, ...]
    first: tuple[int, ...]
    n_calls: int = 0
    seconds: float = 0.0
    fastest_s: float = float("inf")
    way: str = ""

    @property
    def title(self) -> str:
        """The call as text: its subscripts and shapes."""
        shapes = ", ".join("x".join(map(str, form.shape)) for form in self.forms)
        return f"{self.subscripts} of {shapes} {np.result_type(*self.dtypes)}"

    @property
    def is_short(self) -> bool:
        """Whether the calls consist of overhead, which no kernel reduces."""
        return self.fastest_s < SHORT_S

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        return [form.dtype for form in self.forms]

    @cached_property
    def parsed(self) -> EinsumCall | None:
        """The einsum to tune; None for a call that has no kernel, such as a view."""
        shapes = [(form.shape, form.dtype) for form in self.forms]
        try:
            parsed = parse_call(self.subscripts, shapes, self.first)
        except FeinsumError:  # its dtypes or sizes have no kernel
            return None
        is_view = len(parsed.inputs) == 1 and {*parsed.inputs[0]} == {*parsed.output}
        if parsed.is_empty or is_view:
            return None
        return CallStructure(parsed, self.forms).normal.parsed

    @cached_property
    def tuned_s(self) -> float | None:
        """Seconds of one call with the best predicted recipe; None without one."""
        if self.parsed is None:
            return None
        from feinsum.canonical import canonicalize  # these load Loopy
        from feinsum.measure import open_device
        from feinsum.predict import predict_recipes

        form = canonicalize(self.parsed.einsum)
        names = form.relabeling.size_params
        sizes = {names[name]: n for name, n in self.parsed.sizes.items()}
        try:
            predicted = predict_recipes(form.einsum, sizes, open_device("host").device)
        except FeinsumError as error:
            logger.info("nothing is predicted for %s: %s", self.title, error)
            return None
        return predicted[0].seconds if predicted else None

    @property
    def gain(self) -> float | None:
        """How many times as fast as the fastest call a tuned one would be at best.

        The cost functions of recipes assume that the machine reaches its usual peaks.
        """
        if self.tuned_s is None:
            return None
        return self.fastest_s / self.tuned_s

    def document(self) -> dict[str, Any] | None:
        """Return the call for ``feinsum tune --suite``; None if it has no kernel."""
        from feinsum.calling.host.builder import BuildRequest

        if self.parsed is None:
            return None
        request = BuildRequest.of(self.subscripts, self.forms, self.first, None)
        sizes = ",".join(f"{name}={n}" for name, n in self.parsed.sizes.items())
        document = {"einsum": to_text(self.parsed.einsum), "size": sizes}
        return document if request is None else {**document, "call": asdict(request)}


@dataclass(eq=False)
class Profile:
    """The einsums of a program, and what they took.

    Attributes:
        seconds: from the beginning of the profile to its end.
    """

    seconds: float = 0.0
    _calls: dict[Any, ProfiledCall] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def calls(self) -> list[ProfiledCall]:
        """All calls, those that took the most time together first."""
        return sorted(self._calls.values(), key=lambda call: -call.seconds)

    @property
    def calls_s(self) -> float:
        """Seconds of all calls."""
        return sum(call.seconds for call in self._calls.values())

    def add(self, caller: str, arguments: tuple[Any, ...], seconds: float) -> None:
        """Count a call, in either notation of numpy, that has returned."""
        try:
            subscripts, operands = as_subscripts(arguments)
            forms = tuple(get_form(np.asarray(x)) for x in operands)
        except (FeinsumError, TypeError, ValueError):
            return  # such as arrays on a device, which numpy cannot read
        if any(isinstance(x, Operand) for x in operands):
            return
        key = caller, subscripts, forms, find_first_uses(operands)
        with self._lock:
            call = self._calls.setdefault(key, ProfiledCall(*key))
            call.n_calls += 1
            call.seconds += seconds
            call.fastest_s = min(call.fastest_s, seconds)

    def note_ways(self) -> None:
        """Record for each call what computes it by now."""
        recipes = {
            (call.key.subscripts, call.key.forms): call.built.recipe
            for call in get_remembered(Calls).prepared.values()
            if isinstance(call, GeneralCall) and call.built is not None
        }
        for call in self._calls.values():
            call.way = call.caller
            recipe = recipes.get((call.subscripts, call.forms))
            if recipe and call.caller == "feinsum":
                call.way = "tuned" if recipe == RECORDED else "kernel"

    def write(self, path: str | PathLike[str]) -> int:
        """Write the calls for ``feinsum tune --suite``, as JSON; return their number.

        Calls that took less than a hundredth of the time are left out, and so are those
        that have no kernel, or are too short for one.
        """
        documents = [call.document() for call in self._list_worthwhile()]
        listed = [document for document in documents if document is not None]
        lines = ",\n".join(map(json.dumps, listed))
        Path(path).write_text(f"[\n{lines}\n]\n", "utf-8")
        return len(listed)

    def __str__(self) -> str:
        calls = self.calls
        share = f"{self.calls_s / self.seconds:.0%}" if self.seconds else "0 %"
        n_calls = format_count(sum(x.n_calls for x in calls), "einsum call")
        took = f"took {self.calls_s:.3g} of {self.seconds:.3g} s ({share})"
        lines = [f"{n_calls} {took}"]
        long = [call for call in calls if not call.is_short]
        short = [call for call in calls if call.is_short]
        gains = self._predict_gains()
        if long:
            lines.append("  seconds    calls    min, ms  at best  by       call")
        lines += [_format_call(call, gains.get(id(call))) for call in long[:MAX_LINES]]
        if len(long) > MAX_LINES:
            lines.append(f"and {format_count(len(long) - MAX_LINES, 'other call')}")
        if short:
            n_short = format_count(sum(call.n_calls for call in short), "call")
            seconds = sum(call.seconds for call in short)
            lines.append(f"{seconds:9.3g} s: {n_short} too short for a kernel to help")
        if gains:
            lines.append(
                "at best: times as fast with the best recipe, by a model of full speed"
            )
        if any(call.way == "tuned" for call in long):
            lines.append("tuned: a kernel with a recorded recipe computes it already")
        return "\n".join(lines)

    def _list_worthwhile(self) -> list[ProfiledCall]:
        """List the calls for which tuning may pay off."""
        least_s = MIN_SHARE * self.calls_s
        return [x for x in self.calls if x.seconds >= least_s and not x.is_short]

    def _predict_gains(self) -> dict[int, float]:
        """Return the gains of the worthwhile calls that are not tuned, by their ids."""
        shown = self._list_worthwhile()[:MAX_LINES]
        untuned = [call for call in shown if call.way != "tuned"]
        # the first prediction loads Loopy, and each one compares hundreds of recipes
        with show_progress(len(untuned), "predicting the fastest recipes") as advance:
            gains: dict[int, float] = {}
            for call in untuned:
                if (gain := call.gain) is not None:
                    gains[id(call)] = max(gain, 1.0)
                advance()
        return gains


def _format_call(call: ProfiledCall, gain: float | None) -> str:
    """Format a call as a line of the table."""
    factor = "-" if gain is None else f"{gain:.{1 if gain < 10 else 0}f}x"
    return (
        f"{call.seconds:9.3g} {call.n_calls:8} {1e3 * call.fastest_s:10.3g} "
        f"{factor:>8}  {call.way:<8} {call.title}"
    )


@contextmanager
def profile() -> Iterator[Profile]:
    """Record in which einsums a program spends its time, while the context is active.

    Recorded are calls of ``feinsum.einsum``, ``feinsum.contract`` and ``numpy.einsum``
    in all threads; but not of a function that was imported with ``from numpy import
    einsum``, which cannot be replaced.

    >>> import numpy as np
    >>> with profile() as found:
    ...     for _ in range(3):
    ...         _ = np.einsum("ij,jk->ik", np.ones((20, 30)), np.ones((30, 4)))
    >>> (call,) = found.calls
    >>> call.caller, call.n_calls, call.title
    ('numpy', 3, 'ij,jk->ik of 20x30, 30x4 float64')
    """
    from feinsum.calling import dispatch, numpy_options

    profiled, active = Profile(), threading.local()

    def make_timed(
        caller: str, function: Callable[..., Any], *, is_packed: bool
    ) -> Any:
        @wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            # einsums that check a kernel are part of the call that builds it
            is_build = threading.current_thread().name == BUILD_THREAD
            if is_build or getattr(active, "is_inside", False):
                return function(*arguments, **options)
            active.is_inside, start_s = True, perf_counter()
            try:
                result = function(*arguments, **options)
            finally:
                active.is_inside = False
            elapsed_s = perf_counter() - start_s
            # a call that the extension does not compute is counted in Python instead
            if result is not NotImplemented:
                call = (arguments[0], *arguments[1]) if is_packed else arguments
                profiled.add(caller, call, elapsed_s)
            return result

        return run

    replaced: list[tuple[Any, str, str, bool]] = [
        (np, "einsum", "numpy", False),
        (dispatch, "compute", "feinsum", True),
        (numpy_options, "einsum_with_options", "feinsum", True),
    ]
    originals = [getattr(module, name) for module, name, *_ in replaced]
    start_s = perf_counter()
    try:
        for (module, name, caller, is_packed), function in zip(
            replaced, originals, strict=True
        ):
            setattr(module, name, make_timed(caller, function, is_packed=is_packed))
        yield profiled
    finally:
        profiled.seconds = perf_counter() - start_s
        profiled.note_ways()
        for (module, name, *_), function in zip(replaced, originals, strict=True):
            setattr(module, name, function)
