from typing import Any

VECTOR_BYTES: int

def contract(
    indices: bytes, first: Any, second: Any, out: Any, n_threads: int, /
) -> None: ...
def einsum(
    subscripts: Any,
    operands: tuple[Any, ...],
    is_chosen: bool = False,
    out: Any = None,
    /,
) -> Any: ...
def set_spent_s(seconds: float, /) -> None: ...
