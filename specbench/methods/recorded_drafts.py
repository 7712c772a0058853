"""Drafts of methods along a recorded output: which methods can be replayed, and from which recorded probabilities."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbench.analysis.recorded_output import DrafterProbabilities, RecordedOutput
from specbench.analysis.replay import ExpectedRounds, replay
from specbench.analysis.replayed_drafts import (
    ChainDrafts,
    ChosenTree,
    CopiedDrafts,
    Drafts,
    DraftsByBlock,
    DraftsByToken,
    LimitedDrafts,
    StoppedDrafts,
)
from specbench.decoding.method import Method, Proposer
from specbench.decoding.rejection import BlockRejection, Rejection
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Target
from specbench.decoding.targets.deferral import confidence
from specbench.methods.block_drafts import BlockDraft
from specbench.methods.lookups import Lookup
from specbench.methods.proposers import Chain, DraftModel, Eagle, TextDraft
from specbench.methods.speculative import Speculative
from specbench.methods.stopping import Confidence, Unsure
from specbench.methods.tree_drafts import EagleTree, ModelTree

HEAD_DEPTH = 8  # the longest draft of a head whose probabilities are recorded


@dataclass(frozen=True)
class Replay:
    """A method whose rounds can be computed from a recorded output.

    `drafters` are the models and heads whose probabilities of the output it needs, innermost first.
    """

    method: Speculative
    drafters: tuple[str, ...]

    def rounds(self, output: RecordedOutput) -> ExpectedRounds:
        """Return the expected rounds on an output that follows the method's distribution."""
        method = self.method
        drafts = _drafts(method.proposer, method.rejection, "", output)
        return replay(drafts, output.limits, method.proposer.nodes, method.bonus != "none")


def _drafts(proposer: Proposer, rejection: Rejection | None, scorer: str, output: RecordedOutput) -> Drafts:
    """Return a proposer's drafts along an output. `scorer` tests them; if it is empty, the output's distribution does."""
    if isinstance(proposer, Lookup):
        text, start = output.ids + output.tokens, len(output.ids)
        index = proposer.index()
        copies = [
            proposer.copied(index, text[: start + i], output.vocabulary, output.eos) for i in range(len(output.tokens))
        ]
        return CopiedDrafts(output.tokens, copies)
    given = output.drafters[proposer.role]
    room = given.room.tolist()
    if isinstance(proposer, ModelTree | EagleTree):
        return LimitedDrafts(ChosenTree(given.rank.tolist(), proposer.shape), room)
    tested = _verified(proposer, rejection, scorer, output)
    if isinstance(proposer, Chain):
        inner = _drafts(proposer.proposer, proposer.rejection, proposer.model, output)
        return LimitedDrafts(
            ChainDrafts(inner, proposer.proposer.nodes, tested, proposer.threshold, output.limits), room
        )
    stop = proposer.stop if isinstance(proposer, DraftModel) else None
    if stop is None:
        return LimitedDrafts(tested, room)
    never = np.zeros(len(output.tokens), dtype=bool)
    before = given.largest < stop.threshold if isinstance(stop, Unsure) else never
    after = given.confidence < stop.threshold if isinstance(stop, Confidence) else never
    return LimitedDrafts(StoppedDrafts(tested, before.tolist(), after.tolist(), stop.min_len), room)


def _verified(
    proposer: Proposer, rejection: Rejection | None, scorer: str, output: RecordedOutput
) -> DraftsByToken | DraftsByBlock:
    """Return drafts of a proposer's maximum length, tested by `scorer`."""
    if isinstance(rejection, BlockRejection):
        pi = output.drafters[scorer].q[0] if scorer else output.pi
        return DraftsByBlock(pi.tolist(), output.drafters[proposer.role].q.tolist(), proposer.longest)
    return DraftsByToken(output.accepted(proposer.role, scorer), proposer.longest)


def replay_of(method: Method, scorers: tuple[str, ...], temperature: float) -> Replay | str:
    """Return how a method is replayed on outputs that follow the distribution of `scorers`, or why it cannot be.

    Not replayed, but measured, are trees with sampled children, trees whose shape depends on the drafter, and stop rules that
    adapt to rejected tokens.
    """
    if not isinstance(method, Speculative) or method.declared_distribution() is None:
        return "only lossless speculative decoding is replayed"
    if method.scorers != scorers or len(scorers) > 1:
        return "its output follows another distribution"
    drafters = drafters_of(method.proposer)
    if set(drafters) & set(scorers):
        return "its drafter is a scorer"
    return _why_not(method.proposer, method.rejection, scorers[0], temperature) or Replay(method, drafters)


def drafters_of(proposer: Proposer) -> tuple[str, ...]:
    """Return the models and heads whose probabilities of an output determine a proposer's drafts, innermost first."""
    if isinstance(proposer, Chain):
        return (*drafters_of(proposer.proposer), proposer.model)
    return () if isinstance(proposer, Lookup) else (proposer.role,)


def _why_not(proposer: Proposer, rejection: Rejection | None, target: str, temperature: float) -> str:
    """Return why a proposer's drafts cannot be replayed on outputs of the target; empty if they can."""
    if rejection is not None and not isinstance(rejection, BlockRejection):
        return f"the rejection rule '{rejection.name}' is not replayed"
    if isinstance(proposer, ModelTree | EagleTree) and (
        proposer.children == "sampled" or (proposer.children == "auto" and temperature > 0.0)
    ):
        return "its trees are sampled"
    if isinstance(proposer, Eagle | EagleTree):
        if proposer.base != target:
            return "its head is not on the target"
        return "" if proposer.longest <= HEAD_DEPTH else "its drafts are longer than the recorded ones"
    if isinstance(proposer, Chain):
        inner = proposer.proposer
        if isinstance(inner, Eagle | EagleTree):
            return "its head is on the middle model"
        if isinstance(inner, DraftModel) and inner.stop is not None:
            return "its stop rule is not replayed within a chain"
        if not isinstance(inner, Lookup | DraftModel):
            return f"chains that begin with '{inner.name}' are not replayed"
        return _why_not(inner, proposer.rejection, target, temperature)
    if isinstance(proposer, DraftModel):
        recorded = proposer.stop is None or isinstance(proposer.stop, Unsure | Confidence)
        return "" if recorded else "its stop rule is not replayed"
    if isinstance(proposer, Lookup) and proposer.remembers:
        return "its drafts depend on earlier outputs"
    if isinstance(proposer, Lookup) and proposer.adapts:
        return "its drafts depend on earlier drafts"
    if isinstance(proposer, BlockDraft):
        return "blocks are not replayed, which would take a forward for each token of an output"
    if isinstance(proposer, TextDraft):
        return "drafts through text are not replayed"
    known = isinstance(proposer, Lookup | ModelTree)
    return "" if known else f"drafts of '{proposer.name}' depend on earlier drafts"


def probabilities(
    scored: list[Tensor],
    target: Target,
    logits: Mapping[str, Iterable[Tensor]],
    sampler: Sampler,
    tokens: list[int],
    rooms: Mapping[str, Sequence[int]],
) -> tuple[np.ndarray, dict[str, DrafterProbabilities]]:
    """Return pi (m,) of the m tokens of an output, and what each drafter gives them.

    Args:
        scored: Logits (m, V) of each scorer at the m tokens.
        target: The distribution of the output, as a function of the scorers' logits.
        logits: Logits (m, V) of each drafter at the m tokens. A head has one such array for the tokens as the first of a
            draft, one for the tokens as the second, ...
        sampler: The sampler that the output was decoded with.
        tokens: The output.
        rooms: The number of tokens that each drafter can draft at each position (m,).
    """
    x = torch.tensor(tokens, device=scored[0].device).unsqueeze(-1)  # (m, 1)
    pi, _ = target.distributions(scored, sampler)  # (m, V)
    drafters = {role: _of_drafter(rows, sampler, x, rooms[role]) for role, rows in logits.items()}
    return _numbers(pi.gather(-1, x).squeeze(-1)), drafters


def _of_drafter(logits: Iterable[Tensor], sampler: Sampler, x: Tensor, room: Sequence[int]) -> DrafterProbabilities:
    q, rank, confidences = list[np.ndarray](), list[np.ndarray](), list[Tensor]()
    for rows in logits:  # one depth at a time: each holds m V numbers
        q.append(_numbers(sampler.probs(rows).gather(-1, x).squeeze(-1)))
        rank.append(_ranks(rows, x))
        if not confidences:
            unscaled = confidence(rows)  # (m, V)
            confidences = [unscaled.gather(-1, x).squeeze(-1), unscaled.max(-1).values]
    own, largest = map(_numbers, confidences)
    return DrafterProbabilities(
        q=np.stack(q), rank=np.stack(rank), confidence=own, largest=largest, room=np.asarray(room)
    )


def _ranks(logits: Tensor, x: Tensor) -> np.ndarray:
    """Return the ranks (m,) of the tokens x (m, 1) by logits (m, V), 0 for the largest; ties go to the lowest token id."""
    own = logits.gather(-1, x)  # (m, 1)
    index = torch.arange(logits.shape[-1], device=logits.device)
    before = (logits > own) | ((logits == own) & (index < x))  # (m, V)
    return np.asarray(before.sum(-1).cpu().numpy())


def _numbers(values: Tensor) -> np.ndarray:
    return np.asarray(values.double().cpu().numpy())
