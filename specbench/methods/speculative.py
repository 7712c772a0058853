"""Speculative decoding with any proposer and any target distribution: draft, score in parallel, verify."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from specbench.decoding import relaxed_rejection  # noqa: F401  (registers its rules)
from specbench.decoding.checks import checked_rejection
from specbench.decoding.method import Method, Proposer, Round, Sessions, StopCriteria, Verification, when_greedy
from specbench.decoding.rejection import BY_TOKEN, Rejection, require_trees, without_default
from specbench.decoding.sampling import Draft, Sampler, read_tokens
from specbench.decoding.speculation import Observed, Speculation, counters_of, draw_token
from specbench.decoding.targets import Last, Target
from specbench.decoding.traits import Positions, Theory
from specbench.methods.proposers import DraftModel

Bonus = Literal["deferred", "exact", "none", "paper"]


@dataclass(frozen=True, kw_only=True)
class Speculative(Method, name="speculative"):
    """Leviathan et al. 2023, Algorithm 1, if the target is `last`; SpecCascade's Algorithm 4 if it is a cascade.

    `bonus` selects what follows a fully accepted draft. If the drafting model is a scorer, pi is unknown there until it
    has read the end of the draft (docs/papers/speccascade.md, Bonus token):

    - deferred: draw a token t from the last other scorer's distribution and keep it as a proposal. The drafter's next
      forward reads the last drafted token and t together, which gives its distributions at t and after t. t is tested
      immediately, and if it is accepted, drafting continues after it. `Speculation.round` has an example.
    - exact: the drafter reads the last drafted token in an extra forward, and a token is drawn from pi.
    - none: nothing follows, as in SE's naive ensembles (Section 3.2).
    - paper: a token drawn from the last other scorer's distribution is committed untested, as printed. This biases the
      output. With the other options, the output follows pi.

    If the drafting model is not a scorer, pi is known immediately, and deferred equals exact. If a scorer drafts trees,
    deferred and paper are not defined.
    """

    proposer: Proposer
    scorers: tuple[str, ...]
    target: Target
    bonus: Bonus = "deferred"
    rejection: Rejection | None = None  # None: token by token

    def __post_init__(self) -> None:
        self.target.check(len(self.scorers))
        object.__setattr__(self, "rejection", without_default(self.rejection))
        if self.proposer.tree:
            require_trees(self.rejection)
            if self.proposer.role in self.scorers and self.bonus not in ("exact", "none"):
                raise ValueError(
                    f'bonus = "{self.bonus}": with trees of a model that scores too, use "exact" or "none"'
                )

    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.proposer.roles(), *self.scorers)))

    @property
    def blocks(self) -> tuple[int, ...]:
        drafting = self.proposer.innermost
        nodes = drafting.nodes
        if self.proposer.tree and self.bonus == "none" and drafting.shape:
            nodes = len(set(drafting.shape) - {-1})  # the scorers do not read leaves
        trees = {1, 2, 1 + nodes} if drafting.tree else set[int]()
        chains = set[int]() if self.proposer.tree else set(range(1, 2 + self.proposer.longest))
        return tuple(sorted(chains | trees))

    @property
    def depth(self) -> int:
        return self.proposer.longest

    @property
    def draft_length(self) -> str:
        return self.proposer.draft_length

    @property
    def adaptive(self) -> bool:
        return isinstance(self.proposer, DraftModel) and self.proposer.stop is not None

    @property
    def flops(self) -> Positions:
        return "drafted" if isinstance(self.proposer, DraftModel) else ""

    def theory(self) -> Theory | None:
        drafting, levels = self.proposer.innermost, self.proposer.levels
        length = drafting.longest if drafting.shape else drafting.fixed_length
        if length is None or not all(test.rejection.independent for test in self.verifications()):
            return None  # no formula covers drafts of varying length, or tests of whole drafts
        if (drafting.shape or drafting.is_block) and levels:
            return None
        return Theory(
            formula="chain"
            if levels
            else "tree"
            if drafting.shape
            else "block"
            if drafting.is_block
            else "speculation",
            models=self._drafting_roles,
            gamma=(length,),
            thresholds=tuple(level.threshold for level in levels),
            bonus=self.bonus,
            drafter_scores=drafting.role in self.scorers,
            shape=drafting.shape,
        )

    def assumed_theory(self, length: int) -> Theory:
        drafting, levels = self.proposer.innermost, self.proposer.levels
        return self.theory() or Theory(
            formula="chain" if levels else "speculation",
            models=self._drafting_roles,
            gamma=(min(length, max(self.depth, 1)),),
            thresholds=tuple(level.threshold for level in levels),
            bonus="exact",
            drafter_scores=drafting.role in self.scorers,
        )

    @property
    def _drafting_roles(self) -> tuple[str, ...]:
        """The innermost drafter, the models of a chain, and the scorers besides the drafter."""
        drafting = self.proposer.innermost
        others = (role for role in self.scorers if role != drafting.role)
        return (drafting.role, *(level.model for level in self.proposer.levels), *others)

    def require_heads(self, heads: Mapping[str, Any]) -> None:
        self.proposer.innermost.require_heads(heads)

    def verifications(self) -> tuple[Verification, ...]:
        levels = self.proposer.levels  # innermost first
        drafters = (self.proposer.innermost.role, *(level.model for level in levels))
        inner = [
            Verification(
                drafter, (level.model,), Last(), level.rejection or BY_TOKEN, not i and self.proposer.innermost.tree
            )
            for i, (drafter, level) in enumerate(zip(drafters, levels, strict=False))
        ]
        outermost = Verification(
            self.proposer.role, self.scorers, self.target, self.rejection or BY_TOKEN, self.proposer.tree
        )
        return (outermost, *reversed(inner))

    @property
    def remembers(self) -> bool:
        return self.proposer.innermost.remembers

    def conflict_at(self, temperature: float) -> str:
        is_blind = any(
            test.rejection.reads_probabilities and test.target.is_one_hot_when_greedy for test in self.verifications()
        )
        if temperature == 0.0 and is_blind:
            return 'its rule reads probabilities, of which the target has a single one; help: target = { name = "unscaled" }'
        return ""

    @property
    def published_rule(self) -> str | None:
        return super().published_rule if self.proposer.exact else "all_prefixes"

    def declared_distribution(self) -> tuple[tuple[str, ...], Target] | None:
        is_exact = all(test.rejection.exact for test in self.verifications())
        return (self.scorers, self.target) if is_exact and self._is_unbiased else None

    def declared_when_greedy(self) -> tuple[tuple[str, ...], Target] | None:
        rules = [test.rejection for test in self.verifications()]
        if not self._is_unbiased or not all(rule.exact or rule.is_exact_when_greedy for rule in rules):
            return None
        return when_greedy((self.scorers, self.target))

    @property
    def _is_unbiased(self) -> bool:
        """Whether the output follows the target's distribution if every test is exact."""
        return self.proposer.exact and not (self.bonus == "paper" and self.proposer.role in self.scorers)

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        ids, drafter = list(models.ids), self.proposer.role
        others = [role for role in self.scorers if role != drafter]
        scorers = [models[role] for role in self.scorers]
        rejection = checked_rejection(self.rejection)
        # Whether verification yields pi after a draft: no scorer drafts, or the drafter reads the leaves of its trees
        is_next_distribution_known = drafter not in self.scorers or self.proposer.tree
        speculation = Speculation(
            proposer=drafter,
            propose=self.proposer.open(models, sampler, stop),
            scorers=scorers,
            target=self.target,
            sampler=sampler,
            bonus=is_next_distribution_known and self.bonus != "none",
            beyond=[] if is_next_distribution_known or self.bonus == "none" else [models[role] for role in others],
            rejection=rejection,
        )

        def pi() -> tuple[Tensor, Tensor | None]:
            """Return the distribution of the next token (1, V), and whether a rule deferred (1,)."""
            return self.target.distributions([scorer.score(ids, len(ids) - 1) for scorer in scorers], sampler)

        pending: Draft | None = None  # t, drawn from the last other scorer's distribution
        current = Round([])  # the round so far; an accepted t joins the round of the draft after it
        while stop.room(ids) > 0:
            if pending is not None:
                if stop.room(ids) > 1 and not stop.closes(pending.tokens):  # the drafter reads t too, to draft after it
                    models[drafter].score(ids + pending.tokens, len(ids) - 1)
                target, deferred = pi()
                observed = Observed.of(deferred, pending, target, rejection)
                out = rejection.after(ids)(pending, target, sampler, unread=observed.packed if observed else None)
                ids += out.tokens
                rejected = () if out.accepted else tuple(pending.tokens)
                pending = None
                counters = counters_of(None, observed.read(out.extra_values, 1, 1) if observed else None)
                tested = Round(
                    out.tokens,
                    tested=1,
                    accepted=out.accepted,
                    proposers=(others[-1],),
                    counters=counters,
                    rejected=rejected,
                )
                current = current.then(tested)
                if not out.accepted or stop.closes(out.tokens) or not stop.room(ids):
                    yield current
                    current = Round([])
                    continue
            verified = speculation.round(ids, stop)
            ids += verified.round.tokens
            current = current.then(verified.round)
            if verified.beyond is not None:
                if self.bonus == "exact":
                    tokens, counters = draw_token(*pi(), sampler)
                    current = current.with_counters(counters)
                else:
                    token, probs = sampler.draw(verified.beyond)  # (1,), (1, V)
                    tokens = read_tokens(token)
                if self.bonus == "deferred":
                    pending, current = Draft(tokens, probs), replace(current, drafted=current.drafted + 1)
                else:
                    ids += tokens
                    current = replace(current, tokens=current.tokens + tokens)
            if current.tokens:
                yield current
                current = Round([])
