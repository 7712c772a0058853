"""A part of the prompts of a run, which another process or machine can measure."""

import re
from dataclasses import dataclass

from specbench.errors import ConfigError


@dataclass(frozen=True)
class Shard:
    """The part `index` of `count` parts, from 1: every `count`th conversation, from conversation `index` on."""

    index: int
    count: int

    @classmethod
    def of(cls, text: str, where: str = "--shard") -> "Shard":
        """Return a shard from I/N. Raises ConfigError for another text."""
        if found := re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text):
            shard = cls(int(found[1]), int(found[2]))
            if shard.index <= shard.count:
                return shard
        raise ConfigError(f"{where} {text}: expected I/N with I from 1 to N; help: --shard 1/4")

    def holds(self, number: int) -> bool:
        """Return whether the conversation of a number, from 1, belongs to the shard."""
        return number % self.count == self.index % self.count

    @property
    def share(self) -> float:
        """The share of the prompts."""
        return 1.0 / self.count

    @property
    def word(self) -> str:
        """The shard in a file name, such as `1of4`."""
        return f"{self.index}of{self.count}"

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def shards_of(count: int) -> list[Shard]:
    """Return all `count` shards. Raises ConfigError for fewer than two."""
    if count < 2:
        raise ConfigError(f"--shards {count}: at least 2 parts are needed")
    return [Shard(index, count) for index in range(1, count + 1)]
