"""How each library evaluates an einsum of numpy arrays; libraries are imported
lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.totals.calls import Array, Einsum

__all__ = ["CONTESTANTS", "OURS", "Contestant"]

OURS = "feinsum"


@dataclass(frozen=True)
class Contestant:
    """A library that evaluates einsums.

    Attributes:
        module: the name to import.
        einsum: returns the function of the imported module.
        convert: returns a function that converts numpy arrays to operands.
        convert_back: converts a result to a numpy array.
        counts_import: whether totals include the time of the import.
    """

    name: str
    module: str
    einsum: Callable[[Any], Einsum]
    convert: Callable[[Any], Callable[[Array], Any]] | None = None
    convert_back: Callable[[Any], Array] | None = None
    counts_import: bool = True

    @property
    def is_installed(self) -> bool:
        return find_spec(self.module) is not None

    def load(self) -> Any:
        """Import the module, with what its first call would import for every
        program.
        """
        module = import_module(self.module)
        self.einsum(module)
        return module

    def convert_operands(self, module: Any, arrays: Sequence[Array]) -> Sequence[Any]:
        return arrays if self.convert is None else [*map(self.convert(module), arrays)]

    def convert_result(self, value: Any) -> Array:
        return value if self.convert_back is None else self.convert_back(value)


def _get_numpy_einsum(module: Any) -> Einsum:
    def einsum(subscripts: str, *operands: Array) -> Any:
        return module.einsum(subscripts, *operands, optimize=True)

    return einsum


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant("numpy", "numpy", _get_numpy_einsum),
        Contestant("opt_einsum", "opt_einsum", lambda module: module.contract),
        Contestant(
            "torch",
            "torch",
            lambda module: module.einsum,
            # without a copy: programs of torch have tensors from the start
            convert=lambda module: module.from_numpy,
            convert_back=lambda tensor: tensor.resolve_conj().numpy(),
            counts_import=False,
        ),
        Contestant(OURS, "feinsum", lambda module: module.einsum),
    )
}
