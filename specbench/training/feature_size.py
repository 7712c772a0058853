"""The size on disk of the features that an EAGLE head is trained on, before they are collected."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from specbench.errors import ConfigError
from specbench.training.texts import Text

OTHER_BYTES = 17  # of a token: its id, its text's number, and whether it is in the answer
FEATURE_BYTES = 2  # of each number of a feature
GB = 1e9


def token_bytes(width: int) -> int:
    """Return the bytes of a token's row, for a base model of this width."""
    return FEATURE_BYTES * width + OTHER_BYTES


def tokens_of(texts: Iterable[Text], most: int, generated: bool) -> int:
    """Return the number of tokens of texts with their answers, of at most `most` tokens each.

    For answers that are to be generated, it is the largest possible number.
    """
    lengths = (len(text.prompt) + (text.max_new_tokens if generated else len(text.rest)) for text in texts)
    return sum(min(length, most) for length in lengths)


def size_plan(count: int, size: int, generated: bool, is_limited: bool, folder: Path) -> str:
    """Return a sentence on the bytes of the features of `count` texts, and on the free space.

    Raises ConfigError if the disk is certainly too small: the size is exact, and no time limit ends the collection earlier.
    """
    free, most = free_bytes(folder), "at most " if generated else ""
    text = f"features of {count} texts take {most}{gb(size)} in {folder}; {gb(free)} are free"
    if size <= free:
        return text
    text += "; help: a smaller --limit or recipe.most, or --rows FOLDER on another disk"
    if not generated and not is_limited:
        raise ConfigError(text)
    return f"! {text}"


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk of a folder, which need not exist."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def gb(size: float) -> str:
    """Return a number of bytes in GB."""
    return f"{size / GB:,.1f} GB" if size >= GB / 10 else f"{size / GB:.4f} GB"
