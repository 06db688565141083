"""CUDA C++ that the compiler of the host runs, work-items as fibers.

Nothing of feinsum is needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
from pathlib import Path
from tempfile import gettempdir

__all__ = ["function"]

HERE = Path(__file__).parent


def function(source, name, shared_bytes):
    """The kernel, compiled for the host; it knows which of its arguments are arrays."""
    head = rf"(?:\b{name}\(|KERNEL\({name},)([^{{;]*)\)\s*{{"
    parameters = re.search(head, source, re.DOTALL)[1]
    parameters = parameters.replace("__global", "").replace(" restrict", "")
    parameters = [" ".join(p.split()) for p in _parts(parameters)]
    arguments = ", ".join(_slot(p, k) for k, p in enumerate(parameters))
    text = "\n".join((
        (HERE / "stand_in.h").read_text(),
        re.sub(r"extern __shared__ (__align__\(16\)) char (\w+)\[\]",
               rf"static \1 char \2[{shared_bytes}]", source),
        f"static void call_kernel(void *const *slots) {{ {name}({arguments}); }}",
    ))  # fmt: skip
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = Path(gettempdir(), f"feinsum-stand-in-{digest}.so")
    if not path.exists():
        # other processes may compile the same kernel at the same time
        made = path.with_suffix(f".{os.getpid()}")
        source_file = path.with_suffix(f".{os.getpid()}.cpp")
        source_file.write_text(text)
        command = ("g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC",
                   str(source_file), "-o", str(made))  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.rename(path)
        source_file.unlink()
    launch = ctypes.CDLL(str(path)).launch
    launch.are_arrays = ["*" in parameter for parameter in parameters]
    return launch


def _parts(parameters):
    """Split at commas that are not within a template."""
    return re.split(r",(?![^<]*>)", parameters)


def _slot(parameter, k):
    kind = parameter.replace("__restrict__", "").replace("const", "")
    kind = re.sub(r"\w+\s*$", "", kind).strip()
    return f"({kind}) slots[{k}]" if "*" in kind else f"*({kind} *) slots[{k}]"
