"""Floor 0: drafting token by token, and what may end a draft early."""

from typing import Protocol

import torch
from torch import Tensor

from specbench.decoding.sampling import Draft, Sampler, read_tokens


class Scoring(Protocol):
    """What drafting needs of a session."""

    def score(self, ids: list[int], start: int) -> Tensor:
        """Logits (len(ids) - start, V) of the tokens behind ids[: start + 1] and on."""


class Rule:
    """A stop rule at work on one sequence. It is shown every draft as it grows, and learns from the next `ids` how it fared.

    `start` is where the draft begins. Whatever it says, at least `min_len` tokens are drafted.
    """

    def __init__(self, min_len: int = 0) -> None:
        self.min_len, self.start = min_len, 0
        self._last: list[int] = []  # the sequence with the newest draft

    def begin(self, ids: list[int]) -> None:
        """A draft behind ids begins. What ids has of the last draft was accepted; one that a chain's outer level has cut away
        altogether teaches nothing."""
        drafted, stayed = len(self._last) - self.start, common_prefix(self._last, ids) - self.start
        if drafted > 0 and stayed >= 0:
            self.learn(drafted, stayed)
        self.start, self._last = len(ids), []

    def end(self, ids: list[int]) -> None:
        """The draft is what ids holds from `start` on."""
        self._last = ids

    def learn(self, drafted: int, accepted: int) -> None:
        """How the last draft fared."""

    def before(self, ids: list[int], logits: Tensor) -> bool:
        """Whether to draw no token behind ids, from these logits (1, V)."""
        return False

    def after(self, ids: list[int], token: int, logits: Tensor) -> bool:
        """Whether to draw nothing behind `token`, which was drawn behind ids, from these logits (1, V)."""
        return False


def roll(
    session: Scoring, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int], rule: Rule | None = None
) -> Draft:
    """`Session.roll` by one `score` a token, each read before the next; `rule` may end it early."""
    tokens: list[int] = []
    laws: list[Tensor] = []
    stopped = False
    if rule:
        rule.begin(ids)
    while len(tokens) < k and not (tokens and tokens[-1] in eos) and not stopped:
        read = ids + tokens
        logits = session.score(read, len(read) - 1)  # (1, V)
        if rule and rule.before(read, logits) and len(tokens) >= rule.min_len:
            stopped = True
            break
        token, law = sampler.draw(logits)  # (1,), (1, V)
        tokens += read_tokens(token)
        laws.append(law)
        stopped = bool(rule and rule.after(read, tokens[-1], logits) and len(tokens) >= rule.min_len)
    if rule:
        rule.end(ids + tokens)
    probs = laws[0] if len(laws) == 1 else torch.cat(laws) if laws else torch.empty(0, 0)  # (k, V)
    return Draft(tokens, probs, stopped)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix, by bisection over slices: long prompts compare at C speed."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # a[:low] == b[:low], a[:high] != b[:high]
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
