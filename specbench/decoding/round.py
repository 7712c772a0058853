"""The record of one round: its committed tokens, and the outcome of its draft."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Round:
    """One round: the tokens that it committed, and the outcome of its draft.

    `tokens` holds untested tokens first, then accepted ones, then at most one replacement or bonus. `drafted` counts the
    proposed tokens and `tested` the verified ones; tested - accepted is 0 or 1. `proposers` names the proposer of each
    tested token. For example, if the draft is `cat sat on` and `sat` is rejected and replaced by `ran`, then `tokens` is
    `cat ran`, drafted = 3, tested = 2, accepted = 1, and `rejected` is `sat on`.

    In a round with a tree, `tested` and `accepted` count depths. `siblings` has one number per tested depth: how many
    siblings were tested there, the accepted one last. `counters` holds whatever else a method counts, such as the
    `deferrals` among the `positions` where a deferral rule was evaluated, or the `fallbacks` of a drafter that stopped
    early. `inner` holds the rounds of the chain that made the draft. If the driver cut the round's tokens, `counters`,
    `drafted` and `inner` still count the whole round.

    Raises ValueError if `proposers` does not have one role per tested token.
    """

    tokens: list[int]
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    proposers: tuple[str, ...] = ()
    at: float | None = None  # seconds since decoding began; set by methods that report their rounds afterwards
    counters: dict[str, float] = field(default_factory=dict)
    untested: int = 0  # committed because a trained verifier accepted them
    inner: "tuple[Round, ...]" = ()
    rejected: tuple[int, ...] = ()  # the rejected token and the drafted tokens after it; in a tree, its siblings
    siblings: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.proposers and (isinstance(self.proposers, str) or len(self.proposers) != self.tested):
            raise ValueError(
                f"Round: proposers = {self.proposers!r} must be a tuple of {self.tested} roles, one per tested token"
            )

    def then(self, other: "Round") -> "Round":
        """Merge with the next round. This round may contain accepted tokens only."""
        if not self.tokens and not self.drafted and not self.counters:
            return other
        assert self.tested == self.accepted == len(self.tokens)
        return Round(
            self.tokens + other.tokens,
            self.drafted + other.drafted,
            self.tested + other.tested,
            self.accepted + other.accepted,
            self.proposers + other.proposers,
            counters=self.with_counters(other.counters).counters,
            inner=self.inner + other.inner,
            rejected=self.rejected + other.rejected,
            siblings=self.siblings + other.siblings,
        )

    def with_counters(self, more: dict[str, float]) -> "Round":
        """Return the round with these counters added."""
        return replace(
            self, counters={key: self.counters.get(key, 0) + more.get(key, 0) for key in {**self.counters, **more}}
        )

    def cut(self, count: int) -> "Round":
        """Return the round as if it had ended with its first `count` tokens.

        committed = untested + accepted + replaced + bonus still holds.
        """
        if count == len(self.tokens):
            return self
        untested = min(self.untested, count)
        tested, accepted = min(self.tested, count - untested), min(self.accepted, count - untested)
        return replace(
            self,
            tokens=self.tokens[:count],
            untested=untested,
            tested=tested,
            accepted=accepted,
            proposers=self.proposers[:tested],
            siblings=self.siblings[:tested],
        )
