"""Metrics: what one text is worth, and how the values of many become one number."""

import math
import sys

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from specbench.analysis.quality import score_estimate
from specbench.data.task import Sample
from specbench.errors import MissingAsset
from specbench.scoring import (
    ROUGE_KINDS,
    Evaluate,
    Rouge,
    Scored,
    Translation,
    combiner,
    lines,
    pass_at,
    sentences,
    table,
)
from specbench.tasks.xsum import XSum

TEXTS = ["The cat sat on the mat.", "A dog barked at night!", "", "Rain fell; the river rose by 3.5 metres on Monday."]
REFERENCES = [
    "The cat is on the mat.",
    "At night a dog barked.",
    "Nothing.",
    "The river rose 3.5 metres after rain on Monday.",
]


def scored(values: list[float], samples: str, groups: str = "") -> list[Scored]:
    return [Scored(v, s, g) for v, s, g in zip(values, samples, groups or " " * len(values), strict=True)]


def value(combine: str, rows: list[Scored]) -> float:
    return combiner(combine).whole(table(combine, rows))


def test_micro_counts_prompts_and_macro_counts_groups():
    rows = scored([1, 1, 1, 0], "abcd", "xxxy")
    assert value("mean", rows) == 0.75
    assert value("macro", rows) == 0.5


def test_repeats_of_a_prompt_count_once():
    assert value("mean", scored([1, 0, 1], "aab")) == 0.75
    assert value("macro", scored([1, 0, 1], "aab", "xxy")) == 0.75


@pytest.mark.parametrize(("n", "right", "k"), [(1, 0, 1), (1, 1, 1), (5, 2, 1), (5, 2, 3), (10, 1, 10), (6, 6, 4)])
def test_pass_at_k_is_the_probability_of_a_draw_without_replacement(n, right, k):
    """Against the mean over all k-subsets of n generations of which `right` pass."""
    import itertools

    subsets = list(itertools.combinations(range(n), k))
    assert pass_at(k, n, right) == pytest.approx(sum(min(s) < right for s in subsets) / len(subsets))


def test_pass_at_k_of_fewer_than_k_samples_is_undefined_with_a_note():
    assert math.isnan(pass_at(2, 1, 1))
    assert score_estimate(scored([1, 1, 0, 1, 1], "abcde"), "pass@2") is None
    assert score_estimate(scored([1, 0, 0, 0], "aabb"), "pass@2").value == 0.5


def test_corpus_bleu_and_chrf_equal_those_of_sacrebleu():
    scorer = Translation()
    rows = [scorer.score(a, b) for a, b in zip(TEXTS, REFERENCES, strict=True)]
    bleu = value("bleu", [Scored(row["bleu"], str(i)) for i, row in enumerate(rows)])
    chrf = value("chrf", [Scored(row["chrf++"], str(i)) for i, row in enumerate(rows)])
    assert 100 * bleu == pytest.approx(BLEU().corpus_score(TEXTS, [REFERENCES]).score)
    assert 100 * chrf == pytest.approx(CHRF(word_order=2).corpus_score(TEXTS, [REFERENCES]).score)
    assert 100 * bleu != pytest.approx(
        sum(BLEU(effective_order=True).sentence_score(a, [b]).score for a, b in zip(TEXTS, REFERENCES, strict=True)) / 4
    )


def test_signatures_name_package_version_and_settings():
    bleu, chrf = (metric.signature for metric in Translation().metrics)
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in bleu
    assert "nw:2" in chrf
    assert all(
        f"{kind}|pkg:rouge_score-" in metric.signature
        for kind, metric in zip(ROUGE_KINDS, Rouge().metrics, strict=True)
    )
    assert all("stem:yes" in metric.signature for metric in Rouge().metrics)


def test_rouge_equals_that_of_rouge_score():
    text, reference = "One cat sat. Two dogs ran.", "Two dogs ran. One cat sat."
    scorer = RougeScorer(ROUGE_KINDS, use_stemmer=True)
    found = Rouge().score(text, reference)
    assert found["rougeLsum"] == 1.0, "sentences in another order are the same summary"
    assert found["rougeL"] < 1.0
    plain = scorer.score(reference, text)
    assert {k: found[k] for k in ROUGE_KINDS[:3]} == pytest.approx({k: plain[k].fmeasure for k in ROUGE_KINDS[:3]})
    assert (
        found["rougeLsum"]
        == scorer.score(reference.replace(". ", ".\n"), text.replace(". ", ".\n"))["rougeLsum"].fmeasure
    )
    assert Rouge().score("cats running", "cat runs")["rouge1"] == 1.0, "stemmed"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("It rained. We left.", 2),
        ("Mr. Smith paid $3.50 to Dr. Who. He left!", 2),
        ('"Stop!" he said. "Why?"', 2),
        ("The U.S. Senate voted at 3 p.m. Monday.", 1),
        ("J. R. Tolkien wrote. Nobody read", 2),
        ("no end", 1),
        ("", 1),
    ],
)
def test_sentences(text, parts):
    assert len(sentences(text)) == parts
    assert " ".join(sentences(text)) == " ".join(text.split()), "nothing is lost"


def test_a_texts_own_lines_are_its_sentences():
    assert lines("First. Still first.\nSecond") == "First. Still first.\nSecond"
    assert lines(" One. Two. ") == "One.\nTwo."


SCRIPT = """
import datasets
import evaluate
from rouge_score import rouge_scorer


class Own(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, use_stemmer=False):
        kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
        scorer = rouge_scorer.RougeScorer(kinds, use_stemmer=use_stemmer)
        found = [scorer.score(r, p) for p, r in zip(predictions, references)]
        return {kind: sum(f[kind].fmeasure for f in found) / len(found) for kind in kinds}
"""


def test_evaluate_agrees_with_the_direct_library(tmp_path, monkeypatch):
    """A metric script of one's own, loaded by evaluate from a local file, gives what rouge-score gives."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "own_rouge"
    folder.mkdir()
    (folder / "own_rouge.py").write_text(SCRIPT)
    theirs = Evaluate(str(folder), ("rouge1", "rougeL"), use_stemmer=True)
    assert "pkg:evaluate-" in theirs.metrics[0].signature
    assert "use_stemmer:True" in theirs.metrics[0].signature
    for text, reference in zip(TEXTS, REFERENCES, strict=True):
        ours = Rouge().score(text, reference)
        assert theirs.score(text, reference) == pytest.approx({k: ours[k] for k in ("rouge1", "rougeL")})
    direct, by_script = XSum(), XSum(evaluate=str(folder))
    assert "module:own_rouge@" in by_script.metrics[0].signature
    for text, reference in zip(
        [*TEXTS, "One cat sat. Two dogs ran."], [*REFERENCES, "Two dogs ran. One cat sat."], strict=True
    ):
        sample = Sample("0", "", reference)
        assert by_script.score(sample, text) == pytest.approx(direct.score(sample, text)), "Lsum of one line too"


def test_evaluate_without_its_scripts_is_an_error_with_help(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingAsset, match="no metric script 'rouge'"):
        Evaluate("rouge", ("rouge1",)).score("a", "b")
    (tmp_path / "rouge").mkdir()
    with pytest.raises(MissingAsset, match="working directory"):
        Evaluate("rouge", ("rouge1",)).score("a", "b")


def test_scoring_needs_no_torch():
    import subprocess

    modules = "specbench.tasks, specbench.experiment.scorer, specbench.analysis.summary"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
