"""Define a target distribution of your own and measure it against the large model alone."""

from dataclasses import dataclass

from torch import where

import specbench
from specbench.decoding.targets import TwoModels


@dataclass(frozen=True, kw_only=True)
class Agreeable(TwoModels, name="agreeable"):
    """Follows the draft model wherever both models share at least `least` of their probability."""

    least: float = 0.5

    def __call__(self, logits, sampler):
        q, p = (sampler.probs(each) for each in logits)  # (k, V) each
        return where(q.minimum(p).sum(-1, keepdim=True) >= self.least, q, p)


specbench.register(Agreeable)
result = specbench.run("agreeable", "tiny", "gsm8k", limit=4, repeats=1, max_new_tokens=32, data="synthetic")
print(specbench.report(result, "md"))
