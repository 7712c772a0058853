"""Drafting one token at a time, with a rule that may stop a draft early."""

import itertools
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device


def until_eos(tokens: list[int], vocabulary: int, eos: frozenset[int]) -> list[int]:
    """Return tokens up to the first EOS, or before the first id of `vocabulary` or above."""
    known = list(itertools.takewhile(lambda token: token < vocabulary, tokens))
    return known[: next((i for i, token in enumerate(known, 1) if token in eos), len(known))]


def certain_draft(tokens: list[int], vocabulary: int, eos: frozenset[int], device: torch.device) -> Draft:
    """Return a draft of tokens that are not drawn from a distribution, each with q = 1, up to the first EOS."""
    tokens = until_eos(tokens, vocabulary, eos)
    probs = torch.zeros(len(tokens), vocabulary, device=device)  # (k, V)
    if tokens:
        probs.scatter_(1, to_device(tokens, device).unsqueeze(1), 1.0)
    return Draft(tokens, probs)


class Scoring(Protocol):
    """The part of a session that drafting needs."""

    def score(self, ids: list[int], start: int) -> Tensor:
        """Return logits (len(ids) - start, V) of the tokens that follow ids[: start + 1], ids[: start + 2], ..."""


class Rule:
    """A stop rule for one sequence.

    It is called for every token of a growing draft. The ids that the next draft begins after show how many tokens were
    accepted.

    `start` is the position at which the current draft begins. At least `min_len` tokens are drafted regardless of the
    rule.
    """

    def __init__(self, min_len: int = 0) -> None:
        self.min_len, self.start = min_len, 0
        self._last: list[int] = []  # ids with the newest draft appended

    def begin(self, ids: list[int]) -> None:
        """Start a draft after ids, and update the rule with the outcome of the previous draft.

        The tokens of the previous draft that ids still contains were accepted. If the outer level of a chain has
        removed tokens from before the previous draft, its outcome is unknown and `learn` is not called.
        """
        drafted, accepted = len(self._last) - self.start, common_prefix(self._last, ids) - self.start
        if drafted > 0 and accepted >= 0:
            self.learn(drafted, accepted)
        self.start, self._last = len(ids), []

    def end(self, ids: list[int]) -> None:
        """End the draft, which is ids[start:]."""
        self._last = ids

    def learn(self, drafted: int, accepted: int) -> None:
        """Update the rule with the outcome of the previous draft."""

    def before(self, ids: list[int], logits: Tensor) -> bool:
        """Return True to stop before drawing the token after ids, given its logits (1, V)."""
        return False

    def after(self, ids: list[int], token: int, logits: Tensor) -> bool:
        """Return True to stop after `token`, which was drawn after ids from logits (1, V)."""
        return False


def roll(
    session: Scoring, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int], rule: Rule | None = None
) -> Draft:
    """Draft up to k tokens after ids as `Session.roll` does, reading each token before the next forward.

    `rule` may stop the draft early.
    """
    tokens: list[int] = []
    rows: list[Tensor] = []
    stopped = False
    if rule:
        rule.begin(ids)
    while len(tokens) < k and not (tokens and tokens[-1] in eos) and not stopped:
        context = ids + tokens
        logits = session.score(context, len(context) - 1)  # (1, V)
        if rule and rule.before(context, logits) and len(tokens) >= rule.min_len:
            stopped = True
            break
        token, row = sampler.draw(logits)  # (1,), (1, V)
        tokens += read_tokens(token)
        rows.append(row)
        stopped = bool(rule and rule.after(context, tokens[-1], logits) and len(tokens) >= rule.min_len)
    if rule:
        rule.end(ids + tokens)
    probs = rows[0] if len(rows) == 1 else torch.cat(rows) if rows else torch.empty(0, 0)  # (k, V)
    return Draft(tokens, probs, stopped)


def widened(draft: Draft, vocabulary: int) -> Draft:
    """Return the draft with distributions over V tokens. Its model has only the first of them; the others get zero."""
    missing = vocabulary - draft.probs.shape[-1]
    if missing <= 0 or not draft.tokens:
        return draft
    return replace(draft, probs=F.pad(draft.probs, (0, missing)))  # (k, V)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Return the length of the longest common prefix.

    Bisects over slices, so that C code compares long prompts.
    """
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
