"""Every part runs once, on threads that are kept, and none after an error."""

from __future__ import annotations

import threading
import time
from itertools import product

import pytest

from feinsum.programs.parts import run_each
from tests.children import run_python


def test_every_part_runs_once():
    for n_workers, n_parts in product((1, 2, 5), (0, 1, 7, 100)):
        seen: list[int] = []
        run_each(seen.append, range(n_parts), n_workers)
        assert sorted(seen) == [*range(n_parts)]


def test_parts_run_at_the_same_time_on_threads_that_are_kept():
    names: set[str] = set()
    for _ in range(2):
        together = threading.Barrier(3)

        def meet(_: int, together: threading.Barrier = together) -> None:
            together.wait(timeout=60)
            names.add(threading.current_thread().name)

        run_each(meet, range(3), 3)
    assert len(names) == 3
    assert threading.current_thread().name in names


@pytest.mark.parametrize("failing", [0, 1])
def test_nothing_runs_after_the_error_of_a_part(failing):
    together, running = threading.Barrier(2), set()

    def run(part: int) -> None:
        together.wait(timeout=60)
        if part == failing:
            raise ValueError(f"part {part}")
        running.add(part)
        time.sleep(0.05)
        running.remove(part)

    with pytest.raises(ValueError, match=f"part {failing}"):
        run_each(run, [0, 1], 2)
    assert not running


FORKED = """
import multiprocessing, time
from feinsum.programs.parts import run_each
parts = [0.001] * 3
run_each(time.sleep, parts, 3)
child = multiprocessing.get_context("fork").Process(
    target=run_each, args=(time.sleep, parts, 3)
)
child.start()
child.join(timeout=60)
print(child.exitcode)
"""


def test_a_forked_process_has_threads_of_its_own():
    """In a process without JAX, which refuses to be forked."""
    done = run_python("-W", "ignore::DeprecationWarning", "-c", FORKED, limit_s=120)
    assert done.stdout.split() == ["0"], done.stderr
