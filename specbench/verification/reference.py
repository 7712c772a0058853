"""Floor 4: what a method put out, and what a fresh reference says of it in one pass."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decoding.loop import Limits, Opened, decode
from specbench.decoding.method import Method
from specbench.decoding.round import Round
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Target

ROUNDINGS = {
    torch.float32: 32.0,
    torch.bfloat16: 2.0,
    torch.float16: 4.0,
}  # of a logit through a model, in units of eps
FARTHEST = 64.0  # logits; a token that is not the law's when raised by so much never is
HALVINGS = 30


class Openable(Protocol):
    """A pair of loaded models, as far as it is verified."""

    eos: frozenset[int]
    window: int | None

    def open(self, prompt: list[int], /) -> Opened: ...


class Output(NamedTuple):
    """What the decoder starts with is `ids`; of an encoder-decoder that is not the prompt."""

    prompt: list[int]
    ids: list[int]
    tokens: list[int]
    rounds: list[Round]


@dataclass(frozen=True)
class Decoding:
    """How many new tokens, and the seed; EOS and window are the pair's."""

    new: int
    seed: int = 0


def put_out(
    method: Method, pair: Openable, prompts: list[list[int]], temperature: float, how: Decoding
) -> Iterator[Output]:
    """An output a prompt, each with a generator of its own."""
    for i, prompt in enumerate(prompts):
        models = pair.open(prompt)
        sampler = Sampler(temperature, generator=torch.Generator(models.device).manual_seed(_seed(how.seed, i)))
        out = decode(method, models, sampler, Limits(pair.eos, how.new, pair.window))
        yield Output(prompt, models.ids, out.tokens, out.rounds)


def _seed(seed: int, i: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{i}".encode()).digest()[:8]) >> 1


def cut_somewhere(prompts: list[list[int]], times: int, seed: int) -> list[list[int]]:
    """Each prompt `times` times, cut behind a place in its later three quarters: where texts break off laws are spread."""
    generator = torch.Generator().manual_seed(_seed(seed, -1))
    shares = torch.rand(times, len(prompts), generator=generator).tolist()
    return [
        prompt[: max(1, round(len(prompt) * (1 + 3 * u) / 4))]
        for row in shares
        for u, prompt in zip(row, prompts, strict=True)
    ]


def forced(reference: Openable, roles: tuple[str, ...], output: Output) -> dict[str, Tensor]:
    """Each model's logits (m, V) at every token of the output, read in one pass by sessions that nobody used before."""
    models = reference.open(output.prompt)
    read = output.ids + output.tokens[:-1]
    return {role: models[role].score(read, len(output.ids) - 1) for role in roles}


def gaps(target: Target, logits: list[Tensor], tokens: list[int]) -> Tensor:
    """By how many logits each token must be raised, in every model, for the greedy law to say it: (m,).

    0 where the law does; inf where it never does. For one model this is the gap to its greatest logit; for a rule that
    chooses between models it is how near the choice was as well.
    """
    x = torch.tensor(tokens, device=logits[0].device).unsqueeze(-1)  # (m, 1)
    greedy = Sampler(0.0)

    def said(raised: Tensor) -> Tensor:
        """Whether the law says x with so much (m, 1) added to its logits, (m, 1)."""
        there = [each.double().scatter_add(-1, x, raised) for each in logits]
        return target(there, greedy).gather(-1, x) > 0.0

    low = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    high = low + FARTHEST
    at_once = said(low)
    if bool(at_once.all()):
        return low.squeeze(-1)
    ever = said(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = said(middle)
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    gap = torch.where(ever, high, torch.inf)
    return torch.where(at_once, 0.0, gap).squeeze(-1)


def allowed(logits: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The gap (m,) that rounding in this dtype may bring about between two ways to compute the same logits."""
    largest = torch.stack([each.abs().amax(-1) for each in logits.values()]).amax(0)
    return ROUNDINGS[dtype] * torch.finfo(dtype).eps * largest.double()
