"""How each library evaluates an einsum of numpy arrays; nothing is imported before."""

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
    """A library.

    Attributes:
        module: what is imported.
        einsum: the function, of the imported module.
        takes: makes an operand of a numpy array; by default it stays one.
        gives: makes a numpy array of a result.
        counts_import: whether a total has the time of its import.
    """

    name: str
    module: str
    einsum: Callable[[Any], Einsum]
    takes: Callable[[Any], Callable[[Array], Any]] | None = None
    gives: Callable[[Any], Array] | None = None
    counts_import: bool = True

    @property
    def is_installed(self) -> bool:
        return find_spec(self.module) is not None

    def load(self) -> Any:
        """The module, with what its first call would import for every program."""
        module = import_module(self.module)
        self.einsum(module)
        return module

    def operands(self, module: Any, arrays: Sequence[Array]) -> Sequence[Any]:
        return arrays if self.takes is None else [*map(self.takes(module), arrays)]

    def result(self, value: Any) -> Array:
        return value if self.gives is None else self.gives(value)


def _numpy(module: Any) -> Einsum:
    def einsum(subscripts: str, *operands: Array) -> Any:
        return module.einsum(subscripts, *operands, optimize=True)

    return einsum


CONTESTANTS = {
    one.name: one
    for one in (
        Contestant("numpy", "numpy", _numpy),
        Contestant("opt_einsum", "opt_einsum", lambda module: module.contract),
        Contestant(
            "torch",
            "torch",
            lambda module: module.einsum,
            # Without a copy: a program of torch has its tensors from the start.
            takes=lambda module: module.from_numpy,
            gives=lambda tensor: tensor.resolve_conj().numpy(),
            counts_import=False,
        ),
        Contestant(OURS, "feinsum", lambda module: module.einsum),
    )
}
