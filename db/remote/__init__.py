"""A service as a store of facts: bounded waiting for look-ups, retries for commands."""
