"""Children answer, or the error says how they ended; none of them outlives its use."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import psutil
import pytest

from feinsum.processes import Worker, WorkerError, WorkerTimeoutError, run_command

PATIENT_S = 60.0

HEAD = "from feinsum.processes import *; import os, time; channel = Channel()\n"

ECHO = """
for line in channel.requests():
    print('printed by a library')
    os.write(1, b'printed by a driver')
    channel.answer(line)
"""

FORKING = """
def die(): os.kill(os.getpid(), 11)
def fail(): raise ValueError('famous last words')
def hang(): os.system('sleep 60')
def greet(): return 'hello'
for line in channel.requests():
    try:
        channel.answer(answer_in_fork(globals()[line], 0.5, channel))
    except WorkerError as error:
        channel.answer(f'{type(error).__name__}: its process {error}')
"""


def worker_of(program: str) -> Worker:
    return Worker([sys.executable, "-c", HEAD + program])


def is_living(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_ended(pid: int) -> bool:
    """Whether a process ends, which takes a moment after it was killed."""
    end_s = time.monotonic() + PATIENT_S
    while is_living(pid) and time.monotonic() < end_s:
        time.sleep(0.01)
    return not is_living(pid)


def test_each_request_has_its_answer_whatever_is_printed():
    """Answers of any length come in order; output is no answer."""
    lines = ["short", "", "x" * 3_000_000, '{"unicode": "ä"}']
    with worker_of(ECHO) as worker:
        assert [worker.request(line, PATIENT_S) for line in lines] == lines


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("os._exit(3)", "ended with code 3$"),
        ("raise ValueError('famous last words')", "code 1: .*famous last words"),
        ("os.kill(os.getpid(), 11)", "ended with SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "ended with SIGKILL, perhaps for want of memory"),
        ("limit_memory(2**28); bytearray(2**29)", "code 1: MemoryError"),
        ("time.sleep(60)", "gave no answer within 0.5 s and was stopped"),
    ],
)
def test_a_child_without_an_answer_says_how_it_ended(program, words):
    """By an exit code, a signal, a limit of memory or a deadline; it is reaped."""
    worker = worker_of(program)
    is_late = "sleep" in program
    kind = WorkerTimeoutError if is_late else WorkerError
    with pytest.raises(kind, match=words):
        worker.request("go", 0.5 if is_late else PATIENT_S)
    assert not psutil.pid_exists(worker.pid)


def test_the_deadline_holds_for_a_child_that_does_not_read():
    """A request that fills the buffers of the socket waits no longer."""
    began_s = time.monotonic()
    with pytest.raises(WorkerTimeoutError):
        worker_of("time.sleep(60)").request("x" * 10_000_000, 0.3)
    assert time.monotonic() - began_s < PATIENT_S / 2


def test_what_a_child_started_ends_with_it():
    """Also at a deadline."""
    worker = worker_of(
        "import subprocess; child = subprocess.Popen(['sleep', '60'])\n"
        "channel.answer(str(child.pid)); time.sleep(60)"
    )
    grandchild = int(worker.request("go", PATIENT_S))
    assert is_living(grandchild)
    with pytest.raises(WorkerTimeoutError):
        worker.receive(0.1)
    assert is_ended(grandchild)


@pytest.mark.parametrize("end", ["close", "garbage", "exit"])
def test_no_child_outlives_its_worker(end):
    """Whether it is closed, forgotten, or its parent ends."""
    if end == "exit":
        code = (
            "import sys; from feinsum.processes import Worker\n"
            "worker = Worker([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "print(worker.pid)"
        )
        command = [sys.executable, "-c", code]
        pid = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    else:
        worker = worker_of("time.sleep(60)")
        pid = worker.pid
        if end == "close":
            worker.close()
        del worker
        gc.collect()
    assert is_ended(pid)


def test_another_thread_interrupts_a_wait():
    """The wait ends at once, with an error."""
    worker = worker_of("time.sleep(60)")
    threading.Timer(0.2, worker.interrupt).start()
    with pytest.raises(WorkerError, match="was interrupted"):
        worker.request("go", PATIENT_S)
    assert not psutil.pid_exists(worker.pid)


def test_a_fork_of_the_parent_leaves_the_child_alone():
    """Its exit does not end the worker of the process that it is a fork of."""
    code = HEAD.replace("channel = Channel()", "import sys") + (
        f"worker = Worker([sys.executable, '-c', {HEAD + ECHO!r}])\n"
        "if os.fork() == 0: sys.exit()\n"
        "os.wait(); print(worker.request('still here', 60))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "still here\n"


def test_a_fork_answers_or_says_how_it_ended():
    """The child that forks is as before, whatever the fork does."""
    with worker_of(FORKING) as worker:
        answers = {
            name: worker.request(name, PATIENT_S)
            for name in ("greet", "die", "fail", "hang", "greet")
        }
    assert answers["greet"] == "hello"
    assert answers["die"] == "WorkerError: its process ended with SIGSEGV"
    assert "its process ended with code 1: ValueError: famous" in answers["fail"]
    assert answers["hang"].startswith("WorkerTimeoutError: its process gave no answer")


def test_a_fork_ends_with_the_parent_of_its_process():
    """Nobody is left who would wait for it."""
    program = """
def hang():
    channel.answer(str(os.getpid()))
    time.sleep(60)
next(channel.requests())
answer_in_fork(hang, 60, channel)
"""
    worker = worker_of(program)
    fork = int(worker.request("go", PATIENT_S))
    worker._socket.close()
    assert is_ended(fork)


def test_a_command_ends_at_its_limit_with_what_it_started(tmp_path):
    """As a compiler that hangs in a program of its own."""
    script = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sh", "-c", script], limit_s=0.3)
    assert is_ended(int((tmp_path / "pid").read_text()))
