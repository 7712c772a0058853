"""How far a server's logits are from the reference's: the rounding of another engine, dtype or quantization."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.reference import MISSING, Reference
from specbench.features.servers.served import ServedRequest

ALTERNATIVES = 20
LEAST = 1e-9  # tokens that are less likely are not compared
MARGIN = 1.5  # the allowed deviation, in largest measured ones
ROUNDINGS = 64  # of the largest logit: the smallest allowed deviation


@dataclass(frozen=True)
class Deviation:
    """Measured differences of log-probabilities between a server and the reference.

    `allowed` is what the tests tolerate: MARGIN times the largest difference, and at least a few roundings in float32.
    """

    of: str
    largest: float
    rms: float
    compared: int
    scale: float  # the largest logit

    @property
    def allowed(self) -> float:
        """The deviation of logits that the tests allow."""
        return max(MARGIN * self.largest, ROUNDINGS * float(torch.finfo(torch.float32).eps) * self.scale)

    @property
    def explanation(self) -> str:
        """Which difference of two builds has this size."""
        if self.largest < 1e-3:
            return "float32 rounding"
        if self.largest < 0.15:
            return "float16 or bfloat16 rounding, or 8-bit weights"
        if self.largest < 1.0:
            return "quantized weights or a quantized cache"
        return "more than rounding: other weights, another tokenizer, or a fault"


async def measured_deviation(
    endpoint: Endpoint, reference: Reference, prefixes: Sequence[tuple[int, ...]], advance: Callable[[], None]
) -> Deviation | None:
    """Compare the server's log-probabilities of the first token after each prefix with the reference's.

    The first token of an output comes from the prompt's forward and is never drafted, so this also measures a server that
    speculates. Returns None if the server returns no log-probabilities.
    """
    differences: list[float] = []
    scale = 0.0
    for prefix in prefixes:
        completion = await endpoint.complete(ServedRequest(prompt=prefix, max_tokens=1, alternatives=ALTERNATIVES))
        advance()
        if not completion.log_probabilities:
            return None
        found = completion.log_probabilities[0]
        logits = (await reference.logits(prefix, [0]))[0]
        scale = max(scale, float(logits[logits > MISSING].abs().max()))
        own = logits.log_softmax(-1)
        differences += [
            value - float(own[token])
            for token, value in found.items()
            if token < len(own) and max(value, float(own[token])) > math.log(LEAST)
        ]
    if not differences:
        return None
    largest = max(map(abs, differences))
    rms = math.sqrt(sum(each * each for each in differences) / len(differences))
    return Deviation(endpoint.description.label, largest, rms, len(differences), scale)
