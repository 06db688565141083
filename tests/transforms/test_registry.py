"""The registry: what is refused, and how it says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import loopy as lp
import pytest

from feinsum import array, canonicalize, einsum
from feinsum.errors import InvalidParameterError, TransformError, UnknownTransformError
from feinsum.ir import Workload
from feinsum.machine import MachineModel
from feinsum.records import TransformSpec
from feinsum.targets.units import LibraryUnit
from feinsum.transforms import (
    REGISTRY,
    Space,
    Transform,
    apply_spec,
    check_spec,
    find_applicable_transforms,
    find_transform,
    list_configurations,
    register,
)
from feinsum.transforms.cost import rank_recipes
from feinsum.transforms.library import (
    ELEMENT_BLOCKED,
    GENERIC,
    PACKED_CONTRACTION,
    ROWWISE,
)
from feinsum.transforms.registry import list_proposed
from tests.portions import spread
from tests.transforms.support import EINSUMS, generated

MASS, PRODUCT = EINSUMS["mass"], EINSUMS["matrix product"]
POINTWISE = EINSUMS["pointwise product"]
BLOCKED = next(list_configurations(ELEMENT_BLOCKED, MASS))
OFFERED = ELEMENT_BLOCKED.get_space(MASS)


@pytest.fixture
def toy():
    """A family with a truth value and a text as parameters; forgotten afterwards."""
    before = dict(REGISTRY)
    yield register(
        Transform(
            "toy",
            1,
            "for tests",
            lambda _workload: Space(
                {"flag": (True, False), "size": (1, 2), "order": (("i", 1),)},
                lambda p: (
                    "size 2 has no flag" if p["flag"] and p["size"] == 2 else None
                ),
            ),
            lambda t_unit, nest, parameters: t_unit,
        )
    )
    REGISTRY.clear()
    REGISTRY.update(before)


def with_parameters(spec, **changes):
    return replace(spec, parameters={**spec.parameters, **changes})


def test_an_unknown_transform_is_told_with_the_known_ones():
    """The error lists what is registered and suggests a close one, if there is any."""
    with pytest.raises(UnknownTransformError) as caught:
        find_transform("rowvise", 1)
    assert "rowvise@1" in str(caught.value)
    for name, version in REGISTRY:
        assert f"{name}@{version}" in str(caught.value)
    assert "did you mean rowwise@1?" in str(caught.value)
    with pytest.raises(UnknownTransformError) as caught:
        find_transform("zzz", 999)
    assert "did you mean" not in str(caught.value)


COLOUR = {**BLOCKED.parameters, "colour": 1}


@pytest.mark.parametrize(
    ("spec", "e", "words"),
    [
        (with_parameters(BLOCKED, lanes=3), MASS, "lanes=3"),
        (with_parameters(BLOCKED, lanes="8"), MASS, "lanes='8'"),
        (with_parameters(BLOCKED, lanes=True), MASS, "lanes=True"),
        (with_parameters(BLOCKED, rows=(4,)), MASS, "rows=(4,)"),
        (with_parameters(BLOCKED, element="i"), MASS, str([*OFFERED["element"]])),
        (replace(BLOCKED, parameters=COLOUR), MASS, ", ".join(sorted(COLOUR))),
        (replace(BLOCKED, parameters={}), MASS, ", ".join(sorted(BLOCKED.parameters))),
        (
            next(list_configurations(PACKED_CONTRACTION, PRODUCT)),
            POINTWISE,
            "does not fit",
        ),
    ],
)
def test_what_is_not_in_the_space_of_an_einsum_is_refused(spec, e, words):
    """The error names the parameter, its value and the choices; a spec has exactly the
    parameters of the space, and the family fits the einsum.
    """
    with pytest.raises(InvalidParameterError) as caught:
        check_spec(spec, e)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"flag": 1}, {"flag": 0}, {"size": True}, {"order": ("i", True)}]
)
def test_a_truth_value_is_no_number(toy, wrong):
    """True for 1 and 1 for True are refused, though they are equal in Python."""
    good = toy.spec({"flag": True, "size": 1, "order": ("i", 1)})
    assert check_spec(good, MASS) is toy
    with pytest.raises(InvalidParameterError, match="outside its space"):
        check_spec(with_parameters(good, **wrong), MASS)


@pytest.mark.parametrize("name", spread(EINSUMS, 9))
def test_candidates_lie_in_the_space(name):
    """Whatever predictions choose from is a valid recipe."""
    e = EINSUMS[name]
    for transform in find_applicable_transforms(e):
        for parameters in islice(list_proposed(transform, Workload(e)), 0, None, 7):
            assert check_spec(transform.spec(parameters), e) is transform


def test_families_know_the_sizes(toy):
    """Values, constraint and candidates depend on the sizes of the workload."""
    e = canonicalize(einsum("i->i", array("a", "N"))).einsum
    (size,) = e.size_params

    def space(workload):
        n = workload.sizes.get(size.name, 1)
        return Space(
            {"block": (n, 2 * n, 4 * n)},
            lambda p: "too long" if p["block"] > 2 * n else None,
            candidates=lambda: (
                {"block": n} for n in (48, workload.sized.extents["a"])
            ),
        )

    sized = register(
        replace(
            toy,
            version=3,
            space=space,
            cost=lambda known, p, machine: known.extents["a"] / p["block"],
        )
    )
    workload = Workload(e, {size.name: 12})
    found = [spec.parameters["block"] for spec in list_configurations(sized, workload)]
    assert found == [12, 24]
    assert [p["block"] for p in list_proposed(sized, workload)] == [12]
    costed = rank_recipes(e, {size.name: 12}, [sized], MachineModel())
    assert [(x.seconds, x.spec.parameters["block"]) for x in costed] == [(1.0, 12)]
    with pytest.raises(InvalidParameterError, match="outside its space"):
        check_spec(sized.spec({"block": 96}), workload)


def test_a_broken_constraint_is_refused(toy):
    """What a constraint rules out cannot be applied; its words are the error's."""
    spec = toy.spec({"flag": True, "size": 2, "order": ("i", 1)})
    with pytest.raises(InvalidParameterError, match="size 2 has no flag"):
        check_spec(spec, MASS)
    assert spec not in list(list_configurations(toy, MASS))
    first = next(list_configurations(PACKED_CONTRACTION, PRODUCT))
    same = with_parameters(first, register=first.parameters["vector"])
    with pytest.raises(InvalidParameterError, match=r"split no operands|outside"):
        check_spec(same, PRODUCT)


def test_a_space_has_the_values_of_each_parameter(toy):
    """A list of names is refused, with what is expected."""
    wrong = replace(toy, space=lambda _workload: ["flag", "size"])
    with pytest.raises(TransformError, match="is a value of type list; expected"):
        wrong.get_space(MASS)


def test_two_transforms_of_one_name_and_version_are_refused(toy):
    """A name and a version stand for one transform for ever; again is no harm."""
    assert register(toy) is toy
    with pytest.raises(TransformError, match="toy@1 is already registered"):
        register(replace(toy, summary="another"))
    newer = register(replace(toy, version=2))
    assert find_transform("toy", 1) is toy
    assert find_transform("toy", 2) is newer


@pytest.mark.parametrize(
    ("most", "stride"), [(1000, 17), pytest.param(None, 1, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", spread(EINSUMS, 9))
def test_configurations_survive_their_texts(name, most, stride):
    """They are valid, and equal after a way through text; in a long run all of them."""
    e = EINSUMS[name]
    for transform in find_applicable_transforms(e):
        specs = [*islice(list_configurations(transform, e), 0, most, stride)]
        assert specs
        for spec in specs:
            assert TransformSpec.parse(str(spec)) == spec
            assert check_spec(spec, e) is transform


def test_the_first_configuration_has_the_recommended_values():
    """The first value of every parameter is the recommended one; there is none for an
    einsum that does not fit.
    """
    assert dict(BLOCKED.parameters) == {n: choices[0] for n, choices in OFFERED.items()}
    assert [*list_configurations(PACKED_CONTRACTION, POINTWISE)] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mass", {"element_blocked", "packed_contraction", "rowwise", "generic"}),
        ("matrix product", {"packed_contraction"}),
        ("shorter than a tile", {"packed_contraction", "generic"}),
        ("diagonal", {"contraction_path", "rowwise", "generic"}),
        ("mixed", {"rowwise", "generic"}),
    ],
)
def test_the_families_that_fit(name, expected):
    """Each family is offered where it fits, whatever the names of the einsum; where
    nothing is long, only the generic one is.
    """
    e = EINSUMS[name]
    for named in (e, canonicalize(e).einsum):
        assert {t.name for t in find_applicable_transforms(named)} == expected
    assert find_applicable_transforms(einsum("i->i", array("a", 5))) == (GENERIC,)


def test_the_newest_version_is_offered(toy):
    """find_applicable_transforms() offers one version of a transform, the newest."""
    newer = register(replace(toy, version=10))
    register(replace(toy, version=9))
    offered = [t for t in find_applicable_transforms(MASS) if t.name == "toy"]
    assert offered == [newer]


def test_what_calls_the_host_says_so_by_its_name():
    """By it alone a ranking of facts tells these from recipes of the device."""
    e = EINSUMS["matrix product"]
    case = generated(e)
    for transform in REGISTRY.values():
        if transform.fits(e):
            spec = next(list_configurations(transform, e))
            unit = case.apply(spec)
            assert isinstance(unit, LibraryUnit) == spec.is_on_host
            assert transform.devices == {"cpu"} or not spec.is_on_host


def test_what_is_not_searched_is_valid_on_record(toy):
    """A family that declines to be searched still applies recorded recipes."""
    space = replace(toy.get_space(MASS), is_searched=False)
    idle = register(replace(toy, version=2, space=lambda _workload: space))
    assert idle not in find_applicable_transforms(MASS)
    assert check_spec(next(list_configurations(idle, MASS)), MASS) is idle


@pytest.mark.parametrize("error", [lp.LoopyError("no"), KeyError("no")])
def test_the_errors_of_loopy_become_errors_of_transforms(toy, error):
    """Whatever a step raises names the spec, the kernel and Loopy's message."""

    def fail(t_unit, nest, parameters):
        raise error

    broken = register(replace(toy, version=2, apply=fail))
    spec = broken.spec({"flag": True, "size": 1, "order": ("i", 1)})
    case = generated(MASS)
    with pytest.raises(TransformError) as caught:
        apply_spec(spec, case.t_unit, case.nest)
    message = f"{spec} cannot be applied to kernel 'feinsum_kernel'"
    assert message in str(caught.value)
    assert f"{type(error).__name__}: {error}" in str(caught.value)
    assert caught.value.__cause__ is error


def test_an_error_of_a_transform_stays_what_it_is(toy):
    """A refusal keeps its class, and says where; one of the library is not wrapped."""
    own = TransformError("too short")

    def refuse(t_unit, nest, parameters):
        raise own

    broken = register(replace(toy, version=2, apply=refuse))
    case = generated(MASS)
    spec = broken.spec({"flag": True, "size": 1, "order": ("i", 1)})
    with pytest.raises(TransformError) as caught:
        apply_spec(spec, case.t_unit, case.nest)
    assert type(caught.value) is TransformError
    assert caught.value.__cause__ is own
    place = r"too short \(at .*test_registry.py:\d+, in refuse: raise own\)"
    assert re.fullmatch(place, str(caught.value))
    refuse.__module__ = "feinsum.transforms.library"
    with pytest.raises(TransformError) as caught:
        apply_spec(spec, case.t_unit, case.nest)
    assert caught.value is own


PLUGIN = """
from feinsum.transforms import Transform, register
register(Transform("{name}", 1, "of a plugin", lambda e: None, lambda t, n, p: t))
"""
SHOW = "from feinsum.transforms import REGISTRY; print(sorted(n for n, _ in REGISTRY))"


def registered(path, named):
    """The transforms of a new interpreter, and what it wrote to stderr."""
    search = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, "PYTHONPATH": search, "FEINSUM_TRANSFORMS": named},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_modules_of_other_packages_are_loaded(tmp_path):
    """Modules named in the variable and entry points register; a broken one is
    logged and passed over.
    """
    for name in ("named", "entered"):
        (tmp_path / f"{name}.py").write_text(PLUGIN.format(name=f"of_{name}"))
    (tmp_path / "broken.py").write_text("1 / 0")
    info = tmp_path / "entered-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: entered\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[feinsum.transforms]\nmine = entered\n")
    out, err = registered(tmp_path, " broken, named ,,absent")
    assert "of_named" in out
    assert "of_entered" in out
    assert ROWWISE.name in out
    for name, cause in (("broken", "ZeroDivisionError"), ("absent", "ModuleNotFound")):
        assert f"the transforms of module {name!r} cannot be loaded" in err
        assert cause in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "my family"}, "expected lower case"),
        ({"version": "1"}, "expected an integer from 1"),
        ({"version": 0}, "expected an integer from 1"),
        ({"space": {"block": (1,)}}, "space of the transform rowwise is of type dict"),
    ],
)
def test_what_no_recipe_can_name_is_not_registered(change, words):
    """A slip of an author is an error where it is made, not at a later look-up."""
    with pytest.raises(TransformError, match=words):
        register(replace(ROWWISE, **change))


@pytest.mark.parametrize("result", [None, 3])
def test_a_transform_returns_a_translation_unit(monkeypatch, result):
    """The schedule itself, or nothing, is what authors return by mistake."""
    odd = Transform("odd", 1, "x", lambda w: {}, lambda t_unit, nest, p: result)
    monkeypatch.setitem(REGISTRY, ("odd", 1), odd)
    case = generated(MASS)
    with pytest.raises(TransformError, match="expected a loopy"):
        apply_spec(odd.spec({}), case.t_unit, case.nest)
