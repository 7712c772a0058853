"""What a synthetic twin of a task is: rows in the real data set's schema, made here without end, by seed."""

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["train", "test"]
Row = dict[str, Any]

_TEST_BUCKETS = 16  # one row in sixteen belongs to the test split


@dataclass(frozen=True)
class SyntheticTask:
    """A generator of rows, with the 0-shot prompt and the answer that a model is trained on.

    Train and test never share a prompt: they draw from different seeds, and a row belongs to one split by the checksum of
    its prompt, whatever seed it came from. Unlimited, seeded and licence-free.
    """

    make: Callable[[random.Random], Row]
    prompt: Callable[[Row], str]
    answer: Callable[[Row], str]  # what follows the prompt, its leading blank included

    def rows(self, split: Split, seed: int = 0) -> Iterator[Row]:
        """An endless stream of one split; the same (split, seed) gives the same stream. No test row comes twice."""
        rng, seen = random.Random(f"{split}:{seed}"), set[str]()
        while True:
            row = self.make(rng)
            asked = self.prompt(row)
            if (zlib.crc32(asked.encode()) % _TEST_BUCKETS == 0) == (split == "test") and asked not in seen:
                if split == "test":
                    seen.add(asked)
                yield row


def capital(text: str) -> str:
    """`text` with its first letter in upper case, the rest as it stands."""
    return text[:1].upper() + text[1:]
