"""Optional packages: the error that says how to install one, and a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Timer

from feinsum.errors import FeinsumError


@contextmanager
def require_extra(
    package: str,
    extra: str | None,
    feature: str,
    error_of: Callable[[str], FeinsumError] = FeinsumError,
) -> Iterator[None]:
    """Explain, if the import of a package in the body fails, how to install it.

    Args:
        package: its name in a package index.
        extra: the extra of feinsum that installs it; None if there is none.
        feature: the feature that needs it.
        error_of: makes the error from a message.

    Raises:
        FeinsumError: if the body raises an ImportError, with the command that installs
            the package.

    >>> with require_extra("no_such_package", "all", "a dance"):
    ...     import no_such_package
    Traceback (most recent call last):
        ...
    feinsum.errors.FeinsumError: a dance needs no_such_package, which is not
    installed; run: pip install 'feinsum[all]'
    """
    try:
        yield
    except ImportError as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        # an import error inside an installed package is not a missing package
        is_missing = (absent or "").partition(".")[0] == package
        why = "is not installed" if is_missing else f"cannot be imported ({error})"
        target = package if extra is None else f"'feinsum[{extra}]'"
        message = f"{feature} needs {package}, which {why}; run: pip install {target}"
        raise error_of(message) from error


BAR_DELAY_S = 1.0
"""Seconds after which progress is shown, if there is a terminal."""


@contextmanager
def show_progress(total: int, words: str) -> Iterator[Callable[[], None]]:
    """Show progress on the terminal for anything that takes over a second.

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
    # most verifications end sooner, and a bar that only flashes up distracts
    late = Timer(BAR_DELAY_S, bar.start)
    late.daemon = True
    late.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        late.cancel()
        # bar.start may be running in that thread, and must not follow bar.stop
        late.join()
        bar.stop()
