"""Retrieval: a user's kernel comes back faster and right, or it comes back itself."""

from __future__ import annotations

import logging
import sqlite3
import warnings
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from importlib import import_module

import loopy as lp
import numpy as np
import pytest

from feinsum import FeinsumWarning, autotune, record_facts, retrieve
from feinsum.canonical import canonicalize
from feinsum.db import open_store
from feinsum.errors import (
    DeviceUnavailableError,
    NotAnEinsumError,
    RecordNotFoundError,
    StoreUnavailableError,
)
from feinsum.measure import compile_kernel, largest_error, open_device
from feinsum.records import InMemoryStore, Level, TransformSpec
from feinsum.retrieval import look_up, query
from feinsum.retrieval.recipes import ISLPY_WARNING
from feinsum.transforms import REGISTRY, Transform
from tests.db.conftest import locked_by_another_process
from tests.db.factories import make_device
from tests.retrieval.facts import fact, fact_of, here, recipe, surely_faster
from tests.retrieval.kernels import (
    contraction,
    gradients,
    reduction,
    squares,
)

EXAMPLES = (gradients, contraction, reduction)


def given(*records):
    """A store that holds the records."""
    store = InMemoryStore()
    for record in records:
        store.add(record)
    return store


def retrieved(t_unit, **options):
    """The kernel that comes back, without any warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FeinsumWarning)
        return retrieve(t_unit, **options)


def why_unchanged(t_unit, **options):
    """The one warning with which the very same kernel comes back."""
    with pytest.warns(FeinsumWarning) as caught:
        assert retrieve(t_unit, **options) is t_unit
    (warning,) = caught
    assert warning.filename == __file__
    assert retrieve(t_unit, on_miss="return", **options) is t_unit
    text = str(warning.message)
    assert text.startswith("kernel given back unchanged: ")
    return text


def assert_right(example, t_unit):
    """On the device, at every size, the kernel agrees with numpy."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ISLPY_WARNING, DeprecationWarning)
        compiled = compile_kernel(t_unit, open_device())
    for sizes in example.sizes:
        arguments = example.arguments(sizes)
        kernel = compiled.bind(arguments)
        kernel.poison()
        kernel.run()
        results = kernel.read()
        expected = example.in_numpy(arguments)
        assert set(results) == set(expected)
        for name, right in expected.items():
            assert largest_error(results[name], right) < 1e-13, (name, sizes)


def n_inames(t_unit):
    return len(t_unit.default_entrypoint.all_inames())


# nothing is known


def test_a_miss_gives_the_very_same_kernel_and_one_warning():
    """The warning has the reason, the workload as text, its key, and what to do."""
    example = reduction()
    form = canonicalize(example.einsum)
    text = why_unchanged(example.kernel, database=InMemoryStore())
    assert "no fact is recorded for this workload" in text
    assert form.text in text
    assert form.key in text
    assert "feinsum tune" in text


def test_a_miss_can_be_silent_or_an_error():
    """``return`` says nothing; ``raise`` raises what the warning says."""
    kernel = reduction().kernel
    assert retrieved(kernel, database=InMemoryStore(), on_miss="return") is kernel
    with pytest.raises(RecordNotFoundError, match="no fact is recorded"):
        retrieve(kernel, database=InMemoryStore(), on_miss="raise")


@pytest.mark.parametrize(
    "options", [{"on_miss": "ignore"}, {"on_miss": None}, {"policy": "lax"}]
)
def test_a_wrong_option_is_refused(options):
    """A choice that does not exist is an error of the caller, whatever is known."""
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}=.*expected one of"):
        retrieve(reduction().kernel, database=InMemoryStore(), **options)


def test_a_wrong_policy_is_refused_by_query():
    """So it is where an einsum is looked up."""
    with pytest.raises(ValueError, match="expected one of strict, default, loose"):
        query(reduction().einsum, database=InMemoryStore(), policy="lax")


# something is known


@pytest.mark.parametrize("make", EXAMPLES)
def test_a_kernel_spelled_differently_is_transformed_and_right(make):
    """Other names, operands that are functions, another order: the recipe of the
    idealized einsum is applied, and the results are those of numpy at all sizes.
    """
    example = make()
    store = given(fact_of(example))
    result = retrieved(example.kernel, database=store)
    assert result is not example.kernel
    assert n_inames(result) > n_inames(example.kernel)
    assert_right(example, result)


@pytest.mark.parametrize("make", EXAMPLES)
def test_the_interface_of_the_kernel_is_kept(make):
    """Name, arguments, their dtypes and shapes are what the caller knows."""
    example = make()
    before = example.kernel.default_entrypoint
    after = retrieved(example.kernel, database=given(fact_of(example)))
    kernel = after.default_entrypoint
    assert kernel.name == before.name
    assert [arg.name for arg in kernel.args] == [arg.name for arg in before.args]
    for old, new in zip(before.args, kernel.args, strict=True):
        assert old.dtype == new.dtype
        assert getattr(old, "shape", None) == getattr(new, "shape", None)


def test_measured_facts_are_found_again(tmp_path):
    """Record a fact, then retrieve it for another spelling: the kernel is right."""
    example = gradients()
    path = tmp_path / "facts.sqlite"
    sizes = {"E": 600}
    record = record_facts(example.einsum, recipe(example), sizes=sizes, database=path)
    with open_store(path) as store:
        store.add(surely_faster(record))
    found = look_up(example.kernel, database=path)
    assert (found.nests[0].applied, found.nests[0].match.level) == (
        record.spec,
        Level.EXACT,
    )
    assert_right(example, retrieved(example.kernel, database=path))


def test_a_tuned_kernel_is_found_again(tmp_path):
    """Tune the user's own kernel, then retrieve: the kernel is right."""
    example = reduction()
    path = tmp_path / "facts.sqlite"
    report = autotune(
        example.kernel, sizes={"rows": 5000}, database=path, n_trials=2, strategy="tpe"
    )
    assert report.problem.form.key == canonicalize(example.einsum).key
    with open_store(path) as store:
        for record in report.records:
            store.add(surely_faster(record))
    result = retrieved(example.kernel, database=path)
    assert n_inames(result) > n_inames(example.kernel)
    assert_right(example, result)


def test_long_literal_extents_find_the_fact_of_the_parameter():
    """A kernel of literal extents from 500 on is the einsum of a size parameter."""
    long, short = contraction(501), contraction(499)
    record = fact_of(contraction())
    assert query(contraction().einsum, database=given(record)).record == record
    result = retrieved(long.kernel, database=given(record))
    assert n_inames(result) > n_inames(long.kernel)
    assert_right(long, result)
    assert "no fact" in why_unchanged(short.kernel, database=given(record))


def test_arguments_close_what_a_kernel_leaves_open():
    """Dtypes that a kernel does not know are those of the arguments of the call."""
    example = reduction()
    untyped = lp.make_kernel(
        "{[r,c]: 0<=r<rows and 0<=c<17}",
        "total[r] = sum(c, X[r,c] - 2*Y[r,c])",
        [
            lp.GlobalArg("X,Y", None, shape="rows,17"),
            lp.GlobalArg("total", None, shape="rows"),
            lp.ValueArg("rows", np.int32),
        ],
        name="reduction",
        lang_version=(2018, 2),
    )
    store = given(fact_of(example))
    arrays = {name: np.zeros((600, 17)) for name in "XY"}
    result = retrieved(untyped, arguments=arrays, database=store)
    assert_right(example, result)
    assert "bool" not in why_unchanged(untyped, database=store)


def test_a_nest_is_chosen_by_its_kernel():
    """Of several kernels in one unit, the named one is transformed, the other kept."""
    example = reduction()
    both = lp.merge([example.kernel, squares()])
    store = given(fact_of(example))
    assert "entry points" in why_unchanged(both, database=store)
    result = retrieved(both, kernel_name="reduction", database=store)
    assert result["squares"] == both["squares"]
    assert result["reduction"] != both["reduction"]


# what cannot be retrieved


def test_what_is_no_einsum_comes_back_unchanged():
    """The warning says which rule is broken, and how."""
    kernel = squares()
    store = given(fact_of(reduction()))
    assert "contains a reduction" in why_unchanged(kernel, database=store)
    with pytest.raises(NotAnEinsumError) as caught:
        retrieve(kernel, database=store, on_miss="raise")
    assert caught.value.rule == "nested-reduction"


@pytest.mark.parametrize("given_kernel", ["no kernel", None, 3])
def test_what_is_no_kernel_comes_back(given_kernel):
    """Whatever is given comes back with a warning."""
    assert "TranslationUnit" in why_unchanged(given_kernel, database=InMemoryStore())
    with pytest.raises(NotAnEinsumError):
        retrieve(given_kernel, database=InMemoryStore(), on_miss="raise")


def test_a_kernel_for_another_target_comes_back_unchanged():
    """Recipes make work-groups, which only an OpenCL target has."""
    kernel = reduction().kernel.copy(target=lp.CTarget())
    store = given(fact_of(reduction()))
    assert "OpenCL targets" in why_unchanged(kernel, database=store)


def make_garbage(path):
    path.write_bytes(b"garbage" * 1000)


def make_foreign(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def make_truncated(path):
    with open_store(path) as store:
        store.add(fact_of(reduction()))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def make_folder(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_garbage, "is not an SQLite database"),
        (make_foreign, "belongs to another program"),
        (make_truncated, "truncated"),
        (make_folder, "is a folder"),
    ],
)
def test_a_bad_database_breaks_no_build(tmp_path, make, words):
    """A database that cannot be used: the kernel, and a warning that names it."""
    path = tmp_path / "facts.sqlite"
    make(path)
    text = why_unchanged(reduction().kernel, database=path)
    assert words in text
    assert str(path) in text
    with pytest.raises(StoreUnavailableError):
        retrieve(reduction().kernel, database=path, on_miss="raise")


def test_a_locked_database_breaks_no_build(tmp_path, monkeypatch):
    """A lock that does not go away in time: the kernel, and a warning."""
    path = tmp_path / "facts.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")  # a header, no table: it must be written first
    opened = import_module("feinsum.db.opened")
    impatient = partial(open_store, busy_timeout_s=0.2)
    monkeypatch.setattr(opened, "open_store", impatient)
    with locked_by_another_process(path):
        text = why_unchanged(reduction().kernel, database=path)
    assert "is locked by another process" in text


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("odd"), MemoryError()])
def test_a_failing_store_breaks_no_build(error, caplog):
    """Whatever a store raises: the kernel, a warning, and a trace in the log."""

    class Broken(InMemoryStore):
        def query(self, workload, *, device_id=None):
            raise error

    with caplog.at_level(logging.ERROR, "feinsum.retrieval"):
        text = why_unchanged(reduction().kernel, database=Broken())
    assert f"{type(error).__name__}: {error}" in text
    assert caplog.records[0].exc_info
    with pytest.raises(type(error)):
        retrieve(reduction().kernel, database=Broken(), on_miss="raise")


def test_an_absent_device_breaks_no_build(monkeypatch):
    """No such device, given or in the environment: the kernel, and a warning."""
    kernel = reduction().kernel
    store = given(fact_of(reduction()))
    assert "'Cray-1'" in why_unchanged(kernel, device="Cray-1", database=store)
    monkeypatch.setenv("FEINSUM_DEVICE", "Cray-2")
    assert "'Cray-2'" in why_unchanged(kernel, database=store)
    with pytest.raises(DeviceUnavailableError):
        retrieve(kernel, database=store, on_miss="raise")


# which recipe is applied


def test_a_fact_of_another_workload_is_never_applied(caplog):
    """A record whose text differs under the same key is refused and logged."""
    example = reduction()
    record = replace(
        fact_of(example), workload_text=canonicalize(contraction().einsum).text
    )
    with caplog.at_level(logging.ERROR, "feinsum.retrieval"):
        text = why_unchanged(example.kernel, database=given(record))
    assert "no fact is recorded" in text
    assert record.id in caplog.text
    assert record.workload_text in caplog.text
    good = fact_of(example)
    found = look_up(example.kernel, database=given(record, good))
    assert found.nests[0].match.ranking == (good,)
    assert query(example.einsum, database=given(record)).level == Level.MISS


def _breaks(t_unit, nest, parameters):
    raise KeyError("no such loop")


@pytest.fixture
def _breaking(monkeypatch):
    """A registered transform that fails on every kernel."""
    space = cache(lambda einsum: {"n": (1,)})
    transform = Transform("breaking", 1, "a test transform", space, _breaks)
    monkeypatch.setitem(REGISTRY, ("breaking", 1), transform)


BAD_SPECS = {
    "breaking@1(n=1)": "no such loop",
    "alien@1(n=1)": "no transform alien@1 is registered here",
    "rowwise@7(block=8, index='i')": "did you mean rowwise@1",
    "rowwise@1(block=7, index='i')": "block=7 is outside its space",
    "rowwise@1(block=8)": "expected the parameters",
    "tiled_contraction@1(n=1)": "does not fit the einsum",
}


@pytest.mark.usefixtures("_breaking")
@pytest.mark.parametrize("bad", BAD_SPECS)
def test_a_recipe_that_cannot_be_applied_is_passed_over(bad):
    """The next best recipe is applied; the look-up says what was passed over."""
    example = reduction()
    worse = fact_of(example)
    better = fact(example.einsum, TransformSpec.parse(bad), speedup=100.0)
    found = look_up(example.kernel, database=given(worse, better))
    assert [record.spec for record in found.nests[0].match.ranking] == [
        better.spec,
        worse.spec,
    ]
    assert found.nests[0].applied == worse.spec
    ((spec, why),) = found.nests[0].failures
    assert spec == better.spec
    assert BAD_SPECS[bad] in why
    assert f"passed over {spec}: {why}" in str(found)
    assert_right(example, found.t_unit)


@pytest.mark.usefixtures("_breaking")
def test_where_no_recipe_can_be_applied_the_kernel_is_unchanged():
    """All recipes are passed over: the warning gives every reason."""
    example = reduction()
    specs = [TransformSpec.parse(bad) for bad in BAD_SPECS]
    store = given(*(fact(example.einsum, spec) for spec in specs))
    text = why_unchanged(example.kernel, database=store)
    assert "no recorded recipe could be applied" in text
    assert all(why in text for why in BAD_SPECS.values())
    with pytest.raises(RecordNotFoundError):
        retrieve(example.kernel, database=store, on_miss="raise")


def test_a_worse_level_is_taken_where_the_best_has_no_usable_recipe():
    """A recipe that is unknown here does not hide one of a similar machine."""
    example = reduction()
    alien = fact(example.einsum, TransformSpec("alien", 1, {}))
    elsewhere = replace(here(), driver_version="another")
    usable = fact_of(example, environment=elsewhere)
    found = look_up(example.kernel, database=given(alien, usable))
    assert found.nests[0].applied == usable.spec
    assert found.nests[0].match.level == Level.SAME_DEVICE_OTHER_DRIVER
    assert [spec for spec, _ in found.nests[0].failures] == [alien.spec]
    strict = look_up(example.kernel, database=given(alien, usable), policy="strict")
    assert (strict.applied, strict.t_unit) == ((), example.kernel)


def test_a_recipe_that_is_no_faster_is_never_applied():
    """A fact that says slower than untransformed is no reason to transform."""
    example = reduction()
    store = given(fact_of(example, speedup=0.9), fact_of(example, speedup=1.0))
    text = why_unchanged(example.kernel, database=store)
    assert "2 facts are recorded, but none is both faster" in text


def environments():
    """Environments from here to far away, by the level of their fit."""
    device = here().device
    neighbour = replace(device, name="another", compute_units=device.compute_units + 1)
    far = replace(make_device(), kind="gpu", architecture="far")
    return {
        Level.EXACT: here(),
        Level.SAME_DEVICE_OTHER_DRIVER: replace(here(), driver_version="another"),
        Level.SAME_ARCHITECTURE: replace(here(), device=neighbour),
        Level.OTHER_DEVICE: replace(here(), device=far),
    }


@pytest.mark.parametrize(
    ("policy", "worst"),
    [
        ("strict", Level.EXACT),
        ("default", Level.SAME_ARCHITECTURE),
        ("loose", Level.OTHER_DEVICE),
    ],
)
def test_a_policy_is_the_worst_level_accepted(policy, worst):
    """Facts from further away than the policy allows are not used."""
    example = reduction()
    for level, environment in environments().items():
        store = given(fact_of(example, environment=environment))
        found = look_up(example.kernel, database=store, policy=policy)
        assert (found.nests[0].applied is not None) == (level <= worst)
        known = query(example.einsum, database=store, policy=policy)
        assert known.level == (level if level <= worst else Level.MISS)
        if level > worst:
            text = why_unchanged(example.kernel, database=store, policy=policy)
            assert f"policy {policy!r}" in text
            assert str(level) in text


def test_the_nearest_level_is_preferred():
    """A slower recipe from here is taken before a faster one from further away."""
    example = reduction()
    records = [
        fact_of(example, environment=environment, speedup=10.0 ** (1 + level))
        for level, environment in environments().items()
    ]
    for k, (level, _) in enumerate(environments().items()):
        found = look_up(example.kernel, database=given(*records[k:]), policy="loose")
        assert found.nests[0].match.level == level
        assert found.nests[0].match.ranking == (records[k],)


# where facts come from


def test_a_database_is_a_store_a_path_a_url_or_the_default(tmp_path, monkeypatch):
    """All name the same facts; a store that is given stays open."""
    example = reduction()
    path = tmp_path / "facts.sqlite"
    with open_store(path) as store:
        store.add(fact_of(example))
        expected = retrieved(example.kernel, database=store)
        assert len(store) == 1
    for database in (path, str(path), f"sqlite:///{path}"):
        assert retrieved(example.kernel, database=database) == expected
    monkeypatch.setenv("FEINSUM_DATABASE", str(path))
    assert retrieved(example.kernel) == expected
    assert retrieved(example.kernel, database=None) == expected
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "other.sqlite"))
    assert "no fact" in why_unchanged(example.kernel)


def test_a_retrieved_kernel_is_the_same_every_time():
    """Equal facts in any order give equal kernels."""
    example = contraction()
    slow = fact_of(example)
    other = replace(
        slow, spec=replace(slow.spec, parameters={**slow.spec.parameters, "rows": 8})
    )
    first = retrieved(example.kernel, database=given(slow, other))
    assert retrieved(example.kernel, database=given(other, slow)) == first
