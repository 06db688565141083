"""Operands as functions of arrays: which arrays they read, and how to evaluate them.

Every function has a name, which is that of the operand in the idealized einsum, and

- ``list_shapes(shape)``: the shapes of its arrays, for an operand of that shape;
- ``scalars``: its run-time scalars, with the values of the experiment;
- ``format(indices)``: one entry, in the syntax of Loopy;
- ``evaluate(xp, values)``: the operand as a new array of ``xp`` (numpy, torch,
  jax.numpy);
- ``evaluate_into(xp, values, out)``: likewise into ``out``, with numpy or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

Shape = tuple[int, ...]
Values = Mapping[str, Any]


class Function(Protocol):
    """An operand; see the module."""

    is_rule: ClassVar[bool]
    """Whether kernels have it as a substitution rule, rather than inline."""

    @property
    def name(self) -> str: ...
    @property
    def scalars(self) -> dict[str, float]: ...
    def list_shapes(self, shape: Shape) -> dict[str, Shape]: ...
    def format(self, indices: Sequence[str]) -> str: ...
    def evaluate(self, xp: Any, values: Values) -> Any: ...
    def evaluate_into(self, xp: Any, values: Values, out: Any) -> Any: ...


@dataclass(frozen=True)
class Plain:
    """An array."""

    name: str
    is_rule: ClassVar[bool] = False

    @property
    def scalars(self) -> dict[str, float]:
        return {}

    def list_shapes(self, shape: Shape) -> dict[str, Shape]:
        return {self.name: shape}

    def format(self, indices: Sequence[str]) -> str:
        return f"{self.name}[{','.join(indices)}]"

    def evaluate(self, xp: Any, values: Values) -> Any:
        return values[self.name]

    def evaluate_into(self, xp: Any, values: Values, out: Any) -> Any:
        return values[self.name]


@dataclass(frozen=True)
class Affine:
    """``scale*A + shift`` with scalars at run time (section 8.2)."""

    name: str
    scale: str
    shift: str
    at: tuple[float, float]
    is_rule: ClassVar[bool] = False

    @property
    def scalars(self) -> dict[str, float]:
        return dict(zip((self.scale, self.shift), self.at, strict=True))

    def list_shapes(self, shape: Shape) -> dict[str, Shape]:
        return {self.name: shape}

    def format(self, indices: Sequence[str]) -> str:
        return f"({self.scale}*{self.name}[{','.join(indices)}] + {self.shift})"

    def evaluate(self, xp: Any, values: Values) -> Any:
        return values[self.scale] * values[self.name] + values[self.shift]

    def evaluate_into(self, xp: Any, values: Values, out: Any) -> Any:
        xp.multiply(values[self.name], values[self.scale], out=out)
        out += values[self.shift]
        return out


@dataclass(frozen=True)
class Average:
    """``0.5*(F_n + F_p)``: the mean of the fluxes on both sides of a face."""

    name: str
    is_rule: ClassVar[bool] = True

    @property
    def sides(self) -> tuple[str, str]:
        return f"{self.name}_n", f"{self.name}_p"

    @property
    def scalars(self) -> dict[str, float]:
        return {}

    def list_shapes(self, shape: Shape) -> dict[str, Shape]:
        return dict.fromkeys(self.sides, shape)

    def format(self, indices: Sequence[str]) -> str:
        n, p = (f"{side}[{','.join(indices)}]" for side in self.sides)
        return f"0.5*({n} + {p})"

    def evaluate(self, xp: Any, values: Values) -> Any:
        n, p = (values[side] for side in self.sides)
        return 0.5 * (n + p)

    def evaluate_into(self, xp: Any, values: Values, out: Any) -> Any:
        n, p = (values[side] for side in self.sides)
        xp.add(n, p, out=out)
        out *= 0.5
        return out


@dataclass(frozen=True)
class Stack:
    """``stack([u, v, w])``: the first index selects the array."""

    name: str
    is_rule: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[str, str, str]:
        return f"{self.name}_x", f"{self.name}_y", f"{self.name}_z"

    @property
    def scalars(self) -> dict[str, float]:
        return {}

    def list_shapes(self, shape: Shape) -> dict[str, Shape]:
        assert shape[0] == len(self.parts)
        return dict.fromkeys(self.parts, shape[1:])

    def format(self, indices: Sequence[str]) -> str:
        first, rest = indices[0], ",".join(indices[1:])
        u, v, w = (f"{part}[{rest}]" for part in self.parts)
        return f"({u} if {first} == 0 else ({v} if {first} == 1 else {w}))"

    def evaluate(self, xp: Any, values: Values) -> Any:
        return xp.stack([values[part] for part in self.parts])

    def evaluate_into(self, xp: Any, values: Values, out: Any) -> Any:
        return xp.stack([values[part] for part in self.parts], out=out)
