"""The quicker code generator writes what Loopy writes."""

from __future__ import annotations

import loopy as lp
import loopy.codegen.control as control
import loopy.codegen.loop as loop
import pytest

from feinsum import array, batched_einsum, einsum, generate_loopy
from feinsum.measure.cases import make_case
from feinsum.records import TransformSpec
from feinsum.targets.host import HostCTarget
from feinsum.targets.quiet import quicker, uncached
from feinsum.transforms import (
    apply_spec,
    find_applicable_transforms,
    list_configurations,
)
from tests.portions import spread
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

EINSUMS = {
    "one row": einsum("ij,ej->ei", array("D", (10, 10)), array("u", ("E", 10))),
    "two rows": batched_einsum(
        "fij,fej->ei",
        [[array("L", (4, 6, 3)), array(f"u{k}", (4, "E", 3))] for k in range(2)],
    ),
    "a product": einsum("ik,kj->ij", array("A", ("N", "K")), array("B", ("K", "M"))),
    "a transpose": einsum("ij->ji", array("A", ("N", "M"))),
}


def recipes() -> list[tuple[str, TransformSpec]]:
    """The first configuration of every transform of the einsums."""
    return [
        (name, next(iter(list_configurations(transform, given))))
        for name, given in EINSUMS.items()
        for transform in find_applicable_transforms(given)
    ]


def generated(unit: lp.TranslationUnit) -> str:
    """Without what Loopy remembers of a kernel: of a new one each time."""
    with uncached():
        unit = lp.infer_unknown_types(unit.copy(target=HostCTarget()))
        return str(lp.generate_code_v2(unit).device_code())


def assert_same(unit: lp.TranslationUnit) -> None:
    slowly = generated(unit)
    with quicker():
        assert generated(unit) == slowly


@pytest.mark.parametrize(("name", "spec"), spread(recipes(), 6), ids=str)
def test_the_code_of_recipes_is_the_same(name, spec):
    """Letter by letter, whatever the transform."""
    given = EINSUMS[name]
    sizes = {x.name: 3 for x in given.size_params}
    case = make_case(given, sizes)
    assert_same(apply_spec(spec, case.t_unit, case.nest))


def test_loops_that_are_cut_are_as_before():
    """A slab that is not everything is kept, where the kernel is another one."""
    unit = generate_loopy(EINSUMS["a product"])
    inames = sorted(unit.default_entrypoint.all_inames())
    for iname in inames[:2]:
        unit = lp.split_iname(unit, iname, 8, slabs=(0, 1))
    assert "slab for" in generated(unit)
    assert_same(unit)


def settings() -> tuple[object, ...]:
    tags = lp.LoopKernel.iname_tags_of_type
    return loop.intersect_kernel_with_slab, control.dataclass, tags, lp.CACHING_ENABLED


def test_loopy_is_left_as_it_was():
    """When the last user ends, in whatever order they began."""
    before = settings()
    first, second, third = quicker(), quicker(), uncached()
    for one in (first, third, second):
        one.__enter__()
    for one in (first, third):
        one.__exit__(None, None, None)
    assert not {*before[:3]} & {*settings()[:3]}
    second.__exit__(None, None, None)
    assert settings() == before
