"""What identifies a request of a command, as values: the log finds finished requests by it."""

from dataclasses import dataclass
from enum import StrEnum

from specbench.features.servers.served import ServedSampling


class PromptKind(StrEnum):
    """How a prompt reaches the model."""

    raw = "raw"  # ids, without a cached prefix
    cached = "cached"  # ids whose beginning the server has cached from the same prompt
    chat = "chat"  # messages, which the server renders


@dataclass(frozen=True, kw_only=True)
class RequestKind:
    """The settings that requests of one kind share. `server verify` varies them to find faults."""

    sampling: ServedSampling
    concurrency: int = 1
    is_seeded: bool = False
    prompt: PromptKind = PromptKind.raw

    @property
    def label(self) -> str:
        """The settings in a few words."""
        words = [str(self.sampling), f"concurrency {self.concurrency}"]
        if not self.sampling.is_greedy:
            words.append("seed" if self.is_seeded else "no seed")
        if self.prompt is not PromptKind.raw:
            words.append({PromptKind.cached: "cached prefix", PromptKind.chat: "chat"}[self.prompt])
        return ", ".join(words)


class Role(StrEnum):
    """What an output is compared as."""

    sample = "sample"
    again = "again"  # the output of the same request when it is sent a second time
    control = "control"  # sampled at a higher temperature, which the tests must find


@dataclass(frozen=True, kw_only=True)
class RequestKey:
    """Which request of a command this is.

    Args:
        side: `on` or `off`, the server that it is sent to. In A/A pairs under load, both are the server off.
        kind: The settings that are tested; None under load.
        block: The block of load that it belongs to; 0 outside one.
        prompt: The index of the prompt.
        number: Of several requests with one prompt.
        role: What its output is compared as.
    """

    side: str = "on"
    kind: RequestKind | None = None
    block: int = 0
    prompt: int = 0
    number: int = 0
    role: Role = Role.sample
