"""Features: what is built on the core, each in a package of its own.

The core does not import them. A feature is removed with its package, its module in `cli/` with the entry in `cli/app.py`, its
function in `specbench/api.py` if it has one with the name in `specbench/__init__.py`, and its names in the package list and
the import contract of pyproject.toml; besides, with its tests, its page in `docs/`, and scripts that import it.
"""
