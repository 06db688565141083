"""Stores of whole vectors: where they are made, and that they need no alignment."""

from __future__ import annotations

from functools import cache

import loopy as lp
import numpy as np
import pytest

from feinsum import array, canonicalize, einsum, raise_kernel
from feinsum.codegen import generate_loopy
from feinsum.raising import identify_as_einsum
from feinsum.transforms import apply_spec, configurations
from feinsum.transforms.library import PACKED_CONTRACTION
from tests.cpus import CPUS, HOST, opened

pytestmark = pytest.mark.filterwarnings(  # Loopy's own use of islpy
    "ignore:.*with implicit conversion:DeprecationWarning"
)


@cache
def product(n_columns, lanes=4):
    """The transformed kernel of a product of matrices, by its stores."""
    e = canonicalize(
        einsum(
            "ik,kj->ij",
            array("A", (24, 20)),
            array("B", (20, n_columns)),
        )
    ).einsum
    found = {}
    for stores in PACKED_CONTRACTION.offered(e)["stores"]:
        wanted = {"vector": e.output[-1], "lanes": lanes, "stores": stores}
        spec = next(
            spec
            for spec in configurations(PACKED_CONTRACTION, e)
            if wanted.items() <= spec.parameters.items()
        )
        t_unit, nest = identify_as_einsum(generate_loopy(e), e)
        found[stores] = apply_spec(spec, t_unit, nest)
    return e, found


def codes(n_columns):
    import loopy as lp

    _, found = product(n_columns)
    return {
        stores: lp.generate_code_v2(t_unit).device_code()
        for stores, t_unit in found.items()
    }


def test_vectors_that_are_aligned_can_be_streamed():
    """The last axis is a multiple of the lanes: both stores are offered, as asked."""
    written = codes(48)
    assert "feinsum_stream(double, 4, " in written["streamed"]
    assert "feinsum_store(double, 4, " in written["cached"]


def test_what_is_left_of_a_row_is_stored_one_by_one():
    """Whole vectors first, none of which would be aligned in every row."""
    assert codes(50).keys() == {"cached"}
    lines = [line.strip() for line in codes(50)["cached"].splitlines()]
    assert any(line.startswith("feinsum_store(double, 4, row") for line in lines)
    assert sum(line.startswith("out[") for line in lines) == 50 % 4


@pytest.mark.parametrize("shift", [0, 8, 32])
@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize(
    ("n_columns", "stores"), [(48, "cached"), (48, "streamed"), (50, "cached")]
)
@pytest.mark.parametrize("cpu", CPUS)
def test_the_output_needs_no_alignment(n_columns, stores, lanes, shift, cpu):
    """Memory of the host at any multiple of a number's size can be written."""
    e, found = product(n_columns, lanes)
    memory = np.zeros(24 * n_columns * 8 + 192, dtype=np.uint8)
    start = -memory.ctypes.data % 64 + shift
    place = memory[start : start + 24 * n_columns * 8]
    rng = np.random.default_rng(0)
    values = {op.name: rng.random(op.shape) for op in e.operands}
    out = written(opened(cpu), found[stores], place, (24, n_columns), values)
    operands = [values[op.name] for op in e.rows[0]]
    np.testing.assert_allclose(out, np.einsum(e.subscripts, *operands))
    assert not memory[:start].any()
    assert not memory[start + place.size :].any()


def written(device, t_unit, place, shape, values):
    """What a kernel writes to a place in the memory of the host."""
    unit = device.prepare(t_unit)
    if device.reads_in_place:
        out = place.view(np.float64).reshape(shape)
        unit.executor()(out=out, **values)
        return out
    cl = pytest.importorskip("pyopencl")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    buffer = cl.Buffer(device.context, flags, hostbuf=place)
    queue = cl.CommandQueue(device.context)
    out = cl.array.Array(queue, shape, np.float64, data=buffer)
    arrays = {name: cl.array.to_device(queue, x) for name, x in values.items()}
    unit.executor(device.context)(queue, out=out, **arrays)
    return out.get()


@pytest.mark.parametrize("spot", ["A", "B", "out"])
def test_arrays_may_begin_within_others(spot):
    """Vectors are loaded and stored where an array begins, as single entries are."""
    n, offset = 48, 3
    arrays = [
        lp.GlobalArg(name, np.float64, shape=(n, n), offset=offset * (name == spot))
        for name in ("A", "B", "out")
    ]
    raised = raise_kernel(
        lp.make_kernel(
            f"{{[i,j,k]: 0<=i,j,k<{n}}}",
            "out[i,j] = sum(k, A[i,k]*(2*B[j,k] + 1))",
            arrays,
            lang_version=(2018, 2),
        )
    )
    nest = raised.raised[0].nest
    spec = next(iter(configurations(PACKED_CONTRACTION, nest.einsum)))
    unit = lp.expand_subst(apply_spec(spec, raised.t_unit, nest))
    device = opened(HOST)
    memory = {
        name: np.random.default_rng(k).random(n * n + offset * (name == spot))
        for k, name in enumerate(("A", "B", "out"))
    }
    device.build(device.prepare(unit)).run(memory, "wall")
    a, b, out = (memory[name][-n * n :].reshape(n, n) for name in ("A", "B", "out"))
    np.testing.assert_allclose(out, a @ (2 * b + 1).T, rtol=1e-12)
