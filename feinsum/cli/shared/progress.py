"""Show progress as a count on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def show_count(
    description: str,
) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of items done since the last call."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn()
    # a log of a batch system must not get thousands of lines
    is_quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_quiet) as bar:
        task = bar.add_task(description, total=None)
        yield lambda n: bar.advance(task, n)


def count_items(items: Iterable[T], step: Callable[[int], None]) -> Iterator[T]:
    """Yield the items, and count each in ``step`` once it has been processed."""
    for item in items:
        yield item
        step(1)
