"""Kernels of the host as files of C that need no library.

The file has the code of the kernel, a replacement for the pool, which uses OpenMP if it
is enabled, and a function with the kernel's arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import Any

import loopy as lp

from feinsum.targets.host.compiler import ENTRY
from feinsum.targets.host.kernel import HostCode

# A thread takes a contiguous range of groups, as in the pool: neighbours often read
# neighbouring memory.
_RUNTIME = """\
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static _Thread_local char *feinsum_held;

static char *feinsum_reserve(size_t n_bytes)
{
  free(feinsum_held);
  feinsum_held = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
  return feinsum_held;
}

static int feinsum_run(
  feinsum_body_t body, void *const *slots, int64_t n_groups, size_t scratch_bytes,
  _Atomic int64_t *work_ns)
{
  int failed = 0;
  (void) work_ns;
#ifdef _OPENMP
  #pragma omp parallel reduction(|: failed)
#endif
  {
    int64_t first = 0, past = n_groups;
#ifdef _OPENMP
    const int64_t n_threads = omp_get_num_threads(), thread = omp_get_thread_num();
    first = n_groups * thread / n_threads;
    past = n_groups * (thread + 1) / n_threads;
#endif
    char *const scratch =
      scratch_bytes ? aligned_alloc(64, (scratch_bytes + 63) / 64 * 64) : NULL;
    if (scratch_bytes && !scratch)
      failed = 1;
    else if (first < past)
      body(slots, first, past, scratch);
    free(scratch);
  }
  return failed;
}
"""

_FUNCTION = Template("""\
$signature
{
  void *const slots[] = {$slots};
  const int failed = $entry(slots, feinsum_run, feinsum_reserve);
  free(feinsum_held);
  feinsum_held = NULL;
  return failed;
}
""")


@dataclass(frozen=True)
class Standalone:
    """A function of C, without threads unless it is compiled with OpenMP.

    Attributes:
        signature: its declaration without the semicolon. It returns 0, or 1 if there
            is no memory for temporaries.
        source: its definition, and everything that it needs.
    """

    signature: str
    source: str


def write_standalone(code: HostCode, kernel: Any) -> Standalone:
    """Return a kernel as a function of C.

    Args:
        code: the code for :class:`feinsum.targets.host.code.StandaloneCTarget`.
        kernel: Loopy's kernel, whose arguments the function has, in their order.
    """
    written = kernel.get_written_variables()
    parameters = ", ".join(
        _write_parameter(kernel, arg, written) for arg in kernel.args
    )
    signature = f"int {kernel.name}({parameters or 'void'})"
    slots = (
        _write_slot(name, is_array=dtype is None) for name, dtype in code.arguments
    )
    function = _FUNCTION.substitute(
        signature=signature, slots=", ".join(slots) or "NULL", entry=ENTRY
    )
    return Standalone(signature, f"{code.source}\n{_RUNTIME}\n{function}")


def _write_parameter(kernel: Any, arg: Any, written: frozenset[str]) -> str:
    kind = kernel.target.dtype_to_typename(arg.dtype).replace("complex", "_Complex")
    if isinstance(arg, lp.ValueArg):
        return f"{kind} {arg.name}"
    return f"{kind} *{arg.name}" if arg.name in written else f"const {kind} *{arg.name}"


def _write_slot(name: str, *, is_array: bool) -> str:
    return f"(void *) {name}" if is_array else f"&{name}"
