"""Checks and benchmarks on a CUDA device, without weights or data."""
