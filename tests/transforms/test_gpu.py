"""Families for GPUs: right without one, free of races, compiled for every capability.

They run by work-groups in numpy, on the stand-in of a GPU, and by Intel's OpenCL
runtime, whose barriers are right.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod

import loopy as lp
import numpy as np
import pytest
from pymbolic import primitives as p

from feinsum import array, batched_einsum, einsum
from feinsum.errors import BuildError, InvalidParameterError
from feinsum.ir import Workload
from feinsum.measure import compile_kernel, open_device
from feinsum.measure.gpu_figures import get_recipe_figures
from feinsum.predict import model_machine
from feinsum.raising import identify_as_einsum
from feinsum.records import Device
from feinsum.retrieval.applying import _check_loops
from feinsum.targets.cuda import CudaTarget
from feinsum.targets.cuda.built import check_launch
from feinsum.targets.cuda.code import generate_cuda as cuda_code
from feinsum.targets.cuda.figures import occupancy, parse_figures
from feinsum.targets.cuda.nvrtc import find_nvrtc
from feinsum.transforms import (
    check_spec,
    find_applicable_transforms,
    list_configurations,
)
from feinsum.transforms.gpu import (
    GPU_COLUMNS,
    GPU_ELEMENTS,
    GPU_MATRICES,
    GPU_MMA,
    GPU_OPERATOR,
    GPU_OPERATOR_MMA,
    GPU_POINTS,
    GPU_PRODUCT,
    GPU_ROWS,
    GPU_SPLIT_SUM,
    GPU_TURNED,
)
from feinsum.transforms.gpu import cost as gpu_cost
from feinsum.transforms.gpu.families import GPUS
from feinsum.transforms.gpu.sides import find_sides
from feinsum.transforms.primitives.copy_async import AwaitGroups
from feinsum.transforms.registry import REGISTRY
from tests.cpus import INTEL, opened
from tests.emulation.work_groups import execute_groups
from tests.portions import spread
from tests.targets.cuda.stand_in import StandInDriver, needs_nvrtc, stand_in
from tests.transforms.support import (
    EINSUMS,
    LOOPY_WARNINGS,
    NEVER_LONG,
    Case,
    generated,
    sampled,
    written,
)

__all__ = ["stand_in"]

pytestmark = LOOPY_WARNINGS

SUMS = {
    "long sum": einsum("ij,j->i", array("A", (3, "N")), array("x", "N")),
    "whole sum": einsum("ij,ij->", array("A", ("N", 7)), array("B", ("N", 7))),
    "long sums of rows": batched_einsum(
        "ji->i", [[array(name, ("N", "M"), "float32")] for name in "AB"]
    ),
    "long sum of integers": einsum("i->", array("n", "N", "int32")),
}
PRODUCTS = {
    "in pieces": einsum(
        "dbea,ec->abcd", array("A", (16, 3, 6, 16)), array("B", (6, 24))
    ),
    "of even rows": einsum("ki,kj->ij", array("A", (21, 35)), array("B", (21, 38))),
    "shared sums": einsum(
        "cad,dcb->ab", array("A", (8, "N", 36)), array("B", (36, 8, "M"))
    ),
    "shared sums of two rows": batched_einsum(
        "ki,kj->ij",
        [[array("A", (130, 21)), array(name, (130, 18))] for name in "BC"],
    ),
}
TURNED = {
    "factors": einsum(
        "abj,ja,b->bja",
        array("A", ("N", 3, "M")), array("B", ("M", "N")), array("c", 3),
    )
}  # fmt: skip
WEIGHTED = einsum(
    "ij,ei,je->ei", array("M", (5, 5)), array("w", ("N", 5)), array("u", (5, "N"))
)
"""Weights of rows, and elements last."""
OUTER = einsum("i,e->ei", array("v", 5), array("a", "N"))
"""A matrix of one axis."""
ALL = {
    **EINSUMS, **SUMS, **PRODUCTS, **TURNED,
    "weighted rows": WEIGHTED, "outer product": OUTER,
}  # fmt: skip
SMALL = {
    GPU_ELEMENTS: {"elements": 8, "workers": 4, "rows": 2},
    GPU_MATRICES: {"stacked": 0},
    GPU_MMA: {
        "across": 32,
        "along": 32,
        "depth": 16,
        "columns": 16,
        "rows": 16,
        "stages": 2,
        "cut": 1,
        "shares": 1,
    },
    GPU_OPERATOR: {"lanes": 16, "columns": 2, "rows": 3},
    GPU_OPERATOR_MMA: {
        "elements": 32,
        "height": 16,
        "width": 8,
        "turns": 2,
        "groups": 2,
    },
    GPU_POINTS: {"block": 64},
    GPU_PRODUCT: {
        "across": 16,
        "along": 16,
        "depth": 8,
        "columns": 2,
        "rows": 2,
        "stages": 2,
    },
    GPU_COLUMNS: {"items": 4, "columns": 32},
    GPU_ROWS: {"items": 32, "rows": 1},
    GPU_SPLIT_SUM: {"items": 128, "parts": 8},
    GPU_TURNED: {"rows": 8},
}
CASES = [
    (GPU_ELEMENTS, "gradient", {"lane": "element", "stage_matrices": True}),
    (GPU_ELEMENTS, "gradient", {"lane": "row", "stage_matrices": False}),
    (GPU_ELEMENTS, "divergence", {"lane": "row", "stage_matrices": True}),
    (GPU_ELEMENTS, "mass of three", {"lane": "element", "stage_matrices": False}),
    (GPU_ELEMENTS, "face mass", {"lane": "element", "stage_matrices": True}),
    (GPU_ELEMENTS, "copy", {"lane": "element", "stage_matrices": True}),
    (GPU_ELEMENTS, "operand that is summed alone", {"lane": "row",
                                                    "stage_matrices": True}),
    (GPU_MATRICES, "matrix product", {}),
    (GPU_MATRICES, "two summed indices", {}),
    (GPU_MATRICES, "two summed indices", {"stacked": 1}),
    (GPU_MATRICES, "four output indices", {}),
    (GPU_MATRICES, "in single precision", {}),
    (GPU_MATRICES, "two rows", {}),
    (GPU_MMA, "matrix product", {"terms": 4, "copies": "registers", "stages": 3}),
    (GPU_MMA, "two summed indices", {"along": 64, "columns": 8, "rows": 32}),
    (GPU_MMA, "four output indices", {"depth": 8, "stages": 3}),
    (GPU_MMA, "two rows", {"terms": 16}),
    (GPU_MMA, "in pieces", {"cut": 4, "copies": "registers", "depth": 8}),
    (GPU_MMA, "of even rows", {"copies": "arguments"}),
    (GPU_MMA, "shared sums", {"depth": 8, "shares": 4}),
    (GPU_MMA, "shared sums of two rows", {"depth": 8, "shares": 2}),
    (GPU_OPERATOR, "gradient", {"stage_matrix": True, "stage_output": True}),
    (GPU_OPERATOR, "gradient", {"stage_matrix": False, "stage_output": False}),
    (GPU_OPERATOR, "divergence", {"stage_matrix": True, "stage_output": True}),
    (GPU_OPERATOR, "mass of three", {"stage_matrix": False, "stage_output": True}),
    (GPU_OPERATOR, "face mass", {"stage_matrix": True, "stage_output": True}),
    (GPU_OPERATOR, "outer product", {"stage_matrix": True, "stage_output": True}),
    (GPU_OPERATOR_MMA, "literal extent", {"ahead": True}),
    (GPU_OPERATOR_MMA, "gradient of three", {"ahead": True}),
    (GPU_OPERATOR_MMA, "divergence", {"terms": 8, "ahead": False}),
    (GPU_OPERATOR_MMA, "weighted rows", {"height": 32, "groups": 1}),
    (GPU_OPERATOR_MMA, "face mass", {"width": 16, "turns": 1, "ahead": True}),
    (GPU_POINTS, "divergence", {}),
    (GPU_POINTS, "matrix times itself", {}),
    (GPU_POINTS, "mixed", {}),
    (GPU_PRODUCT, "matrix product", {}),
    (GPU_PRODUCT, "two summed indices", {"copies": "registers"}),
    (GPU_PRODUCT, "two rows", {"stages": 3}),
    (GPU_PRODUCT, "of known extents", {"along": 32, "rows": 4}),
    (GPU_PRODUCT, "in single precision", {}),
    (GPU_COLUMNS, "integers", {}),
    (GPU_COLUMNS, "two rows", {}),
    (GPU_ROWS, "integers", {}),
    (GPU_ROWS, "unsigned", {}),
    (GPU_ROWS, "two rows", {}),
    *((GPU_SPLIT_SUM, name, {}) for name in SUMS),
    (GPU_TURNED, "transpose", {}),
    (GPU_TURNED, "factors", {}),
]  # fmt: skip
"""Of each family the ways that differ."""
ON_TENSOR_CORES = (GPU_MMA, GPU_OPERATOR_MMA)
ARCHITECTURES = ("sm_70", "sm_80", "sm_90")
FAMILIES = [t for t in REGISTRY.values() if t.devices == GPUS]
"""Every version of each."""
INSTANCES = {transform.name: name for transform, name, _ in reversed(CASES)}
"""Of each family the first einsum."""


def instance(transform, dtype):
    """The einsum of a family with operands of another dtype."""
    e = ALL[INSTANCES[transform.name]]
    rows = [[replace(op, dtype=np.dtype(dtype)) for op in row] for row in e.rows]
    return replace(e, rows=tuple(map(tuple, rows)))


RECOMMENDED = [
    pytest.param(t, dtype, id=f"{t.name}@{t.version}-{dtype}", marks=marks)
    for dtypes, marks in (
        (("float64",), ()),
        (
            ("float32", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
             "uint64", "bool"),
            pytest.mark.long,
        ),
    )
    for dtype in dtypes
    for t in FAMILIES
    if t.fits(instance(t, dtype))
]  # fmt: skip
LARGE = einsum(
    "aebf,dfce->abcd",
    array("A", (48, 32, 24, 32)),
    array("B", (48, 32, 24, 32)),
)
"""As in suites of coupled cluster."""
LARGE_STARTS = [*GPU_MMA.starts(Workload(LARGE))]
NEED_CUDA = {
    GPU_MATRICES: "takes CUDA and cuBLAS; take gpu_product",
    GPU_MMA: "takes CUDA and a GPU of sm_80 or newer",
    GPU_OPERATOR_MMA: "takes CUDA and a GPU of sm_80 or newer",
}
H100 = Device("NVIDIA CUDA C++", "H100", "NVIDIA", "gpu", "sm_90", 132)
FEW_REGISTERS = 32
"""Of a work-item; fewer limit no occupancy."""
EXTENTS = (5, 3, 4, 2)
"""Of the size parameters, for work-groups in numpy; no tile divides them."""


def spec_of(transform, name, changes):
    """A small configuration, of which the rest is what is recommended."""
    recommended = next(list_configurations(transform, ALL[name])).parameters
    return transform.spec({**recommended, **SMALL[transform], **changes})


def sizes_of(e, extents=EXTENTS):
    return dict(zip([x.name for x in e.size_params], extents, strict=False))


@pytest.mark.parametrize(("transform", "name", "changes"), spread(CASES, 24))
def test_a_recipe_is_right_and_has_no_race(transform, name, changes):
    """Work-group by work-group, at extents that are shorter than any tile.

    Every loop has bounds, also one that depends on two axes of a group.
    """
    case = generated(ALL[name])
    spec = spec_of(transform, name, changes)
    unit = case.apply(spec)
    _check_loops(spec, unit.default_entrypoint)
    arguments, expected, tolerance = case._reference(sizes_of(case.einsum))
    outputs = {out: np.zeros_like(value) for out, value in expected.items()}
    execution = execute_groups(unit, {**arguments, **outputs})
    assert execution.races == ()
    for out, value in expected.items():
        assert np.allclose(
            execution.outputs[out], value, rtol=tolerance, atol=100 * tolerance
        )


@needs_nvrtc
def test_recorded_recipes_let_the_compiler_move_loads(stand_in):
    """Version 1 does; version 2 does not. Both say how many groups have registers."""
    case = generated(ALL["divergence"])
    spec = spec_of(GPU_OPERATOR_MMA, "divergence", {})
    for version, is_free in ((1, True), (2, False)):
        unit = case.apply(replace(spec, version=version))
        source = cuda_code(unit.copy(target=CudaTarget())).source
        assert "__launch_bounds__(64, 2)" in source
        assert ("double *__restrict__" in source) == is_free
        case.assert_right(unit, [sizes_of(case.einsum, (37,))], "cuda")


@needs_nvrtc
@pytest.mark.parametrize(("transform", "name", "changes"), spread(CASES[1:], 24))
def test_the_code_for_cuda_is_right(transform, name, changes, stand_in):
    """As CUDA C++ with fibers for work-items; tiles are full, partly full and one.

    In every run, the cases between those that numpy runs.
    """
    case = generated(ALL[name])
    unit = case.apply(spec_of(transform, name, changes))
    extents = [(1, 2, 1, 3), (37, 18, 21, 5)]
    sizes = [sizes_of(case.einsum, several) for several in extents]
    case.assert_right(unit, sizes if sizes[0] else [{}], "cuda")


@needs_nvrtc
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_split_among_groups(name, stand_in):
    """In two launches; each group makes several steps, and the last one is not full."""
    case = generated(SUMS[name])
    unit = case.apply(spec_of(GPU_SPLIT_SUM, name, {}))
    assert len(cuda_code(unit.copy(target=CudaTarget())).launches) == 2
    e = case.einsum
    sizes = {x.name: 3 for x in e.size_params}
    sizes |= {str(e.extents[i]): 1300 for i in e.summation_indices}
    case.assert_right(unit, [{x.name: sizes[x.name] for x in e.size_params}], "cuda")


@pytest.mark.parametrize(
    ("transform", "name", "changes"),
    spread((case for case in CASES if case[0] not in NEED_CUDA), 9),
)
def test_the_same_family_is_right_by_opencl(transform, name, changes):
    """On a runtime for CPUs whose barriers are right."""
    case = generated(ALL[name])
    unit = case.apply(spec_of(transform, name, changes))
    case.assert_right(unit, [sizes_of(case.einsum, (101, 37, 9, 5))], INTEL)


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (GPU_MATRICES, "matrix product"),
        (GPU_MMA, "matrix product"),
        (GPU_OPERATOR_MMA, "face mass"),
    ],
)
def test_what_takes_cuda_is_not_for_opencl(transform, name):
    """The compiler says what to take instead."""
    unit = generated(ALL[name]).apply(spec_of(transform, name, {}))
    with pytest.raises(BuildError, match=NEED_CUDA[transform]):
        compile_kernel(unit, opened(INTEL))


@needs_nvrtc
def test_a_gpu_without_tensor_cores_is_refused(monkeypatch):
    """By its capability, before anything is compiled."""
    old = [StandInDriver(capability=(7, 0))]
    monkeypatch.setattr("feinsum.targets.cuda.session._DRIVERS", old)
    unit = generated(ALL["matrix product"]).apply(
        spec_of(GPU_MMA, "matrix product", {})
    )
    with pytest.raises(BuildError, match="sm_80 or newer, the device has sm_70"):
        compile_kernel(unit, open_device("cuda"))


@needs_nvrtc
@pytest.mark.parametrize(
    ("parameters", "architecture"),
    [
        *spread([(start, "sm_80") for start in LARGE_STARTS], 1),
        *spread([(start, "sm_90") for start in reversed(LARGE_STARTS)], 1),
    ],
    ids=str,
)
def test_large_tiles_stay_in_registers(parameters, architecture):
    """Of every start for tensor cores, for indices that take divisions."""
    for launch in get_recipe_figures(GPU_MMA.spec(parameters), LARGE, architecture):
        assert launch.figures.spill_bytes == 0
        assert launch.occupancy > 0


def test_every_family_for_gpus_has_cases():
    """Also one that is registered tomorrow."""
    assert {t.name for t in FAMILIES} == {t.name for t in SMALL} == set(INSTANCES)
    assert {param.values[0] for param in RECOMMENDED} == set(FAMILIES)


@needs_nvrtc
@pytest.mark.parametrize(("transform", "dtype"), RECOMMENDED)
def test_the_recommended_code_compiles(transform, dtype):
    """Of every version of a family for every architecture, or from that of its tensor
    cores: without spills, and with room for a work-group.

    By default for double precision: other types take ``-m long``.
    """
    e = instance(transform, dtype)
    code = cuda_code_of(e, next(list_configurations(transform, e)))
    needs_tensor_cores = transform.name in {t.name for t in ON_TENSOR_CORES}
    for architecture in ARCHITECTURES:
        if needs_tensor_cores and architecture == "sm_70":
            with pytest.raises(BuildError, match="uses tensor cores of sm_80"):
                check_launch(code.launches[0], 70)
        else:
            assert_compiles(code, architecture)


@needs_nvrtc
@pytest.mark.parametrize(
    ("transform", "name", "changes"),
    [
        (GPU_ELEMENTS, "gradient", {"elements": 32, "workers": 1}),
        (GPU_ELEMENTS, "face mass", {"rows": 8, "workers": 16}),
        (GPU_MMA, "of even rows", {"copies": "arguments"}),
        (GPU_OPERATOR, "mass", {}),
        (GPU_OPERATOR_MMA, "face mass", {"turns": 1, "ahead": False}),
        (GPU_PRODUCT, "in single precision", {}),
        (GPU_ROWS, "two rows", {}),
        (GPU_SPLIT_SUM, "long sum", {}),
        (GPU_TURNED, "factors", {}),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_costs_know_what_a_kernel_takes(transform, name, changes, monkeypatch):
    """The cost model's registers and shared memory are those of ptxas, within a factor
    of two, where they can limit the occupancy.
    """
    counted = []

    def full_occupancy(figures, *_):
        counted.append((figures.registers, figures.shared_bytes))
        return 1.0

    monkeypatch.setattr(gpu_cost, "occupancy", full_occupancy)
    e, spec = ALL[name], spec_of(transform, name, changes)
    known = Workload(e, sizes_of(e, (5000, 500, 400, 3))).sized
    transform.cost(known, spec.parameters, model_machine(H100))
    launches = get_recipe_figures(spec, e, "sm_90")
    used = [(launch.figures.registers, launch.shared_bytes) for launch in launches]
    measured, predicted = (np.maximum(x, (FEW_REGISTERS, 0)) for x in (used, counted))
    assert np.all((predicted <= 2 * measured) & (measured <= 2 * predicted))


@needs_nvrtc
@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("transform", SMALL, ids=lambda t: t.name)
def test_the_code_of_every_tile_compiles(transform, architecture):
    """For einsums of every kind that it fits."""
    for e in ALL.values():
        if transform.fits(e) and not (
            transform in ON_TENSOR_CORES and architecture == "sm_70"
        ):
            for spec in sampled(e, transform, 20):
                code = cuda_code_of(e, spec)
                assert_compiles(code, architecture, most_spilled=1 << 12)


def cuda_code_of(e, spec):
    return cuda_code(generated(e).apply(spec).copy(target=CudaTarget()))


def assert_compiles(code, architecture, most_spilled=0):
    log = find_nvrtc().compile(code.source, architecture).log
    capability = int(architecture.removeprefix("sm_"))
    for launch in code.launches:
        check_launch(launch, capability)
        figures, n_items = parse_figures(log, launch.name), prod(launch.block)
        assert figures.shared_bytes <= launch.static_bytes
        assert figures.spill_bytes <= most_spilled
        assert occupancy(figures, n_items, capability, launch.shared_bytes) > 0


@pytest.mark.parametrize("copies", GPU_MMA.get_space(LARGE)["copies"])
@pytest.mark.parametrize(
    ("statement", "kind"), [(lp.BarrierInstruction, "read-write"), (AwaitGroups, "")]
)
def test_tiles_are_awaited(statement, kind, copies):
    """What is copied is not there before; without a barrier others may still read."""
    case = generated(ALL["of known extents"])
    unit = case.apply(spec_of(GPU_MMA, "of known extents", {"copies": copies}))
    kernel = unit["feinsum_kernel"]
    dropped = [
        insn
        for insn in kernel.instructions
        if isinstance(insn, statement) or insn.tags_of_type(statement)
    ]
    assert len(dropped) == 1 or copies == "registers"
    unit = lp.remove_instructions(
        unit.with_kernel(kernel), {insn.id for insn in dropped}
    )
    arguments, expected, _ = case._reference({})
    execution = execute_groups(unit, {**arguments, "out": np.zeros((29, 37))})
    is_right = np.allclose(execution.outputs["out"], expected["out"])
    assert is_right == (not dropped or statement is lp.BarrierInstruction)
    assert {race.kind for race in execution.races} == ({kind} if kind else set())


CROSSED = einsum("aebf,dfce->abcd", array("A", (6, 8, 4, 5)), array("B", (6, 5, 8, 8)))
"""The last index of one operand is in the middle of the other; the sums fill tiles."""
TURNED = einsum(
    "aebf,fdec->abcd", array("A", (5, 16, 3, 16)), array("B", (16, 6, 16, 8))
)
"""That of the second one is in the middle of the output."""


@needs_nvrtc
def test_indices_are_cut_where_operands_are_at_odds(stand_in):
    """Pieces go together, and are copied in twos."""
    sides = find_sides(CROSSED, CROSSED.extents)
    assert (sides.summed.indices, sides.summed.cut) == (("e", "f"), "e")
    sides = find_sides(TURNED, TURNED.extents)
    assert (sides.across.indices, sides.across.cut) == (("c", "d"), "c")
    assert GPU_MMA.get_space(ALL["in pieces"])["cut"] == (8, 4, 16, 1)
    for e, transform, changes in (
        (CROSSED, GPU_MMA, {}), (TURNED, GPU_PRODUCT, {}),
        (ALL["in pieces"], GPU_MMA, {"cut": 8}),
    ):  # fmt: skip
        case = generated(e)
        unit = case.apply(spec_of(transform, "matrix product", changes))
        assert "feinsum_copy(2, " in cuda_code(unit.copy(target=CudaTarget())).source
        case.assert_right(unit, [{}], "cuda")


@pytest.mark.parametrize("copies", GPU_MMA.get_space(LARGE)["copies"])
def test_nothing_is_read_beyond_the_last_tile(copies):
    """Also where all tiles are full, and the next one is loaded none the less."""
    case = generated(CROSSED)
    changes = {"depth": 8, "stages": 3, "copies": copies}
    unit = case.apply(spec_of(GPU_MMA, "matrix product", changes))
    arguments, expected, _ = case._reference({})
    out = {"out": np.zeros_like(expected["out"])}
    execution = execute_groups(unit, {**arguments, **out})
    assert execution.races == ()
    assert np.allclose(execution.outputs["out"], expected["out"])


@needs_nvrtc
def test_neighbours_are_copied_together(stand_in):
    """Two numbers of double precision, unless a row may end between them, wherever the
    array begins.
    """
    e = einsum("ij,kj->ik", array("A", (37, 20)), array("B", (18, 20)))
    spec = spec_of(GPU_MMA, "matrix product", {})
    unit = generated(e).apply(spec)
    code = cuda_code(unit.copy(target=CudaTarget())).source
    assert code.count("feinsum_copy(2, ") == code.count("feinsum_copy(") - 2 > 0
    generated(e).assert_right(unit, [{}], "cuda")
    odd = einsum("ij,kj->ik", array("A", (37, 21)), array("B", (18, 21)))
    unit = generated(odd).apply(spec).copy(target=CudaTarget())
    assert "feinsum_copy(2, " not in cuda_code(unit).source


IN_GLOBAL_MEMORY = {
    "gpu_matrices": "whole operands, which cuBLAS reads",
    "gpu_split_sum": "partial sums",
}
"""What families hand from one launch to the next."""


@needs_nvrtc
@pytest.mark.parametrize(
    ("transform", "changes"),
    [
        *((t, {}) for t in SMALL),
        (GPU_MMA, {"copies": "registers"}),
        (GPU_MMA, {"copies": "arguments"}),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_functions_of_operands_are_fused(transform, changes, stand_in):
    """What a kernel computes in the place of an array is computed where it is read:
    there is no array of it in global memory. Beyond the sums it is zero, even if the
    function of zeros is not.
    """
    case = with_functions(instance(transform, "float64"))
    unit = case.apply(spec_of(transform, INSTANCES[transform.name], changes))
    temporaries = cuda_code(unit.copy(target=CudaTarget())).temporaries
    assert bool(temporaries) == (transform.name in IN_GLOBAL_MEMORY)
    if transform is GPU_SPLIT_SUM:
        n_partial = 3 * SMALL[transform]["parts"]  # of three sums
        assert [prod(shape) for shape, _ in temporaries.values()] == [n_partial]
    sizes = sizes_of(case.einsum, (37, 18, 21))
    case.assert_right(unit, [sizes], "cuda")


@needs_nvrtc
@pytest.mark.parametrize(
    "transform", [GPU_MATRICES, GPU_MMA, GPU_PRODUCT], ids=lambda t: t.name
)
def test_extents_may_be_multiples_of_an_argument(transform, stand_in):
    """They are expressions in the guards of partial tiles."""
    unit = lp.make_kernel(
        "{[i,j,k]: 0<=i,j<2*n and 0<=k<3*n}",
        "out[i,j] = sum(k, A[i,k]*B[k,j])",
        [
            lp.GlobalArg("A", np.float64, shape="2*n,3*n"),
            lp.GlobalArg("B", np.float64, shape="3*n,2*n"),
            lp.GlobalArg("out", np.float64, shape="2*n,2*n"),
            lp.ValueArg("n", np.int32),
        ],
        lang_version=(2018, 2),
    )
    case = written(unit, lambda arrays: {"out": arrays["A"] @ arrays["B"]})
    spec = next(list_configurations(transform, case.einsum))
    case.assert_right(case.apply(spec), [{"n": 19}], "cuda")


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("face mass", {}),
        ("face mass", {"turns": 1}),
        ("face mass", {"ahead": False}),
        ("divergence", {}),
        pytest.param("divergence", {"turns": 1}, marks=pytest.mark.long),
        pytest.param("divergence", {"ahead": False}, marks=pytest.mark.long),
        ("gradient of three", {}),
        pytest.param("gradient of three", {"turns": 1}, marks=pytest.mark.long),
        pytest.param("gradient of three", {"ahead": False}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_functions_of_operators_are_evaluated_after_the_copies(name, changes, stand_in):
    """Once for each value, on entries that are copied during the product, unless they
    need too much shared memory.
    """
    case = with_functions(ALL[name])
    unit = case.apply(spec_of(GPU_OPERATOR_MMA, name, {"width": 16, **changes}))
    source = cuda_code(unit.copy(target=CudaTarget())).source
    assert ("feinsum_copy(1, " in source) == (changes != {"ahead": False})
    sizes = sizes_of(case.einsum, (37,))
    case.assert_right(unit, [sizes, sizes_of(case.einsum, (150,))], "cuda")
    arguments, expected, _ = case._reference(sizes)
    outputs = {out: np.zeros_like(value) for out, value in expected.items()}
    execution = execute_groups(unit, {**arguments, **outputs})
    assert execution.races == ()
    for out, value in expected.items():
        assert np.allclose(execution.outputs[out], value)


def with_functions(e):
    """The kernel of an einsum, each array of it replaced by a function: a number more
    than a multiple of the mean of two arrays.
    """
    case = generated(e)
    kernel = case.t_unit.default_entrypoint
    rules, arrays = dict(kernel.substitutions), {op.name: op for op in e.operands}
    for name in arrays:
        rule = rules[case.nest.rules[name]]
        entry = rule.expression
        other = replace(entry, aggregate=p.Variable(f"{name}_too"))
        value = p.Variable("factor") * 0.5 * (entry + other) + p.Variable("added")
        rules[rule.name] = rule.copy(expression=value)
    others = [kernel.arg_dict[n].copy(name=f"{n}_too") for n in arrays]
    scalars = [lp.ValueArg(n, np.float64) for n in ("factor", "added")]
    changed = kernel.copy(substitutions=rules, args=[*kernel.args, *others, *scalars])
    unit, nest = identify_as_einsum(
        case.t_unit.with_kernel(changed), e, long_extent=NEVER_LONG
    )

    def expected(arguments):
        factor, added = arguments["factor"], arguments["added"]
        values = {
            n: factor * 0.5 * (arguments[n] + arguments[f"{n}_too"]) + added
            for n in arrays
        }
        return case.expected({**arguments, **values})

    return Case(unit, nest, expected)


def test_they_are_for_gpus_alone():
    """No search on a CPU meets them; one on a GPU does."""
    e = ALL["gradient"]
    assert not set(SMALL) & set(find_applicable_transforms(e, "cpu"))
    assert {GPU_ELEMENTS, GPU_POINTS, GPU_ROWS} <= set(
        find_applicable_transforms(e, "gpu")
    )


def test_what_no_group_has_room_for_is_refused():
    """By the number of work-items, and by bytes."""
    e = ALL["matrix product"]
    large = {"across": 128, "along": 128, "depth": 32, "columns": 1, "rows": 1,
             "stages": 2, "copies": "asynchronous"}  # fmt: skip
    with pytest.raises(InvalidParameterError, match="16384 work-items in a group"):
        check_spec(GPU_PRODUCT.spec(large), e)
    fewer = {**large, "columns": 8, "rows": 8}
    with pytest.raises(InvalidParameterError, match="135168 bytes of shared memory"):
        check_spec(GPU_PRODUCT.spec(fewer), e)
    for changes, message in [
        ({"rows": 64}, "do not divide the tiles"),
        ({"across": 128, "along": 128, "columns": 8, "rows": 16}, "4096 work-items in"),
        ({"along": 128, "across": 64, "rows": 64, "columns": 64}, "128 sums of a lane"),
        ({"depth": 8, "along": 128, "columns": 8}, "1024 work-items do not share 32"),
        ({"across": 128, "along": 128, "depth": 32, "columns": 64, "stages": 4,
          "rows": 32}, "294912 bytes of shared memory"),
    ]:  # fmt: skip
        spec = spec_of(GPU_MMA, "matrix product", changes)
        with pytest.raises(InvalidParameterError, match=message):
            check_spec(spec, e)
    with pytest.raises(InvalidParameterError, match="expected 32 to 1024"):
        check_spec(spec_of(GPU_ELEMENTS, "gradient", {"workers": 1}), ALL["gradient"])


def test_starts_are_configurations():
    """Each is offered, and nothing is against it."""
    rng = random.Random(0)
    for transform in SMALL:
        fitting = [e for e in ALL.values() if transform.fits(e)]
        for e in rng.sample(fitting, min(len(fitting), 4)):
            for parameters in transform.starts(Workload(e)):
                check_spec(transform.spec(parameters), e)


def test_a_product_without_a_reuse_is_left_to_others():
    """Tiles are for what is read more than once."""
    outer = einsum("i,j->ij", array("a", 100), array("b", 100))
    assert not GPU_PRODUCT.fits(outer)
    assert GPU_POINTS.fits(outer)
    assert not GPU_ROWS.fits(outer)
