"""Benchmarks on NVIDIA GPUs: prepared on a machine with time, run where there is a
GPU.
"""
