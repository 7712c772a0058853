"""Proposers, the sources of drafts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specbench.config.construct import within
from specbench.config.pair import HeadKind
from specbench.decoding.checks import checked_rejection
from specbench.decoding.drafting import certain_draft, roll, widened
from specbench.decoding.engine_options import Drafting, EngineOptions, llama_server, sglang, vllm
from specbench.decoding.method import Level, Propose, Proposer, Sessions, StopCriteria
from specbench.decoding.rejection import Rejection, require_trees, without_default
from specbench.decoding.round import Round
from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.speculation import Speculation
from specbench.decoding.targets import Last
from specbench.errors import ConfigError
from specbench.methods.stopping import Stop
from specbench.models.heads import EagleHead, EagleSession, Head

BLOCK = "block"  # the name of the rejection rule that tests whole drafts


def require_head(name: str, heads: Mapping[str, Any], kind: type[Head], kinds: Sequence[str]) -> None:
    """Raise ConfigError if a loaded head is not one that a proposer drafts with, of one of `kinds`."""
    if not isinstance(head := heads[name], kind):
        raise ConfigError(f"the head '{name}' is a {head.kind} head; this proposer needs one of {', '.join(kinds)}")


def head_in_vllm(drafting: Drafting, gamma: int) -> EngineOptions:
    """Return the options of vLLM for a head that drafts `gamma` tokens. An MTP layer is part of the target's checkpoint."""
    source = {} if drafting.head_kind == HeadKind.mtp else {"model": drafting.source or "HEAD"}
    return vllm({"method": drafting.head_kind, **source, "num_speculative_tokens": gamma})


@dataclass(frozen=True, kw_only=True)
class DraftModel(Proposer, name="model"):
    """A model that drafts gamma tokens, or fewer if it draws an EOS, a stop rule ends the draft, or it has no room."""

    draft_kind = "model"

    model: str
    gamma: int
    stop: Stop | None = None

    def __post_init__(self) -> None:
        within("gamma", self.gamma, 1, math.inf)

    @property
    def role(self) -> str:
        return self.model

    @property
    def longest(self) -> int:
        return self.gamma

    @property
    def fixed_length(self) -> int | None:
        return self.gamma if self.stop is None else None

    @property
    def draft_length(self) -> str:
        return str(self.gamma) if self.stop is None else f"up to {self.gamma}"

    def engine_options(self, drafting: Drafting) -> Iterator[EngineOptions]:
        if self.stop is not None or drafting.rejection not in ("", BLOCK):
            return
        draft, is_block = drafting.source or "DRAFT", drafting.rejection == BLOCK
        block = {"rejection_sample_method": "block"} if is_block else {}
        yield vllm({"method": "draft_model", "model": draft, "num_speculative_tokens": self.gamma} | block)
        if not is_block:
            yield sglang("STANDALONE", draft, self.gamma)
            yield llama_server(
                "draft-simple",
                f"-md DRAFT.gguf --spec-draft-n-max {self.gamma}, where DRAFT.gguf is converted from {draft}",
            )

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        session = models[self.model]
        if self.stop is None:
            return lambda ids, room: session.roll(ids, min(self.gamma, room, session.room(ids)), sampler, stop.eos)
        rule = self.stop.open(models, session, sampler)
        return lambda ids, room: roll(session, ids, min(self.gamma, room, session.room(ids)), sampler, stop.eos, rule)


@dataclass(frozen=True, kw_only=True)
class TextDraft(Proposer, name="text"):
    """A model with any tokenizer that drafts text, greedily, in gamma tokens of its own (SLEM).

    Each drafted token has q = 1, since it is not drawn from a distribution over the target's tokens. The text may be more
    tokens of the target than gamma; at most `most` are drafted. Timor et al. 2025, arXiv 2502.05202.
    """

    model: str
    gamma: int
    most: int = 32

    def __post_init__(self) -> None:
        within("gamma", self.gamma, 1, math.inf)
        within("most", self.most, 1, math.inf)

    @property
    def role(self) -> str:
        return self.name  # its tokens are not drawn from the model's distribution

    @property
    def longest(self) -> int:
        return self.most

    @property
    def draft_length(self) -> str:
        return f"{self.gamma} of its own"

    def roles(self) -> tuple[str, ...]:
        return (self.model,)

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        drafter = models.through_text(self.model)

        def propose(ids: list[int], room: int) -> Draft:
            tokens = drafter.draft(ids, self.gamma, stop.eos)[: min(self.most, room)] if room else []
            return certain_draft(tokens, models.vocabulary, stop.eos, models.device)

        return propose


@dataclass(frozen=True, kw_only=True)
class Eagle(Proposer, name="eagle"):
    """An EAGLE-1 head that drafts a chain of gamma tokens from its base's features.

    The head needs the base's feature of every token but the last. In a chain, a level above may append a token after one
    that the base has not read. With `catch_up`, the base then reads it in an extra forward; otherwise the head continues
    from its own prediction of the missing feature.

    See Li et al. 2024; docs/papers/drafting.md, EAGLE-1.
    """

    draft_kind = "head"
    head_kinds = (HeadKind.eagle, HeadKind.eagle3, HeadKind.mtp)

    head: str
    base: str
    gamma: int = 5
    catch_up: bool = True

    def __post_init__(self) -> None:
        within("gamma", self.gamma, 1, math.inf)

    @property
    def role(self) -> str:
        return self.head

    @property
    def longest(self) -> int:
        return self.gamma

    @property
    def fixed_length(self) -> int:
        return self.gamma

    @property
    def draft_length(self) -> str:
        return str(self.gamma)

    def roles(self) -> tuple[str, ...]:
        return (self.base,)

    def require_heads(self, heads: Mapping[str, Any]) -> None:
        require_head(self.head, heads, EagleHead, self.head_kinds)

    def engine_options(self, drafting: Drafting) -> Iterator[EngineOptions]:
        yield head_in_vllm(drafting, self.gamma)
        if drafting.head_kind in (HeadKind.eagle, HeadKind.eagle3):
            yield sglang(drafting.head_kind.upper(), drafting.source or "HEAD", self.gamma)

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        base = models[self.base]
        session = EagleSession(models.head(self.head, EagleHead), base, self.catch_up, models.vocabulary)
        models.track(self.head, session)

        def propose(ids: list[int], room: int) -> Draft:
            draft = session.draft(ids, min(self.gamma, room, base.room(ids)), sampler, stop.eos)
            return widened(draft, models.vocabulary)

        return propose


@dataclass(frozen=True, kw_only=True)
class Chain(Proposer, name="chain"):
    """A verified draft: `model` speculates over an inner proposer until at least `threshold` tokens are pending.

    Polybasic (PB, Algorithm 1, corrected in docs/papers/polybasic.md, Three models). The threshold is the paper's mu_1.
    With a threshold of 3 and an inner proposer that drafts two tokens, a first inner round may commit 2 tokens and a second
    one 3 (two accepted tokens and a bonus); the level above then tests these 5 tokens together.

    Whatever the inner proposer is, the collected tokens are exact samples of this model's distribution, which is the q of
    the level above (docs/papers/polybasic.md, Chain of n models). When to stop collecting depends only on their number, so
    it does not bias them. The inner proposer may itself be a chain.
    """

    draft_kind = "chain"

    proposer: Proposer
    model: str
    threshold: int = 8
    rejection: Rejection | None = None  # None: token by token

    def __post_init__(self) -> None:
        within("threshold", self.threshold, 1, math.inf)
        object.__setattr__(self, "rejection", without_default(self.rejection))
        if self.rejection is not None and not self.rejection.exact:
            raise ValueError(
                f'rejection = "{self.rejection.name}": a level of a chain needs a rule whose tokens follow pi'
            )
        if self.proposer.tree:
            require_trees(self.rejection)

    @property
    def role(self) -> str:
        return self.model

    @property
    def longest(self) -> int:
        return self.threshold + self.proposer.longest

    @property
    def draft_length(self) -> str:
        return f"{self.proposer.draft_length}, then at least {self.threshold}"

    @property
    def exact(self) -> bool:
        return self.proposer.exact

    @property
    def levels(self) -> tuple[Level, ...]:
        return (*self.proposer.levels, Level(self.model, self.threshold, self.rejection))

    @property
    def innermost(self) -> Proposer:
        return self.proposer.innermost

    def roles(self) -> tuple[str, ...]:
        return (*self.proposer.roles(), self.model)

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        session = models[self.model]
        inner = Speculation(
            proposer=self.proposer.role,
            propose=self.proposer.open(models, sampler, stop),
            scorers=[session],
            target=Last(),
            sampler=sampler,
            bonus=True,
            rejection=checked_rejection(self.rejection),
        )

        def propose(ids: list[int], room: int) -> Draft:
            room = min(room, session.room(ids))
            limited = StopCriteria(stop.eos, len(ids) + room)
            tokens: list[int] = []
            probs: list[torch.Tensor] = []
            rounds: list[Round] = []
            while len(tokens) < min(self.threshold, room) and not stop.closes(tokens):
                verified = inner.round(ids + tokens, limited)
                tokens += verified.draft.tokens
                probs.append(verified.draft.probs)
                rounds.append(verified.round)
            return Draft(tokens, torch.cat(probs) if probs else torch.empty(0, 0), rounds=tuple(rounds))

        return propose
