"""Floor 0: a round of a method, as it is recorded."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Round:
    """One round: the tokens it committed, and how its draft fared.

    `tokens` holds those that nobody tested, then the accepted ones, then at most one replacement or bonus. `drafted` counts
    the proposals drawn in this round; `tested` those that were verified, `by` naming who had proposed each. tested -
    accepted is 0 or 1. `noted` holds whatever else a method knows of: `deferrals` among `positions` that a rule was asked
    about, `fallbacks` of a drafter that was not sure, ... `inner` are the rounds of the chain that made the draft. Of a round
    whose tokens the driver cut, `noted`, `drafted` and `inner` count all. Raises ValueError where `by` does not fit.
    """

    tokens: list[int]
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    proposers: tuple[str, ...] = ()
    at: float | None = None  # seconds since the beginning, where the round was told of afterwards
    counters: dict[str, float] = field(default_factory=dict)
    untested: int = 0  # committed on a learned gate's word
    inner: "tuple[Round, ...]" = ()
    rejected: tuple[int, ...] = ()  # the drafted token that was refused, and those behind it

    def __post_init__(self) -> None:
        if self.proposers and (isinstance(self.proposers, str) or len(self.proposers) != self.tested):
            raise ValueError(
                f"Round: by = {self.proposers!r} must be a tuple of {self.tested} roles, one a tested token"
            )

    def then(self, other: "Round") -> "Round":
        """Both as one round, where all that this one tested was accepted."""
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
        )

    def with_counters(self, more: dict[str, float]) -> "Round":
        """The step with more counted."""
        return replace(
            self, counters={key: self.counters.get(key, 0) + more.get(key, 0) for key in {**self.counters, **more}}
        )

    def cut(self, kept: int) -> "Round":
        """The step as if it had ended with the `kept`th token: committed = untested + accepted + replaced + bonus holds."""
        if kept == len(self.tokens):
            return self
        untested = min(self.untested, kept)
        tested, accepted = min(self.tested, kept - untested), min(self.accepted, kept - untested)
        return replace(
            self,
            tokens=self.tokens[:kept],
            untested=untested,
            tested=tested,
            accepted=accepted,
            proposers=self.proposers[:tested],
        )
