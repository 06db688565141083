"""Verifying the recipes of many nests at once, in one process per core.

The processes compute concurrently, and take turns with timing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from threading import Timer

from feinsum.measure.question import Question, Verdict
from feinsum.retrieval.verifying import asked
from feinsum.targets.host.threads import n_threads

__all__ = ["asked_together", "shown_progress"]

PATIENCE_S = 1.0
"""What takes longer is shown, if there is a terminal."""


def asked_together(
    questions: Sequence[Question], advance: Callable[[], None]
) -> Iterator[tuple[int, Verdict]]:
    """The answers with the numbers of their questions, as they arrive."""
    n_processes = min(len(questions), n_threads())
    with (
        tempfile.NamedTemporaryFile(prefix="feinsum-timing-") as lock,
        ThreadPoolExecutor(n_processes) as threads,
    ):
        name = lock.name if n_processes > 1 else ""
        asking = {
            threads.submit(asked, _with_lock(question, name)): k
            for k, question in enumerate(questions)
        }
        for answer in as_completed(asking):
            advance()
            yield asking[answer], answer.result()


def _with_lock(question: Question, name: str) -> Question:
    return replace(question, timing_lock=name)


@contextmanager
def shown_progress(total: int, words: str) -> Iterator[Callable[[], None]]:
    """A progress bar on the terminal for anything that takes more than a second.

    Yields:
        A function to call after each step.
    """
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(words, total=total)
    late = Timer(PATIENCE_S, bar.start)
    late.daemon = True
    late.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        late.cancel()
        late.join()
        bar.stop()
