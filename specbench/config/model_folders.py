"""Errors about the local folders of models: a folder without a model, and the name of a folder with a mistake."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from specbench.config.pair import Pair, folder
from specbench.errors import MissingAsset

CONFIG = "config.json"  # of every model that Transformers saves


@contextmanager
def errors_about_folders(pair: Pair, roles: Iterable[str], base: Path) -> Iterator[None]:
    """Add advice to errors about models that are not here.

    Raises MissingAsset for a folder without a model, and appends the nearest folder to the error for a model that is neither
    here nor on the hub.
    """
    paths = {role: pair.models[role].path for role in roles}
    for role, path in paths.items():
        local = folder(path, base)
        if local and not (local / CONFIG).is_file():
            inner = sorted(each.parent.name for each in local.glob(f"*/{CONFIG}"))
            where = f"one of its folders: {', '.join(inner)}" if inner else "a folder that save_pretrained has written"
            raise MissingAsset(f"model '{role}': no {CONFIG} in {local}; help: {where}")
    try:
        yield
    except MissingAsset as error:
        for role, path in paths.items():
            if f"model '{role}'" in str(error) and (near := _nearest(path, base)):
                raise MissingAsset(f"{error}; did you mean the folder {near}?") from None
        raise


def _nearest(path: str, base: Path) -> Path | None:
    """Return the folder with the most similar name beside a path that is no folder; None if there is none."""
    if folder(path, base):
        return None
    for parent in dict.fromkeys((base / Path(path).expanduser().parent, Path(path).expanduser().parent)):
        names = [each.name for each in parent.iterdir() if (each / CONFIG).is_file()] if parent.is_dir() else []
        if near := get_close_matches(Path(path).name, names, n=1):
            return parent / near[0]
    return None
