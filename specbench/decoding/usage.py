"""Floor 0: what a session has cost."""

from dataclasses import dataclass, field


@dataclass
class Usage:
    """What a session has cost. The first forward, with the encoder's, is prefill; all others are decoding."""

    prefill_fed: int = 0  # tokens of the first forward, and of the encoder's
    prefill_seconds: float = 0.0
    encodes: int = 0  # encoder forwards: at most one a prompt
    forwards: int = 0
    fed: int = 0
    seconds: float = 0.0
    by_fed: dict[int, list[float]] = field(default_factory=dict)  # tokens fed -> [forwards, seconds]
    read: int = 0  # cached positions that the decoding forwards attended to, summed
    off_clock: float = 0.0  # seconds that no clock counts: a synthetic law, a peer's stop strings
    beside: float = 0.0  # of `seconds`, those in which a slower model ran at the same time
    prefill_beside: float = 0.0  # of `prefill_seconds`

    def prefill(self, fed: int, seconds: float) -> None:
        self.prefill_fed += fed
        self.prefill_seconds += seconds

    def decoding(self, fed: int, seconds: float, read: int = 0) -> None:
        self.forwards += 1
        self.fed += fed
        self.seconds += seconds
        self.read += read
        size = self.by_fed.setdefault(fed, [0, 0.0])
        size[0] += 1
        size[1] += seconds

    def overlapped(self, before: "Usage") -> None:
        """What was spent since `before` was spent beside a slower model."""
        self.beside += self.seconds - before.seconds
        self.prefill_beside += self.prefill_seconds - before.prefill_seconds
