"""Keys of the caches: the text of a kernel, and the files that determine a recipe.

Texts are equal for equal kernels, and different after any change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import loopy as lp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopy.types import NumpyType
from pytools.tag import Tag

import feinsum.db
import feinsum.targets
from feinsum.retrieval.identity import NoTextError, list_deciding_files, serialize_value
from feinsum.targets.host import HostCTarget
from tests.docs.pages import ROOT
from tests.raising.kernels import k21_pytato_grad as captured
from tests.raising.kernels import k45_pytato_grad_private_bounds as bounds
from tests.retrieval.kernels import contraction, gradients, reduction

TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(st.integers() | st.text())
    ),
    max_leaves=8,
)


def typed(value):
    """The value, such that ``1``, ``1.0`` and ``True`` are not equal."""
    if isinstance(value, dict):
        return dict, {k: typed(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [typed(v) for v in value]
    return type(value), repr(value) if isinstance(value, float) else value


@given(one=TREES, other=TREES)
def test_texts_are_equal_if_and_only_if_the_values_are(one, other):
    """Nothing is lost, not even the kind of a number."""
    assert (serialize_value(one) == serialize_value(other)) == (
        typed(one) == typed(other)
    )
    assert serialize_value(one) == serialize_value(one)


class Note(Tag):
    """A tag of another package that is not known to be data."""


CHANGES: dict[str, Callable[[lp.TranslationUnit], lp.TranslationUnit]] = {
    "name": lambda u: lp.rename_callable(u, "gradients", "other"),
    "loop": lambda u: lp.split_iname(u, "c", 16),
    "order": lambda u: lp.prioritize_loops(u, "c,a"),
    "tag": lambda u: lp.tag_inames(u, {"c": "g.0"}),
    "dtype": lambda u: u.with_kernel(
        u.default_entrypoint.copy(index_dtype=NumpyType(np.dtype(np.int64)))
    ),
    "size": lambda u: lp.fix_parameters(u, n_cells=64),
    "assumption": lambda u: lp.assume(u, "n_cells >= 5"),
    "layout": lambda u: lp.tag_array_axes(u, "um", "f,f"),
    "option": lambda u: lp.set_options(u, return_dict=True),
    "rule": lambda u: lp.extract_subst(u, "r", "p[c_, t_]", parameters="c_,t_"),
    "target": lambda u: u.copy(target=lp.PyOpenCLTarget(pointer_size_nbytes=4)),
    "instruction": lambda u: lp.set_instruction_priority(u, "id:*", 3),
    "silence": lambda u: u.with_kernel(
        u.default_entrypoint.copy(silenced_warnings=frozenset({"x"}))
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Loopy's C target
def test_kernels_of_every_target_have_a_text():
    """The same for two objects, another one for another class of targets."""
    kinds = (lp.CTarget, lp.ExecutableCTarget, lp.PyOpenCLTarget, HostCTarget)
    unit = gradients().kernel
    texts = [
        [serialize_value(unit.copy(target=kind())) for kind in kinds] for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == len(kinds)


def test_any_change_of_a_kernel_changes_its_text():
    """Domains, instructions, arguments, rules, tags, options, target."""
    kernel = gradients().kernel
    for name, change in CHANGES.items():
        assert serialize_value(change(kernel)) != serialize_value(kernel), name


def test_kernels_that_are_built_twice_have_one_text():
    """The text does not depend on the objects, nor on what Loopy has memoized, such as
    hash values, which are others in each process.
    """
    for make in (gradients, contraction, reduction):
        used = make().kernel
        lp.generate_code_v2(lp.preprocess_kernel(used))
        hash(used.target)
        assert serialize_value(used) == serialize_value(make().kernel)


def test_what_is_no_data_has_no_text():
    """A function, or an object of an unknown class, is refused by its class."""
    for value in (len, lambda: 0, object(), np.array([object()]), Note):
        with pytest.raises(NoTextError, match="cannot be written as text"):
            serialize_value(value)


BUILD = """
import hashlib, warnings
warnings.simplefilter("ignore")
from feinsum.retrieval.identity import serialize_value
from tests.raising.kernels import k21_pytato_grad, k45_pytato_grad_private_bounds
from tests.retrieval.kernels import gradients
kernels = k21_pytato_grad.build(), k45_pytato_grad_private_bounds.build()
text = serialize_value((*kernels, gradients().kernel))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_every_process_writes_the_same_text():
    """Sets have another order in each of them, and the text has none of it."""
    kernels = captured.build(), bounds.build(), gradients().kernel
    here = hashlib.sha256(serialize_value(kernels).encode()).hexdigest()
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.check_output(
        [sys.executable, "-c", BUILD],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
        text=True,
    )
    assert there.split() == [here]


def test_packaged_facts_and_compiled_sources_decide():
    """As modules do; bytecode and other files do not."""
    names = {
        path.relative_to(folder).as_posix()
        for folder in (Path(m.__path__[0]) for m in (feinsum.db, feinsum.targets))
        for path in list_deciding_files(folder)
    }
    assert {"shipped.py", "host/pool.c"} <= names
    assert any(name.startswith("packaged/host-") for name in names)
    assert {Path(name).suffix for name in names} == {".c", ".jsonl", ".py"}
