"""Rows on disk while they are collected, so that an interrupted collection goes on where it stopped."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.errors import ConfigError
from specbench.records import write
from specbench.train.texts import Text

SHARD = 20  # texts
Rows = dict[str, Tensor]  # columns of one length; `text` holds each row's text


def collected(
    folder: Path,
    texts: Sequence[Text],
    make: Callable[[Text], Rows],
    settings: dict[str, Any],
    advance: Callable[[], None],
) -> Rows:
    """The rows that `make` gives for each text, with a column `text`, from `folder` as far as they lie there.

    What was collected with other settings is thrown away; a folder that holds anything else is refused. `advance` is called
    once a text, those found included.
    """
    told = json.dumps(settings, sort_keys=True)
    mark = folder / "settings.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not mark.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} holds something else than collected rows; name a folder of their own")
    if not mark.exists() or mark.read_text(encoding="utf-8") != told:
        for old in (*folder.glob("*.safetensors"), *folder.glob("*.part")):
            old.unlink()
        write(mark, told)
    shards: list[Rows] = []
    for first in range(0, len(texts), SHARD):
        path, part = folder / f"{first:06d}.safetensors", texts[first : first + SHARD]
        if not path.exists():
            rows = []
            for text in part:
                made = make(text)
                rows.append(made | {"text": torch.full((len(next(iter(made.values()))),), text.number)})
                advance()
            whole = joined([each for each in rows if len(each["text"])])
            save_file({key: column.contiguous() for key, column in whole.items()}, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        else:
            for _ in part:
                advance()
        shards.append(load_file(path))
    return joined([shard for shard in shards if shard])


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other."""
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]} if parts else {}


def chosen(rows: Rows, where: Tensor) -> Rows:
    """The rows at indices or where a mask is true."""
    return {key: column[where] for key, column in rows.items()}
