"""How far a server's logits are from the reference's: the rounding of another engine, dtype or quantization."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.exactness.reference import MISSING, Reference
from specbench.features.servers.served import ServedRequest

ALTERNATIVES = 20
LEAST = 1e-9  # tokens that are less likely are not compared
MOST_EXPLAINED = 1.0  # nats; rounding does not explain a larger difference
OUTLYING = 10.0
LEAST_OUTLYING = 0.01  # nats; smaller differences are no outliers
MARGIN = 1.5  # the allowed deviation, in largest measured ones
ROUNDINGS = 64  # of the largest logit: the smallest allowed deviation


@dataclass(frozen=True)
class Deviation:
    """Measured differences of log-probabilities between a server and the reference.

    Outliers are excluded, so that a fault does not widen the tolerance. Prefixes whose largest difference is OUTLYING times
    the median of all prefixes are outliers, which are reported as faults, and `allowed` follows from the others.

    Args:
        of: The server.
        largest: The largest difference, without outliers.
        rms: The root mean square of all differences, without outliers.
        compared: Number of log-probabilities.
        scale: The largest logit.
        prefixes: Number of prefixes.
        outliers: The largest differences of outlying prefixes.
    """

    of: str
    largest: float
    rms: float
    compared: int
    scale: float
    prefixes: int = 0
    outliers: tuple[float, ...] = ()

    @property
    def allowed(self) -> float:
        """The deviation of logits that the tests allow."""
        return max(MARGIN * self.largest, ROUNDINGS * float(torch.finfo(torch.float32).eps) * self.scale)

    @property
    def is_unexplained(self) -> bool:
        """Whether the logits differ by more than any rounding, so that no tolerance follows."""
        return self.largest >= MOST_EXPLAINED

    @property
    def fault(self) -> str:
        """What is wrong with the logits themselves; empty if rounding or quantization may explain them."""
        if self.outliers:
            return (
                f"the logits of {len(self.outliers)} of {self.prefixes} prefixes deviate by up to {max(self.outliers):.2g}"
                f" from the reference, those of the others by {self.largest:.2g}"
            )
        if self.is_unexplained:
            return f"its logits deviate by up to {self.largest:.2g} from the reference, {self.explanation}"
        return ""

    @property
    def explanation(self) -> str:
        """Which difference of two builds has this size."""
        if self.largest < 1e-3:
            return "float32 rounding"
        if self.largest < 0.15:
            return "float16 or bfloat16 rounding, or 8-bit weights"
        if self.largest < MOST_EXPLAINED:
            return "quantized weights or a quantized cache"
        return "more than rounding: other weights, another tokenizer, or a fault"


async def measured_deviation(
    endpoint: Endpoint, reference: Reference, prefixes: Sequence[tuple[int, ...]], advance: Callable[[], None]
) -> Deviation | None:
    """Compare the server's log-probabilities of the first token after each prefix with the reference's.

    The first token of an output comes from the prompt's forward and is never drafted, so this also measures a server that
    speculates. Returns None if the server returns no log-probabilities.
    """
    by_prefix: list[list[float]] = []
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
        by_prefix.append(
            [
                abs(value - float(own[token]))
                for token, value in found.items()
                if token < len(own) and max(value, float(own[token])) > math.log(LEAST)
            ]
        )
    return deviation_of(endpoint.description.label, [row for row in by_prefix if row], scale)


def deviation_of(label: str, by_prefix: Sequence[Sequence[float]], scale: float) -> Deviation | None:
    """Return the deviation of absolute differences by prefix; None without any."""
    if not by_prefix:
        return None
    largest = [max(row) for row in by_prefix]
    bound = max(OUTLYING * statistics.median(largest), LEAST_OUTLYING)
    usual = [row for row, most in zip(by_prefix, largest, strict=True) if most <= bound]
    outliers = tuple(most for most in largest if most > bound)
    values = [each for row in usual for each in row]
    rms = math.sqrt(sum(each * each for each in values) / len(values))
    return Deviation(label, max(values), rms, len(values), scale, len(by_prefix), outliers)
