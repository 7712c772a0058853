"""Repeated lists of words, on which a small model learns to repeat what followed a word earlier.

Multiple choice needs this skill to find the letter next to a choice.
"""

import random

from specbench.data.rows import Row
from specbench.data.synthetic import mmlu
from specbench.data.synthetic.generator import SyntheticTask

WORDS = (
    mmlu.TOWNS + mmlu.BUILDINGS + mmlu.GOODS + mmlu.PEOPLE + mmlu.DAYS + list(mmlu.LETTERS)
    + [word for pair in mmlu.OPPOSITES for word in pair.split("-")] + list("0123456789")
)  # fmt: skip
LONGEST = 40
TOKENS = 250  # about the length of a training row


def make(rng: random.Random) -> Row:
    words = [rng.choice(WORDS) for _ in range(rng.randint(4, LONGEST))]
    return {"words": words, "times": TOKENS // len(words)}


def prompt(row: Row) -> str:
    return "".join(f" {word}" for word in row["words"])


def answer(row: Row) -> str:
    return prompt(row) * (int(row["times"]) - 1)


COPYING = SyntheticTask(make, prompt, answer)
