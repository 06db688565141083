"""The target ``cuda``: code, compiler, launches, devices."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Barrier, BrokenBarrierError

import loopy as lp
import numpy as np
import pytest

from feinsum import array, einsum
from feinsum.errors import BuildError, DeviceUnavailableError, MeasurementError
from feinsum.measure import compile_kernel
from feinsum.records import TransformSpec
from feinsum.targets.cuda import CUDA, CudaTarget, nvrtc
from feinsum.targets.cuda.code import OrderedLoads
from feinsum.targets.cuda.code import generate_cuda as cuda_code
from feinsum.targets.cuda.device import describe_gpu
from feinsum.targets.cuda.figures import occupancy, parse_figures
from feinsum.targets.cuda.nvrtc import CudaBinary, Nvrtc, find_nvrtc
from feinsum.targets.devices import find_target, find_trouble, open_device
from feinsum.targets.layout import Layout
from tests.targets.cuda.kernels import doubled, doubled_backwards
from tests.targets.cuda.stand_in import (
    StandInDriver,
    needs_nvrtc,
    stand_in,
)
from tests.transforms.support import EINSUMS, LOOPY_WARNINGS, generated

__all__ = ["stand_in"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]


def reversed_in_groups(size, dtype=np.float64):
    """Through shared memory, with a barrier between."""
    unit = lp.make_kernel(
        [f"{{[i, g]: 0<=i<{size} and 0<=g<2}}", f"{{[j]: 0<=j<{size}}}"],
        [
            lp.Assignment("t[i]", "x[g, i]", id="write", within_inames=frozenset("gi")),
            lp.Assignment(
                "y[g, j]",
                f"t[{size - 1} - j]",
                within_inames=frozenset("gj"),
                depends_on=frozenset({"write"}),
            ),
        ],
        [
            lp.GlobalArg("x,y", dtype, shape=(2, size)),
            lp.TemporaryVariable(
                "t", dtype, (size,), address_space=lp.AddressSpace.LOCAL
            ),
        ],
        target=CudaTarget(),
        lang_version=(2018, 2),
    )
    block = min(size, 128)
    for iname in "ij":
        unit = lp.split_iname(unit, iname, block, inner_tag="l.0")
    return lp.tag_inames(unit, {"g": "g.0"})


@pytest.mark.parametrize("n", [1, 32, 50])
def test_a_kernel_runs_at_ragged_extents(stand_in, n):
    """Times are of either clock; grids that are not full are right."""
    bound = compile_kernel(doubled(), open_device("cuda")).bind(
        {"x": np.arange(float(n)), "n": n}
    )
    assert bound.timer == "cuda-events"
    for timer in ("cuda-events", "wall"):
        bound.poison()
        assert bound.run(timer) > 0
        assert np.array_equal(bound.read()["y"], 2 * np.arange(float(n)))
    with pytest.raises(MeasurementError, match="no clock 'opencl-profiling'"):
        bound.run("opencl-profiling")


def test_an_empty_grid_launches_nothing(stand_in):
    """CUDA refuses grids of extent 0."""
    opened = open_device("cuda")
    built = compile_kernel(doubled(), opened).built
    built.launcher({"x": None, "y": None, "n": 0})()
    assert opened.session.launches == []


@pytest.mark.parametrize("size", [96, 7000])
def test_shared_memory_is_right(stand_in, size):
    """Also where 48 KiB do not do, and the launch asks for more."""
    unit = reversed_in_groups(size)
    (launch,) = cuda_code(unit).launches
    assert (launch.shared_bytes > 0) == (size == 7000)
    bound = compile_kernel(unit, open_device("cuda")).bind(
        {"x": np.arange(2.0 * size).reshape(2, size)}
    )
    bound.run()
    assert np.array_equal(
        bound.read()["y"], np.arange(2.0 * size).reshape(2, size)[:, ::-1]
    )


def test_vectors_add_in_place(stand_in):
    """As programs that measure limits do: with vectors and with numbers."""
    source = """
KERNEL(added, __global double4 *x, double a)
{
  double4 sum = SPLAT(double4, 1.0);
  sum += x[get_global_id(0)];
  sum *= a;
  x[get_global_id(0)] = sum;
}
"""
    opened = open_device("cuda")
    layout = Layout((8,), (1,), np.dtype(np.float64))
    x = opened.upload(np.arange(8.0), layout)
    opened.program(source, "added").run((x, np.float64(3.0)), 2)
    assert np.array_equal(opened.download(x, layout), 3 * np.arange(1.0, 9.0))


def test_more_shared_memory_than_there_is_is_refused(stand_in):
    """Before anything is compiled, with what the device has."""
    with pytest.raises(BuildError, match="320000 bytes of shared memory; sm_90"):
        compile_kernel(reversed_in_groups(40000), open_device("cuda"))


def test_more_work_items_than_a_group_holds_are_refused(stand_in):
    """By their number."""
    with pytest.raises(BuildError, match="2048 work-items; expected at most 1024"):
        compile_kernel(doubled(2048), open_device("cuda"))


def test_complex_numbers_are_refused_by_name():
    """The compiler would say it in other words."""
    with pytest.raises(BuildError, match="complex numbers, which the target cuda"):
        cuda_code(doubled(dtype=np.complex128))


def test_an_array_that_does_not_fit_is_refused_before_a_launch(monkeypatch):
    """With what is free."""
    monkeypatch.setattr(
        "feinsum.targets.cuda.session._DRIVERS", [StandInDriver(memory_bytes=100)]
    )
    with pytest.raises(MeasurementError, match=r"of which 0\.00 GB are free"):
        compile_kernel(doubled(), open_device("cuda")).bind(
            {"x": np.arange(50.0), "n": 50}
        )


VECTORS = TransformSpec("element_blocked", 1, {
    "element": "e", "lanes": 4, "vectors": 4, "rows": 4, "stage_matrices": False,
})  # fmt: skip


def test_recipes_with_vectors_are_right(stand_in):
    """Vectors of CUDA have no arithmetic; those of the target have."""
    case = generated(EINSUMS["mass"])
    unit = case.apply(VECTORS)
    assert "feinsum_vec<double, 4>" in cuda_code(unit.copy(target=CudaTarget())).source
    case.assert_right(unit, [{"N": 21}], "cuda")


def test_kernels_of_several_launches_are_right(stand_in):
    """What one hands to the next is in global memory."""
    compiled = compile_kernel(doubled_backwards(), open_device("cuda"))
    assert compiled.built.n_launches == 2
    bound = compiled.bind({"x": np.arange(40.0), "n": 40})
    bound.run()
    assert np.array_equal(bound.read()["y"], 2 * np.arange(40.0)[::-1])


def test_repeated_runs_are_one_graph(stand_in):
    """As many runs as were asked for."""
    opened = open_device("cuda")
    compiled = compile_kernel(doubled(), opened)
    bound = compiled.bind({"x": np.arange(50.0), "n": 50})
    arguments = {k: getattr(s, "array", s) for k, s in bound.slots.items()}
    before = len(opened.session.launches)
    compiled.built.repeated(arguments, 5)()
    assert len(opened.session.launches) - before == 5


def test_repeated_products_of_the_library_are_made_one_by_one(stand_in):
    """CuPy captures none."""
    case = generated(einsum("ik,kj->ij", array("A", (30, 20)), array("B", (20, 50))))
    unit = case.apply(TransformSpec("gpu_matrices", 1, {"stacked": 0}))
    compiled = compile_kernel(unit, opened := open_device("cuda"))
    arguments, expected, _ = case._reference({})
    bound = compiled.bind(arguments)
    slots = {k: getattr(s, "array", s) for k, s in bound.slots.items()}
    compiled.built.repeated(slots, 3)()
    assert opened.session.launches[-3:] == ["product"] * 3
    assert np.allclose(bound.read()["out"], expected["out"])


@pytest.mark.parametrize("architecture", ["sm_70", "sm_80", "sm_90"])
def test_the_compiler_tells_registers(architecture):
    """They are what occupancy is computed from."""
    code = cuda_code(doubled())
    log = find_nvrtc().compile(code.source, architecture).log
    figures = parse_figures(log, code.launches[0].name)
    assert 4 < figures.registers < 64
    assert figures.spill_bytes == figures.shared_bytes == 0
    assert 0 < occupancy(figures, 32, int(architecture[3:])) <= 1


def test_a_compiler_older_than_the_device_gives_ptx(monkeypatch):
    """The driver makes the rest of it; ptxas has no figures then."""
    monkeypatch.setattr(
        "feinsum.targets.cuda.session._DRIVERS", [StandInDriver(capability=(19, 0))]
    )
    built = compile_kernel(doubled(), open_device("cuda")).built
    assert b".target sm_121" in built.binary.image
    with pytest.raises(BuildError, match="compile for one of the architectures"):
        built.figures()


def test_a_device_older_than_the_compiler_is_refused():
    """With the range that the compiler has."""
    with pytest.raises(BuildError, match="compiles for sm_50 to sm_"):
        find_nvrtc().choose_architecture((3, 5))


def test_a_source_that_is_wrong_is_refused():
    """With the compiler's words."""
    with pytest.raises(BuildError, match="expected an expression"):
        find_nvrtc().compile("__global__ void f() { int x = ; }", "sm_80")


SOURCE = 'extern "C" __global__ void f(int *x) { *x = 1; }'


@pytest.mark.parametrize(
    "changed", ["nothing", "source", "architecture", "compiler", "flags", "headers"]
)
def test_cubins_are_kept_by_what_they_depend_on(tmp_path, monkeypatch, changed):
    """The second time nothing is compiled, unless something has changed."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path))
    compiler, first = find_nvrtc(), find_nvrtc().compile(SOURCE, "sm_80")
    source, architecture = SOURCE, "sm_80"
    match changed:
        case "source":
            source += "\n"
        case "architecture":
            architecture = "sm_90"
        case "compiler":
            compiler = replace(compiler, version="0.0")
        case "flags":
            monkeypatch.setattr(nvrtc, "FLAGS", (*nvrtc.FLAGS, "--fmad=false"))
        case "headers":
            monkeypatch.setitem(nvrtc.HEADERS, "stdbool.h", "// of C")
    other = CudaBinary(source, b"another", "")
    monkeypatch.setattr(Nvrtc, "_compile_source", lambda *_: other)
    second = compiler.compile(source, architecture)
    assert second == (first if changed == "nothing" else other)


def arrays_in_source(unit):
    """The declarations of a kernel's arrays."""
    code = cuda_code(unit)
    given = re.search(rf"\b{code.launches[0].name}\(([^)]*)\)", code.source)[1]
    return [one.strip() for one in given.split(",") if "*" in one]


def test_arrays_that_are_only_read_are_so_for_the_compiler():
    """Constant, and without an alias as all are: it loads them by the path of
    read-only data. With loads in order, aliases are left to the compiler.
    """
    unit = doubled()
    free = ["const double *__restrict__ x", "double *__restrict__ y"]
    assert arrays_in_source(unit) == free
    unit = unit.with_kernel(unit.default_entrypoint.tagged(OrderedLoads()))
    assert arrays_in_source(unit) == ["const double *x", "double *y"]


def test_the_environment_has_the_driver_and_the_clock(stand_in):
    """Timings of another driver, clock or compiler are not of one kind."""
    opened = open_device("cuda")
    environment = opened.environment({"rounds": 3})
    (facts,) = stand_in.gpus()
    assert environment.driver_version == facts.driver
    assert environment.platform_version == f"sm_90 {facts.clock_khz // 1000} MHz"
    assert environment.software["nvrtc"] == find_nvrtc().version
    assert environment.policy["rounds"] == 3


def test_the_environment_says_what_the_cache_holds(stand_in):
    """Flushed and warm runs are not of one kind."""
    opened = open_device("cuda")
    assert opened.environment({}).policy["cache"] == "warm"
    flushing = replace(opened, flushes_cache=True)
    assert flushing.environment({}).policy["cache"] == "flushed"
    bound = compile_kernel(doubled(), flushing).bind({"x": np.arange(5.0), "n": 5})
    assert bound.run() > 0
    assert flushing._flusher[0].nbytes == 2 * opened.facts.cache_bytes


def test_kernels_of_loopys_target_are_served(stand_in):
    """And come back for the target that completes it."""
    assert find_target(lp.CudaTarget()) is CUDA
    delivered = CUDA.delivered(doubled(), lp.CudaTarget())
    assert type(delivered.target) is CudaTarget


def test_libraries_that_are_no_compiler_of_ours_are_passed_over(monkeypatch):
    """Such as those of CUDA 11.0, which do not tell the architectures."""
    monkeypatch.setattr(
        nvrtc, "_list_library_names", lambda: ["libm.so.6", "no library"]
    )
    with pytest.raises(DeviceUnavailableError, match="is not installed; pip install"):
        find_nvrtc.__wrapped__()


def test_threads_share_one_session(stand_in, monkeypatch):
    """Also if they open the GPU at the same time."""
    both, opened = Barrier(2), StandInDriver.open

    def open_slowly(*given):
        with suppress(BrokenBarrierError):
            both.wait(0.1)  # for a second one that opens
        return opened(*given)

    monkeypatch.setattr(StandInDriver, "open", open_slowly)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(CUDA.open_ordinal, [0, 0])
    assert one is other


def test_the_small_kernel_of_a_probe_is_right(stand_in):
    """A GPU that computes is one that works, and stands in the list of devices."""
    (device,) = CUDA.devices()
    assert find_trouble(CUDA, device) == ""
    assert (device.kind, device.architecture) == ("gpu", "sm_90")


def test_devices_of_other_capabilities_are_others():
    """A cubin of one is none of the other's."""
    old, new = (StandInDriver(c).gpus()[0] for c in [(8, 0), (9, 0)])
    assert describe_gpu(old) != describe_gpu(new)
