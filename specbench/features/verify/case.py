"""What is verified: a method on a pair, its outputs, and a reference model's logits for them."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decoding.loop import GenerationLimits, OpenSessions, decode, output_logits
from specbench.decoding.method import Method
from specbench.decoding.round import Round
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Ends
from specbench.decoding.targets import Target
from specbench.methods.autoregressive import Autoregressive


class Openable(Protocol):
    """The part of a loaded pair that verification needs."""

    @property
    def eos(self) -> frozenset[int]: ...

    def window_of(self, roles: Iterable[str], /) -> tuple[int | None, str]: ...

    def open(self, prompt: list[int], ends: Ends, /) -> OpenSessions: ...


class Output(NamedTuple):
    """The output for one prompt.

    `ids` is what the decoder starts with, which differs from the prompt for an encoder-decoder.
    """

    prompt: list[int]
    ids: list[int]
    tokens: list[int]
    rounds: list[Round]
    ends: Ends = Ends()


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
        ends = Ends(pair.eos, how.new)
        models = pair.open(prompt, ends)
        limits = GenerationLimits(pair.eos, how.new, window, window_of=owner, vocabulary=models.vocabulary)
        sampler = Sampler(temperature, generator=torch.Generator(models.device).manual_seed(_seed(how.seed, i)))
        with torch.inference_mode():
            out = decode(method, models, sampler, limits)
        yield Output(prompt, models.ids, out.tokens, out.rounds, ends)


def _seed(seed: int, i: int) -> int:
    """Return the seed of output i."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{i}".encode()).digest()[:8]) >> 1


def cut_prompts(prompts: list[list[int]], times: int, seed: int) -> list[list[int]]:
    """Return each prompt `times` times, cut at a random position in its last three quarters.

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
    """Return each model's logits (m, V) at every token of the output, computed in one pass by sessions of another loading."""
    return output_logits(reference.open(output.prompt, output.ends), roles, output.tokens)


@dataclass(frozen=True)
class Case:
    """A method on a loaded pair, a second loading of that pair as reference, and the prompts and settings for both.

    The reference should share nothing with what is tested: separate weights in memory, transformers' own modules.
    """

    method: Method
    pair: Openable
    reference: Openable
    dtype: torch.dtype  # the least precise dtype among the models
    prompts: list[list[int]]
    decoding: Decoding
    # Of the sampled checks. Small models are confident, and one-hot distributions hide mistakes.
    temperature: float = 2.0
    cuts: int = 6  # sampled outputs per prompt
    warmer: float = 1.25  # factor on the temperature of a control that runs the declared distribution itself

    @property
    def declared(self) -> tuple[tuple[str, ...], Target]:
        """The scorers and the target of the declared distribution."""
        declared = self.method.declared_distribution()
        assert declared is not None
        return declared

    @property
    def plain(self) -> Method:
        """The method that follows the declared distribution by construction: autoregressive decoding."""
        scorers, target = self.declared
        return Autoregressive(scorers=scorers, target=target)


def first_tested_tokens(output: Output, roles: tuple[str, ...]) -> Iterator[tuple[int, str, bool]]:
    """Yield the position, drafting model and outcome of each round's first tested token, if a model of `roles` drew it.

    That token was drawn after committed tokens only, in every kind of round: a model's draft begins there, a pending
    bonus is tested there, and a chain's draft follows its model's distribution.
    """
    position = 0
    for entry in output.rounds:
        if entry.tested and entry.proposers and entry.proposers[0] in roles:
            yield position, entry.proposers[0], entry.accepted > 0
        position += len(entry.tokens)


def no_first_tests(method: Method) -> str:
    """Return why acceptance cannot be checked."""
    tests, certain = method.verifications(), torch.ones(1)
    if not tests:
        return "nothing is drafted"
    if tests[0].expected(certain, certain) is None:
        return tests[0].why_no_rate
    return f"'{tests[0].proposer}' drafts, and no model of the pair computes its distribution"
