"""CuPy, and what its errors and torch's mean."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from feinsum.errors import DeviceUnavailableError, MeasurementError
from feinsum.targets.cuda.nvrtc import INSTALL_HINT
from feinsum.targets.messages import first_lines

__all__ = ["CudaErrors", "explained", "load_cupy"]


@cache
def load_cupy() -> Any:
    """The module.

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
    """Turns every error of CuPy or torch in the body into a ``kind``.

    Args:
        what: failed; a format of the given parts, which is filled in when it did.
    """

    __slots__ = ("kind", "parts", "what")

    def __init__(
        self,
        what: str,
        *parts: object,
        kind: type[MeasurementError] = MeasurementError,
    ) -> None:
        self.what, self.parts, self.kind = what, parts, kind

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.explain(error)

    def explain(self, error: BaseException) -> None:
        """Raise the error that a user understands, if this one is of a library."""
        if isinstance(error, MeasurementError):
            return
        what = self.what.format(*self.parts)
        if type(error).__name__ == "OutOfMemoryError":  # of CuPy, or of torch
            said = f"{what}: {NO_MEMORY} ({first_lines(error)})"
            raise self.kind(said) from error
        if isinstance(error, RuntimeError):  # of the driver, cuBLAS or cuTENSOR
            raise self.kind(f"{what}: {explained(str(error))}") from error


def explained(said: str) -> str:
    """The meaning of a CUDA error code for the user.

    >>> explained("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access")[:44]
    'the kernel accessed memory that is not its o'
    """
    for code, meaning in _MEANINGS.items():
        if code in said.replace("_", "").lower():
            return f"{meaning} ({first_lines(said)})"
    return first_lines(said)


NO_MEMORY = (
    "the GPU lacks the memory; compute it in parts, or free memory of other libraries, "
    "such as by torch.cuda.empty_cache()"
)

_MEANINGS = {
    "outofmemory": NO_MEMORY,
    "memoryallocation": NO_MEMORY,
    "allocfailed": NO_MEMORY,
    "illegaladdress": "the kernel accessed memory that is not its own; the GPU gives "
    "nothing more to this process, start another one",
    "ecc": "the memory of the GPU has an error that its ECC could not correct; "
    "measure again, and replace the GPU if this comes back",
    "launchoutofresources": "the GPU lacks registers or shared memory for a "
    "work-group; take a smaller one",
    "invalidimage": "the cubin is of another compute capability; clear the cache",
    "launchtimeout": "the kernel ran into the time limit of a GPU with a display",
}
