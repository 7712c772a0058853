"""Decoding methods, one file each. `specbench/resolution/partial_method.py` imports all of them, `theories` needs none."""
