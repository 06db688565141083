"""The operations of the target on an open GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from feinsum.targets.cuda.gemm import Gemm
from feinsum.targets.cuda.nvrtc import CudaBinary
from feinsum.targets.protocol import Array


class Session(Protocol):
    """One open GPU. Arrays are flat; a stream of None is that of the target."""

    @property
    def stream(self) -> Any: ...

    def allocate(self, n_entries: int, dtype: np.dtype[Any]) -> Any:
        """An array for the stream of the target."""
        ...

    def write(self, array: Any, values: Array) -> None: ...

    def read(self, array: Any) -> Array: ...

    def clear(self, array: Any, stream: Any = None) -> None:
        """Write zeros, without the host."""
        ...

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """The same memory with other axes, whose strides are in bytes."""
        ...

    def packed(self, array: Any) -> Any:
        """The array, or a copy of it in C's order, aligned as kernels expect."""
        ...

    def is_packed(self, array: Any) -> bool: ...

    def cast(self, array: Any, dtype: np.dtype[Any]) -> Any:
        """The array, or a copy of it with another dtype."""
        ...

    def form(self, array: Any) -> Hashable:
        """The properties of an array on which a call depends."""
        ...

    def current_stream(self) -> Any:
        """The caller's; None if another GPU is the current one."""
        ...

    def stream_at(self, address: int) -> Any:
        """A stream of another library; 0 is the default one."""
        ...

    def active(self, stream: Any = None) -> AbstractContextManager[Any]:
        """While it is entered, this GPU and the given stream are the current ones."""
        ...

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """An array for the current stream; this GPU has to be the current one.

        On another stream its memory may still be in use: it is handed out again as soon
        as the host has freed it.
        """
        ...

    def launcher(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        values: Sequence[np.generic | None],
    ) -> Callable[[Sequence[int], Any], None]:
        """A quick function of addresses and a stream that launches a kernel.

        This GPU has to be the current one.

        Args:
            values: the arguments in their order; None for an array.
        """
        ...

    def multiplier(
        self, gemm: Gemm, dtype: np.dtype[Any]
    ) -> Callable[[Sequence[int], Any], None]:
        """A function of addresses and a stream that multiplies by BLAS.

        The addresses are those of left, right and the result; see :class:`Gemm`. This
        GPU has to be the current one.
        """
        ...

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """Where the first entries of arrays are."""
        ...

    def overwrite(self, array: Any, values: Any, stream: Any = None) -> None:
        """Copy an array over another one of the same shape, both with any strides."""
        ...

    def einsum(self, subscripts: str, arrays: Sequence[Any], stream: Any = None) -> Any:
        """The result of the vendor's libraries, as a new array in C order."""
        ...

    def function(self, binary: CudaBinary, name: str, shared_bytes: int) -> Any:
        """A loaded kernel that may take ``shared_bytes`` at the launch."""
        ...

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int,
        stream: Any = None,
    ) -> None: ...

    def multiply(
        self, gemm: Gemm, left: Any, right: Any, result: Any, stream: Any = None
    ) -> None:
        """A stack of products of matrices, by cuBLAS."""
        ...

    def synchronize(self, stream: Any = None) -> None:
        """Wait until all work on a stream has ended."""
        ...

    def wait(self, waiting: Any, awaited: Any) -> None:
        """Let later work on a stream wait for the earlier work on another one."""
        ...

    def timed(self, run: Callable[[], None], stream: Any = None) -> float:
        """Seconds between two events around what ``run`` launches."""
        ...

    def repeated(self, run: Callable[[], None], n: int) -> Callable[[], None]:
        """A graph that does ``n`` times what ``run`` launches."""
        ...

    def free_bytes(self) -> int:
        """The most that can be allocated, as far as it is known."""
        ...

    def adopted(self, array: Any) -> tuple[Any, Any]:
        """An array of any library as one of CuPy, and the stream where it is ready."""
        ...
