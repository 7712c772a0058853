"""BLEU (Papineni et al. 2002) and chrF++ (Popović 2017) at corpus level, through sacreBLEU, with its signatures."""

from functools import cached_property
from typing import Any

from specbench.scoring.metric import Metric, Score


class Translation:
    """`score` gives the sufficient statistics of one text against one reference; `bleu` and `chrf` combine them."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Signatures are sacreBLEU's own, in its words."""
        bleu, chrf = (str(metric.get_signature()) for metric in self._used)
        return Metric("bleu", f"bleu|{bleu}", "bleu"), Metric("chrf++", f"chrf|{chrf}", "chrf")

    @cached_property
    def _used(self) -> tuple[Any, Any]:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        bleu, chrf = BLEU(), CHRF(word_order=2)
        for metric in (bleu, chrf):  # a signature knows the number of references only after a first score
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
