"""An einsum, written as a kernel in any spelling, is raised to itself."""

from __future__ import annotations

from hypothesis import given

from feinsum import canonicalize, raise_kernel
from feinsum.raising import single_nest
from tests.raising.spellings import Foreign, Spelling, spellings
from tests.strategies import counts


@given(spellings())
@counts(50, 5_000)
def test_every_spelling_of_an_einsum_has_its_key(spelling: Spelling) -> None:
    """Whatever the spelling, the key is that of the einsum, and the relabeling leads
    from the kernel's names to the canonical einsum and back.
    """
    nest = single_nest(raise_kernel(spelling.t_unit))
    form = canonicalize(spelling.einsum)
    assert nest.key == form.key
    assert nest.relabeling.apply(nest.einsum) == form.einsum
    assert nest.relabeling.inverse().apply(form.einsum) == nest.einsum
    used = set(spelling.inames.values())
    assert set(nest.canonical_nest.inames.values()) == used


@given(spellings())
@counts(15, 500)
def test_raising_keeps_what_it_does_not_understand(spelling: Spelling) -> None:
    """Tags of inames and of arguments, and the user's rules, are all still there."""
    before = spelling.t_unit.default_entrypoint
    after = raise_kernel(spelling.t_unit).t_unit.default_entrypoint
    assert {i: x.tags for i, x in after.inames.items()} == {
        i: x.tags for i, x in before.inames.items()
    }
    assert after.args == before.args
    assert any(Foreign() in arg.tags for arg in after.args)
    assert set(before.substitutions) <= set(after.substitutions)
