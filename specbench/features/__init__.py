"""Features: what is built on the core, each in a package of its own.

The core does not import them, so a feature is removed with its package, its module in `cli/` and its entry in `cli/app.py`.
"""
