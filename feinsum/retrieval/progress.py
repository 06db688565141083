"""A progress bar for verifications that take long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Timer

PATIENCE_S = 1.0
"""Longer work is shown, if there is a terminal."""


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
