"""Bundles of compiled kernels, for GPUs on machines without a network."""
