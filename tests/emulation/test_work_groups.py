"""The executor of scheduled kernels: results, races, barriers, bounds."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopy.schedule import Barrier

from feinsum.errors import MeasurementError
from feinsum.transforms.primitives.multiply_fragments import FragmentProduct
from feinsum.transforms.primitives.schedule import make_tagged_statement
from tests.emulation.work_groups import Race, execute_groups, scheduled
from tests.transforms.support import EINSUMS, LOOPY_WARNINGS, generated

pytestmark = LOOPY_WARNINGS

LOCAL = lp.AddressSpace.LOCAL


def through_shared(n, block, index="n - 1 - j", n_groups=1):
    """What one statement writes to shared memory, another one reads elsewhere."""
    unit = lp.make_kernel(
        ["{[i, g]: 0<=i<n and 0<=g<m}", "{[j]: 0<=j<n}"],
        [
            lp.Assignment("t[i]", "x[g, i]", id="w", within_inames=frozenset("gi")),
            lp.Assignment(
                "y[g, j]",
                f"t[{index}]",
                within_inames=frozenset("gj"),
                depends_on=frozenset("w"),
            ),
        ],
        [
            lp.GlobalArg("x,y", np.float64, shape=(n_groups, n)),
            lp.TemporaryVariable("t", np.float64, (n,), address_space=LOCAL),
        ],
        lang_version=(2018, 2),
        target=lp.OpenCLTarget(),
    )
    unit = lp.fix_parameters(unit, n=n, m=n_groups)
    for iname in "ij":
        unit = lp.split_iname(unit, iname, block, inner_tag="l.0")
    return lp.tag_inames(unit, {"g": "g.0"})


def arguments_of(n, n_groups=1):
    x = np.arange(1.0, n_groups * n + 1).reshape(n_groups, n)
    return {"x": x, "y": np.zeros_like(x)}


def without_barriers(unit):
    """The same schedule, its barriers left out."""
    kernel = unit.default_entrypoint
    kept = [item for item in kernel.linearization if not isinstance(item, Barrier)]
    return unit.with_kernel(kernel.copy(linearization=kept))


@settings(max_examples=8)
@given(st.integers(1, 13), st.sampled_from([1, 2, 4, 8]), st.integers(1, 3))
def test_a_kernel_with_its_barriers_is_right_and_has_no_race(n, block, n_groups):
    """At extents that no group divides."""
    given = arguments_of(n, n_groups)
    execution = execute_groups(through_shared(n, block, n_groups=n_groups), given)
    assert execution.races == ()
    assert np.array_equal(execution.outputs["y"], given["x"][:, ::-1])


def test_a_missing_barrier_is_found():
    """The result may be right all the same: work-items go in step here."""
    unit = scheduled(through_shared(8, 8))
    execution = execute_groups(without_barriers(unit), arguments_of(8))
    assert {race.kind for race in execution.races} == {"read-write"}
    assert {race.array for race in execution.races} == {"t"}


def test_what_a_work_item_wrote_itself_needs_no_barrier():
    """Each one reads what it wrote."""
    unit = scheduled(through_shared(8, 8, index="j"))
    execution = execute_groups(without_barriers(unit), arguments_of(8))
    assert execution.races == ()


def one_statement(target, value, **shapes):
    unit = lp.make_kernel(
        "{[i]: 0<=i<8}",
        [lp.Assignment(target, value, within_inames=frozenset("i"))],
        [lp.GlobalArg(name, np.float64, shape=n) for name, n in shapes.items()],
        lang_version=(2018, 2),
        target=lp.OpenCLTarget(),
        silenced_warnings=["write_race*"],
    )
    return lp.split_iname(unit, "i", 4, outer_tag="g.0", inner_tag="l.0")


@pytest.mark.parametrize(
    ("target", "value", "kinds"),
    [
        ("y[i]", "x[i]", set()),
        ("y[i // 2]", "x[i]", {"write-write"}),
        ("y[i % 4]", "x[i]", {"group-write"}),
        ("y[i]", "y[7 - i]", {"group-write"}),
        ("y[i]", "y[i]", set()),
    ],
)
def test_entries_that_several_write_are_found(target, value, kinds):
    """In one group, or in two, which never wait for each other."""
    given = {"x": np.arange(8.0), "y": np.zeros(8)}
    execution = execute_groups(one_statement(target, value, x=8, y=8), given)
    assert {race.kind for race in execution.races} == kinds


def test_a_barrier_that_not_all_reach_is_found():
    """Work-items whose loop is shorter leave it before."""
    unit = through_shared(6, 4)
    kernel = scheduled(unit).default_entrypoint
    items = list(kernel.linearization)
    (at,) = (k for k, item in enumerate(items) if isinstance(item, Barrier))
    moved = items.pop(at)
    first = next(k for k, i in enumerate(items) if type(i).__name__ == "RunInstruction")
    items.insert(first, moved)
    unit = scheduled(unit).with_kernel(kernel.copy(linearization=items))
    races = execute_groups(unit, arguments_of(6)).races
    assert Race("", 0, "barrier") in races


def test_a_work_item_beyond_an_array_is_refused():
    """With the axis, the extent and where it is."""
    given = {"x": np.arange(8.0), "y": np.zeros(8)}
    unit = scheduled(one_statement("y[i]", "x[i]", x=8, y=8))
    with pytest.raises(
        MeasurementError, match=r"'x' has extent 5 on axis 0, .* accesses 5"
    ):
        execute_groups(unit, {**given, "x": np.arange(5.0)})


def test_a_statement_that_is_no_arithmetic_is_refused():
    """By its kind."""
    unit = lp.make_kernel(
        "{[i]: 0<=i<8}",
        [lp.CInstruction("i", "y[0] = 1;", assignees=("y[0]",))],
        [lp.GlobalArg("y", np.float64, shape=8)],
        lang_version=(2018, 2),
        target=lp.OpenCLTarget(),
        silenced_warnings=["write_race*"],
    )
    with pytest.raises(MeasurementError, match="a CInstruction; expected an assign"):
        execute_groups(unit, {"y": np.zeros(8)})


@pytest.mark.parametrize("name", ["gradient", "matrix product", "integers"])
def test_untransformed_kernels_compute_the_reference(name):
    """The executor agrees with the meaning of einsums."""
    case = generated(EINSUMS[name])
    sizes = dict.fromkeys(("N", "K", "M"), 3)
    arguments, expected, tolerance = case._reference(
        {
            n: v
            for n, v in sizes.items()
            if n in {x.name for x in case.einsum.size_params}
        }
    )
    everything = dict(arguments)
    for out, value in expected.items():
        everything.setdefault(out, np.zeros_like(value))
    execution = execute_groups(case.t_unit, everything)
    for out, value in expected.items():
        assert np.allclose(execution.outputs[out], value, rtol=10 * tolerance)


@pytest.mark.parametrize(("n_lanes", "races"), [(32, ()), (16, (Race("", 0, "warp"),))])
def test_products_of_a_warp_are_those_of_its_lanes(n_lanes, races):
    """The product that its tag says, added; fewer lanes than a warp are no warp."""
    parts = [(name, f"{name}_at") for name in ("sums", "left", "right")]
    product = FragmentProduct(4, *parts)
    shapes = {"sums": 4, "left": 2, "right": 1}
    unit = lp.make_kernel(
        [f"{{[lane]: 0<=lane<{n_lanes}}}", "{[i]: 0<=i<4}", "{[j]: 0<=j<4}"],
        [
            *(f"{place} = 0 {{id={place}}}" for _, place in parts),
            "left[0] = x[lane] {id=left}",
            "left[1] = x[lane + 32] {id=left_1}",
            "right[0] = x[lane + 64] {id=right}",
            "sums[i] = 1 {id=sums}",
            make_tagged_statement(
                product, "multiply", ["lane"],
                ["sums", "left", "left_1", "right", *(place for _, place in parts)],
            ),
            "y[lane, j] = sums[j] {dep=multiply}",
        ],
        [
            lp.GlobalArg("x", np.float64, shape=96),
            lp.GlobalArg("y", np.float64, shape=(n_lanes, 4)),
            *(lp.TemporaryVariable(n, np.float64, (k,)) for n, k in shapes.items()),
            *(lp.TemporaryVariable(place, np.int64, ()) for _, place in parts),
        ],
        lang_version=(2018, 2),
        target=lp.OpenCLTarget(),
    )  # fmt: skip
    unit = lp.tag_inames(unit, {"lane": "l.0"})
    x = np.random.default_rng(0).random(96)
    execution = execute_groups(unit, {"x": x, "y": np.zeros((n_lanes, 4))})
    assert execution.races == races
    if not races:
        left, right = x[:64].reshape(16, 4), x[64:].reshape(8, 4).T
        sums = 1 + left @ right
        found = execution.outputs["y"].reshape(8, 4, 2, 2).transpose(2, 0, 1, 3)
        assert np.allclose(found.reshape(16, 8), sums)
