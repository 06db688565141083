"""Kernels on the device: results, poison, refusals, silence."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import loopy as lp
import numpy as np
import pytest

from feinsum.errors import BuildError, MeasurementError, WrongResultError
from feinsum.measure import (
    BoundKernel,
    compile_kernel,
    compute_largest_error,
    compute_tolerance,
    draw_arguments,
    open_device,
    verify,
)
from tests.cpus import OPENCL_CPUS, any_opencl, opened
from tests.loopy_kernels import build_kernel


def bound_at(t_unit, device, sizes):
    arguments = draw_arguments(t_unit, sizes, np.random.default_rng(0))
    return compile_kernel(t_unit, device).bind(arguments), arguments


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.int32])
def test_agrees_with_numpy(dtype, matvec, device, capfd):
    """A small einsum kernel computes what numpy computes; nothing is printed."""
    bound, arguments = bound_at(matvec(dtype), device, {"N": 7})
    expected = arguments["u"] @ arguments["D"].T
    tolerance = compute_tolerance(dtype, 4)
    assert verify(bound, {"y": expected}, tolerance=tolerance) <= tolerance
    assert bound.read()["y"].dtype == dtype
    assert capfd.readouterr().out == ""


def test_runs_can_be_repeated(matvec, device):
    """Running again gives the same result and a positive time."""
    bound, _ = bound_at(matvec(), device, {"N": 7})
    assert bound.run() > 0
    first = bound.read()["y"]
    assert bound.run("wall") > 0
    assert np.array_equal(first, bound.read()["y"])


def test_several_launches(two_launches, device):
    """A kernel with a global barrier runs as a whole."""
    bound, arguments = bound_at(two_launches(), device, {})
    expected = 2 * (arguments["x"] + arguments["x"][::-1])
    assert verify(bound, {"y": expected}, tolerance=1e-15) <= 1e-15


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.int32])
def test_half_written_output_is_found(dtype, half, device):
    """A kernel that writes half of its output is infinitely wrong, even if the
    right values lie in the buffer from an earlier run.
    """
    bound, arguments = bound_at(half(dtype), device, {"N": 5})
    expected = 2 * arguments["x"]
    bound.poison()
    bound.run()
    result = bound.read()["y"]
    assert np.array_equal(result[:5], expected[:5])
    assert compute_largest_error(result, expected) == np.inf
    with pytest.raises(WrongResultError, match=r"y\[5\]"):
        verify(bound, {"y": expected}, tolerance=0.1)


def test_poison_restores_what_is_read(device):
    """An array that is read and written gets back its first values."""
    kernel = build_kernel("{[i]: 0<=i<4}", "y[i] = y[i] + 1", {"y": "4"})
    start = np.arange(4.0)
    bound = compile_kernel(kernel, device).bind({"y": start})
    bound.run()
    bound.run()
    assert np.array_equal(bound.read()["y"], start + 2)
    assert verify(bound, {"y": start + 1}, tolerance=0.0) == 0.0
    assert np.array_equal(start, np.arange(4.0))


def test_other_layouts(device):
    """Column-major and padded arrays are moved there and back."""
    kernel = lp.make_kernel(
        "{[i,j]: 0<=i<3 and 0<=j<4}",
        "y[i,j] = 2*x[i,j]",
        [
            lp.GlobalArg("x", np.float64, shape=(3, 4), order="F"),
            lp.GlobalArg("y", np.float64, shape=(3, 4), strides=(8, 1)),
        ],
        lang_version=(2018, 2),
    )
    bound, arguments = bound_at(kernel, device, {})
    assert verify(bound, {"y": 2 * arguments["x"]}, tolerance=0.0) == 0.0


def test_sizes_are_read_off_the_shapes(matvec, device):
    """A size that a shape tells need not be given; two shapes must agree."""
    compiled = compile_kernel(matvec(), device)
    bound = compiled.bind({"D": np.eye(4), "u": np.ones((6, 4))})
    bound.run()
    assert np.array_equal(bound.read()["y"], np.ones((6, 4)))
    with pytest.raises(MeasurementError, match="expected N = 5"):
        compiled.bind({"D": np.eye(4), "u": np.ones((6, 4)), "N": 5})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"D": None}, "'D' of shape"),
        ({"D": np.eye(3)}, "'D' has shape"),
        ({"D": np.eye(4, dtype="f4")}, "dtype float32"),
        ({"Q": np.eye(4)}, "no arguments"),
        ({"u": None}, "needs the size"),
    ],
)
def test_arguments_are_checked(change, message, matvec, device):
    """Missing, unknown and ill-typed arguments are refused by name."""
    arguments = {"D": np.eye(4), "u": np.ones((6, 4))} | change
    given = {name: value for name, value in arguments.items() if value is not None}
    with pytest.raises(MeasurementError, match=message):
        compile_kernel(matvec(), device).bind(given)


def test_failed_code_generation_prints_nothing(device, capfd):
    """What Loopy cannot translate is a build error that tells the cause; what
    Loopy prints becomes a note of the error, not output.
    """
    kernel = build_kernel(
        "{[i]: 0<=i<8}", "y[i] = no_such_function(x[i])", {"x,y": "8"}, name="bad"
    )
    with pytest.raises(BuildError, match="kernel 'bad' cannot be built") as caught:
        compile_kernel(kernel, device)
    assert "no_such_function" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("cpu", OPENCL_CPUS)
def test_print_of_code_generation_becomes_a_note(cpu, capfd):
    """What is printed before a failure is kept as a note of the error, which names
    its cause.
    """
    kernel = build_kernel("{[i]: 0<=i<8}", "y[i] = 1", {"y": "8"}, name="loud")
    kernel = lp.set_options(
        kernel,
        allow_terminal_colors=False,
        write_code=True,
        build_options="-no-such-option",
    )
    with pytest.raises(BuildError) as caught:
        compile_kernel(kernel, opened(cpu))
    assert "-no-such-option" in str(caught.value)
    assert "loud(" in "\n".join(caught.value.__notes__)
    assert capfd.readouterr().out == ""


def test_failed_opencl_build_shows_the_log(half, capfd):
    """A failure of the OpenCL compiler is a build error with its log's lines: here
    the kernel has the name of an OpenCL type.
    """
    kernel = lp.rename_callable(half(), "first_half", "half")
    with pytest.raises(BuildError) as caught:
        compile_kernel(kernel, any_opencl())
    message = str(caught.value)
    assert "kernel 'half' cannot be built" in message
    assert "BUILD_PROGRAM_FAILURE" in message
    assert "error:" in message
    assert capfd.readouterr().out == ""


def test_a_failed_build_on_the_host_shows_what_the_compiler_wrote(half, capfd):
    """Here a preamble is no C at all."""
    kernel = half().default_entrypoint.copy(preambles=[("0", "no C at all")])
    with pytest.raises(BuildError, match="no C at all"):
        compile_kernel(half().with_kernel(kernel), open_device("host"))
    assert capfd.readouterr().out == ""


def test_several_entry_points(matvec, half, device):
    """A translation unit with two entry points is refused."""
    both = lp.merge([matvec(), half()])
    with pytest.raises(BuildError, match="'first_half', 'matvec'"):
        compile_kernel(both, device)


class _Library:
    """A built recipe without launches, which takes these seconds in turn."""

    n_launches = 0

    def __init__(self, *seconds):
        self.seconds = [*seconds]

    def run(self, _arguments, _timer):
        return self.seconds.pop(0)


@pytest.mark.parametrize(
    ("timer", "runs_s", "counted_s"),
    [("wall", (0.004, 0.001), 0.001), ("wall", (0.5,), 0.5), (None, (0.004,), 0.004)],
)
def test_a_library_is_timed_with_its_threads_awake(
    timer, runs_s, counted_s, monkeypatch
):
    """The first of two short runs wakes them; a long one counts itself, and so does one
    whose results count: it may add to them.
    """
    monkeypatch.setattr("feinsum.measure.kernel.SPIN_S", 0)
    compiled = SimpleNamespace(built=_Library(*runs_s), timer="wall")
    assert BoundKernel(compiled, {}, (), {}).run(timer) == counted_s


def test_a_full_disk_stops_no_build(monkeypatch):
    """Loopy's caches are passed by when they fail, such as after they were removed."""
    import loopy.codegen
    import loopy.schedule

    def fail(*_arguments):
        raise sqlite3.OperationalError("database or disk is full")

    for cache in (loopy.codegen.code_gen_cache, loopy.schedule.schedule_cache):
        for name in ("fetch", "store", "store_if_not_present", "__getitem__"):
            monkeypatch.setattr(type(cache), name, fail)
    monkeypatch.setattr(lp, "CACHING_ENABLED", True)
    x = np.arange(4.0)
    unit = lp.make_kernel("{[i]: 0<=i<4}", "y[i] = 3*x[i] {id=full}", [
        lp.GlobalArg("x", float, (4,)), lp.GlobalArg("y", float, (4,))],
        lang_version=(2018, 2))  # fmt: skip
    kernel = compile_kernel(unit, open_device()).bind({"x": x})
    kernel.run()
    np.testing.assert_array_equal(kernel.read()["y"], 3 * x)
