"""Files that pairs name for their models: architectures by hub id, and chat templates. Reading them imports no torch."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from specbench.config.construct import Table, convert
from specbench.config.pair import ModelSpec, folder
from specbench.errors import ConfigError, MissingAsset, hint, nearest
from specbench.files import read_json, read_toml

SUFFIX = ".jinja"


def bundled_architecture(path: str) -> Table:
    """Return the configuration of a hub id. Raises MissingAsset if its architecture is not known."""
    table = _by_id().get(path)
    if table is None:
        near = nearest(path, _by_id())
        suggestion = f" (did you mean '{near}'?)" if near else ""
        raise MissingAsset(
            f"no architecture for {path} in configs/architectures/{suggestion}; help: add a file there, or use a local folder"
        )
    return table


def architecture_of(spec: ModelSpec, base: Path) -> Table:
    """Return a model's configuration, a local folder's or the one known for its hub id, with the keys that the pair changes.

    Raises MissingAsset if there is none.
    """
    local = folder(spec.path, base)
    if local and not (local / "config.json").is_file():
        raise MissingAsset(f"{local} holds no model (no config.json)")
    table = read_json(local / "config.json", Table) if local else bundled_architecture(spec.path)
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


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template as transformers applies it. `label` is its name with the beginning of its SHA-256."""

    label: str
    text: str


def chat_template(name: str, base: Path) -> ChatTemplate:
    """Return a bundled template by name, or the one in a file, relative to the folder `base`. Raises ConfigError."""
    if name.endswith(SUFFIX):
        path = base / Path(name).expanduser()
        if not path.is_file():
            raise ConfigError(f"no chat template {path}")
        text, stem = path.read_text(encoding="utf-8"), path.name
    else:
        bundled = {file.name.removesuffix(SUFFIX): file for file in _folder().iterdir() if file.name.endswith(SUFFIX)}
        if name not in bundled:
            raise ConfigError(
                f"unknown chat template '{name}'{hint(name, bundled)}; help: a path that ends in {SUFFIX}"
            )
        text, stem = bundled[name].read_text(encoding="utf-8"), name
    return ChatTemplate(f"{stem}:{hashlib.sha256(text.encode()).hexdigest()[:12]}", text)


def _folder() -> Path:
    return Path(str(resources.files("specbench.configs"))) / "chat_templates"
