"""Trials that travel: bundles of kernels for GPUs without a network."""
