"""Drill for the tiny family: labelled words, and the same lines in another order.

The twins' own texts can be copied from by what kind of word stands where; a choice's letter can be found only by matching
the word itself. This is the shortest text that needs nothing else.
"""

import random

from specbench.twins import Row, Twin
from specbench.twins.mmlu import DAYS, GOODS, KINDS, OPPOSITES, RIVERS

WORDS = sorted({*DAYS, *GOODS, *RIVERS, *(w for kind in KINDS.values() for w in kind), *"-".join(OPPOSITES).split("-")})


def make(rng: random.Random) -> Row:
    """From 4 to 10 words or numbers, each with a letter; and half of them again, shuffled."""
    count = rng.randint(4, 10)
    words = rng.sample(WORDS, count) if rng.random() < 0.7 else [str(n) for n in rng.sample(range(10, 121), count)]
    lines = [f"- {word} ({letter})" for word, letter in zip(words, rng.sample("ABCDABCDABCDABCD", count), strict=True)]
    return {"lines": lines, "again": rng.sample(lines, count)}


LOOKUP = Twin(make, lambda row: "\n".join(row["lines"]), lambda row: "\n" + "\n".join(row["again"]))
