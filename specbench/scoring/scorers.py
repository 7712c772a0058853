"""Scorers of other libraries: ROUGE by rouge-score, BLEU and chrF++ by sacreBLEU, and any metric of Hugging Face `evaluate`.

The hub's metric scripts are not part of `evaluate`: offline, name a local script or folder of one, such as a copy of
huggingface/evaluate's metrics/rouge.
"""

import hashlib
import re
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specbench.errors import MissingAsset
from specbench.scoring.metric import Metric, Score

ROUGE_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
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
            for kind, split in zip(ROUGE_KINDS, splits, strict=True)
        )

    @cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer(ROUGE_KINDS, use_stemmer=True)

    def score(self, text: str, reference: str) -> Score:
        scores = self._scorer.score(lines(reference), lines(text))
        return {kind: float(scores[kind].fmeasure) for kind in ROUGE_KINDS}


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


class Translation:
    """`score` gives the sufficient statistics of one text against one reference; `bleu` and `chrf` combine them."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Signatures are the strings that sacreBLEU prints."""
        bleu, chrf = (str(metric.get_signature()) for metric in self._used)
        return Metric("bleu", f"bleu|{bleu}", "bleu"), Metric("chrf++", f"chrf|{chrf}", "chrf")

    @cached_property
    def _used(self) -> tuple[Any, Any]:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        bleu, chrf = BLEU(), CHRF(word_order=2)
        for metric in (bleu, chrf):  # a signature has the number of references only after a first score
            metric.corpus_score(["one two three four"], [["one two three four"]])
        return bleu, chrf

    def score(self, text: str, reference: str) -> Score:
        bleu, chrf = self._used
        one = bleu.corpus_score([text], [[reference]])
        # sacreBLEU publishes no statistics for chrF; tests hold this against its corpus score.
        (other,) = chrf._extract_corpus_statistics([text], [[reference]])
        return {
            "bleu": [float(x) for x in (one.sys_len, one.ref_len, *one.counts, *one.totals)],
            "chrf++": [float(x) for x in other],
        }


class Evaluate:
    """`evaluate.load(module)`, called for one text at a time; the corpus score is the mean.

    `keys` are those of its result to keep. A bare word is looked up on the hub, never in the working directory.
    """

    def __init__(self, module: str, keys: tuple[str, ...], **options: Any) -> None:
        self.module, self.keys, self.options = module, keys, options

    @property
    def metrics(self) -> tuple[Metric, ...]:
        from importlib.metadata import version

        options = "".join(f"|{k}:{v}" for k, v in sorted(self.options.items()))
        form = f"pkg:evaluate-{version('evaluate')}|module:{Path(self.module).name}{self._checksum}{options}|agg:mean"
        return tuple(Metric(key, f"{key}|{form}") for key in self.keys)

    @property
    def _checksum(self) -> str:
        """The checksum of a local script with an @ before it, or an empty string."""
        path = Path(self.module)
        files = sorted(path.glob("*.py")) if path.is_dir() else [path] if path.is_file() else []
        content = b"".join(file.read_bytes() for file in files)
        return f"@{hashlib.sha256(content).hexdigest()[:8]}" if files else ""

    @cached_property
    def _loaded(self) -> Any:
        """Load the metric. Raises MissingAsset if the script is missing."""
        if Path(self.module).name == self.module and Path(self.module).exists():
            raise MissingAsset(f"evaluate would run ./{self.module} in the working directory; help: give its full path")
        import evaluate

        try:
            return evaluate.load(self.module)
        except (OSError, ValueError, ImportError) as error:
            raise MissingAsset(
                f"evaluate has no metric script '{self.module}' here: {str(error).splitlines()[0]}\n"
                "  help: name a local script, or use the direct library, which is the default"
            ) from None

    def score(self, text: str, reference: str) -> Score:
        scores = self._loaded.compute(predictions=[text], references=[reference], **self.options)
        return {key: float(scores[key]) for key in self.keys}
