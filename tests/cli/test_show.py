"""``feinsum show``: loop nests and code, before and after a recipe."""

from __future__ import annotations

import json

from tests.cli.facts import MATVEC
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

RECIPE = "rowwise@1(block=64, index='a')"


def test_a_recipe_is_shown_beside_the_plain_kernel(run):
    """Loops and code, in the names of the canonical einsum, as text and as JSON."""
    shown = run("show", *MATVEC, "--device", "host", "--recipe", RECIPE)
    assert shown.exit_code == 0, shown.output
    headings = [line for line in shown.stdout.splitlines() if line.startswith("== ")]
    assert headings == [
        f"== {what} {when} =="
        for what in ("loop nest", "code")
        for when in ("before", "after")
    ]
    assert "\x1b" not in shown.stdout
    again = run("show", *MATVEC, "--device", "host", "--recipe", RECIPE, "--json")
    document = json.loads(again.stdout)
    assert document["recipe"] == RECIPE
    plain = "for a\n  out[a] = reduce(sum, [b], A0[a, b]*A1[b])"
    assert plain in document["loops_before"]
    assert "out[a_inner + a_outer*64] = " in document["loops_after"]
    assert document["loops_after"] in shown.stdout
    for when in ("before", "after"):
        assert document[f"code_{when}"] in shown.stdout
        assert "for (int" in document[f"code_{when}"]
    assert document["code_before"] != document["code_after"]


def test_without_a_recipe_the_best_one_is_shown(run):
    """Recorded or predicted; with none, the plain kernel and exit code 3."""
    best = run("show", *MATVEC, "--device", "host", "--effort", "estimate", "--json")
    assert best.exit_code == 0, best.output
    assert json.loads(best.stdout)["code_after"]
    none = run("show", "ij,j->i", "--sizes", "i=n,j=5", "--effort", "recorded",
               "--policy", "strict", "--device", "host")  # fmt: skip
    assert none.exit_code == 3
    assert "recipe: none" in none.stdout
    assert "== code before ==" in none.stdout
    assert "after" not in none.stdout


def test_a_recipe_that_is_none_is_bad_usage(run):
    """Text that is no recipe, an unknown family, a parameter out of range."""
    for recipe in ("rowwise", "no_family@1()", "rowwise@1(block=-1)"):
        ended = run("show", *MATVEC, "--recipe", recipe)
        assert ended.exit_code == 2
        assert recipe.partition("@")[0] in ended.stderr
