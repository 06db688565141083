"""The import of CuPy, and the conversion of its errors and torch's.

``CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access ...`` becomes a
``DeviceLostError``: "the kernel accessed memory that is not its own (...); this process
can no longer use the GPU; start another one".
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from feinsum.errors import DeviceLostError, DeviceUnavailableError, MeasurementError
from feinsum.targets.cuda.nvrtc import INSTALL_HINT
from feinsum.words import get_first_lines


@cache
def load_cupy() -> Any:
    """Import CuPy.

    Raises:
        DeviceUnavailableError: if it cannot be imported.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceUnavailableError(
            f"CuPy cannot be imported ({error}); {INSTALL_HINT}"
        ) from error


class CudaErrors:
    """Context that converts errors of CuPy and torch into those of feinsum.

    If the process can no longer use the GPU, the error is a ``DeviceLostError``.

    Args:
        failure: what failed, as a format string, which is formatted only on an error.
        parts: the values for the format.
        kind: the class of the error, unless the GPU is lost.
    """

    __slots__ = ("failure", "kind", "parts")

    def __init__(
        self,
        failure: str,
        *parts: object,
        kind: type[MeasurementError] = MeasurementError,
    ) -> None:
        self.failure, self.parts, self.kind = failure, parts, kind

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.explain(error)

    def explain(self, error: BaseException) -> None:
        """Raise feinsum's error for an error of a library; return for others."""
        if isinstance(error, MeasurementError):
            return
        failure = self.failure.format(*self.parts)
        if type(error).__name__ == "OutOfMemoryError":  # of CuPy, or of torch
            message = f"{failure}: {NO_MEMORY} ({get_first_lines(error)})"
            raise self.kind(message) from error
        if isinstance(error, RuntimeError):  # of the driver, cuBLAS or cuTENSOR
            kind = DeviceLostError if is_lasting(str(error)) else self.kind
            raise kind(f"{failure}: {explain_error(str(error))}") from error


def explain_error(message: str) -> str:
    """Explain a CUDA error, with what to do about it.

    >>> explain_error("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access")[:44]
    'the kernel accessed memory that is not its o'
    """
    name, text = _normalize_name(message), get_first_lines(message)
    meaning = next((words for code, words in _MEANINGS.items() if code in name), "")
    end = f"; {LOST}" if is_lasting(message) else ""
    return (f"{meaning} ({text})" if meaning else text) + end


def is_lasting(message: str) -> bool:
    """Return whether this process can no longer use the GPU after an error.

    Source: NVIDIA, CUDA Runtime API, "Data types used by CUDA Runtime", ``cudaError``.

    >>> is_lasting("cudaErrorMisalignedAddress: misaligned address")
    True
    >>> is_lasting("CUDA error: an illegal memory access was encountered")
    True
    >>> is_lasting("CUDA_ERROR_OUT_OF_MEMORY: out of memory")
    False
    """
    return any(code in _normalize_name(message) for code in _LASTING)


def _normalize_name(message: str) -> str:
    """Return the name of an error, spelled alike for driver, runtime and torch.

    >>> (_normalize_name("CUDA_ERROR_LAUNCH_FAILED: why"),
    ...  _normalize_name("cudaErrorLaunchFailure: why"))
    ('cudaerrorlaunchfailed', 'cudaerrorlaunchfailure')
    >>> _normalize_name("CUDA error: unspecified launch failure")
    'unspecifiedlaunchfailure'
    """
    name = message.removeprefix("CUDA error: ").partition(":")[0]
    return name.replace("_", "").replace(" ", "").lower()


ILLEGAL = "the kernel accessed memory that is not its own"
LOST = "this process can no longer use the GPU; start another one"

# these destroy the context, so that every later call of the process fails
_LASTING = (
    "illegaladdress",
    "illegalmemoryaccess",
    "illegalinstruction",
    "misalignedaddress",
    "invalidaddressspace",
    "invalidpc",
    "hardwarestackerror",
    "launchfail",
    "launchtimeout",
    "errorassert",
    "eccuncorrectable",
    "contextisdestroyed",
)

NO_MEMORY = (
    "the GPU lacks the memory; compute it in parts, or free memory of other libraries, "
    "such as by torch.cuda.empty_cache()"
)

_MEANINGS = {
    "outofmemory": NO_MEMORY,
    "memoryallocation": NO_MEMORY,
    "allocfailed": NO_MEMORY,
    "illegaladdress": ILLEGAL,
    "illegalmemoryaccess": ILLEGAL,
    "ecc": "the memory of the GPU has an error that its ECC could not correct; "
    "measure again, and replace the GPU if this comes back",
    "launchoutofresources": "the GPU lacks registers or shared memory for a "
    "work-group; use a smaller one",
    "invalidimage": "the cubin is of another compute capability; clear the cache",
    "launchtimeout": "the kernel ran into the time limit of a GPU with a display",
}
