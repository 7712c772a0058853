"""Chat templates that a pair names for models whose tokenizer has none: files of configs/chat_templates/, or own ones."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from specbench.errors import ConfigError, hint

SUFFIX = ".jinja"


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
        bundled = {each.name.removesuffix(SUFFIX): each for each in _folder().iterdir() if each.name.endswith(SUFFIX)}
        if name not in bundled:
            raise ConfigError(
                f"unknown chat template '{name}'{hint(name, bundled)}; help: a path that ends in {SUFFIX}"
            )
        text, stem = bundled[name].read_text(encoding="utf-8"), name
    return ChatTemplate(f"{stem}:{hashlib.sha256(text.encode()).hexdigest()[:12]}", text)


def _folder() -> Path:
    return Path(str(resources.files("specbench.configs"))) / "chat_templates"
