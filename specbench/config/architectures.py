"""The architectures of configs/architectures/, by hub id. Reading them imports neither torch nor transformers."""

from functools import cache
from importlib import resources
from pathlib import Path

from specbench.config.construct import Table, convert
from specbench.config.pair import ModelSpec, folder
from specbench.errors import MissingAsset
from specbench.files import read_json, read_toml


def known_architecture(path: str) -> Table:
    """Return the configuration of a hub id. Raises MissingAsset if its architecture is not known."""
    table = _by_id().get(path)
    if table is None:
        raise MissingAsset(
            f"no architecture for {path} in configs/architectures/; help: add a file there, or use a local folder"
        )
    return table


def architecture_of(spec: ModelSpec, base: Path) -> Table:
    """Return a model's configuration, a local folder's or the one known for its hub id, with the keys that the pair changes.

    Raises MissingAsset if there is none.
    """
    local = folder(spec.path, base)
    if local and not (local / "config.json").is_file():
        raise MissingAsset(f"{local} holds no model (no config.json)")
    table = read_json(local / "config.json", Table) if local else known_architecture(spec.path)
    return {**table, **spec.config}


@cache
def _by_id() -> dict[str, Table]:
    """Return hub id -> its configuration's keys."""
    files = sorted((Path(str(resources.files("specbench.configs"))) / "architectures").glob("*.toml"))
    tables = {path: read_toml(path) for path in files}
    return {
        name: convert(table["config"], Table, f"{path}: config")
        for path, table in tables.items()
        for name in table["ids"]
    }
