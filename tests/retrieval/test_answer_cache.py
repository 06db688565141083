"""Retrievals that are kept: the same kernel, sooner, or else a new retrieval."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pkgutil import iter_modules

import loopy as lp
import numpy as np
import pytest

import feinsum
from feinsum import FeinsumWarning, open_store, retrieve
from feinsum.cache import DiskCache
from feinsum.errors import RecordNotFoundError
from feinsum.measure import open_device
from feinsum.records import TransformSpec
from feinsum.retrieval import identity, lookup
from feinsum.retrieval.answer_cache import CacheEntry
from feinsum.retrieval.request import Request
from feinsum.targets.host import HostCTarget
from feinsum.targets.units import CodedUnit
from feinsum.transforms import REGISTRY, Transform
from tests.docs.pages import ROOT
from tests.loopy_kernels import build_kernel
from tests.retrieval.facts import fact, fact_of, form_of, recipe
from tests.retrieval.kernels import contraction, gradients, reduction
from tests.retrieval.support import assert_right, given, retrieved


@pytest.fixture
def kept(tmp_path, monkeypatch) -> DiskCache:
    """The cache of this test."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    return DiskCache(tmp_path / "cache")


@pytest.fixture
def no_retrieval(monkeypatch):
    """From now on every retrieval that is not kept raises."""

    def forbid() -> None:
        def retrieval(_request):
            raise AssertionError("it was retrieved again")

        monkeypatch.setattr(lookup, "perform_retrieval", retrieval)

    return forbid


@pytest.mark.parametrize("make", [gradients, contraction])
def test_a_kept_kernel_computes_the_same(make, kept, no_retrieval):
    """What comes from the cache is the retrieved kernel, and right on the device."""
    example = make()
    facts = given(fact_of(example))
    first = retrieved(example.kernel, database=facts)
    no_retrieval()
    second = retrieve(make().kernel, database=facts, on_miss="raise")
    assert second == first
    assert second is not first
    assert_right(example, second)
    n_entries = kept.info().n_entries
    assert n_entries >= 3  # the retrieval, its code, its shared object
    assert_right(example, retrieve(make().kernel, database=facts, on_miss="raise"))
    assert kept.info().n_entries == n_entries


def test_other_processes_are_served(kept, tmp_path):
    """With another order of all sets: one key, one code, one result."""
    path = tmp_path / "facts.sqlite"
    with open_store(path) as store:
        store.add(fact_of(gradients()))
    found = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.retrieval.retrieving", str(path)],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    first, second = found
    assert (first["is_known"], second["is_known"]) == (False, True)
    assert first["shelf"] == second["shelf"]
    assert first["digest"] == second["digest"]
    assert second["error"] < 1e-12
    assert kept.info().n_entries == 4  # the same, and the pool


def test_new_facts_are_asked_for(kept):
    """A kept kernel serves only while the database knows what it knew."""
    example = gradients()
    facts = given(fact(example.einsum, recipe(example), speedup=2.0))
    first = retrieved(example.kernel, database=facts)
    parameters = recipe(example).parameters
    index = next(i for i in form_of(example).einsum.output if i in parameters.values())
    faster = TransformSpec("rowwise", 1, {"block": 64, "index": index})
    facts.add(fact(example.einsum, faster, speedup=50.0))
    second = retrieved(example.kernel, database=facts)
    assert second != first
    assert retrieved(example.kernel, database=facts) == second
    empty = given()
    kernel = example.kernel
    assert lookup.retrieve(kernel, database=empty, on_miss="return") is kernel


def key(kernel=None, environment=None, **options):
    environment = environment or open_device().environment({})
    given = {"policy": "default", "verify": True, **options}
    request = Request.of(kernel or gradients().kernel, **given)
    place = CacheEntry.of(request, environment)
    assert place is not None
    return place.key


def test_whatever_a_retrieval_depends_on_changes_the_key(kept, monkeypatch):
    """Kernel, options, device, driver, versions, source and transforms."""
    here = open_device().environment({})
    device = replace(here.device, name="another")
    others = [
        key(lp.prioritize_loops(gradients().kernel, "c,a")),
        key(policy="strict"),
        key(verify=False),
        key(instructions="id:x"),
        key(kernel_name="gradients"),
        key(arguments={"kappa": 2}),
        key(arguments={"um": ((64, 10), "f8")}),
        key(arguments={"um": np.zeros((64, 10))}),
        key(environment=replace(here, device=device)),
        key(environment=replace(here, driver_version="0")),
        key(environment=replace(here, platform_version="0")),
        *(
            key(environment=replace(here, software={**here.software, name: "0"}))
            for name in here.software
        ),
    ]
    none = Transform("new", 1, "", lambda _: None, lambda unit, *_: unit)
    with monkeypatch.context() as patch:
        patch.setattr(identity, "_list_versions", lambda: ("other",))
        others.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(identity, "_digest_sources", lambda: "other")
        others.append(key())
    with monkeypatch.context() as patch:
        patch.setitem(REGISTRY, ("new", 1), none)
        others.append(key())
    assert len({key(), *others}) == 1 + len(others)
    assert key() == key()


def test_of_an_array_only_shape_and_dtype_count(kept):
    """As in raising: other entries make no other kernel."""
    arrays = np.zeros((64, 10)), np.ones((64, 10))
    one, other = (key(arguments={"um": array}) for array in arrays)
    assert one == other


def test_a_damaged_entry_is_replaced(kept):
    """The kernel is retrieved again, and the entry then has what was retrieved."""
    example = contraction()
    facts = given(fact_of(example))
    first = retrieved(example.kernel, database=facts)
    (path,) = kept.folder.glob("*.entry")
    for damage in (b"", b"x" * 200):
        path.write_bytes(damage)
        assert retrieved(example.kernel, database=facts) == first
        assert path.stat().st_size > 200


def test_an_entry_that_cannot_be_loaded_is_passed_by(kept):
    """Even if it is signed: a retrieval goes on without the cache."""
    example = contraction()
    facts = given(fact_of(example))
    kept.write(key(example.kernel), pickle.dumps("no answer"))
    unit = retrieved(example.kernel, database=facts)
    assert_right(example, unit)


def test_off_is_off(tmp_path, monkeypatch):
    """The plain unit of Loopy comes back, and nothing is written."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    example = contraction()
    unit = retrieved(example.kernel, database=given(fact_of(example)))
    assert type(unit) is lp.TranslationUnit
    assert not (tmp_path / "feinsum").exists()


def test_a_folder_that_cannot_be_used_breaks_nothing(tmp_path, monkeypatch):
    """The kernel comes back as ever, and runs."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    example = contraction()
    assert_right(example, retrieved(example.kernel, database=given(fact_of(example))))


def test_recipes_of_others_are_not_kept(kept, monkeypatch):
    """Their source may change under one name and version."""
    example = contraction()
    spec = recipe(example)
    foreign = replace(REGISTRY[spec.name, spec.version], version=77, apply=_foreign)
    monkeypatch.setitem(REGISTRY, (spec.name, 77), foreign)
    facts = given(fact(example.einsum, replace(spec, version=77)))
    assert type(retrieved(example.kernel, database=facts)) is lp.TranslationUnit
    assert kept.info().n_entries == 0


def _foreign(t_unit, nest, parameters):
    spec = recipe(contraction())
    return REGISTRY[spec.name, spec.version].apply(t_unit, nest, parameters)


def test_a_changed_unit_is_a_plain_one(kept):
    """Code is given only to what was retrieved; equality and pickles ignore it."""
    example = gradients()
    unit = retrieved(example.kernel, database=given(fact_of(example)))
    assert isinstance(unit, CodedUnit)
    plain = unit.plain
    assert unit == plain
    assert plain == unit
    assert hash(unit) == hash(plain)
    changed = [unit.copy(), unit.with_kernel(unit.default_entrypoint),
               lp.set_options(unit, return_dict=True),
               pickle.loads(pickle.dumps(unit))]  # fmt: skip
    assert {type(x) for x in (*changed, plain)} == {lp.TranslationUnit}
    assert lp.merge([unit, lp.rename_callable(plain, "gradients", "g2")])
    assert_right(example, changed[2])


@pytest.mark.parametrize("is_cached", [False, True])
def test_code_is_generated_once(is_cached, tmp_path, monkeypatch):
    """The check that there is code leaves it with the kernel, kept on disk or not."""
    folder = str(tmp_path / "cache") if is_cached else "off"
    monkeypatch.setenv("FEINSUM_CACHE_DIR", folder)
    example = contraction()
    kernel = example.kernel.copy(target=HostCTarget())
    unit = retrieved(kernel, database=given(fact_of(example)))
    assert isinstance(unit, CodedUnit)

    def forbid(_unit):
        raise AssertionError("code was generated again")

    monkeypatch.setattr(lp, "generate_code_v2", forbid)
    assert_right(example, unit)


def test_a_kept_kernel_warns_as_the_first_time(kept, two_nests, no_retrieval):
    """Einsums that stay as they are are told of, or are an error, every time."""
    kernel, facts = two_nests
    with pytest.warns(FeinsumWarning, match="1 of 2 einsums") as first:
        retrieve(kernel, database=facts)
    no_retrieval()
    with pytest.warns(FeinsumWarning, match="1 of 2 einsums") as second:
        retrieve(kernel, database=facts)
    assert str(first[0].message) == str(second[0].message)
    assert second[0].filename == __file__
    with pytest.raises(RecordNotFoundError, match="no fact is recorded"):
        retrieve(kernel, database=facts, on_miss="raise")


@pytest.fixture
def two_nests():
    """A kernel of two einsums, one of them known."""
    example = reduction()
    one = example.kernel
    extra = build_kernel(
        "{[p,q]: 0<=p<mm and 0<=q<7}",
        "zz[p] = sum(q, aa[p,q]*bb[q]*bb[q])",
        {"aa": "mm,7", "bb": "7", "zz": "mm"},
        name="extra",
    )
    fused = lp.fuse_kernels([one.default_entrypoint, extra.default_entrypoint])
    return fused, given(fact_of(example))


DECIDE_NOTHING = {
    "cache", "calling", "cli", "distributed", "doctor", "drawing",
    "integrations", "programs", "service", "suites", "tuning",
}  # fmt: skip
"""Rooms that call a retrieval, or keep what it found."""


def test_the_source_of_every_room_that_decides_is_digested():
    """A new one is forgotten otherwise, and what was kept outlives a change of it."""
    rooms = {module.name for module in iter_modules(feinsum.__path__) if module.ispkg}
    decide = rooms - DECIDE_NOTHING
    assert set(identity._OURS) == decide | {"select"}
