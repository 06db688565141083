"""The public names: what they are, whatever else is imported, and what they take."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import FunctionType

import numpy as np
import pytest

import feinsum

FUNCTIONS = sorted(
    name for name in feinsum.__all__ if isinstance(getattr(feinsum, name), FunctionType)
)

IMPORT_ALL = """
import importlib, inspect, pkgutil, types
import feinsum
before = {name: getattr(feinsum, name) for name in feinsum.__all__}
for module in pkgutil.walk_packages(feinsum.__path__, "feinsum."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except Exception:  # of a package that is not installed
            pass
for name, value in before.items():
    assert getattr(feinsum, name) is value, name
    assert not isinstance(value, types.ModuleType), name
assert set(feinsum.__all__) <= set(dir(feinsum))
"""


def test_no_import_replaces_a_public_name() -> None:
    """Every public name is the same before and after the import of all modules."""
    said = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr


def test_options_are_in_the_signature() -> None:
    """No public function takes any option under any name."""
    for name in FUNCTIONS:
        parameters = inspect.signature(getattr(feinsum, name)).parameters.values()
        assert not [p for p in parameters if p.kind is p.VAR_KEYWORD], name


CALLS = {
    "contract": ("ij,j->i", np.eye(2), np.ones(2)),
    "contract_expression": ("ij,j->i", (2, 2), (2,)),
    "contract_path": ("ij,j->i", np.eye(2), np.ones(2)),
    "einsum": ("ij,j->i", np.eye(2), np.ones(2)),
    "call_einsum": ("ij,j->i", np.eye(2), np.ones(2)),
    "tune": ("ij,j->i", np.eye(2), np.ones(2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_misspelt_option_names_the_function_that_was_called(name: str) -> None:
    """And never one that it calls."""
    with pytest.raises(TypeError, match=rf"^{name}\(\).*'databsae'"):
        getattr(feinsum, name)(*CALLS[name], databsae="facts.sqlite")


def test_a_contract_expression_refuses_a_misspelt_option() -> None:
    """When it is called; it takes the options of ``einsum``."""
    expression = feinsum.contract_expression("ij,j->i", (2, 2), (2,))
    with pytest.raises(TypeError, match=r"^ContractExpression\(\).*'database'"):
        expression(np.eye(2), np.ones(2), databsae="facts.sqlite")


def test_autotune_is_another_name_of_tune() -> None:
    """One function, with every option in its signature."""
    assert feinsum.autotune is feinsum.tune
    options = inspect.signature(feinsum.tune).parameters
    assert {"sizes", "database", "n_trials", "budget_s", "on_stop"} <= set(options)
