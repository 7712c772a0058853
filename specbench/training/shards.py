"""Rows on disk, in shards, so that an interrupted collection resumes and rows need not fit into memory; and their size."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.config.construct import Table
from specbench.errors import ConfigError
from specbench.files import add_path_to_errors, write
from specbench.note import Note, warning
from specbench.training.texts import Text

SHARD = 20  # texts per file
Columns = dict[str, Tensor]  # columns of one length; `text` holds each row's text
OTHER_BYTES = 17  # of a token: its id, its text's number, and whether it is in the answer
FEATURE_BYTES = 2  # of each number of a feature
GB = 1e9


@dataclass(frozen=True)
class Shards:
    """The files of collected rows in the order of their texts, and the number of texts. Files without rows are left out."""

    paths: tuple[Path, ...]
    texts: int

    def rows(self) -> Columns:
        """Read all rows into memory."""
        return joined([load_file(path) for path in self.paths])


def folder_of(folder: Path, settings: Table) -> Path:
    """Return the subfolder for rows that are collected with these settings."""
    return folder / hashlib.sha256(_text_of(settings).encode()).hexdigest()[:8]


def missing(folder: Path, texts: Sequence[Text]) -> list[Text]:
    """Return the texts whose rows are not in the folder of their settings, or are in a damaged file."""
    firsts = range(0, len(texts), SHARD)
    return [
        text for first in firsts if _has_rows(_path(folder, first)) is None for text in texts[first : first + SHARD]
    ]


def collected(
    folder: Path,
    texts: Sequence[Text],
    make: Callable[[Sequence[Text]], Iterable[Columns]],
    settings: Table,
    advance: Callable[[], None],
    ends: Callable[[], bool] = lambda: False,
) -> Shards:
    """Write the rows that `make` gives for each of some texts, with a column `text`, and return their files.

    Texts whose rows are in `folder` are left out. Each combination of settings has its own subfolder. `advance` is
    called once per text, including those on disk. Once `ends` returns true, no more than the first shard is collected.
    No more than the rows of one shard are in memory.
    """
    folder = folder_of(folder, settings)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "settings.json", _text_of(settings))
    paths: list[Path] = []
    read = 0
    for first in range(0, len(texts), SHARD):
        path, part = _path(folder, first), texts[first : first + SHARD]
        has_rows = _has_rows(path)
        if has_rows is None:
            if first and ends():
                break
            has_rows = _write(path, part, make, advance)
        else:
            for _ in part:
                advance()
        if has_rows:
            paths.append(path)
        read += len(part)
    return Shards(tuple(paths), read)


def _write(
    path: Path, texts: Sequence[Text], make: Callable[[Sequence[Text]], Iterable[Columns]], advance: Callable[[], None]
) -> bool:
    """Write the rows of the texts of a shard. Returns whether there are any."""
    rows = []
    for text, made in zip(texts, make(texts), strict=True):
        rows.append(made | {"text": torch.full((len(next(iter(made.values()))),), text.number)})
        advance()
    whole = joined([columns for columns in rows if len(columns["text"])])
    part = path.with_suffix(".part")
    with add_path_to_errors(path):
        save_file({key: column.contiguous() for key, column in whole.items()}, part)
        part.rename(path)
    return bool(whole)


def _has_rows(path: Path) -> bool | None:
    """Return whether a shard has rows; None if it is missing or damaged, since the rows can be collected again."""
    try:
        if not path.exists():
            return None
        with safe_open(path, "pt") as file:  # compares the header with the size of the file, without reading the rows
            return bool(list(file.keys()))
    except (SafetensorError, OSError, ValueError):
        return None


def _path(folder: Path, first: int) -> Path:
    """Return the file of the shard whose first text is at this index."""
    return folder / f"{first:06d}.safetensors"


def _text_of(settings: Table) -> str:
    return json.dumps(settings, sort_keys=True)


def joined(parts: Sequence[Columns]) -> Columns:
    """Concatenate rows."""
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]} if parts else {}


def chosen(rows: Columns, where: Tensor) -> Columns:
    """Return the rows at indices or of a mask."""
    return {key: column[where] for key, column in rows.items()}


# The size of the features of an EAGLE head, before they are collected


def token_bytes(width: int) -> int:
    """Return the bytes of a token's row, for a base model of this width."""
    return FEATURE_BYTES * width + OTHER_BYTES


def tokens_of(texts: Iterable[Text], most: int, generated: bool) -> int:
    """Return the number of tokens of texts with their answers, of at most `most` tokens each.

    For answers that are to be generated, it is the largest possible number.
    """
    lengths = (len(text.prompt) + (text.max_new_tokens if generated else len(text.rest)) for text in texts)
    return sum(min(length, most) for length in lengths)


def size_plan(count: int, size: int, generated: bool, has_time_limit: bool, folder: Path) -> Note:
    """Return a note on the bytes of the features of `count` texts, and on the free space.

    Raises ConfigError if the size exceeds the free space, unless it is an upper bound (`generated`) or a time limit may end
    collection earlier.
    """
    free, most = free_disk_bytes(folder), "at most " if generated else ""
    text = f"features of {count} texts take {most}{gb(size)} in {folder}; {gb(free)} are free"
    if size <= free:
        return Note("disk space", text)
    note = warning("disk space", text, help="a smaller --limit or recipe.most, or --rows FOLDER on another disk")
    if not generated and not has_time_limit:
        raise ConfigError(str(note))
    return note


def free_disk_bytes(folder: Path) -> int:
    """Return the free bytes of the disk of a folder, which need not exist."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free


def gb(size: float) -> str:
    """Return a number of bytes in GB."""
    return f"{size / GB:,.1f} GB" if size >= GB / 10 else f"{size / GB:.4f} GB"
