"""The process in which recipes are verified and timed, isolated from the caller.

It answers each :class:`VerificationRequest` with a :class:`Verdict`; see
:mod:`feinsum.processes`. A fork answers each request, so imports are loaded once, and
any damage by a recipe is gone after the answer::

    verifier: imports numpy (and Loopy, for kernels that are not generated yet)
       |---- fork: limits its memory, verifies, times, answers, ends
       |---- fork: the next request

The process itself runs no kernel, so it has no threads of the pool that a fork would
lack. It ends with its parent, or when idle for a while.
"""

from __future__ import annotations

import sys

from feinsum.errors import (
    FeinsumError,
    InvalidRecordError,
    TrialCrashError,
    TrialTimeoutError,
)
from feinsum.measure.trial import compare_kernels
from feinsum.measure.verdicts import Verdict, VerificationRequest
from feinsum.processes import (
    Channel,
    WorkerError,
    WorkerTimeoutError,
    answer_in_fork,
    limit_memory,
)
from feinsum.records import from_json, to_json


def main() -> None:
    """Answer requests until the channel is closed, or none has come for a minute."""
    channel = Channel()
    if sys.argv[1:]:
        # transforms of the user need Loopy
        from feinsum.transforms import import_transforms

        import_transforms(sys.argv[1:])
    for line in channel.requests(60.0):
        request = from_json(VerificationRequest, line)
        if request.kernels is None:
            from feinsum.measure.judging import prepare_fork  # needs the code generator

            prepare_fork(request)
        channel.answer(to_json(_answer_request(request, channel)))


def _answer_request(request: VerificationRequest, channel: Channel) -> Verdict:
    """Judge in a fork of this process; a fork without an answer is a verdict."""
    try:
        answer = answer_in_fork(
            lambda: to_json(_judge(request)), request.limit_s, channel
        )
        return from_json(Verdict, answer)
    except WorkerTimeoutError:
        why = f"no answer within {request.limit_s:g} s; it was stopped"
        return Verdict(TrialTimeoutError.code, why)
    except (WorkerError, InvalidRecordError) as error:
        return Verdict(TrialCrashError.code, f"its process {error}")


def _judge(request: VerificationRequest) -> Verdict:
    try:
        if request.kernels is not None:
            limit_memory(request.memory_bytes)
            return compare_kernels(request.kernels, request.timing_lock)
        from feinsum.measure.judging import judge_recipe
        from feinsum.targets.devices import open_device

        opened = open_device(request.device)
        # Only the host's memory is limited: a GPU's driver allocates as it likes.
        if opened.device.kind == "cpu":
            limit_memory(request.memory_bytes)
        return judge_recipe(request, opened)
    except FeinsumError as error:
        return Verdict(error.code, str(error)[:65536])


if __name__ == "__main__":
    main()
