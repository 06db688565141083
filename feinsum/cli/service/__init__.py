"""``feinsum serve`` and ``feinsum keys``: the service, and who may use it."""
