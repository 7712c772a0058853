"""Stop rules, which decide how long a draft is.

A rule may read the committed and drafted tokens and their distributions, and decides whether the *next* token is drawn.
Drafted tokens then still follow the distributions that they are tested with, so lossless methods stay lossless. A rule must
not drop a token after reading it: the remaining tokens would not follow q any more.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.config.construct import Named, within
from specbench.decoding.drafting import Rule
from specbench.decoding.method import Sessions
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Session
from specbench.decoding.targets.deferral import confidence, entropy
from specbench.models.heads import AcceptanceHead, LengthHead
from specbench.models.heads.classifiers import read_probability


class Stop(Named):
    """A rule that ends drafts early. A stateless rule overrides `before` or `after`; a rule with state overrides `open`."""

    min_len: int = 0  # tokens that are drafted regardless of the rule

    def before(self, logits: Tensor, sampler: Sampler) -> bool:
        """Return True to draw no token from these logits (1, V)."""
        return False

    def after(self, token: int, logits: Tensor, sampler: Sampler) -> bool:
        """Return True to stop after this token, which was drawn from these logits (1, V)."""
        return False

    def open(self, models: Sessions, drafter: Session, sampler: Sampler) -> Rule:
        """Return the rule for one sequence."""
        return _StatelessRule(self, sampler)


class AdaptiveLength(Stop):
    """A stop rule for adaptive draft lengths. It drafts at least `min_len` tokens, so that every round tests one."""

    min_len: int

    def __post_init__(self) -> None:
        if self.min_len < 1:
            raise ValueError(f"min_len = {self.min_len} must be at least 1")


class _StatelessRule(Rule):
    """The rule of a `Stop` without state."""

    def __init__(self, stop: Stop, sampler: Sampler) -> None:
        super().__init__(stop.min_len)
        self._stop, self._sampler = stop, sampler

    def before(self, ids: list[int], logits: Tensor) -> bool:
        return self._stop.before(logits, self._sampler)

    def after(self, ids: list[int], token: int, logits: Tensor) -> bool:
        return self._stop.after(token, logits, self._sampler)


@dataclass(frozen=True, kw_only=True)
class Unsure(Stop, name="unsure"):
    """Stops if the largest unscaled probability is below `threshold`: BiLD's fallback (Kim et al. 2023)."""

    threshold: float

    def before(self, logits: Tensor, sampler: Sampler) -> bool:
        return bool(confidence(logits).max() < self.threshold)


@dataclass(frozen=True, kw_only=True)
class Confidence(AdaptiveLength, name="confidence"):
    """DISCO's training-free form: stops after a drafted token whose unscaled probability was below `threshold`.

    The token is kept, so no forward is wasted. At T = 0 the condition is max q < threshold (docs/papers/drafting.md,
    DSL and DISCO).
    """

    threshold: float = 0.4
    min_len: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        within("threshold", self.threshold, 0.0, 1.0)

    def after(self, token: int, logits: Tensor, sampler: Sampler) -> bool:
        return bool(confidence(logits)[0, token] < self.threshold)


@dataclass(frozen=True, kw_only=True)
class AdaEDL(AdaptiveLength, name="adaedl"):
    """Stops before a token if an entropy-based lower bound of its acceptance falls below a moving threshold.

    Agrawal et al. 2024. By Pinsker's inequality, acceptance is at least 1 - sqrt(KL(q || p) / 2). The divergence is
    approximated by 2 `scale` H(q), in nats, so drafting stops where 1 - sqrt(scale H(q)) < lam. After each verification, let
    a be the accepted share of the draft: A <- beta1 A + (1 - beta1) a, and lam moves up by `step` if A is below `wanted` and
    down otherwise, smoothed by beta2. At T = 0, H is computed from the T = 1 distribution. A stopped draft costs a forward
    that yields no token. `lam` is the initial threshold, and A starts at `wanted`: the paper specifies neither
    (docs/papers/drafting.md, AdaEDL).
    """

    scale: float = 0.2
    lam: float = 0.7
    beta1: float = 0.5
    beta2: float = 0.9
    step: float = 0.01
    wanted: float = 0.9
    min_len: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        within("scale", self.scale, 0.0, math.inf)
        for key in ("beta1", "beta2", "wanted"):
            within(key, getattr(self, key), 0.0, 1.0)

    def open(self, models: Sessions, drafter: Session, sampler: Sampler) -> Rule:
        return _AdaEDL(self, sampler)


class _AdaEDL(Rule):
    def __init__(self, stop: AdaEDL, sampler: Sampler) -> None:
        super().__init__(stop.min_len)
        self._stop, self._sampler = stop, sampler
        self.lam, self.accepted = stop.lam, stop.wanted

    def learn(self, drafted: int, accepted: int) -> None:
        stop = self._stop
        self.accepted = stop.beta1 * self.accepted + (1 - stop.beta1) * accepted / drafted
        moved = self.lam + (stop.step if self.accepted < stop.wanted else -stop.step)
        self.lam = stop.beta2 * self.lam + (1 - stop.beta2) * moved

    def before(self, ids: list[int], logits: Tensor) -> bool:
        probs = confidence(logits) if self._sampler.temperature == 0.0 else self._sampler.probs(logits)
        return 1.0 - math.sqrt(self._stop.scale * float(entropy(probs)[0])) < self.lam


@dataclass(frozen=True, kw_only=True)
class SpecDecPlusPlus(AdaptiveLength, name="specdec++"):
    """Stops where a trained head predicts that some drafted token was rejected: 1 - prod phat_i > threshold.

    Huang et al. 2024. phat_i is computed from the drafter's state at x_i, which exists once x_i has been read, one forward
    after it was drawn. If this stops the draft, the token drawn in that forward is the last one (docs/papers/drafting.md,
    SpecDec++).
    """

    head: str
    threshold: float = 0.3
    min_len: int = 2

    def open(self, models: Sessions, drafter: Session, sampler: Sampler) -> Rule:
        drafter.keep_states()
        return _SpecDecPlusPlus(self, models.head(self.head, AcceptanceHead), drafter)


class _SpecDecPlusPlus(Rule):
    def __init__(self, stop: SpecDecPlusPlus, head: AcceptanceHead, drafter: Session) -> None:
        super().__init__(stop.min_len)
        self._stop, self._head, self._drafter = stop, head, drafter
        self._all = 1.0  # product of phat_i over the drafted tokens that were read

    def begin(self, ids: list[int]) -> None:
        super().begin(ids)
        self._all = 1.0

    def after(self, ids: list[int], token: int, logits: Tensor) -> bool:
        if len(ids) > self.start:  # a drafted token was read
            state = self._drafter.hidden(ids, len(ids) - 1)  # (1, H)
            self._all *= read_probability(self._head.accepts(state))
        return 1.0 - self._all > self._stop.threshold


@dataclass(frozen=True, kw_only=True)
class Dsl(AdaptiveLength, name="dsl"):
    """Stops after a drafted token whose acceptance a trained classifier of q predicts with less than `threshold`.

    DISCO (Mamou et al. 2024): two layers on the ten largest probabilities, the entropy, and the position in the draft
    (docs/papers/drafting.md, DSL and DISCO).
    """

    head: str
    threshold: float = 0.5
    min_len: int = 1

    def open(self, models: Sessions, drafter: Session, sampler: Sampler) -> Rule:
        return _Dsl(self, models.head(self.head, LengthHead))


class _Dsl(Rule):
    def __init__(self, stop: Dsl, head: LengthHead) -> None:
        super().__init__(stop.min_len)
        self._stop, self._head = stop, head

    def after(self, ids: list[int], token: int, logits: Tensor) -> bool:
        position = torch.tensor([len(ids) - self.start], device=logits.device)  # (1,)
        return read_probability(self._head.accepts(confidence(logits), position)) < self._stop.threshold
