"""The arguments for which a call on a GPU is built."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from feinsum.calling.einsum_call import EinsumCall, parse_call
from feinsum.calling.kernel_cache import LookupOptions, database_key
from feinsum.predict import machine_of
from feinsum.targets.cuda import CudaDevice
from feinsum.transforms.cost import Gpu


class Site(NamedTuple):
    """The arguments for which a call is built; the arrays are not kept.

    Attributes:
        stream: on which the arrays are ready; contenders are timed there.
        is_exact: whether the result is to lie in C's order.
    """

    arrays: Sequence[Any]
    stream: Any
    opened: CudaDevice
    options: LookupOptions
    is_exact: bool = False

    def part(self, *arrays: Any, is_exact: bool = True) -> Site:
        """The site of a part of the call, for which a miss is not reported."""
        options = replace(self.options, on_miss="return")
        return self._replace(arrays=arrays, options=options, is_exact=is_exact)

    @property
    def lookup_key(self) -> Hashable:
        """What decides beside the einsum which kernel is found."""
        options = self.options
        return (
            # a kernel of a parent process has no context here
            self.opened, os.getpid(), database_key(options.database),
            options.policy, options.on_miss, options.effort,
        )  # fmt: skip

    @property
    def gpu(self) -> Gpu:
        gpu = machine_of(self.opened.device).gpu
        assert gpu is not None
        return gpu


def read(text: str, arrays: Sequence[Any], first: Sequence[int]) -> EinsumCall:
    forms = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    return parse_call(text, forms, first)
