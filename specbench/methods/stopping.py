"""Floor 1: stop rules, which decide how long a draft is.

A rule may look at committed and drafted tokens and at laws, to decide whether the *next* token is drawn at all. So the
drafted tokens still follow the laws they are tested with, and what is lossless stays so. What a rule looked at stays.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.drafting import Rule
from specbench.decoding.method import Sessions
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Session
from specbench.decoding.targets.deferral import confidence, entropy, within
from specbench.models.heads import AcceptanceHead, LengthHead


class Stop(Named):
    """When to stop drafting. A rule without memory overrides `before` or `after`; one that learns, `open`."""

    min_len: int = 0  # tokens that are drafted whatever the rule says

    def before(self, logits: Tensor, sampler: Sampler) -> bool:
        """Whether no token is to be drawn from these logits (1, V)."""
        return False

    def after(self, token: int, logits: Tensor, sampler: Sampler) -> bool:
        """Whether nothing is to be drawn behind this token, which was drawn from these logits (1, V)."""
        return False

    def open(self, models: Sessions, drafter: Session, sampler: Sampler) -> Rule:
        """The rule for one sequence."""
        return _Plain(self, sampler)


class Lengthened(Stop):
    """A rule of the adaptive draft lengths: at least `min_len` tokens, so that no round tests nothing."""

    min_len: int

    def __post_init__(self) -> None:
        if self.min_len < 1:
            raise ValueError(f"min_len = {self.min_len} must be at least 1")


class _Plain(Rule):
    """A stop rule without memory."""

    def __init__(self, stop: Stop, sampler: Sampler) -> None:
        super().__init__(stop.min_len)
        self._stop, self._sampler = stop, sampler

    def before(self, ids: list[int], logits: Tensor) -> bool:
        return self._stop.before(logits, self._sampler)

    def after(self, ids: list[int], token: int, logits: Tensor) -> bool:
        return self._stop.after(token, logits, self._sampler)


@dataclass(frozen=True, kw_only=True)
class Unsure(Stop, name="unsure"):
    """Stops where the likeliest token's unscaled probability is below `threshold`: BiLD's fallback (Kim et al. 2023)."""

    threshold: float

    def before(self, logits: Tensor, sampler: Sampler) -> bool:
        return bool(confidence(logits).max() < self.threshold)


@dataclass(frozen=True, kw_only=True)
class Confidence(Lengthened, name="confidence"):
    """DISCO's training-free form: stops behind a drafted token whose unscaled probability was below `threshold`.

    The token stays, so no forward is wasted. At T = 0 the condition is max q < threshold (docs/papers/drafting.md, DSL
    and DISCO).
    """

    threshold: float = 0.4
    min_len: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        within("threshold", self.threshold, 0.0, 1.0)

    def after(self, token: int, logits: Tensor, sampler: Sampler) -> bool:
        return bool(confidence(logits)[0, token] < self.threshold)


@dataclass(frozen=True, kw_only=True)
class AdaEDL(Lengthened, name="adaedl"):
    """Stops before a token whose acceptance, bounded from below by the entropy of q, may be less than a moving threshold.

    Agrawal et al. 2024: acceptance is at least 1 - sqrt(KL(q || p) / 2) by Pinsker's inequality; with the divergence taken
    as a multiple `scale` of 2 H(q), in nats, drafting stops where 1 - sqrt(scale H(q)) < lam. After each verification with
    the share a of the draft accepted, A <- beta1 A + (1 - beta1) a, and lam moves by `step` up where A is below `wanted`
    and down where it is not, smoothed by beta2. At T = 0, H is that of the law at T = 1. A stopped draft costs a forward
    that yields no token. `lam` is where the threshold starts, and A starts at `wanted`: the paper leaves
    both open (docs/papers/drafting.md, AdaEDL).
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
        law = confidence(logits) if self._sampler.temperature == 0.0 else self._sampler.probs(logits)
        return 1.0 - math.sqrt(self._stop.scale * float(entropy(law)[0])) < self.lam


@dataclass(frozen=True, kw_only=True)
class SpecDecPlusPlus(Lengthened, name="specdec++"):
    """Stops where a trained head says that some drafted token was likely rejected: 1 - prod phat_i > threshold.

    Huang et al. 2024. phat_i is read off the drafter's state at x_i, which is there once x_i is read, a step later; the token
    drawn from the distribution of that step is the last one (docs/papers/drafting.md, SpecDec++).
    """

    head: str
    threshold: float = 0.3
    min_len: int = 2

    def open(self, models: Sessions, drafter: Session, sampler: Sampler) -> Rule:
        drafter.keeps_hidden = True
        return _SpecDecPlusPlus(self, models.head(self.head, AcceptanceHead), drafter)


class _SpecDecPlusPlus(Rule):
    def __init__(self, stop: SpecDecPlusPlus, head: AcceptanceHead, drafter: Session) -> None:
        super().__init__(stop.min_len)
        self._stop, self._head, self._drafter = stop, head, drafter
        self._all = 1.0  # the product over the drafted tokens that were read

    def begin(self, ids: list[int]) -> None:
        super().begin(ids)
        self._all = 1.0

    def after(self, ids: list[int], token: int, logits: Tensor) -> bool:
        if len(ids) > self.start:  # the newest drafted token that was read
            state = self._drafter.hidden(ids, len(ids) - 1)  # (1, H)
            self._all *= float(self._head.accepts(state)[0])
        return 1.0 - self._all > self._stop.threshold


@dataclass(frozen=True, kw_only=True)
class Dsl(Lengthened, name="dsl"):
    """Stops behind a drafted token that a trained classifier of q gives less than `threshold` to be accepted.

    DISCO (Mamou et al. 2024): two layers on the ten largest probabilities, the entropy, and the place in the draft
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
        place = torch.tensor([len(ids) - self.start], device=logits.device)
        return bool(self._head.accepts(confidence(logits), place)[0] < self._stop.threshold)
