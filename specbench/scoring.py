"""Metrics of generated texts, with signatures: one value per generation, combined into one number with an interval.

A value is a number in [0, 1], or a list of sufficient statistics for a corpus-level score. Results are in [0, 1]; tables
print them times 100, as papers do. Importing this module does not import torch.

Scores of other libraries: ROUGE by rouge-score, BLEU and chrF++ by sacreBLEU, and any metric of Hugging Face `evaluate`.
The hub's metric scripts are not part of `evaluate`: offline, name a local script or folder of one, such as
a copy of huggingface/evaluate's metrics/rouge.
"""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from specbench.errors import MissingAsset, hint

Score = dict[str, float | list[float]]  # metric -> a generation's value
NO_ANSWER = "no_answer"  # a score that counts instead of measuring: 1 if no answer was found
ROUGE_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SPLITTER = "sb1"  # the sentence splitter's version
# A sentence ends at . ! or ? and its closing quotes, before a blank and a capital, digit or opening quote,
# unless the word is a single letter, a title, or one of a few abbreviations.
ABBREVIATIONS = (
    "Mr Mrs Ms Dr Prof Sen Rep Gov Gen Lt Col Sgt St Jr Sr vs etc No Inc Ltd Co Corp U.S U.K a.m p.m".split()
)
# Scripts that are written without blanks between words: Chinese characters, and Thai to Khmer with kana
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
OTHER_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
UNSPACED = HAN + OTHER_UNSPACED
SPACED = rf"[^\W{UNSPACED}]"  # a letter, a digit or _ of other scripts
# A number: digits, perhaps with commas before every third one, a fraction and an exponent; a hyphen after a letter or a digit
# is no minus sign.
NUMBER = re.compile(
    rf"(?:(?<!{SPACED})(?<![.,])[-\u2212])?(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!{SPACED})(?<!\.)\.\d+)"
    r"(?:[eE][-+\u2212]?\d{1,3}(?!\d))?"
)
MONEY = re.compile(r"([-+]?)\\?[$€£](?=\s*[-+]?\.?\d)\s*")  # of a number, before or after its sign
THIN = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,|\\!,?|\{\\,\})(?=\d{3}(?!\d))")  # separators of thousands in LaTeX
Tokenize = Literal["auto", "13a", "zh", "char"]  # of BLEU, as sacreBLEU calls them
_END = re.compile(r"""(?<=[.!?])["'”’)]*\s+(?=["'“‘(]*[A-Z0-9])""")
_SHORT = re.compile(rf"(?:\b(?:{'|'.join(map(re.escape, ABBREVIATIONS))}|[A-Za-z]))\.$")


@dataclass(frozen=True)
class Metric:
    """A metric's name, exactly how it is computed, and how values are combined.

    `combine`: `mean` over prompts; `macro`, the mean of the groups' means; `bleu` and `chrf`, corpus level; `pass@K`, the
    unbiased estimator of Chen et al. 2021 over a prompt's repeats.
    """

    name: str
    signature: str
    combine: str = "mean"


class Scored(NamedTuple):
    """The value of one generation, with its prompt and the prompt's group."""

    value: float | list[float]
    sample: str
    group: str = ""


class Combiner(NamedTuple):
    """`rows`: the values of one prompt, all its repeats -> a row of numbers; `whole`: rows (prompts, d) -> the score.

    A prompt's group is the last number of its row.
    """

    rows: Callable[[Sequence[float | list[float]]], list[float]]
    whole: Callable[[np.ndarray], float]


def combiner(name: str) -> Combiner:
    """Return the combiner of a name. Raises ValueError for an unknown one."""
    if name.startswith("pass@"):
        k = int(name.removeprefix("pass@"))
        return Combiner(
            lambda values: [pass_at(k, len(values), sum(map(_number, values)))], lambda t: float(t[:, 0].mean())
        )
    if name not in _COMBINERS:
        raise ValueError(f"unknown combination '{name}'{hint(name, _COMBINERS)}")
    return _COMBINERS[name]


def is_combiner(name: str) -> bool:
    """Return whether there is a way of this name to combine scores."""
    try:
        combiner(name)
    except ValueError:
        return False
    return True


def table(name: str, scored: Sequence[Scored]) -> np.ndarray:
    """Return the rows of all prompts, (prompts, d + 1), the last column the number of the prompt's group."""
    values: dict[str, list[float | list[float]]] = defaultdict(list)
    groups: dict[str, int] = {}
    group_of: dict[str, int] = {}
    for generation in scored:
        values[generation.sample].append(generation.value)
        group_of[generation.sample] = groups.setdefault(generation.group, len(groups))
    rows = combiner(name).rows
    return np.array([[*rows(repeats), group_of[sample]] for sample, repeats in values.items()], dtype=float)


def pass_at(k: int, n: int, right: float) -> float:
    """Return the probability that one of k out of n generations is correct if `right` of n are; NaN if n < k.

    1 - C(n - right, k) / C(n, k): Chen et al. 2021, equation 1.
    """
    if n < k:
        return math.nan
    return 1.0 - math.comb(n - round(right), k) / math.comb(n, k)


def _number(value: float | list[float]) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _averaged(values: Sequence[float | list[float]]) -> list[float]:
    """Return the mean over a prompt's repeats."""
    return [sum(map(_number, values)) / len(values)]


def _summed(values: Sequence[float | list[float]]) -> list[float]:
    """Return the sums of statistics over a prompt's repeats."""
    return [float(x) for x in np.sum([np.atleast_1d(v) for v in values], axis=0)]


def _macro(rows: np.ndarray) -> float:
    groups = rows[:, -1].astype(int)
    counts = np.bincount(groups)
    sums = np.bincount(groups, weights=rows[:, 0])
    return float((sums[counts > 0] / counts[counts > 0]).mean())


def _bleu(rows: np.ndarray) -> float:
    """Return corpus BLEU, computed by sacreBLEU from lengths and from the numbers of matched and possible n-grams."""
    from sacrebleu.metrics.bleu import BLEU

    length, reference, *ngrams = rows[:, :-1].sum(axis=0).astype(int).tolist()
    half = len(ngrams) // 2
    is_short = not ngrams[-1]  # no text has four tokens: BLEU of the orders that there are
    made = BLEU.compute_bleu(
        ngrams[:half], ngrams[half:], length, reference, smooth_method="exp", effective_order=is_short
    )
    return float(made.score) / 100.0


def _chrf(rows: np.ndarray, beta: float = 2.0) -> float:
    """Return corpus chrF++ (Popović 2017): F_beta of precision and recall.

    Each is averaged over the orders that both sides have. Statistics
    are (n-grams of the text, of the reference, matched) by order.
    """
    sums = rows[:, :-1].sum(axis=0).reshape(-1, 3)
    hypothesis_count, expected, matched = sums[(sums[:, 0] > 0) & (sums[:, 1] > 0)].T
    if not matched.sum():
        return 0.0
    precision, recall = (matched / hypothesis_count).mean(), (matched / expected).mean()
    return float((1 + beta**2) * precision * recall / (beta**2 * precision + recall))


_COMBINERS = {
    "mean": Combiner(_averaged, lambda rows: float(rows[:, 0].mean())),
    "macro": Combiner(_averaged, _macro),
    "bleu": Combiner(_summed, _bleu),
    "chrf": Combiner(_summed, _chrf),
}


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text, or None. Commas group thousands only: `1,2` is two numbers."""
    numbers = NUMBER.findall(plain_numbers(text))
    return number_in(numbers[-1]) if numbers else None


def number_in(text: str) -> Decimal | None:
    """Return the first number of a text, or None."""
    match = NUMBER.search(plain_numbers(text))
    return Decimal(match[0].replace(",", "").replace("\u2212", "-")) if match else None


def plain_numbers(text: str) -> str:
    r"""Return a text with plain marks of its numbers: `-\$9{,}500` becomes `-9,500`, and `9\,500` too."""
    text = MONEY.sub(r"\1", text.replace("\u2212", "-"))
    return THIN.sub(",", text)


def holds(text: str, words: str) -> bool:
    """Return whether a text contains words that are not parts of longer ones. Scripts without blanks have no such borders."""
    before = "" if re.match(f"[{UNSPACED}]", words) else f"(?<!{SPACED})"
    after = "" if re.search(f"[{UNSPACED}]$", words) else f"(?!{SPACED})"
    return re.search(f"{before}{re.escape(words)}{after}", text) is not None


def bleu_tokenizer(text: str) -> Tokenize:
    """Return BLEU's tokenizer for the script of most letters of a text: by characters for scripts without blanks."""
    letters = sum(map(str.isalpha, text))
    of_han, of_others = (len(re.findall(f"[{script}]", text)) for script in (HAN, OTHER_UNSPACED))
    if 2 * (of_han + of_others) < letters or not letters:
        return "13a"
    return "char" if of_others else "zh"


class _Words:
    """ROUGE's tokens for texts that are not written in Latin letters: words, and characters of scripts without blanks."""

    pattern = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")

    def tokenize(self, text: str) -> list[str]:
        return self.pattern.findall(text.lower())


def is_latin(text: str) -> bool:
    """Return whether rouge-score's own tokenizer, which reads a to z and digits only, suits a text."""
    letters = [character for character in text if character.isalpha()]
    return 2 * sum(character.isascii() for character in letters) >= max(len(letters), 1)


class Rouge:
    """`score` gives one text's F1 against one reference, each in [0, 1]; a corpus' score is their mean.

    Lsum takes its sentences from newlines; a text without newlines is split by a bundled rule. References in a script other
    than Latin are tokenized by `_Words`, without stemming.
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

    @cached_property
    def _other_scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer(ROUGE_KINDS, tokenizer=_Words())

    def score(self, text: str, reference: str) -> Score:
        scorer = self._scorer if is_latin(reference) else self._other_scorer
        scores = scorer.score(lines(reference), lines(text))
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
    """`score` gives the sufficient statistics of one text against one reference; `bleu` and `chrf` combine them.

    BLEU's tokenizer is sacreBLEU's `tokenize`; `auto` chooses it by the script of each reference (`bleu_tokenizer`).
    """

    def __init__(self, tokenize: Tokenize = "13a") -> None:
        self.tokenize = tokenize

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Signatures are the strings that sacreBLEU prints."""
        bleu, chrf = (str(metric.get_signature()) for metric in self._used)
        if self.tokenize == "auto":
            bleu = bleu.replace("tok:13a", "tok:13a, zh or char, by script")
        return Metric("bleu", f"bleu|{bleu}", "bleu"), Metric("chrf++", f"chrf|{chrf}", "chrf")

    @cached_property
    def _used(self) -> tuple[Any, Any]:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        bleu, chrf = BLEU(tokenize="13a" if self.tokenize == "auto" else self.tokenize), CHRF(word_order=2)
        for metric in (bleu, chrf):  # a signature has the number of references only after a first score
            metric.corpus_score(["one two three four"], [["one two three four"]])
        return bleu, chrf

    @cached_property
    def _by_tokenizer(self) -> dict[str, Any]:
        from sacrebleu.metrics.bleu import BLEU

        return {name: BLEU(tokenize=name) for name in ("13a", "zh", "char")}

    def score(self, text: str, reference: str) -> Score:
        bleu, chrf = self._used
        if self.tokenize == "auto":
            bleu = self._by_tokenizer[bleu_tokenizer(reference)]
        one = bleu.corpus_score([text], [[reference]])
        # sacreBLEU publishes no statistics for chrF; tests hold this against its corpus score.
        (other,) = chrf._extract_corpus_statistics([text], [[reference]])
        return {
            "bleu": [float(x) for x in (one.sys_len, one.ref_len, *one.counts, *one.totals)],
            "chrf++": [float(x) for x in other],
        }


class Evaluate:
    """`evaluate.load(module)`, called for one text at a time; the corpus score is the mean.

    `keys` are the keys of its result to keep. A bare word is looked up on the hub, never in the working directory.
    """

    def __init__(self, module: str, keys: tuple[str, ...], **options: Any) -> None:
        self.module, self.keys, self.options = module, keys, options

    @property
    def metrics(self) -> tuple[Metric, ...]:
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
