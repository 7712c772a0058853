"""The output of a method, and a reference model's logits for it."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decoding.loop import GenerationLimits, OpenSessions, decode
from specbench.decoding.method import Method
from specbench.decoding.round import Round
from specbench.decoding.sampling import Sampler


class Openable(Protocol):
    """The part of a loaded pair that verification needs."""

    @property
    def eos(self) -> frozenset[int]: ...

    def window_of(self, roles: Iterable[str], /) -> tuple[int | None, str]: ...

    def open(self, prompt: list[int], /) -> OpenSessions: ...


class Output(NamedTuple):
    """The output for one prompt. `ids` is what the decoder starts with, which differs from the prompt for an
    encoder-decoder.
    """

    prompt: list[int]
    ids: list[int]
    tokens: list[int]
    rounds: list[Round]


@dataclass(frozen=True)
class Decoding:
    """The number of new tokens and the seed. EOS ids and context window are the pair's."""

    new: int
    seed: int = 0


def generate_outputs(
    method: Method, pair: Openable, prompts: list[list[int]], temperature: float, how: Decoding
) -> Iterator[Output]:
    """Yield one output per prompt, each with its own random generator."""
    window, owner = pair.window_of(method.deciding)
    for i, prompt in enumerate(prompts):
        models = pair.open(prompt)
        limits = GenerationLimits(pair.eos, how.new, window, window_of=owner, vocabulary=models.vocabulary)
        sampler = Sampler(temperature, generator=torch.Generator(models.device).manual_seed(_seed(how.seed, i)))
        out = decode(method, models, sampler, limits)
        yield Output(prompt, models.ids, out.tokens, out.rounds)


def _seed(seed: int, i: int) -> int:
    """Return the seed of output i."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{i}".encode()).digest()[:8]) >> 1


def cut_prompts(prompts: list[list[int]], times: int, seed: int) -> list[list[int]]:
    """Return each prompt `times` times, cut at a random place in its last three quarters.

    Distributions are less concentrated at the end of a truncated text.
    """
    generator = torch.Generator().manual_seed(_seed(seed, -1))
    shares = torch.rand(times, len(prompts), generator=generator).tolist()
    return [
        prompt[: max(1, round(len(prompt) * (1 + 3 * u) / 4))]
        for row in shares
        for u, prompt in zip(row, prompts, strict=True)
    ]


def reference_logits(reference: Openable, roles: tuple[str, ...], output: Output) -> dict[str, Tensor]:
    """Return each model's logits (m, V) at every token of the output, computed in one pass by fresh sessions.

    A model that only drafts may be unable to read some of them. It drafts nothing there, and its rows are those before, or
    uniform.
    """
    models = reference.open(output.prompt)
    read, start = output.ids + output.tokens[:-1], len(output.ids) - 1
    unread = torch.zeros(len(output.tokens), models.vocabulary, device=models.device)
    return {role: models[role].score(read, start) if models[role].room(output.ids) else unread for role in roles}
