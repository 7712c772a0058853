"""Synthetic tasks: endless, seeded generators of rows in the schema of a real data set."""

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from specbench.data.rows import Row

Split = Literal["train", "test"]

_TEST_BUCKETS = 16  # one row in sixteen is in the test split


@dataclass(frozen=True)
class SyntheticTask:
    """A generator of rows, with the 0-shot prompt and the answer that a model is trained on.

    Train and test never share a prompt: a checksum of its prompt assigns each row to one split, for all seeds.
    """

    make: Callable[[random.Random], Row]
    prompt: Callable[[Row], str]
    answer: Callable[[Row], str]  # what follows the prompt, with its leading space

    def rows(self, split: Split, seed: int = 0) -> Iterator[Row]:
        """Yield rows of one split without end; the same (split, seed) gives the same rows. No test row is repeated."""
        rng, seen = random.Random(f"{split}:{seed}"), set[str]()
        while True:
            row = self.make(rng)
            prompt = self.prompt(row)
            if (zlib.crc32(prompt.encode()) % _TEST_BUCKETS == 0) == (split == "test") and prompt not in seen:
                if split == "test":
                    seen.add(prompt)
                yield row


def capital(text: str) -> str:
    """Return `text` with its first letter in upper case and the rest unchanged."""
    return text[:1].upper() + text[1:]
