"""Training texts: prompts and their continuations as token ids, split by text."""

import hashlib
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.config.construct import Table
from specbench.data.prompting import dialogue_ids, encode
from specbench.data.task import Message, Sample, Task
from specbench.errors import ConfigError
from specbench.models.loaded_pair import LoadedPair
from specbench.training.recipes import SPLITS, Split


@dataclass(frozen=True)
class Text:
    """The ids of a prompt and of its reference answer, its continuation in the data. `number` is its index among all texts.

    `sample` is the prompt as the task has it, and `task` the task's name. A generated answer has at most `max_new_tokens`
    tokens and ends at the first of the task's `stop` strings.
    """

    number: int
    prompt: list[int]
    rest: list[int]
    sample: Sample
    task: str
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Texts:
    """Texts, and a description that identifies them."""

    texts: list[Text]
    about: Table  # tasks, sources, SHA-256 of all rows, number of skipped rows

    @property
    def sha256(self) -> str:
        """The SHA-256 of the token ids, and of what ends generated answers."""
        parts = [[t.prompt, t.rest, t.max_new_tokens, t.stop] for t in self.texts]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def first(self, count: int) -> "Texts":
        """Return the first `count` texts."""
        return Texts(self.texts[:count], {**self.about, "texts": count})

    def held_out(self, seed: int) -> "list[Text]":
        """Return the texts that no head was trained or chosen on: those of the test split, one of each task in turn."""
        by_task: dict[str, list[Text]] = {}
        for each in self.texts:
            if split_of(each.number, seed) == "test":
                by_task.setdefault(each.task, []).append(each)
        return [text for turn in itertools.zip_longest(*by_task.values()) for text in turn if text]


@dataclass(frozen=True)
class Source:
    """A task whose texts a head is trained on, and the source of its rows. `word` is how the user named the task."""

    name: str
    task: Task
    source: str
    word: str

    @property
    def is_file(self) -> bool:
        """Whether the rows are those of a file or a split that the user names, which has no training split."""
        return self.source not in ("hub", "synthetic")


def gather(pair: LoadedPair, tasks: Sequence[Source], count: int, skip: int, seed: int) -> Texts:
    """Return `count` texts (0: all) of these tasks in equal shares, in random order, without the first `skip` rows of
    each.

    Raises ConfigError if too few are left.
    """
    rng, window = random.Random(f"texts:{seed}"), pair.window_of(pair.models).length
    hashes: list[str] = []
    found: list[tuple[list[int], list[int], Sample, Source]] = []
    for each in tasks:
        task = each.task
        rows, pairs = task.texts(each.source)
        hashes.append(rows.sha256)
        dialogues: Sequence[list[Message] | None] = task.dialogues(rows.rows) or [None] * len(pairs)
        kept = [(*both, dialogue) for both, dialogue in zip(pairs, dialogues, strict=True)][skip:]
        rng.shuffle(kept)
        for sample, after, dialogue in kept[: -(-count // len(tasks)) if count else None]:
            if dialogue:
                prompt, rest = dialogue_ids(pair.tokenizer, dialogue)
                room = len(rest) if window is None else window - len(prompt)
                if room > 0:  # else the question is too long for the models
                    found.append((prompt, rest[:room], sample, each))
                continue
            try:
                prompt, _ = encode(pair.tokenizer, task, sample, [], window)
            except ConfigError:  # of every prompt
                raise
            except ValueError:  # the prompt is too long for the models
                continue
            rest = pair.tokenizer.encode(after, add_special_tokens=False) if after else []
            end = [] if task.continues or not rest else sorted(pair.eos)[:1]
            found.append((prompt, rest + end, sample, each))
    if len(found) < 10:
        raise ConfigError(
            f"{len(found)} texts remain after --data, --limit and --skip; at least 10 are needed to train, validate and test"
        )
    rng.shuffle(found)
    texts = [
        Text(i, prompt, rest, sample, of.name, of.task.max_new_tokens, of.task.stop)
        for i, (prompt, rest, sample, of) in enumerate(found[: count or None])
    ]
    sources = list(dict.fromkeys(each.source for each in tasks))
    about: Table = {"tasks": [each.name for each in tasks], "source": ", ".join(sources), "skipped": skip}
    return Texts(texts, {**about, "sha256": hashes, "texts": len(texts)})


def steps_within(pair: LoadedPair, text: Text, steps: int) -> int:
    """Return the number of steps, or what the smallest window of the models has room for after a prompt."""
    window = pair.window_of(pair.models).length
    return steps if window is None else min(steps, window - len(text.prompt))


def split_of(number: int, seed: int) -> Split:
    """Return the split of a text. Of every five texts, three are for training and one each for validation and test, at
    random but reproducibly.
    """
    block, place = divmod(number, len(SPLITS))
    splits = list(SPLITS)
    random.Random(f"split:{seed}:{block}").shuffle(splits)
    return splits[place]


def masks(numbers: Tensor, seed: int) -> dict[Split, Tensor]:
    """Return masks (n,) of the rows in each split, from the text number of each row (n,)."""
    distinct, place = torch.unique(numbers, return_inverse=True)
    splits = [split_of(number, seed) for number in distinct.tolist()]
    return {split: torch.tensor([each == split for each in splits])[place] for split in set(SPLITS)}
