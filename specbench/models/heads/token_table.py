"""The tokens that a head drafts, from the tables `d2t` and `t2d` of its files."""

from pathlib import Path

import torch
from msgspec.structs import asdict
from torch import Tensor

from specbench.errors import ConfigError, MissingAsset
from specbench.models.heads.head_config import Config, VocabularyKeys

TO_TARGET, OF_TARGET = "d2t", "t2d"
HALF = (torch.float16, torch.bfloat16)  # precisions that round numbers of tokens
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def drafted_tokens(folder: Path, offsets: Tensor | None, flags: Tensor | None, vocabulary: int) -> Tensor | None:
    """Return the ids (V',) of the tokens that a head drafts; None if it drafts all.

    `offsets` are d2t (V',), which are added to the row; `flags` are t2d, whether each token of the target is drafted.
    `vocabulary` is the number V' of rows of the LM head, 0 if the head has none. Raises MissingAsset for a table that is not
    one, and for tables that contradict each other.
    """
    if offsets is None:
        if flags is not None:
            raise MissingAsset(f"{folder}: {OF_TARGET} without {TO_TARGET} does not say which row drafts which token")
        return None
    if offsets.ndim != 1 or len(offsets) != vocabulary or not vocabulary:
        raise MissingAsset(
            f"{folder}: {TO_TARGET} has shape {tuple(offsets.shape)}, and lm_head.weight {vocabulary} tokens"
        )
    tokens = torch.arange(vocabulary) + _whole(folder, TO_TARGET, offsets)
    _require_ids(folder, TO_TARGET, tokens)
    if flags is not None:
        _require_agreement(folder, tokens.sort().values, flags)
    return tokens


def drafted_ids(folder: Path, name: str, ids: Tensor) -> Tensor:
    """Return the ids (V',) of a table that lists them. Raises MissingAsset, naming the table, if they are no ids."""
    tokens = _whole(folder, name, ids)
    if tokens.ndim != 1 or not len(tokens):
        raise MissingAsset(f"{folder}: {name} has shape {tuple(ids.shape)}")
    _require_ids(folder, name, tokens)
    return tokens


def _require_ids(folder: Path, name: str, tokens: Tensor) -> None:
    """Raise MissingAsset for a negative id, and for one that two rows have."""
    if int(tokens.min()) < 0:
        raise MissingAsset(f"{folder}: {name} gives row {int(tokens.argmin())} the token {int(tokens.min())}")
    ordered = tokens.sort().values
    if len(repeated := ordered[1:][ordered[1:] == ordered[:-1]]):
        raise MissingAsset(f"{folder}: {name} gives the token {int(repeated[0])} to several rows")


def _require_agreement(folder: Path, tokens: Tensor, flags: Tensor) -> None:
    """Raise MissingAsset if t2d marks other tokens than the sorted ones of d2t."""
    if flags.ndim != 1 or not bool(((flags == 0) | (flags == 1)).all()):
        raise MissingAsset(f"{folder}: {OF_TARGET} is not a list of flags")
    marked = flags.nonzero().squeeze(-1)
    if len(marked) != len(tokens) or not bool((marked == tokens).all()):
        raise MissingAsset(
            f"{folder}: {OF_TARGET} marks {len(marked)} of {len(flags)} tokens, which are not the {len(tokens)} tokens of"
            f" {TO_TARGET}"
        )


def _whole(folder: Path, name: str, table: Tensor) -> Tensor:
    """Return a table as integers (n,). Raises MissingAsset for other numbers."""
    if table.dtype in INTEGERS:
        return table.long()
    if (
        not table.is_floating_point()
        or table.dtype in HALF
        or not bool((table.double() == table.double().round()).all())
    ):
        raise MissingAsset(
            f"{folder}: {name} is of type {str(table.dtype).removeprefix('torch.')} and not of whole numbers"
        )
    return table.long()


def drafted_rows(config: Config, lm_head: Tensor | None, stated: VocabularyKeys) -> int:
    """Return the number V' of rows of lm_head.weight (V', H), 0 if there is none.

    Raises MissingAsset, naming the key, if the config states another number, or two different ones.
    """
    rows, sizes = 0 if lm_head is None or not lm_head.ndim else len(lm_head), asdict(stated)
    for key, size in sizes.items():
        if rows and size and size != rows:
            raise config.error(key, f"is {size}, and lm_head.weight has {rows} rows")
    if len({*filter(None, sizes.values())}) > 1:
        raise config.error("truncated_vocab_size", f"is {stated.truncated_vocab_size}, and draft_vocab_size another")
    return rows


def require_tokens(tokens: Tensor | None, vocabulary: int, rows: int, stated: VocabularyKeys, flags: int = 0) -> None:
    """Raise ConfigError if a head with `vocabulary` rows of its LM head cannot draft for a base of `rows` tokens.

    `flags` is the length of t2d, 0 if there is none.
    """
    if not vocabulary:
        for key, size in asdict(stated).items():
            if size not in (None, 0, rows):
                raise ConfigError(f"{key} is {size}, and without lm_head.weight it is the base's, {rows}")
    if flags not in (0, rows):
        raise ConfigError(f"{OF_TARGET} has {flags} flags, and the base has {rows} tokens")
    if tokens is None:
        if vocabulary not in (0, rows):
            raise ConfigError(
                f"lm_head.weight has {vocabulary} tokens and no {TO_TARGET}, and the base has {rows} tokens"
            )
    elif int(tokens.max()) >= rows:
        raise ConfigError(f"{TO_TARGET} names token {int(tokens.max())}, and the base has {rows} tokens")
