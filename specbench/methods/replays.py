"""Drafts of methods along a recorded output: which methods can be replayed, and with what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbench.analysis.replay import (
    ChosenTree,
    Copied,
    DrafterProbabilities,
    Drafts,
    DraftsByBlock,
    DraftsByToken,
    ExpectedRounds,
    Limited,
    RecordedOutput,
    Stopped,
    replay,
)
from specbench.decoding.method import Method, Proposer
from specbench.decoding.rejection import BlockRejection
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Target
from specbench.decoding.targets.deferral import confidence
from specbench.methods.proposers import DraftModel, PromptLookup
from specbench.methods.speculative import Speculative
from specbench.methods.stopping import Confidence, Stop, Unsure
from specbench.methods.trees import ModelTree


@dataclass(frozen=True)
class Replay:
    """A method whose rounds on a recorded output are known, and the drafting model, if it has one."""

    method: Speculative
    drafter: str

    def rounds(self, output: RecordedOutput) -> ExpectedRounds:
        """Return the expected rounds on an output that follows the method's distribution."""
        proposer = self.method.proposer
        drafts = self._drafts(output)
        if self.drafter:
            drafts = Limited(drafts, output.drafters[self.drafter].room.tolist())
        return replay(drafts, output.limits, proposer.nodes, self.method.bonus != "none")

    def _drafts(self, output: RecordedOutput) -> Drafts:
        proposer = self.method.proposer
        if isinstance(proposer, PromptLookup):
            text, start = output.ids + output.tokens, len(output.ids)
            index = proposer.index()
            copies = [
                proposer.copied(index, text[: start + i], output.vocabulary, output.eos)
                for i in range(len(output.tokens))
            ]
            return Copied(output.tokens, copies)
        given = output.drafters[self.drafter]
        if isinstance(proposer, ModelTree):
            return ChosenTree(given.rank.tolist(), proposer.shape)
        assert isinstance(proposer, DraftModel)
        drafts: DraftsByToken | DraftsByBlock = DraftsByToken(output.accepted(self.drafter), proposer.gamma)
        if isinstance(self.method.rejection, BlockRejection):
            drafts = DraftsByBlock(output.pi.tolist(), given.q.tolist(), proposer.gamma)
        stop = proposer.stop
        if stop is None:
            return drafts
        never = np.zeros(len(output.tokens), dtype=bool)
        before = given.largest < stop.threshold if isinstance(stop, Unsure) else never
        after = given.confidence < stop.threshold if isinstance(stop, Confidence) else never
        return Stopped(drafts, before.tolist(), after.tolist(), stop.min_len)


def replay_of(method: Method, scorers: tuple[str, ...], temperature: float) -> Replay | str:
    """Return how a method is replayed on outputs that follow the distribution of `scorers`, or why it cannot be.

    Chains, heads, trees of sampled children and stop rules that learn from rejected tokens are measured instead.
    """
    if not isinstance(method, Speculative) or method.declared_distribution() is None:
        return "only lossless speculative decoding is replayed"
    if method.scorers != scorers or len(scorers) > 1:
        return "its output follows another distribution"
    proposer = method.proposer
    if method.rejection is not None and not isinstance(method.rejection, BlockRejection):
        return f"the rejection rule '{method.rejection.name}' is not replayed"
    if isinstance(proposer, PromptLookup):
        return Replay(method, "")
    if proposer.role in method.scorers:
        return "its drafter is a scorer"
    if isinstance(proposer, ModelTree):
        sampled = proposer.children == "sampled" or (proposer.children == "auto" and temperature > 0.0)
        return "its trees are sampled" if sampled else Replay(method, proposer.model)
    if isinstance(proposer, DraftModel):
        return Replay(method, proposer.model) if _is_recorded(proposer.stop) else "its stop rule is not replayed"
    return _why_not(proposer)


def _is_recorded(stop: Stop | None) -> bool:
    return stop is None or isinstance(stop, Unsure | Confidence)


def _why_not(proposer: Proposer) -> str:
    return (
        "its draft is a chain of models" if proposer.levels else f"drafts of '{proposer.name}' depend on earlier drafts"
    )


def probabilities(
    logits: dict[str, Tensor],
    sampler: Sampler,
    scorers: tuple[str, ...],
    target: Target,
    tokens: list[int],
    rooms: Mapping[str, Sequence[int]],
) -> tuple[np.ndarray, dict[str, DrafterProbabilities]]:
    """Return pi (m,) of the m tokens of an output, and what each drafter gives them.

    Args:
        logits: Logits (m, V) of every scorer and drafter at each token.
        sampler: The sampler that the output was decoded with.
        scorers: The roles that define the output's distribution; all others are drafters.
        target: The distribution of the output.
        tokens: The output.
        rooms: The number of tokens that each drafter can draft at each token (m,).
    """
    x = torch.tensor(tokens, device=next(iter(logits.values())).device).unsqueeze(-1)  # (m, 1)
    pi, _ = target.distributions([logits[role] for role in scorers], sampler)  # (m, V)
    drafters = {
        role: _of_drafter(rows, sampler, x, rooms[role]) for role, rows in logits.items() if role not in scorers
    }
    return _numbers(pi.gather(-1, x).squeeze(-1)), drafters


def _of_drafter(logits: Tensor, sampler: Sampler, x: Tensor, room: Sequence[int]) -> DrafterProbabilities:
    own, unscaled = logits.gather(-1, x), confidence(logits)  # (m, 1), (m, V)
    index = torch.arange(logits.shape[-1], device=logits.device)
    before = (logits > own) | ((logits == own) & (index < x))  # (m, V); ties go to the lowest token
    return DrafterProbabilities(
        q=_numbers(sampler.probs(logits).gather(-1, x).squeeze(-1)),
        rank=before.sum(-1).cpu().numpy(),
        confidence=_numbers(unscaled.gather(-1, x).squeeze(-1)),
        largest=_numbers(unscaled.max(-1).values),
        room=np.asarray(room),
    )


def _numbers(values: Tensor) -> np.ndarray:
    return np.asarray(values.double().cpu().numpy())
