"""Calls of arrays on a CUDA GPU."""
