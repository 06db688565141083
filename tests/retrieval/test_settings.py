"""Whatever a user set before: what comes back has code and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import loopy as lp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopy.kernel.function_interface import ScalarCallable
from loopy.types import NumpyType
from pymbolic import parse
from pytools.tag import Tag

from feinsum import retrieve
from feinsum.records import InMemoryStore
from feinsum.retrieval import generating
from tests.portions import spread
from tests.retrieval.kernels import VERSION
from tests.retrieval.support import ESTIMATED, predicted

pytestmark = pytest.mark.filterwarnings("ignore")

N_ELEMENTS = 48
SHAPES = {
    "J": (3, 3, "E"),
    "D": (3, 10, 10),
    "u": ("E", 10),
    "g": (3, "E", 10),
    "w": ("E", 10),
}
OUTPUTS = {"g", "w"}
GRADIENT = "g[x,e,i] = sum([r,j], J[x,r,e]*D[r,i,j]*u[e,j]) {id=grad}"
SCALED = "w[e,i] = 2*u[e,i] {id=scaled}"


class Own(Tag):
    """A tag that only its user knows."""


def made(*statements: str) -> lp.TranslationUnit:
    text = "\n".join(statements)
    shapes = {n: shape for n, shape in SHAPES.items() if f"{n}[" in text}
    return lp.make_kernel(
        "{[x,e,i,r,j]: 0<=x,r<3 and 0<=i,j<10 and 0<=e<E}",
        text,
        [
            *(
                lp.GlobalArg(
                    name, np.float64, shape=tuple(parse(str(n)) for n in shape)
                )
                for name, shape in shapes.items()
            ),
            ...,
        ],
        target=lp.ExecutableCTarget(),
        lang_version=VERSION,
    )


KERNELS = {"gradient": (GRADIENT,), "two nests": (GRADIENT, SCALED)}


def changed(unit: lp.TranslationUnit, **changes: object) -> lp.TranslationUnit:
    return unit.with_kernel(unit.default_entrypoint.copy(**changes))


def with_args(unit, change):
    args = unit.default_entrypoint.args
    new = [change(a) if isinstance(a, lp.ArrayArg) else a for a in args]
    return changed(unit, args=new)


def with_insns(unit, **changes):
    insns = unit.default_entrypoint.instructions
    return changed(unit, instructions=[insn.copy(**changes) for insn in insns])


def in_sequence(unit):
    """As ``seq_dependencies`` has it: each waits for all before it."""
    insns, before = [], frozenset()
    for insn in unit.default_entrypoint.instructions:
        insns.append(insn.copy(depends_on=before, depends_on_is_final=True))
        before |= {insn.id}
    return changed(unit, instructions=insns)


Setting = Callable[[lp.TranslationUnit], lp.TranslationUnit]
SETTINGS: dict[str, Setting] = {
    "priorities of all loops": lambda t: lp.prioritize_loops(t, "e,i,x"),
    "a priority with a sum": lambda t: lp.prioritize_loops(t, "i,j"),
    "an unrolled loop": lambda t: lp.tag_inames(t, {"i": "unr"}),
    "an ordered loop": lambda t: lp.tag_inames(t, {"i": "ord"}),
    "a parallel loop": lambda t: lp.tag_inames(t, {"e": "g.0"}),
    "a tag of a loop": lambda t: lp.tag_inames(t, {"i": Own()}),
    "tags of arrays": lambda t: with_args(t, lambda a: a.tagged(Own())),
    "tags of instructions": lambda t: lp.tag_instructions(t, "own"),
    "another name": lambda t: lp.rename_iname(t, "i", "own"),
    "silenced warnings": lambda t: changed(t, silenced_warnings=("write_race(*)",)),
    "an assumption": lambda t: lp.assume(t, "E >= 1"),
    "an assumption of multiples": lambda t: lp.assume(t, "E mod 16 = 0 and E >= 16"),
    "a fixed size": lambda t: lp.fix_parameters(t, E=N_ELEMENTS),
    "a preamble": lambda t: changed(t, preambles=(("00", "#define OWN 1"),)),
    "an option": lambda t: lp.set_options(t, enforce_variable_access_ordered=False),
    "long indices": lambda t: changed(t, index_dtype=NumpyType(np.dtype(np.int64))),
    "a layout": lambda t: lp.tag_array_axes(t, "u", "N0,N1"),
    "a split loop": lambda t: lp.split_iname(t, "e", 16),
    "alignment": lambda t: with_args(t, lambda a: a.copy(alignment=64)),
    "loops that are final": lambda t: with_insns(t, within_inames_is_final=True),
    "priorities of instructions": lambda t: with_insns(t, priority=3),
    "groups": lambda t: with_insns(t, groups=frozenset({"own"})),
    "a dependency": lambda t: lp.add_dependency(t, "id:scaled", "id:grad"),
    "instructions in sequence": in_sequence,
    "a callable": lambda t: lp.register_callable(t, "own", ScalarCallable("own")),
    "results of no dtype": lambda t: with_args(
        t, lambda a: a.copy(dtype=None) if a.name in OUTPUTS else a
    ),
    "inferred types": lp.infer_unknown_types,
    "preprocessing": lp.preprocess_program,
    "an order of loops": lambda t: lp.linearize(lp.preprocess_program(t)),
}
FINAL = {"inferred types", "preprocessing", "an order of loops", "loops that are final"}
"""After these Loopy takes no others."""


def results(unit: lp.TranslationUnit) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = {arg.name for arg in unit.default_entrypoint.args}
    arrays = {
        name: np.empty([N_ELEMENTS if n == "E" else n for n in shape])
        for name, shape in SHAPES.items()
        if name in names
    }
    for name, array in arrays.items():
        array[...] = np.nan if name in OUTPUTS else rng.random(array.shape)
    if unit.default_entrypoint.arg_dict["u"].dim_tags[0].stride == 1:
        arrays["u"] = np.asfortranarray(arrays["u"])
    unit.executor()(**arrays)
    return {name: array for name, array in arrays.items() if name in OUTPUTS}


@cache
def results_as_written(statements: tuple[str, ...]) -> dict[str, np.ndarray]:
    return results(made(*statements))


def check(statements: tuple[str, ...], names: list[str]) -> None:
    unit = made(*statements)
    for name in sorted(names, key=lambda name: name in FINAL):
        try:
            unit = SETTINGS[name](unit)
        except Exception:  # noqa: BLE001
            return  # Loopy does not take the one after the other
    options = {"database": InMemoryStore(), "on_miss": "return"}
    found = retrieve(unit, **ESTIMATED, **options)
    if found is unit:
        return
    lp.generate_code_v2(found)
    expected = results_as_written(statements)
    for name, result in results(found).items():
        np.testing.assert_allclose(result, expected[name], rtol=1e-12)


@pytest.mark.parametrize("name", spread(SETTINGS, 8))
def test_one_setting(name):
    """Each alone; most do not keep a recipe from being applied."""
    check(KERNELS["two nests"], [name])


@settings(max_examples=4, deadline=None)
@given(
    kernel=st.sampled_from(sorted(KERNELS)),
    names=st.lists(
        st.sampled_from(sorted(SETTINGS)), min_size=2, max_size=4, unique=True
    ),
)
def test_several_settings(kernel, names):
    """In any combination that Loopy takes."""
    check(KERNELS[kernel], names)


@pytest.mark.parametrize("order", ["e,i", "i,x,e"])
def test_priorities_do_not_keep_recipes_away(order):
    """Loops of which a recipe makes others are not ordered any more."""
    unit = lp.prioritize_loops(made(GRADIENT, SCALED), order)
    found = predicted(unit)
    assert len(found.applied) == 2
    lp.generate_code_v2(found.t_unit)


def test_results_whose_dtype_is_inferred_get_every_family():
    """Recipes that declare tiles of that dtype, too."""
    unit = SETTINGS["results of no dtype"](made(GRADIENT))
    assert unit.default_entrypoint.arg_dict["g"].dtype is None
    found = predicted(unit)
    (nest,) = found.nests
    assert nest.failures == ()
    assert nest.applied == predicted(made(GRADIENT)).nests[0].applied


def test_priorities_of_other_loops_are_kept():
    """A nest that stays as it is has its loops in the order that was asked for."""
    unit = lp.make_kernel(
        "{[e,i,j,f,k]: 0<=i,j,k<10 and 0<=e,f<E}",
        [
            "v[e,i] = sum(j, D[i,j]*u[e,j]) {id=einsum}",
            "w[f,k] = w[f,k]*w[f,k] {id=other}",
        ],
        [
            lp.GlobalArg("u,v,w", np.float64, shape=(parse("E"), 10)),
            lp.GlobalArg("D", np.float64, shape=(10, 10)),
            ...,
        ],
        target=lp.ExecutableCTarget(),
        lang_version=VERSION,
    )
    unit = lp.prioritize_loops(lp.prioritize_loops(unit, "k,f"), "e,i")
    found = predicted(unit)
    assert len(found.applied) == 1
    assert found.t_unit.default_entrypoint.loop_priority >= {("k", "f")}
    lp.generate_code_v2(found.t_unit)


def test_a_recipe_without_code_is_passed_over(monkeypatch, caplog):
    """It is found out before the kernel is handed over; the next recipe serves."""
    refuse = iter([generating.TransformError("no code can be generated: too bad")])
    usual = generating.find_refusal
    monkeypatch.setattr(
        generating, "find_refusal", lambda unit: next(refuse, None) or usual(unit)
    )
    found = predicted(made(GRADIENT))
    ((_, why),) = found.nests[0].failures
    assert "too bad" in why
    assert len(found.applied) == 1
    assert "was skipped: no code" in caplog.text


def test_a_kernel_of_which_no_recipe_has_code_comes_back(monkeypatch):
    """After a few recipes no more are tried, and the reason is told."""
    unit = made(GRADIENT)

    def refusal(one):
        """Of what is parallel; the kernel that was given is not."""
        is_given = "g.0" not in str(one)
        return None if is_given else generating.TransformError("no code: too bad")

    monkeypatch.setattr(generating, "find_refusal", refusal)
    found = predicted(unit)
    assert found.t_unit is unit
    assert len(found.nests[0].failures) == 3
    assert "too bad" in found.nests[0].why_unchanged


def test_of_a_kernel_without_a_recipe_no_code_is_generated(monkeypatch):
    """It comes back as it was, and its user generates the code."""

    def refuse(_unit):
        raise AssertionError("code was generated")

    monkeypatch.setattr(generating, "find_refusal", refuse)
    unit = lp.preprocess_program(made(GRADIENT))
    found = predicted(unit, verify=None, effort="recorded")
    assert found.t_unit is unit
