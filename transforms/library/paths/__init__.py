"""Einsums as several nests, two operands at a time along a contraction path."""
