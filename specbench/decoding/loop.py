"""The decoding driver: runs a method on one prompt, times its rounds, and cuts the output at limits.

Sessions time their own forwards (`specbench/models/model_runner.py`).
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specbench.decoding.checks import CheckedRounds, name_of, require_usage
from specbench.decoding.method import Method, Sessions, StopCriteria
from specbench.decoding.round import Round
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Session, Usage
from specbench.errors import PluginError, exits_as_errors

Clock = Callable[[], float]  # seconds since an arbitrary time


class OpenSessions(Sessions, Protocol):
    """The sessions of a prompt, with access to their usage."""

    @property
    def sessions(self) -> Mapping[str, Session]: ...


@dataclass
class Generation:
    """The result of decoding one prompt. Times are in seconds.

    `tokens` are the committed tokens, including the first stop token.
    """

    tokens: list[int] = field(default_factory=list)
    finish: str = ""  # eos | stop | length | window
    window_of: str = ""  # the model whose context window ended it
    rounds: list[Round] = field(default_factory=list)
    first_token_seconds: float = 0.0  # until the first tokens are committed
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    forward_seconds: float = 0.0  # the part of decode_seconds spent in forwards


@dataclass(frozen=True)
class GenerationLimits:
    """What ends a generation: EOS ids, a number of new tokens, a context window, and stop strings in the detokenized text.

    `window_of` is the model that the context window belongs to. `ends` decides whether a text that contains a stop string
    ends there; by default, it does. Committed token ids are below `vocabulary`.
    """

    eos: frozenset[int]
    max_new_tokens: int
    window: int | None = None
    stop: tuple[str, ...] = ()
    detokenize: Callable[[list[int]], str] | None = None
    ends: Callable[[str], bool] | None = None
    window_of: str = ""
    vocabulary: int = sys.maxsize

    def criteria(self, prompt: int) -> StopCriteria:
        """Return the stop criteria for a prompt of this length.

        Raises ValueError for an empty prompt and for one that fills the context window.
        """
        if not prompt:
            raise ValueError("the prompt has no tokens")
        if self.window is not None and prompt >= self.window:
            owner = f"'{self.window_of}'" if self.window_of else "the models"
            raise ValueError(f"the prompt has {prompt} tokens, but the context window of {owner} is {self.window}")
        length = prompt + self.max_new_tokens
        stopped = self.stopped if self.stop else None
        return StopCriteria(self.eos, length if self.window is None else min(length, self.window), stopped)

    def stopped(self, tokens: list[int]) -> bool:
        """Return whether the last token completed a stop string."""
        if not self.stop:
            return False
        assert self.detokenize is not None
        tail = max(len(s.encode()) for s in self.stop) + 4  # a token has at least one byte, a character at most four
        text = self.detokenize(tokens[-tail:])
        return any(s in text for s in self.stop) and (self.ends is None or self.ends(self.detokenize(tokens)))


def decode(
    method: Method, models: OpenSessions, sampler: Sampler, limits: GenerationLimits, clock: Clock = time.perf_counter
) -> Generation:
    """Run a method on one prompt until it finishes.

    `clock` returns seconds at the rate of `time.perf_counter`, with which sessions time their forwards. It is read around
    each round; cutting, detokenizing and bookkeeping are not timed. The first forward of each model, including its encoder,
    counts as prefill wherever it happens; everything else counts as decoding. The caller enters `torch.inference_mode`.
    Raises PluginError if the method yields an invalid round, ends too early, or exits.
    """
    stop = limits.criteria(len(models.ids))
    out, seconds, finish = Generation(), 0.0, ""
    with exits_as_errors(f"{name_of(method)}: rounds()"):
        rounds = CheckedRounds(method, method.rounds(models, sampler, stop), limits.vocabulary)
        while not finish:
            begin = clock()
            try:
                current = rounds.step()
            except StopIteration:
                ended = f"rounds() ended after {len(out.tokens)} tokens, with room for more"
                raise PluginError(f"{name_of(method)}: {ended}") from None
            seconds += clock() - begin
            rounds.require_valid(current)
            if not out.first_token_seconds:
                untimed = sum(session.usage.excluded_seconds for session in models.sessions.values())
                out.first_token_seconds = seconds - untimed if current.at is None else current.at
            count = 0
            while not finish and count < len(current.tokens):
                out.tokens.append(current.tokens[count])
                count += 1
                finish = _finish(out.tokens, limits, stop.length - len(models.ids))
            out.rounds.append(current.cut(count))
    out.finish, out.window_of = finish, limits.window_of if finish == "window" else ""
    for role, session in models.sessions.items():
        session.finish()
        require_usage(role, session.usage)
    _add_seconds(out, seconds, [session.usage for session in models.sessions.values()])
    return out


def _add_seconds(out: Generation, seconds: float, usages: Sequence[Usage]) -> None:
    """Split the seconds of all rounds into prefill, decoding and forwards, from the times that the sessions measured."""
    out.prefill_seconds = sum(usage.prefill_seconds - usage.prefill_overlapped_seconds for usage in usages)
    out.decode_seconds = seconds - sum(usage.excluded_seconds for usage in usages) - out.prefill_seconds
    out.forward_seconds = sum(usage.own_seconds for usage in usages)


def _finish(tokens: list[int], limits: GenerationLimits, max_tokens: int) -> str:
    """Return why decoding ends after the last token, or an empty string if it continues."""
    if tokens[-1] in limits.eos:
        return "eos"
    if limits.stopped(tokens):
        return "stop"
    if len(tokens) < max_tokens:
        return ""
    return "length" if max_tokens == limits.max_new_tokens else "window"


def output_logits(models: OpenSessions, roles: Iterable[str], tokens: list[int]) -> dict[str, Tensor]:
    """Return each model's logits (m, V) at the m tokens of an output, from one forward of sessions that are still unused.

    A model that only drafts may be unable to read some of the tokens. It drafts nothing after them; their rows repeat the
    last row before them. All rows are uniform if it cannot read the prompt.
    """
    context, start = models.ids + tokens[:-1], len(models.ids) - 1
    unread = torch.zeros(len(tokens), models.vocabulary, device=models.device)
    return {role: models[role].score(context, start) if models[role].room(models.ids) else unread for role in roles}
