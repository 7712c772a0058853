"""ROUGE-1, 2, L and Lsum (Lin 2004) through rouge-score: F1, stemmed."""

import re
from functools import cached_property
from importlib.metadata import version
from typing import Any

from specbench.scoring.metric import Metric, Score

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SPLITTER = "sb1"  # the sentence splitter's version
# A sentence ends at . ! or ? and its closing quotes, before a blank and a capital, digit or opening quote,
# unless the word is a single letter, a title, or one of a few abbreviations.
ABBREVIATIONS = (
    "Mr Mrs Ms Dr Prof Sen Rep Gov Gen Lt Col Sgt St Jr Sr vs etc No Inc Ltd Co Corp U.S U.K a.m p.m".split()
)
_END = re.compile(r"""(?<=[.!?])["'”’)]*\s+(?=["'“‘(]*[A-Z0-9])""")
_SHORT = re.compile(rf"(?:\b(?:{'|'.join(map(re.escape, ABBREVIATIONS))}|[A-Za-z]))\.$")


class Rouge:
    """`score` gives one text's F1 against one reference, each in [0, 1]; a corpus' score is their mean.

    Lsum takes its sentences from newlines. Where a text has none, a bundled rule splits it.
    """

    @property
    def metrics(self) -> tuple[Metric, ...]:
        splits = ("none", "none", "none", f"nl,{SPLITTER}")
        package = f"pkg:rouge_score-{version('rouge-score')}"
        return tuple(
            Metric(kind, f"{kind}|{package}|stem:yes|f1|split:{split}|agg:mean")
            for kind, split in zip(KINDS, splits, strict=True)
        )

    @cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer(KINDS, use_stemmer=True)

    def score(self, text: str, reference: str) -> Score:
        found = self._scorer.score(lines(reference), lines(text))
        return {kind: float(found[kind].fmeasure) for kind in KINDS}


def lines(text: str) -> str:
    """Return the text with one sentence per line: its own lines, or the sentences of a single line."""
    text = text.strip()
    return text if "\n" in text else "\n".join(sentences(text))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, by rule. Joined by spaces, they are the text with normalized white space."""
    out: list[str] = []
    for part in _END.split(" ".join(text.split())):
        if out and _SHORT.search(out[-1]):
            out[-1] += f" {part}"
        else:
            out.append(part)
    return out
