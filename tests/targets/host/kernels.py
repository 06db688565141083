"""Kernels for the host that tests make, and running them."""

from __future__ import annotations

from typing import Any

import loopy as lp

from feinsum.measure import compile_kernel, open_device
from feinsum.targets.host import HostCTarget
from feinsum.targets.host.executor import HostExecutor
from tests.cpus import HOST
from tests.loopy_kernels import build_kernel

__all__ = ["doubling", "make", "results", "source_of", "vectorized"]


def make(domains: Any, text: str, arrays: Any, *more: Any, **options: Any) -> Any:
    """A kernel for the host; Loopy need not say how it makes code of it."""
    return build_kernel(
        domains,
        text,
        arrays,
        *more,
        target=HostCTarget(),
        silenced_warnings=["v1_scheduler_fallback", "vectorize_failed"],
        **options,
    )


def doubling() -> Any:
    """``y[i] = 2*x[i]``."""
    return make("{[i]: 0<=i<n}", "y[i] = 2*x[i]", {"x,y": "n"})


def results(t_unit: Any, **arguments: Any) -> dict[str, Any]:
    """What a kernel writes, where its outputs are poisoned before."""
    bound = compile_kernel(t_unit, open_device(HOST)).bind(arguments)
    bound.poison()
    bound.run()
    return bound.read()


def source_of(t_unit: Any) -> str:
    """The C that is compiled."""
    (name,) = t_unit.entrypoints
    return HostExecutor(t_unit, name).generated().source


def vectorized(expression: str, dtype: Any, n_lanes: int) -> Any:
    """Private arrays of vectors: ``y[i,k]`` is an expression of ``z[k] = x[i,k]``.

    The scalar ``a`` and the array ``b`` may be used.
    """
    t_unit = make(
        f"{{[i,load,k,store]: 0<=i<n and 0<=load,k,store<{n_lanes}}}",
        f"""
        z[load] = x[i,load]     {{id=load, inames=i:load}}
        w[k] = {expression}     {{id=work, dep=load, inames=i:k}}
        y[i,store] = w[store]   {{id=store, dep=work, inames=i:store}}
        """,
        {"x,y": f"n,{n_lanes}", "b": str(n_lanes)},
        lp.ValueArg("a", dtype),
        lp.TemporaryVariable("z", dtype, shape=(n_lanes,)),
        lp.TemporaryVariable("w", dtype, shape=(n_lanes,)),
        dtype=dtype,
    )
    t_unit = lp.tag_array_axes(t_unit, "z,w", "vec")
    return lp.tag_inames(t_unit, {"k": "vec", "load": "unr", "store": "unr"})
