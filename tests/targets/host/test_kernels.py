"""Kernels of every shape compute on the host what they say."""

from __future__ import annotations

import hypothesis
import loopy as lp
import numpy as np
import pytest
from hypothesis import strategies as st

from feinsum.errors import BuildError, MeasurementError
from feinsum.measure import compile_kernel, open_device
from tests.cpus import HOST
from tests.targets.host.kernels import make, results, source_of

EXTENTS = (1, 2, 3, 5, 13)


def cube():
    """``y[i,j,k] = 100*i + 10*j + k + x[i,j,k]``."""
    return make(
        "{[i,j,k]: 0<=i<n and 0<=j<m and 0<=k<p}",
        "y[i,j,k] = 100*i + 10*j + k + x[i,j,k]",
        {"x,y": "n,m,p"},
    )


def cube_in_numpy(x):
    n, m, p = np.ogrid[tuple(map(slice, x.shape))]
    return 100 * n + 10 * m + p + x


@pytest.mark.parametrize("n", [3, 4, 8])
def test_matrices_are_multiplied_by_their_transposes(n):
    """Entry by entry: gcc 12.2 permutes vectors of 512 bits wrongly."""
    t_unit = make(
        f"{{[i,k]: 0<=i,k<{n}}}",
        "y[i,k] = B[i,k]*B[k,i]",
        {"B,y": f"{n},{n}"},
    )
    B = np.random.default_rng(0).random((n, n))
    np.testing.assert_array_equal(results(t_unit, B=B)["y"], B * B.T)


@pytest.mark.parametrize("n", [3, 16])
def test_entries_that_are_read_under_a_condition_are_not_mixed_up(n):
    """Of short loops gcc 12.2 takes others, if it turns conditions into masks."""
    t_unit = make(
        f"{{[i,k]: 0<=i<m and 0<=k<{n}}}",
        "y[i,k] = 1.0 if c[i,k] > 0.5 else x[i,k]",
        {"x,c,y": f"m,{n}"},
    )
    c, x = np.random.default_rng(0).random((2, 133, n))
    expected = np.where(c > 0.5, 1, x)
    np.testing.assert_array_equal(results(t_unit, c=c, x=x)["y"], expected)


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    blocks=st.tuples(*[st.sampled_from((None, 1, 2, 4))] * 3),
    order=st.permutations(range(3)),
    shapes=st.lists(st.tuples(*[st.sampled_from(EXTENTS)] * 3), min_size=1, max_size=3),
)
def test_every_entry_is_computed_whatever_the_grid(blocks, order, shapes):
    """Groups of work-items on up to three axes each, at extents that none divides."""
    t_unit = cube()
    for axis, (iname, block) in zip(
        order, zip("ijk", blocks, strict=True), strict=True
    ):
        if block is not None:
            t_unit = lp.split_iname(
                t_unit,
                iname,
                block,
                outer_tag=f"g.{_place(axis, order, blocks)}",
                inner_tag=f"l.{_place(axis, order, blocks)}",
            )
    for shape in shapes:
        x = np.random.default_rng(0).random(shape)
        found = results(t_unit, x=x)["y"]
        np.testing.assert_array_equal(found, cube_in_numpy(x))


def _place(axis, order, blocks):
    """Axes of the grid are numbered without gaps."""
    taken = sorted(a for a, b in zip(order, blocks, strict=True) if b is not None)
    return taken.index(axis)


def test_an_extent_of_zero_computes_nothing():
    """With a grid, and with loops only."""
    for tags in ({}, {"i": "g.0", "j": "l.0"}):
        t_unit = lp.tag_inames(lp.fix_parameters(cube(), m=3), tags)
        built = compile_kernel(t_unit, open_device(HOST))
        bound = built.bind({"x": np.zeros((0, 3, 2))})
        bound.run()
        assert bound.read()["y"].shape == (0, 3, 2)


def test_more_axes_than_three_are_refused_by_name():
    """As OpenCL does."""
    for kind in "gl":
        t_unit = make("{[i,j,k,l]: 0<=i,j,k,l<3}", "y[i,j,k,l] = 1", {"y": "3,3,3,3"})
        tags = {iname: f"{kind}.{axis}" for axis, iname in enumerate("ijkl")}
        with pytest.raises(BuildError, match="more than 3 axes"):
            compile_kernel(lp.tag_inames(t_unit, tags), open_device(HOST))


def waiting():
    """Work-items that wait for each other."""
    t_unit = make(
        "{[i]: 0<=i<16}",
        """
        y[i] = 2*x[i]       {id=first}
        ... lbarrier        {id=wait, dep=first}
        y[i] = y[i] + 1     {dep=wait}
        """,
        {"x,y": "16"},
    )
    return lp.tag_inames(t_unit, {"i": "l.0"})


def sharing():
    """Memory of a work-group."""
    t_unit = make(
        "{[i]: 0<=i<16}",
        "z[i] = 2*x[i] {id=first}\ny[i] = z[15 - i] {dep=first}",
        {"x,y": "16"},
        lp.TemporaryVariable(
            "z", np.float64, shape=16, address_space=lp.AddressSpace.LOCAL
        ),
    )
    return lp.tag_inames(t_unit, {"i": "l.0"})


def adding():
    """Sums that work-items make together."""
    t_unit = make(
        "{[i]: 0<=i<16}",
        "y[i] = y[i] + x[i] {atomic}",
        {"x": "16"},
        lp.GlobalArg("y", np.float64, shape=16, for_atomic=True),
    )
    return lp.tag_inames(t_unit, {"i": "g.0"})


def painted():
    """Images."""
    return make(
        "{[i]: 0<=i<16}",
        "y[i] = x[i]",
        {},
        lp.ImageArg("x", np.float32, shape=16),
        lp.GlobalArg("y", np.float32, shape=16),
    )


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (waiting, "local barriers: work-items of the host do not wait"),
        (sharing, "'z' is in local memory"),
        (adding, "'y' is updated atomically"),
        (painted, "'x' is an image"),
    ],
)
def test_what_the_host_does_not_have_is_refused_by_name(kernel, why):
    """And is not computed wrongly."""
    with pytest.raises(BuildError, match=why):
        compile_kernel(kernel(), open_device(HOST))


def filled(length):
    """``y`` sums private arrays of a length, each filled for its work-item."""
    return make(
        f"{{[i,j,k]: 0<=i<n and 0<=j,k<{length}}}",
        """
        z[j] = x[i] + j     {id=fill, inames=i:j}
        y[i] = sum(k, z[k]) {dep=fill}
        """,
        {"x,y": "n"},
        lp.TemporaryVariable("z", np.float64, shape=length),
    )


@pytest.mark.parametrize("length", [3, 2048, 1_000_000])
def test_private_arrays_of_any_size_are_there(length):
    """Those of several MB too, for each of the work-items that run at once."""
    x = np.arange(9.0)
    for tags in ({}, {"i": "g.0"}):
        found = results(lp.tag_inames(filled(length), tags), x=x)["y"]
        expected = length * x + length * (length - 1) / 2
        np.testing.assert_array_equal(found, expected)


def test_large_private_arrays_do_not_overlap():
    """Each has its own place in the memory of a thread, where vectors are aligned."""
    t_unit = make(
        "{[i,j,k,l]: 0<=i<n and 0<=j,k,l<4097}",
        """
        u[j] = j                            {id=u, inames=i:j}
        v[k] = 2*k                          {id=v, inames=i:k}
        y[i] = sum(l, x[i]*u[l] + v[l])     {dep=u:v}
        """,
        {"x,y": "n"},
        lp.TemporaryVariable("u", np.float32, shape=4097),
        lp.TemporaryVariable("v", np.float64, shape=4097),
    )
    x = np.arange(5.0)
    total = 4097 * 4096 / 2
    np.testing.assert_array_equal(results(t_unit, x=x)["y"], (x + 2) * total)


def phases(dtype=np.float64):
    """``y`` is ``x`` reversed, doubled and reversed: three kernels of the device."""
    t_unit = make(
        "{[i,j,k]: 0<=i,j,k<n}",
        """
        u[i] = x[n-1-i]     {id=first}
        ... gbarrier        {id=one, dep=first}
        v[j] = 2*u[j]       {id=second, dep=one}
        ... gbarrier        {id=two, dep=second}
        y[k] = v[n-1-k] + u[n-1-k]      {dep=two}
        """,
        {"x,y": "n"},
        *(
            lp.TemporaryVariable(
                name, dtype, shape="n", address_space=lp.AddressSpace.GLOBAL
            )
            for name in "uv"
        ),
        dtype=dtype,
        seq_dependencies=False,
    )
    for iname in "ijk":
        t_unit = lp.split_iname(t_unit, iname, 8, outer_tag="g.0", inner_tag="l.0")
    return t_unit


@pytest.mark.parametrize(
    ("dtype", "n"), [(np.float32, 0), (np.complex128, 7), (np.int8, 100_003)]
)
def test_phases_see_what_those_before_wrote(dtype, n):
    """In temporaries in global memory, whose size is known only at run time."""
    x = (np.arange(n) % 40).astype(dtype)
    np.testing.assert_array_equal(results(phases(dtype), x=x)["y"], 3 * x)


def test_temporaries_that_no_memory_can_hold_are_an_error():
    """And the next run is right."""
    t_unit = make(
        "{[i,j]: 0<=i,j<n}",
        """
        u[i,0] = x[i]   {id=first}
        ... gbarrier    {id=one, dep=first}
        y[j] = u[j,0]   {dep=one}
        """,
        {"x,y": "n"},
        lp.ValueArg("m", np.int32),
        lp.TemporaryVariable(
            "u", np.float64, shape=("n", "m"), address_space=lp.AddressSpace.GLOBAL
        ),
        seq_dependencies=False,
    )
    compiled = compile_kernel(t_unit, open_device(HOST))
    x = np.arange(1 << 20, dtype=np.float64)
    with pytest.raises(MeasurementError, match="no memory for its temporaries"):
        compiled.bind({"x": x, "m": (1 << 31) - 1}).run()
    bound = compiled.bind({"x": x, "m": 1})
    bound.run()
    np.testing.assert_array_equal(bound.read()["y"], x)


def test_a_temporary_of_more_than_two_gigabytes_has_its_size():
    """Sizes in bytes are longer than indices."""
    t_unit = phases()
    assert "(size_t) (n)" in source_of(t_unit)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_are_numpys(dtype):
    """Sums, products, quotients, conjugates and absolute values."""
    t_unit = make(
        "{[i,k]: 0<=i<n and 0<=k<3}",
        "y[i] = sum(k, a*x[i,k]*conj(x[i,k]) + x[i,k]/(2 + 1j) - abs(x[i,k]))",
        {"x": "n,3", "y": "n"},
        lp.ValueArg("a", dtype),
        dtype=dtype,
    )
    t_unit = lp.split_iname(t_unit, "i", 4, outer_tag="g.0", inner_tag="l.0")
    rng = np.random.default_rng(0)
    x = (rng.random((7, 3)) + 1j * rng.random((7, 3))).astype(dtype)
    a = dtype(2 - 3j)
    expected = (a * x * x.conj() + x / (2 + 1j) - abs(x)).sum(axis=1)
    tolerance = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(results(t_unit, x=x, a=a)["y"], expected, tolerance)


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u8", "f4", "c16"])
def test_numbers_of_every_kind_are_passed(dtype):
    """Arrays, and scalars by their values."""
    t_unit = make(
        "{[i]: 0<=i<n}",
        "y[i] = x[i] + a",
        {"x,y": "n"},
        lp.ValueArg("a", np.dtype(dtype)),
        dtype=np.dtype(dtype),
    )
    x = np.arange(5).astype(dtype)
    np.testing.assert_array_equal(
        results(t_unit, x=x, a=100)["y"], x + x.dtype.type(100)
    )


def test_constants_and_functions_of_others_are_there():
    """Arrays of constants, and callables of the unit that are inlined or called."""
    t_unit = make(
        "{[i]: 0<=i<n}",
        "y[i] = c[i % 3] + x[i]",
        {"x,y": "n"},
        lp.TemporaryVariable(
            "c",
            np.float64,
            initializer=np.array([1.0, 10, 100]),
            read_only=True,
            address_space=lp.AddressSpace.GLOBAL,
        ),
    )
    x = np.arange(7.0)
    expected = np.array([1.0, 10, 100])[np.arange(7) % 3] + x
    for tags in ({}, {"i": "g.0"}):
        tagged = lp.tag_inames(t_unit, tags)
        np.testing.assert_array_equal(results(tagged, x=x)["y"], expected)


@pytest.mark.parametrize("factor", [1, 64, 65])
def test_a_loop_that_is_written_out_is_the_loop(factor):
    """Of any length; the long ones stay loops."""
    t_unit = make(
        f"{{[i,k]: 0<=i<n and 0<=k<{factor}}}",
        "y[i,k] = k*x[i]",
        {"x": "n"},
        lp.GlobalArg("y", np.float64, shape=("n", factor)),
    )
    for tag in ("unr", "unr_hint"):
        x = np.arange(3.0)
        found = results(lp.tag_inames(t_unit, {"k": tag}), x=x)["y"]
        np.testing.assert_array_equal(found, np.outer(x, np.arange(factor)))


def test_loops_of_one_name_are_written_out_twice():
    """Each in a scope of its own."""
    t_unit = make(
        "{[i,k]: 0<=i<n and 0<=k<3}",
        """
        for i
            z[k] = x[i] + k     {id=first}
            y[i,k] = 2*z[k]     {dep=first}
        end
        """,
        {"x": "n", "y": "n,3"},
        lp.TemporaryVariable("z", np.float64, shape=3),
    )
    t_unit = lp.duplicate_inames(t_unit, "k", "writes:z", new_inames="l")
    t_unit = lp.tag_inames(t_unit, {"k": "unr_hint", "l": "unr_hint"})
    x = np.arange(4.0)
    np.testing.assert_array_equal(
        results(t_unit, x=x)["y"], 2 * (x[:, np.newaxis] + np.arange(3))
    )


NAMES = ["slots", "first", "past", "scratch", "grid", "group", "gid0", "lid0", "memory",
         "arena", "parallel", "arguments", "work_ns"]  # fmt: skip


def test_names_of_the_user_are_not_those_of_the_target():
    """Arrays, scalars, temporaries and loops are called whatever one likes."""
    x = np.arange(20.0)
    for k in range(len(NAMES)):  # each name once for each of the four
        chosen = [NAMES[(k + n) % len(NAMES)] for n in range(4)]
        t_unit = two_phases(*chosen)
        found = results(t_unit, **dict(zip(chosen, (x, 3.0), strict=False)))["y"]
        np.testing.assert_array_equal(found, 3 * x[::-1])


def two_phases(x="x", a="a", u="u", k="k"):
    """``y`` is ``a*x`` reversed, by way of global memory and a large private array."""
    t_unit = make(
        f"{{[i,j,{k}]: 0<=i,j<n and 0<={k}<3000}}",
        f"""
        {u}[i] = {a}*{x}[i]     {{id=first}}
        ... gbarrier            {{id=wait, dep=first}}
        w[{k}] = {u}[n-1-j]     {{id=fill, dep=wait, inames=j:{k}}}
        y[j] = w[2999]          {{dep=fill}}
        """,
        {f"{x},y": "n"},
        lp.ValueArg(a, np.float64),
        lp.TemporaryVariable(
            u, np.float64, shape="n", address_space=lp.AddressSpace.GLOBAL
        ),
        lp.TemporaryVariable("w", np.float64, shape=3000),
        seq_dependencies=False,
    )
    for iname in "ij":
        t_unit = lp.split_iname(t_unit, iname, 8, outer_tag="g.0", inner_tag="l.0")
    return t_unit


@pytest.mark.parametrize(("length", "is_inlined"), [(2047, True), (2048, False)])
def test_work_items_with_large_arrays_are_not_inlined(length, is_inlined):
    """Pointers stay restricted there, without which gcc copies entry by entry."""
    source = source_of(filled(length))
    assert ("always_inline" in source) == is_inlined
    assert ("noinline" in source) != is_inlined


def test_work_items_with_loops_over_nodes_of_a_tree_are_not_inlined():
    """Their sums stay in registers then, which the loops around them need as well."""
    t_unit = make(
        ["{[i]: 0<=i<n}", "[first,past] -> {[node]: first<=node<past}"],
        """
        for i
            <> first = starts[i]
            <> past = starts[i+1]
            y[i] = sum(node, x[node])
        end
        """,
        {"x": "m", "y": "n"},
        lp.GlobalArg("starts", np.int32, shape="n + 1"),
    )
    source = source_of(t_unit)
    assert "noinline" in source
    assert "always_inline" not in source
