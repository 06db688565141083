"""For what a call on a GPU is built: arrays, stream, GPU and options."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feinsum.calling.einsum_call import EinsumCall, parse_call
from feinsum.calling.kernel_cache import LookupOptions, make_database_key
from feinsum.targets.cuda.device import CudaDevice

if TYPE_CHECKING:
    from feinsum.machine import Gpu


class Site(NamedTuple):
    """The arguments for which a call is built; the arrays are not kept.

    Attributes:
        stream: the stream on which the arrays are ready, and contenders are timed.
        is_exact: whether the result must be in C order.
    """

    arrays: Sequence[Any]
    stream: Any
    opened: CudaDevice
    options: LookupOptions
    is_exact: bool = False

    def part(self, *arrays: Any, is_exact: bool = True) -> Site:
        """Return the site of a step of the call, without reports of misses."""
        options = replace(self.options, on_miss="return")
        return self._replace(arrays=arrays, options=options, is_exact=is_exact)

    @property
    def lookup_key(self) -> Hashable:
        """Everything but the einsum that determines which kernel a look-up finds."""
        options = self.options
        return (
            # a kernel of a parent process has no context here
            self.opened, os.getpid(), make_database_key(options.database),
            options.policy, options.on_miss, options.effort,
        )  # fmt: skip

    @property
    def gpu(self) -> Gpu:
        from feinsum.predict import model_machine  # loads Loopy

        gpu = model_machine(self.opened.device).gpu
        assert gpu is not None
        return gpu


def parse_arrays(text: str, arrays: Sequence[Any], first: Sequence[int]) -> EinsumCall:
    forms = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    return parse_call(text, forms, first)
