"""Calls with a sparse operand."""
