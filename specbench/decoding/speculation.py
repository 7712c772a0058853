"""One round of speculative decoding: draft, score in parallel, verify."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbench.decoding.checks import require_draft
from specbench.decoding.method import Propose, StopCriteria
from specbench.decoding.rejection import BY_TOKEN, Rejection, rows_of_tree
from specbench.decoding.round import Round
from specbench.decoding.sampling import Draft, Sampler, Tree, children_of, read_tokens, to_device
from specbench.decoding.session import Session
from specbench.decoding.targets import Target
from specbench.errors import PluginError


@dataclass(frozen=True)
class VerifiedRound:
    """One verified round, and pi (rows, V), the distributions that the committed tokens follow.

    `beyond` holds the logits (1, V) of the last scorer in `Speculation.beyond` for the position after the draft. It is None
    if there is no such scorer, if a drafted token was rejected, or if no token may follow the draft.
    """

    round: Round
    pi: Tensor
    beyond: Tensor | None

    @property
    def draft(self) -> Draft:
        """The committed tokens with pi as their distribution: a draft for the next level of a chain."""
        return Draft(self.round.tokens, self.pi[: len(self.round.tokens)])


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Draft, score in parallel, verify: Leviathan et al. 2023, Algorithm 1, for any pi (SpecCascade, Algorithm 4).

    `proposer` is the role that drafted tokens are attributed to. With `bonus`, a token drawn from pi follows a fully
    accepted draft. This needs pi after the draft, which costs a drafter that is itself a scorer another forward. For chain
    drafts of such a drafter, set `beyond` instead: these scorers also score the position after the draft, and the caller
    decides what to do with their logits. See `round`.
    """

    proposer: str
    propose: Propose
    scorers: Sequence[Session]
    target: Target
    sampler: Sampler
    bonus: bool = False
    beyond: Sequence[Session] = ()
    rejection: Rejection = BY_TOKEN

    def round(self, ids: list[int], stop: StopCriteria) -> VerifiedRound:
        """Draft k tokens after ids, score them in one forward per scorer, and verify them.

        Row j of pi is the distribution of the token after ids and the first j drafted tokens. Verifying k drafted tokens
        needs rows 0 .. k - 1, and a bonus token needs row k. Say the draft after `the` is `cat sat`:

        - With `bonus`, the drafter is not one of the scorers. They read `the cat sat` and return three rows: after `the`,
          after `cat` and after `sat`. If both tokens are accepted, a third one is drawn from the row after `sat`.
        - With `beyond`, the drafter is a scorer, as in a cascade where pi depends on the small model's q and the large
          model's p. To draft `cat sat` it read `the cat`, but not `sat`, so q and pi after `sat` would cost it another
          forward. Only two rows of pi are computed, and nothing follows the draft in this round. The other scorers read
          `sat` in their verifying forward anyway, so the last one's p after `sat` is free; it is returned as `beyond`.

        `Speculative` uses `beyond` for a deferred bonus token: it draws t = `on` from p and keeps it as a draft of one token
        with distribution p. In the next round the drafter's first forward reads `sat on`. This yields q after `sat`, with
        which t is verified against pi, and q after `on`, from which drafting continues if t is accepted.

        The draft may be empty, for example because a stop rule ended it before the first token. Then the round commits one
        token drawn from pi. With `beyond` it commits none, as q after ids may cost another forward, and returns p after ids.
        """
        room, sampler = stop.room(ids), self.sampler
        draft = self.propose(ids, room - 1 if self.bonus else room)
        require_draft(draft, room - 1 if self.bonus else room, self.proposer)
        if draft.parents:
            return self._tree_round(ids, draft, stop)
        k, is_open = len(draft.tokens), not stop.closes(draft.tokens)
        rows = k + 1 if is_open and (self.bonus or (not k and not self.beyond)) else k
        context, start = ids + draft.tokens, len(ids) - 1
        reads_beyond = is_open and room > k
        if reads_beyond:  # one forward reads the whole draft; the calls below reuse its cached rows
            for scorer in self.beyond:
                scorer.score(context, start)
        if not rows:
            empty = Round([], counters=counters_of(draft))
            return VerifiedRound(empty, draft.probs, self.beyond[-1].score(context, start))
        logits = [scorer.score(context[: start + rows], start) for scorer in self.scorers]  # n x (rows, V)
        pi, deferred = self.target.distributions(logits, sampler)  # (rows, V), (rows,) or None
        self._require_columns(draft, pi)
        observed = Observed.of(deferred, draft, pi, self.rejection)
        out = self.rejection.after(ids)(draft, pi, sampler, unread=observed.packed if observed else None)
        tested = min(out.accepted + 1, k)
        round_ = Round(
            out.tokens,
            k,
            tested,
            out.accepted,
            (self.proposer,) * tested,
            counters=counters_of(draft, observed.read(out.extra_values, len(out.tokens), tested) if observed else None),
            inner=draft.rounds,
            rejected=tuple(draft.tokens[out.accepted :]),
        )
        whole = out.accepted == k and reads_beyond
        after = self.beyond[-1].score(context, len(context) - 1) if whole and self.beyond else None
        return VerifiedRound(round_, pi, after)

    def _require_columns(self, draft: Draft, pi: Tensor) -> None:
        if draft.tokens and draft.probs.shape[-1] != pi.shape[-1]:
            raise PluginError(
                f"the proposer '{self.proposer}': Draft.probs must have {pi.shape[-1]} columns, one per token"
            )

    def _tree_round(self, ids: list[int], draft: Draft, stop: StopCriteria) -> VerifiedRound:
        """Verify a draft that is a tree.

        A leaf's row of pi is needed only for a bonus token after it. Without a bonus, the scorers do not read the leaves.
        """
        assert draft.parents is not None and not self.beyond
        tree, start = Tree(draft.tokens, draft.parents), len(ids) - 1
        logits = [
            scorer.score(ids, start, tree if self.bonus else without_leaves(tree)) for scorer in self.scorers
        ]  # n x (rows, V)
        pi, deferred = self.target.distributions(logits, self.sampler)  # (rows, V), (rows,) or None
        self._require_columns(draft, pi)
        out = self.rejection.after(ids)(draft, pi, self.sampler, unread=deferred)
        below = children_of(draft.parents)
        ranks = [below[draft.parents[token] + 1].index(token) + 1 for token in out.path]
        failed = below[out.path[-1] + 1 if out.path else 0]  # children that were all rejected
        siblings = (*ranks, len(failed)) if failed else tuple(ranks)
        tokens = out.tokens
        if stop.closes(tokens[: out.accepted]):
            tokens = tokens[: out.accepted]
        rows = rows_of_tree(below, len(pi))
        committed = [rows[place + 1] for place in (-1, *out.path)][: len(tokens)]
        round_ = Round(
            tokens,
            len(draft.tokens),
            len(siblings),
            out.accepted,
            (self.proposer,) * len(siblings),
            counters=counters_of(
                draft, None if deferred is None else Deferrals([out.extra_values[row] for row in committed])
            ),
            inner=draft.rounds,
            rejected=tuple(draft.tokens[token] for token in failed),
            siblings=siblings,
        )
        return VerifiedRound(round_, pi[to_device(committed, pi.device)], None)


def without_leaves(tree: Tree) -> Tree:
    """Return a tree without its leaves."""
    below = children_of(tree.parents)
    inner_nodes = [i for i in range(len(tree.tokens)) if below[i + 1]]
    index = {-1: -1} | {old: new for new, old in enumerate(inner_nodes)}
    return Tree([tree.tokens[i] for i in inner_nodes], tuple(index[tree.parents[i]] for i in inner_nodes))


@dataclass(frozen=True)
class Deferrals:
    """Where a rule deferred (1) or not (0), and the probabilities that the tested tokens were to be rejected."""

    flags: Sequence[int]
    rejections: Sequence[float] = ()


@dataclass(frozen=True)
class Observed:
    """What is recorded of a rule's decisions, still on the device: it is read together with the drawn tokens.

    `deferred` (rows,) is 1 where the rule deferred. `rejections` (k,) are the probabilities that the drafted tokens are
    rejected, float32; None if the rejection rule does not give them. Token by token, these are delta TV(q, p) of
    SpecCascade's Lemma 3 for a token drawn from q, and (1 - delta) TV(q, p) for a deferred bonus token, drawn from p.
    """

    deferred: Tensor
    rejections: Tensor | None

    @classmethod
    def of(
        cls, deferred: Tensor | None, draft: Draft, pi: Tensor, rejection: Rejection = BY_TOKEN
    ) -> "Observed | None":
        """Return what is recorded of a draft; None without a rule that defers."""
        if deferred is None:
            return None
        tokens = len(draft.tokens)
        return cls(deferred, rejection.distance(draft.probs, pi[:tokens]) if tokens else None)

    @property
    def packed(self) -> Tensor:
        """One tensor of whole numbers (rows + k,): the flags, then the bits of the probabilities."""
        if self.rejections is None:
            return self.deferred
        bits = self.rejections.to(torch.float32).view(torch.int32)  # (k,)
        return torch.cat([self.deferred, bits.long()])  # promoted to int64

    def read(self, values: Sequence[int], committed: int, tested: int) -> Deferrals:
        """Return the decisions at the committed positions and tested tokens, from the values of `packed`."""
        bits = values[len(self.deferred) : len(self.deferred) + tested]
        rejections = np.array(bits, dtype=np.int32).view(np.float32).tolist()
        return Deferrals(values[:committed], rejections)


def counters_of(draft: Draft | None, deferrals: Deferrals | None = None) -> dict[str, float]:
    """Return a round's counters.

    `fallbacks` is 1 if a stop rule ended the draft. `positions` and `deferrals` count committed positions.
    `expected_rejections` is the sum of the probabilities that the tested tokens were to be rejected.
    """
    counters: dict[str, float] = {"fallbacks": 1} if draft is not None and draft.stopped else {}
    if deferrals and deferrals.flags:
        counters |= {"positions": len(deferrals.flags), "deferrals": sum(deferrals.flags)}
    if deferrals and deferrals.rejections:
        counters["expected_rejections"] = sum(deferrals.rejections)
    return counters


def draw_token(pi: Tensor, deferred: Tensor | None, sampler: Sampler) -> tuple[list[int], dict[str, float]]:
    """Draw a token from pi (1, V), and count whether the rule deferred. Reads the device once."""
    picked = sampler.choose(pi)  # (1,)
    token, *flags = read_tokens(picked if deferred is None else torch.cat([picked, deferred]))
    return [token], counters_of(None, Deferrals(flags))
