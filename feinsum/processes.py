r"""Child processes: commands with a deadline, and workers that answer requests.

Whatever may crash, hang or take all memory runs in a child: trials of recipes, their
verification, nauty's search, builds of kernels beside a call, probes of devices. A
:class:`Worker` is the parent's end of such a child, a :class:`Channel` the child's::

    parent                                               child, in a session of its own
    Worker.request(line) ---- a socket, lines of JSON ---> fd 0: Channel.requests()
                         <------------------------------- Channel.answer(line)
    WorkerError: how it ended   <--- a log in memory ---  fd 1, 2: whatever is printed

Answers do not go through standard output, so no driver or library can spoil them by
printing. Every wait has a deadline. A worker that misses it, dies, or is interrupted is
killed with its whole session and reaped, so no later request can meet an old answer.

Why no library does this: pools such as loky and pebble run functions of the parent, and
fork it or pickle for it. A fork of a process with OpenMP threads hangs at its first
parallel region, and a worker of loky imports the parent's main module. Our children are
modules of their own (``python -m``), which import only what they need: nauty's search
starts at once, where a copy of the parent would first load Loopy. Neither library kills
what a child started, such as the compilers of OpenCL drivers, or keeps the last output
of a child.

>>> import sys
>>> upper = '''
... from feinsum.processes import Channel
... channel = Channel()
... for line in channel.requests():
...     print("neither this nor what a driver prints is an answer")
...     channel.answer(line.upper())
...     assert line != "stop"
... '''
>>> with Worker([sys.executable, "-c", upper]) as worker:
...     worker.request("ijk", limit_s=60), worker.request("stop", limit_s=60)
...     worker.request("ijk", limit_s=60)
Traceback (most recent call last):
feinsum.processes.WorkerError: ended with code 1: AssertionError
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from math import inf
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Self
from weakref import finalize

if TYPE_CHECKING:  # look-ups import this module and start no process
    from socket import socket
    from tempfile import TemporaryDirectory

_LAUNCHERS = ("HYDI_", "HYDRA_", "MPI", "OMPI_", "PMI", "PMIX_")
"""Prefixes of the variables that MPI launchers set for ranks; a child is not a rank."""
_EXIT_S = 10.0
"""Seconds for a child that closed its channel to exit, since it may dump core."""
_CHUNK_BYTES = 1 << 16


class WorkerError(Exception):
    """A child gave no answer; the message continues "its process ...".

    Callers always translate it to an error of :mod:`feinsum.errors`, since only they
    know what the child was doing.
    """


class WorkerTimeoutError(WorkerError):
    """A child gave no answer before its deadline and was killed."""


def make_python_command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of this package in a child."""
    return (sys.executable, "-W", "ignore", "-m", module)


def run_command(
    command: Sequence[str],
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program in its own session; at the limit, the whole session is killed.

    ``subprocess.run`` kills only the program itself at its timeout. What that started,
    as ``gcc`` starts ``cc1``, would go on and keep the pipes open.

    Raises:
        OSError: if it cannot be started.
        subprocess.TimeoutExpired: if it takes longer than ``limit_s``.
    """
    with subprocess.Popen(  # noqa: S603  (the user's compiler)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        cwd=cwd,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
        finally:
            _kill_session(process)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


class Worker:
    """A child that answers requests, one line of text for each.

    Args:
        command: the command of the child; see :func:`make_python_command`. The child's
            standard input is the channel.
        env: variables of the child; by default those of this process.
        folder: a private one, which is removed when the worker ends.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        folder: TemporaryDirectory[str] | None = None,
    ) -> None:
        import socket

        with ExitStack() as undo:
            self._log = _open_log()
            undo.callback(os.close, self._log)
            self._socket, child_end = socket.socketpair()
            undo.callback(self._socket.close)
            # A session of its own: Ctrl-C at the terminal does not reach it, and
            # killing the session reaches whatever it starts.
            with child_end:
                self._process = subprocess.Popen(  # noqa: S603  (our own modules)
                    command,
                    stdin=child_end.fileno(),
                    stdout=self._log,
                    stderr=self._log,
                    env=env,
                    start_new_session=True,
                )
            undo.pop_all()
        self._received = b""
        self._is_interrupted = False
        self.folder = None if folder is None else folder.name
        self._owner = os.getpid()
        # Without a call of close(), this runs at the end of the interpreter or as
        # garbage.
        self._release = finalize(
            self, _release, self._process, self._socket, self._log, folder, self._owner
        )

    @classmethod
    def isolated(
        cls, command: Sequence[str], export: Callable[[str], Sequence[str]]
    ) -> Self:
        """Start a worker with a private folder for what compilers cache.

        Args:
            command: the command line of the worker.
            export: writes files for the child to that folder, and returns the arguments
                to append to ``command``.
        """
        from tempfile import TemporaryDirectory

        folder = TemporaryDirectory(
            prefix="feinsum-worker-", ignore_cleanup_errors=True
        )
        environment = make_child_environment(folder.name)
        try:
            command = [*command, *export(folder.name)]
            return cls(command, env=environment, folder=folder)
        except BaseException:
            folder.cleanup()
            raise

    @property
    def pid(self) -> int:
        """The id of the child's process, session and process group."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, line: str, limit_s: float) -> str:
        """Send a line and wait for the answer; without one the worker is closed.

        Raises:
            WorkerTimeoutError: if there is none within ``limit_s`` seconds.
            WorkerError: if the child ends, saying how.
        """
        return self._exchange(line.encode() + b"\n", limit_s)

    def receive(self, limit_s: float) -> str:
        """Wait for one more line; see :meth:`request`."""
        return self._exchange(b"", limit_s)

    def interrupt(self) -> None:
        """End the wait of another thread; its :meth:`request` raises an error."""
        import socket

        self._is_interrupted = True
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Kill the child and all that it started, reap it, and remove its folder."""
        self._release()

    def _exchange(self, content: bytes, limit_s: float) -> str:
        end_s = monotonic() + limit_s
        try:
            self._socket.settimeout(_compute_timeout(end_s))
            self._socket.sendall(content)
            while b"\n" not in self._received:
                self._socket.settimeout(_compute_timeout(end_s))
                chunk = self._socket.recv(_CHUNK_BYTES)
                if not chunk:
                    raise EOFError
                self._received += chunk
        except TimeoutError:
            self.close()
            raise WorkerTimeoutError(
                f"gave no answer within {limit_s:g} s and was stopped"
            ) from None
        except (EOFError, ConnectionError):
            raise WorkerError(self._describe_end()) from None
        except (
            BaseException
        ):  # such as Ctrl-C: the answer would be taken for a later one
            self.close()
            raise
        line, _, self._received = self._received.partition(b"\n")
        return line.decode(errors="replace")

    def _describe_end(self) -> str:
        """Describe the end of a child that closed its channel, and reap it."""
        if self._is_interrupted:
            self.close()
            return "was interrupted"
        if self._owner != os.getpid():  # a fork cannot wait for its parent's children
            return "belongs to the parent of this one"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        code, log = self._process.returncode, _read_last(self._log)
        self.close()
        return f"ended with {describe_exit(code, log)}"


def _release(
    process: subprocess.Popen[bytes],
    channel: socket,
    log: int,
    folder: TemporaryDirectory[str] | None,
    owner: int,
) -> None:
    if owner != os.getpid():  # a fork of the parent leaves the child alone
        return
    _kill_session(process)
    process.wait()
    channel.close()
    os.close(log)
    if folder is not None:
        folder.cleanup()


def _kill_session(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _open_log() -> int:
    """Open a file in memory: a full or missing temporary folder stops no child."""
    try:
        return os.memfd_create("feinsum-log", os.MFD_CLOEXEC)
    except (OSError, AttributeError):  # no Linux, or a sandbox that forbids it
        from tempfile import TemporaryFile

        with TemporaryFile() as file:
            return os.dup(file.fileno())


def _read_last(log: int) -> str:
    """Read the end of a log without moving the offset that the child writes at."""
    start = max(0, os.fstat(log).st_size - _CHUNK_BYTES)
    return os.pread(log, _CHUNK_BYTES, start).decode(errors="replace")


def _compute_timeout(end_s: float) -> float | None:
    """Return a timeout for sockets: None waits forever, and 0 would not wait."""
    return None if end_s == inf else max(end_s - monotonic(), 1e-6)


def describe_exit(code: int | None, log: str = "") -> str:
    r"""Describe how a process ended, with the last line that it printed.

    Args:
        code: its exit code, or minus the number of a signal; None if it still runs.
        log: what the process printed.

    >>> describe_exit(3, "a\nb\n"), describe_exit(-11)
    ('code 3: b', 'SIGSEGV')
    """
    if code is None:
        text = "a closed channel"
    elif code >= 0:
        text = f"code {code}"
    elif code == -signal.SIGKILL:
        # We kill only at deadlines, so the system or a user killed it.
        text = "SIGKILL, perhaps for want of memory"
    else:
        try:
            text = signal.Signals(-code).name
        except ValueError:  # a real-time signal
            text = f"signal {-code}"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"{text}: {lines[-1][:500]}" if lines else text


def make_child_environment(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the variables of this process, with caches of compilers in ``folder``.

    Compiler caches that are shared between processes have crashed.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
    return inherited | {
        "POCL_CACHE_DIR": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "PYOPENCL_NO_CACHE": "1",
        "FEINSUM_CACHE_DIR": str(folder),
    }


class Channel:
    """The child's end: it reads requests and writes answers, one line each.

    It takes the socket away from standard input, where processes that a driver starts
    would inherit it: the parent would then not notice the end of the child.
    """

    def __init__(self) -> None:
        from socket import socket

        self._socket = socket(fileno=os.dup(0))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        # What is printed reaches the log before a crash, and ahead of its traceback.
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)

    def fileno(self) -> int:
        """Return the descriptor for ``select``: ready for a request or a hang-up."""
        return self._socket.fileno()

    def requests(self, idle_s: float | None = None) -> Iterator[str]:
        """Yield requests until the parent closes, or sends none for ``idle_s``."""
        received = b""
        while select.select([self], (), (), idle_s)[0]:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except ConnectionError:  # the parent did not read the last answer
                return
            if not chunk:
                return
            *lines, received = (received + chunk).split(b"\n")
            yield from (line.decode() for line in lines)

    def answer(self, line: str) -> None:
        """Send a line to the parent."""
        self._socket.sendall(line.encode() + b"\n")

    def end_with_parent(self) -> None:
        """End this process, with all its children, as soon as the parent is gone.

        So a hanging trial does not outlive its tuner, however the tuner ended.
        """
        Thread(target=self._await_hangup, daemon=True).start()

    def _await_hangup(self) -> None:
        events = select.poll()
        events.register(self, 0)  # a hang-up is always reported, requests are not
        events.poll()
        if os.getpgrp() == os.getpid():  # no other process is in this group
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(0)


def limit_memory(n_bytes: int) -> None:
    """Limit the memory of this process: it then fails, and no other is killed.

    The limit is on data, not on address space: a GPU's driver reserves terabytes of
    addresses that are not memory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = n_bytes if hard == resource.RLIM_INFINITY else min(n_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def answer_in_fork(answer: Callable[[], str], limit_s: float, parent: Channel) -> str:
    """Compute an answer in a fork of this process, which is killed afterwards.

    The fork has all imports of this process, and any damage that it does is gone with
    it. Only a child that runs no threads of its own may call this.

    Args:
        answer: computes the answer.
        limit_s: time limit in seconds.
        parent: this process ends with its fork when that channel hangs up.

    Raises:
        WorkerTimeoutError: if it takes longer than ``limit_s`` seconds.
        WorkerError: if the fork ends without an answer, saying how.
    """
    reader, writer = os.pipe()
    log = _open_log()
    fork = os.fork()
    if fork == 0:
        _answer_and_exit(answer, writer, log)
    os.close(writer)
    _lead_group(fork)
    try:
        text = _read_all(reader, limit_s, parent)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(fork, signal.SIGKILL)
        _, status = os.waitpid(fork, 0)
        printed = _read_last(log)
        os.close(log)
    if text is None:
        raise WorkerTimeoutError(f"gave no answer within {limit_s:g} s and was stopped")
    # An answer ends with a line feed; a fork that died in between sent a part of one.
    if not text.endswith("\n"):
        code = os.waitstatus_to_exitcode(status)
        raise WorkerError(f"ended with {describe_exit(code, printed)}")
    return text.removesuffix("\n")


def _answer_and_exit(answer: Callable[[], str], writer: int, log: int) -> None:
    """Run the part of the fork, which never returns."""
    import traceback

    code = 1
    try:
        _lead_group(0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # The pipe stays open until the exit, which the other end waits for.
        with open(writer, "w", encoding="utf-8", closefd=False) as answers:
            answers.write(answer() + "\n")
        code = 0
    except BaseException:  # noqa: BLE001  (the log says it)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # without the exit handlers of the process that forked
        os._exit(code)


def _lead_group(process: int) -> None:
    """Make a fork lead a process group; both processes call this, in any order."""
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(process, 0)


def _read_all(reader: int, limit_s: float, parent: Channel) -> str | None:
    """Read all output of a fork; None if that takes too long."""
    end_s, text = monotonic() + limit_s, b""
    while (left_s := end_s - monotonic()) > 0:
        ready, _, _ = select.select([reader, parent.fileno()], (), (), left_s)
        if reader in ready:
            chunk = os.read(reader, _CHUNK_BYTES)
            if not chunk:
                return text.decode(errors="replace")
            text += chunk
        elif ready:
            raise SystemExit("the parent has ended")
    return None
