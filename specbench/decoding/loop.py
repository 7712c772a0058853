"""Floor 3: the driver, the only loop that knows the clock. One definition of a token, of a second, of an end."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from specbench.decoding.method import Method, Sessions, StopCriteria
from specbench.decoding.round import Round
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Session


class Opened(Sessions, Protocol):
    """Sessions of a prompt whose costs can be read."""

    @property
    def sessions(self) -> Mapping[str, Session]: ...


@dataclass
class Generation:
    """What one decoding gave: committed tokens (the first stop included), why it ended, its rounds and its seconds."""

    tokens: list[int] = field(default_factory=list)
    finish: str = ""  # eos | stop | length | window
    rounds: list[Round] = field(default_factory=list)
    first_token_seconds: float = 0.0  # from the prompt to the first committed tokens
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    forward_seconds: float = 0.0  # the part of decode_seconds that models took


@dataclass(frozen=True)
class Limits:
    """Where the driver cuts: EOS ids, most new tokens, the models' context window, stop strings on detokenised text."""

    eos: frozenset[int]
    max_new_tokens: int
    window: int | None = None
    stop: tuple[str, ...] = ()
    detokenise: Callable[[list[int]], str] | None = None

    def end(self, prompt: int) -> StopCriteria:
        """Raises ValueError for an empty prompt, and for one that leaves no room in the window."""
        if not prompt:
            raise ValueError("the prompt has no tokens")
        if self.window is not None and prompt >= self.window:
            raise ValueError(f"the prompt has {prompt} tokens, the models' context window {self.window}")
        length = prompt + self.max_new_tokens
        stopped = self.stopped if self.stop else None
        return StopCriteria(self.eos, length if self.window is None else min(length, self.window), stopped)

    def stopped(self, tokens: list[int]) -> bool:
        """Whether the last token completed a stop string."""
        if not self.stop:
            return False
        assert self.detokenise is not None
        tail = max(len(s.encode()) for s in self.stop) + 4  # a token has a byte at least, a character four at most
        text = self.detokenise(tokens[-tail:])
        return any(s in text for s in self.stop)


def decode(method: Method, models: Opened, sampler: Sampler, limits: Limits) -> Generation:
    """Run a method on one prompt to its end.

    The clock runs around the method's rounds alone: cutting, detokenising and bookkeeping are outside it. Each model's
    first forward, and its encoder's, is prefill wherever it happens; everything else is decoding.
    """
    end = limits.end(len(models.ids))
    out, clock, finish = Generation(), 0.0, ""
    with torch.inference_mode():
        steps = method.rounds(models, sampler, end)
        while not finish:
            begin = time.perf_counter()
            step = next(steps)
            clock += time.perf_counter() - begin
            if not out.first_token_seconds:
                off = sum(session.usage.off_clock for session in models.sessions.values())
                out.first_token_seconds = clock - off if step.at is None else step.at
            kept = 0
            while not finish and kept < len(step.tokens):
                out.tokens.append(step.tokens[kept])
                kept += 1
                finish = _finish(out.tokens, limits, end.length - len(models.ids))
            out.rounds.append(step.cut(kept))
    for session in models.sessions.values():
        session.settle()
    usage = [session.usage for session in models.sessions.values()]
    clock -= sum(each.off_clock for each in usage)
    out.finish, out.prefill_seconds = finish, sum(each.prefill_seconds - each.prefill_beside for each in usage)
    out.decode_seconds = clock - out.prefill_seconds
    out.forward_seconds = sum(each.seconds - each.beside for each in usage)
    return out


def _finish(tokens: list[int], limits: Limits, most: int) -> str:
    """Why decoding ends behind the last token; empty where it goes on."""
    if tokens[-1] in limits.eos:
        return "eos"
    if limits.stopped(tokens):
        return "stop"
    if len(tokens) < most:
        return ""
    return "length" if most == limits.max_new_tokens else "window"
