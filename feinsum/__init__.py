"""A canonicalizing tuning database for batched einsums."""

from __future__ import annotations
