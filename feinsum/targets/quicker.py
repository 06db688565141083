"""Loopy's code generator without work that nobody needs; the code stays the same.

For each loop it makes a data class, and a copy of the kernel that is equal to the
kernel: whatever was computed of the domains is then computed again. Kernels with
several rows have more than a hundred loops. The tags of each iname are asked for
thousands of times. And every kernel is pickled into a
database, from which nobody takes one whose code is kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import loopy as lp
import loopy.codegen.control as control
import loopy.codegen.loop as loop
from pytools import memoize_method

from feinsum.settings import SharedSetting

__all__ = ["quicker", "uncached"]


def _replace_functions() -> Callable[[], None]:
    intersected = loop.intersect_kernel_with_slab
    made: dict[str, type] = {}

    def with_slab(kernel: Any, slab: Any, iname: str) -> Any:
        """The kernel itself where the slab, as of a loop that is not cut, is all."""
        is_all = slab.plain_is_universe()
        return kernel if is_all else intersected(kernel, slab, iname)

    def made_once(**options: Any) -> Callable[[type], type]:
        """Classes of a function, which refer to nothing else of it, are one."""

        def decorated(kind: type) -> type:
            if (name := kind.__qualname__) not in made:
                made[name] = dataclass(**options)(kind)
            return made[name]

        return decorated

    tags_of_type = lp.LoopKernel.iname_tags_of_type

    def end() -> None:
        loop.intersect_kernel_with_slab = intersected
        control.dataclass = dataclass
        lp.LoopKernel.iname_tags_of_type = tags_of_type

    loop.intersect_kernel_with_slab = with_slab
    control.dataclass = made_once
    lp.LoopKernel.iname_tags_of_type = memoize_method(tags_of_type)
    return end


def _switch_caches_off() -> Callable[[], None]:
    before = lp.CACHING_ENABLED
    lp.set_caching_enabled(False)
    return lambda: lp.set_caching_enabled(before)


quicker = SharedSetting(_replace_functions)
"""Generates code in less time."""
uncached = SharedSetting(_switch_caches_off)
"""Leaves Loopy's caches on disk alone."""
