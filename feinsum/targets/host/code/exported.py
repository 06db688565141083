"""The symbol that a compiled kernel exports."""

__all__ = ["ENTRY"]

ENTRY = "feinsum_entry"
"""The function that is called."""
