"""Calls of arrays on the host, and of pyopencl's arrays."""
