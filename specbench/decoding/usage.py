"""The cost of a session: forwards, tokens and seconds."""

from dataclasses import dataclass, field


@dataclass
class Usage:
    """The cost of a session. The first forward, including the encoder's, counts as prefill; all others count as
    decoding.
    """

    prefill_fed: int = 0  # tokens of the first forward, and of the encoder's
    prefill_seconds: float = 0.0
    encodes: int = 0  # encoder forwards, at most one per prompt
    forwards: int = 0
    fed: int = 0
    seconds: float = 0.0
    by_fed: dict[int, list[float]] = field(default_factory=dict)  # tokens fed -> [forwards, seconds]
    read: int = 0  # cached positions that the decoding forwards attended to, summed
    off_clock: float = 0.0  # seconds excluded from all timings: synthetic logits, stop strings in transformers' loop
    beside: float = 0.0  # part of `seconds` during which a slower model was running
    prefill_beside: float = 0.0  # part of `prefill_seconds`, likewise

    def prefill(self, fed: int, seconds: float) -> None:
        """Record a prefill forward of `fed` tokens."""
        self.prefill_fed += fed
        self.prefill_seconds += seconds

    def decoding(self, fed: int, seconds: float, read: int = 0) -> None:
        """Record a decoding forward of `fed` tokens that attended to `read` cached positions."""
        self.forwards += 1
        self.fed += fed
        self.seconds += seconds
        self.read += read
        size = self.by_fed.setdefault(fed, [0, 0.0])
        size[0] += 1
        size[1] += seconds

    def overlapped(self, before: "Usage") -> None:
        """Count the time since `before` as time during which a slower model was running."""
        self.beside += self.seconds - before.seconds
        self.prefill_beside += self.prefill_seconds - before.prefill_seconds
