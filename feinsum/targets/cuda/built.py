"""Units that are built for a GPU: their launches, timing and calls.

A unit has one launch for each part between barriers of the whole grid, or for each
product that cuBLAS computes. Calls repeat them as a
:class:`~feinsum.targets.cuda.launches.LaunchList`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pymbolic.mapper.evaluator import evaluate

from feinsum.errors import BuildError, MeasurementError
from feinsum.targets.cuda.code import CudaCode, CudaLaunch
from feinsum.targets.cuda.figures import (
    MAX_THREADS,
    KernelFigures,
    get_multiprocessor,
    parse_figures,
    require_occupancy,
)
from feinsum.targets.cuda.gemm import Gemm
from feinsum.targets.cuda.launches import (
    GemmLaunch,
    KernelLaunch,
    Launch,
    LaunchList,
    time_launches,
)
from feinsum.targets.cuda.nvrtc import CudaBinary
from feinsum.targets.layout import Layout, compute_layout, get_entry_kernel
from feinsum.targets.protocol import Timer

if TYPE_CHECKING:
    from feinsum.targets.cuda.device import CudaDevice


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A flat array on a GPU with the entries of a layout."""

    flat: Any
    layout: Layout


def check_launch(launch: CudaLaunch, capability: int) -> None:
    """Refuse a launch for which the device lacks instructions or shared memory.

    Raises:
        BuildError: naming the figure.
    """
    # checked here, because the driver's error would give no reason
    if capability < launch.least_capability:
        raise BuildError(
            f"{launch.name!r} uses tensor cores of sm_{launch.least_capability} or "
            f"newer, the device has sm_{capability}; use another family, such as "
            "gpu_product"
        )
    multiprocessor = get_multiprocessor(capability)
    n_bytes = launch.shared_bytes + launch.static_bytes
    if n_bytes > multiprocessor.group_shared_bytes:
        raise BuildError(
            f"a work-group of {launch.name!r} takes {n_bytes} bytes of shared memory; "
            f"sm_{capability} has {multiprocessor.group_shared_bytes}; use smaller "
            "tiles"
        )
    if launch.n_threads is not None and launch.n_threads > MAX_THREADS:
        raise BuildError(
            f"a work-group of {launch.name!r} has {launch.n_threads} work-items; "
            f"expected at most {MAX_THREADS}"
        )


class _Sized(NamedTuple):
    """A launch for given values of the scalars."""

    launch: CudaLaunch
    grid: tuple[int, ...]
    block: tuple[int, ...]
    gemm: Gemm | None


def _list_arrays(launch: CudaLaunch, scalars: Mapping[str, Any]) -> list[str]:
    """Return the names of a launch's arrays, for a product in the order of cuBLAS."""
    product = launch.product
    if product is not None:
        # the operands are exchanged for Fortran's order: see `MatrixProduct.gemm`
        return [product.right, product.left, product.result]
    return [name for name in launch.arguments if name not in scalars]


@dataclass(frozen=True, eq=False)
class CudaBuilt:
    """A unit that is built and loaded; see :class:`feinsum.targets.protocol.Built`."""

    opened: CudaDevice
    t_unit: Any
    code: CudaCode
    binary: CudaBinary

    timer: Timer = "cuda-events"

    @property
    def n_launches(self) -> int:
        return len(self.code.launches)

    def figures(self) -> tuple[KernelFigures, ...]:
        """Return the registers, spills and shared memory of each launch."""
        return tuple(parse_figures(self.binary.log, x.name) for x in self.code.launches)

    def check_figures(self) -> None:
        """Refuse kernels that spill too much or do not fit, if there are figures.

        There are none for PTX.

        Raises:
            BuildError: naming the figures.
        """
        if not self.binary.has_figures:
            return
        for launch, figures in zip(self.code.launches, self.figures(), strict=True):
            n_threads = launch.n_threads or 1
            require_occupancy(
                launch.name, figures, n_threads, self.opened.capability,
                launch.shared_bytes,
            )  # fmt: skip

    def run(self, arguments: Mapping[str, Any], timer: Timer) -> float:
        """Run, and return the seconds between events, or by the wall clock."""
        session = self.opened.session
        # arguments are bound before the clock starts
        launch = self.launcher(arguments)
        if self.opened.flushes_cache:
            self.opened.flush()
        if timer not in ("cuda-events", "wall"):
            raise MeasurementError(
                f"a GPU has no clock {timer!r}, only 'cuda-events' and 'wall'"
            )
        return time_launches(session, launch, timer)

    def launcher(
        self, arguments: Mapping[str, Any], stream: Any = None
    ) -> Callable[[], None]:
        """Return a function that makes all launches of one run, any number of times.

        This GPU has to be the current one when it is called.
        """
        session = self.opened.session
        scalars = {name: arguments[name] for name in self.code.scalars}
        values = {**dict(arguments), **self._allocate_temporaries(scalars)}

        def find_addresses(launch: CudaLaunch) -> list[int]:
            arrays = [values[name] for name in _list_arrays(launch, scalars)]
            return session.addresses(
                [x.flat if isinstance(x, DeviceArray) else x for x in arrays]
            )

        with session.active():
            steps = [
                (
                    self._describe_launch(sized, scalars).prepare(session),
                    find_addresses(sized.launch),
                )
                for sized in self._size_launches(scalars)
            ]
        stream = stream or session.stream

        def run(_alive: Mapping[str, Any] = values) -> None:
            """Launch all, keeping alive the arrays whose addresses were taken."""
            for launch, addresses in steps:
                launch(addresses, stream)

        return run

    def _size_launches(self, scalars: Mapping[str, Any]) -> list[_Sized]:
        """Return the launches that have a work-group."""
        launches = []
        for launch in self.code.launches:
            grid, block = map(tuple, launch.sizes(scalars))
            launches.append(_Sized(launch, grid, block, launch.gemm(scalars)))
        # CUDA refuses to launch an empty grid
        return [launch for launch in launches if prod(launch.grid)]

    def repeated(self, arguments: Mapping[str, Any], n: int) -> Callable[[], None]:
        """Return ``n`` runs as one graph, which the GPU starts without the host.

        CuPy cannot capture calls of cuBLAS: runs with such calls are made one by one.
        """
        run = self.launcher(arguments)
        # with a graph, the time of short kernels does not include the host's overhead
        if all(launch.product is None for launch in self.code.launches):
            return self.opened.session.repeated(run, n)

        def run_all() -> None:
            for _ in range(n):
                run()

        return run_all

    def caller(
        self, names: Sequence[str], constants: Mapping[str, Any], queue: Any = None
    ) -> Callable[..., Any]:
        """Return a function that copies numpy's arrays and reads a GPU's in place.

        The result is on the GPU if the operands are, on the stream of the caller.
        """
        session = self.opened.session
        launch_all = self.list_launches(names, constants).prepare(session)
        (output,) = (arg for arg in get_entry_kernel(self.t_unit).args if arg.is_output)
        layout = compute_layout(output, constants)

        def run(arrays: Sequence[Any], stream: Any) -> Any:
            result = session.empty((layout.n_entries,), layout.dtype)
            launch_all(arrays, result, stream)
            return result

        def call(arrays: Sequence[Any], out: Any = None, queue: Any = queue) -> Any:
            if not all(isinstance(array, np.ndarray) for array in arrays):
                with session.active():
                    result = run(arrays, queue or session.current_stream())
                return _deliver(result.reshape(layout.shape), out)
            # arrays of numpy: use the stream of the target, and wait for the result
            with session.active(session.stream):
                result = run([*map(self._upload, arrays)], session.stream)
            session.synchronize()
            return _deliver(layout.unpack(session.read(result)), out)

        return call

    def list_launches(
        self, names: Sequence[str], constants: Mapping[str, Any]
    ) -> LaunchList:
        """List all launches, as far as they do not depend on the arrays.

        Args:
            names: names of the operands, in the order of the arrays of a run.
            constants: values of the scalars, by name.
        """
        (output,) = (arg for arg in get_entry_kernel(self.t_unit).args if arg.is_output)
        scalars = {name: constants[name] for name in self.code.scalars}
        # the names for the table of addresses in LaunchList.prepare
        table = *names, output.name, *self.code.temporaries
        launches = [
            (
                self._describe_launch(sized, scalars),
                tuple(table.index(x) for x in _list_arrays(sized.launch, scalars)),
            )
            for sized in self._size_launches(scalars)
        ]
        temporaries = self._compute_temporary_sizes(scalars).values()
        return LaunchList(tuple(temporaries), tuple(launches))

    def _describe_launch(self, sized: _Sized, scalars: Mapping[str, Any]) -> Launch:
        launch = sized.launch
        if sized.gemm is not None and launch.product is not None:
            return GemmLaunch(sized.gemm, self._get_dtype(launch.product.result))
        # None for an array, whose address comes with the call; the driver copies the
        # bytes of a number, which needs the parameter's dtype
        dtypes = self.code.scalars
        values = [
            dtypes[name].type(scalars[name]) if name in scalars else None
            for name in launch.arguments
        ]
        return KernelLaunch(
            self.binary, launch.name, sized.grid, sized.block, launch.shared_bytes,
            tuple(values),
        )  # fmt: skip

    def _get_dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of an array of the kernel."""
        kernel = get_entry_kernel(self.t_unit)
        arrays = {**kernel.temporary_variables, **kernel.arg_dict}
        dtype: np.dtype[Any] = arrays[name].dtype.numpy_dtype
        return dtype

    def _upload(self, array: Any) -> Any:
        flat = np.ascontiguousarray(array).reshape(-1)
        return self.opened.upload(flat, Layout(flat.shape, (1,), flat.dtype)).flat

    def _allocate_temporaries(self, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Allocate the intermediate arrays between launches."""
        buffers = {}
        for name, (n_entries, dtype) in self._compute_temporary_sizes(scalars).items():
            self.opened.check_room(n_entries * dtype.itemsize)
            buffers[name] = self.opened.session.allocate(n_entries, dtype)
        return buffers

    def _compute_temporary_sizes(
        self, scalars: Mapping[str, Any]
    ) -> dict[str, tuple[int, np.dtype[Any]]]:
        """Return the numbers of entries and the dtypes of the temporaries, by name."""
        values = dict(scalars)
        return {
            # an array of no entries has no address
            name: (max(1, prod(int(evaluate(n, values)) for n in shape)), dtype)
            for name, (shape, dtype) in self.code.temporaries.items()
        }


def _deliver(result: Any, out: Any) -> Any:
    """Return the result, copied into ``out`` if given."""
    if out is None:
        return result
    out[...] = result
    return out
