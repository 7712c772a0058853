"""Maintainers' programs. Not installed; run them from the repository root by `python -m scripts.NAME`."""
