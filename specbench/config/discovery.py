"""Registration by import: every module of a package is found, so that adding a file is enough."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules


def import_modules(package: str, path: Iterable[str]) -> None:
    """Import all modules of a package, in alphabetical order, so that the classes in them register themselves."""
    for module in sorted(iter_modules(path)):
        import_module(f"{package}.{module.name}")
