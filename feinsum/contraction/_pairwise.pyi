from typing import Any

VECTOR_BYTES: int

def contract(
    indices: bytes, first: Any, second: Any, out: Any, n_threads: int, /
) -> None: ...
def einsum(subscripts: Any, operands: tuple[Any, ...], /) -> Any: ...
