"""Features: what is built on the core, each in a package of its own.

The core does not import them. To remove a feature, delete:

- its package here, and its module in `cli/` with the entry in `cli/app.py`,
- its function in `specbench/api.py`, if it has one, and the name in `specbench/__init__.py`,
- its names in pyproject.toml, in the list of packages and in the import contract,
- its tests, its page in `docs/` with the entry in mkdocs.yml, the scripts that import it with their targets in the Makefile,
  and the pages in `results/` that these scripts write.
"""
