"""Drafts of DFlash and DSpark heads on one sequence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.drafting import common_prefix
from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device
from specbench.decoding.session import Session, Usage
from specbench.models.heads.block_head import BlockHead
from specbench.models.model_runner import Feed, ModelRunner, Output, TimedModelRunner


@dataclass(frozen=True, kw_only=True)
class ConfidenceCut:
    """When to end a draft. c_j estimates the probability that token j is accepted, given that the earlier ones were.

    Attributes:
        threshold: The draft ends before the first token whose confidence is lower.
        costs: The time of a forward of the target over 1 + j tokens, j = 1, 2, .., relative to one over a single token. The
            draft of j tokens that maximizes (1 + c_1 + c_1 c_2 + ..) / costs is kept (Algorithm 1 of DSpark).
        all_prefixes: Whether the maximum over all lengths is taken. Otherwise the search ends at the first decrease, and c_j,
            which reads the tokens before the j-th only, decides before that token is drawn.
    """

    threshold: float = 0.0
    costs: tuple[float, ...] = ()
    all_prefixes: bool = False

    @property
    def is_set(self) -> bool:
        """Whether drafts are cut."""
        return bool(self.threshold or self.costs)

    def length(self, confidences: Sequence[float]) -> int:
        """Return the number of tokens to keep of a draft with these confidences."""
        end = next((j for j, each in enumerate(confidences) if each < self.threshold), len(confidences))
        if not self.costs:
            return end
        survival = expected = 1.0
        rates = [1.0]  # expected tokens in the time of a forward over one token, by length
        for confidence, cost in zip(confidences[:end], self.costs, strict=False):
            survival *= confidence
            expected += survival
            if expected / cost <= rates[-1] and not self.all_prefixes:
                break
            rates.append(expected / cost)
        return rates.index(max(rates))


WHOLE = ConfidenceCut()


class BlockModelRunner(ModelRunner):
    """A head's forwards: a block of rows, after new entries of the context. States are what the LM head reads (rows, H).

    A forward from position 0 on stores the entries of a prompt, and has no block.
    """

    name = "block drafter"

    def __init__(self, head: BlockHead, base: Session, vocabulary: int | None) -> None:
        self._head, self._base, self._vocabulary = head, base, vocabulary
        self.device, self.is_partial = head.parameter.device, head.is_partial
        self.cache = head.new_cache()

    def feed(self, feed: Feed, rows: int) -> Output:
        assert feed.states is not None
        with torch.inference_mode():
            new = len(feed.states)
            if not feed.start:
                self.cache.begin(feed)
                self._head.store(feed.states, self.cache)
                return Output(feed.states.new_zeros(1, 1), None)
            if new:
                self.cache.begin(Feed(feed.tokens.new_zeros(new), feed.start - new))
                self._head.store(feed.states, self.cache)
            self.cache.begin(feed)
            read = self._head.forward_block(feed.tokens[:1], len(feed.tokens), self.cache)[-rows:]
            return Output(self.logits_of(read), read)

    def logits_of(self, states: Tensor) -> Tensor:
        return self._head.logits(states, self._base.logits_of)[:, : self._vocabulary]


class BlockSession:
    """A head's drafts on one sequence, over the session of its base, of at most `vocabulary` tokens.

    The context entry of token t depends on the base's states at t alone, and is valid while tokens 0 .. t are the same. The
    block's own entries are overwritten.
    """

    def __init__(self, head: BlockHead, base: Session, vocabulary: int | None = None) -> None:
        base.keep_states(head.aux_layers)
        self.head, self.model_runner = head, BlockModelRunner(head, base, vocabulary)
        self.timed, self._base = TimedModelRunner(self.model_runner), base
        self._ids: list[int] = []  # the tokens that have context entries

    @property
    def usage(self) -> Usage:
        return self.timed.usage

    def finish(self) -> None:
        self.timed.finish()

    def draft(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int], cut: ConfidenceCut = WHOLE) -> Draft:
        """Draft up to k tokens after ids in one forward, ending at an EOS; none if ids is a single token."""
        if len(ids) < 2 or not k:
            return Draft([], torch.empty(0, 0))
        block = self.block(ids, k)
        with torch.inference_mode():
            if self.head.markov is None and not cut.is_set:
                drawn, probs = sampler.draw(block.logits)  # (k,), (k, V)
            else:
                drawn, probs = self._drawn_in_turn(ids[-1], block, sampler, cut)
            tokens = read_tokens(drawn) if len(drawn) else []
            length = next((i for i, token in enumerate(tokens, 1) if token in eos), len(tokens))
            return Draft(tokens[:length], probs[:length]) if tokens else Draft([], torch.empty(0, 0))

    def block(self, ids: list[int], k: int) -> Output:
        """Return logits (k, V) for k tokens after ids, without a Markov head's, and what the LM head reads (k, H).

        The base reads all ids but the last first.
        """
        context = len(ids) - 1
        entries = min(common_prefix(ids, self._ids), context)
        if not entries:
            states = self._base.hidden(ids[:context], 0, self.head.aux_layers).to(self.head.parameter.dtype)
            self.timed.feed(Feed(states.new_zeros(context, dtype=torch.long), 0, states=states), 1)
            entries = context
        if entries < context:
            states = self._base.hidden(ids[:context], entries, self.head.aux_layers).to(self.head.parameter.dtype)
        else:
            states = self.head.parameter.new_empty(0, self.head.block.states * self.head.state_width)
        size = k if self.head.block.from_anchor else k + 1
        block = to_device([ids[-1]] + [self.head.block.mask] * (size - 1), self.model_runner.device)
        out = self.timed.feed(Feed(block, context, states=states), k)
        self._ids = ids[:context]
        return out

    def _drawn_in_turn(self, anchor: int, block: Output, sampler: Sampler, cut: ConfidenceCut) -> tuple[Tensor, Tensor]:
        """Return tokens and the distributions that they were drawn from, one after the other."""
        markov, state, states = self.head.markov, None, block.states
        assert states is not None
        drawn, probs, confidences, changed = list[Tensor](), list[Tensor](), list[float](), list[Tensor]()
        token = to_device([anchor], self.model_runner.device)
        for logits, row in zip(block.logits.chunk(len(states)), states.chunk(len(states)), strict=True):
            # INVALID, for which `read_tokens` raises, has no row
            w1 = None if markov is None else markov.looked_up(token.clamp_min(0))
            if cut.is_set:
                confidences.append(float(self.head.confidence_of(row, w1).sigmoid()))
                if not cut.all_prefixes and cut.length(confidences) < len(confidences):
                    break
            if markov is not None:
                term, state = markov(w1, row, state)
                logits = self.head.with_term(logits, term)
                changed.append(logits)
            token, distribution = sampler.draw(logits)
            drawn.append(token)
            probs.append(distribution)
        if changed and not sampler.temperature:  # the arg max of NaN is some token; a draw from it raises
            self.timed.require_finite(torch.cat(changed))
        if not all(math.isfinite(each) for each in confidences):
            raise FloatingPointError(f"{self.model_runner.name}: a confidence is not a number")
        length = cut.length(confidences) if cut.is_set else len(drawn)
        return torch.cat([block.logits.new_empty(0, dtype=torch.long), *drawn[:length]]), torch.cat(
            [block.logits[:0], *probs[:length]]
        )
