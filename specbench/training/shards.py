"""Rows on disk while they are collected, so that an interrupted collection resumes."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.config.construct import Table
from specbench.files import named, write
from specbench.training.texts import Text

SHARD = 20  # texts per file
Rows = dict[str, Tensor]  # columns of one length; `text` holds each row's text


def collected(
    folder: Path,
    texts: Sequence[Text],
    make: Callable[[Sequence[Text]], Iterable[Rows]],
    settings: Table,
    advance: Callable[[], None],
    ends: Callable[[], bool] = lambda: False,
) -> tuple[Rows, int]:
    """Return the rows that `make` gives for each of some texts, with a column `text`, and the number of texts.

    Rows are read from `folder` as far as they are there. Each combination of settings has its own subfolder. `advance` is
    called once per text, including those read from disk. Once `ends` returns true, no more than the first shard is collected.
    """
    text_of_settings = json.dumps(settings, sort_keys=True)
    folder = folder / hashlib.sha256(text_of_settings.encode()).hexdigest()[:8]
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "settings.json", text_of_settings)
    shards: list[Rows] = []
    read = 0
    for first in range(0, len(texts), SHARD):
        path, part = folder / f"{first:06d}.safetensors", texts[first : first + SHARD]
        kept = _kept(path)
        if kept is None:
            if first and ends():
                break
            rows = []
            for text, made in zip(part, make(part), strict=True):
                rows.append(made | {"text": torch.full((len(next(iter(made.values()))),), text.number)})
                advance()
            whole = joined([each for each in rows if len(each["text"])])
            kept = {key: column.contiguous() for key, column in whole.items()}
            with named(path):
                save_file(kept, path.with_suffix(".part"))
                path.with_suffix(".part").rename(path)
        else:
            for _ in part:
                advance()
        shards.append(kept)
        read += len(part)
    return joined([shard for shard in shards if shard]), read


def _kept(path: Path) -> Rows | None:
    """Return the rows of a shard, or None if it is missing or damaged, since they can be collected again."""
    try:
        return load_file(path) if path.exists() else None
    except (SafetensorError, OSError, ValueError):
        return None


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows."""
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]} if parts else {}


def chosen(rows: Rows, where: Tensor) -> Rows:
    """Return the rows at indices or of a mask."""
    return {key: column[where] for key, column in rows.items()}
