"""Whether a run's baseline is slower than its machine allows, which overstates every speedup over it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.machine.hardware import Bandwidth, ForwardCheck

LEAST_BYTES = (
    50_000_000  # that a forward of a baseline reads which memory bandwidth should limit: more than most caches hold
)
LEAST_SHARE = 0.6  # of the memory bandwidth, below which such a baseline is slow
NOISE = 1.05  # a forward up to this multiple of the reference's is as fast: medians of a few repetitions vary
Reason = Literal["bandwidth", "reference"]


@dataclass(frozen=True, kw_only=True)
class SlowBaseline:
    """A baseline over which speedups are overstated, by a factor of at most `factor`.

    `share` is the measured share of `bandwidth`, 1 if memory alone limits the baseline; None if it is not known.
    `reference_ratio` is the time of a one-token forward / the time of transformers' own modules with the same weights; None
    if it was not measured. `reasons` names which of the two show that the baseline is slow.
    """

    method: str
    parameters: int
    reasons: tuple[Reason, ...]
    share: float | None
    bandwidth: Bandwidth
    reference_ratio: float | None
    factor: float


@dataclass(frozen=True, kw_only=True)
class BaselineSpeed:
    """What is known of the speed of a run's baseline.

    `forward_bytes` are the weights that its forwards of one token read, codes and scales where they are quantized. `share` is
    the measured share of `bandwidth`. `checks` has the forward check of each of its models, None if there is none.
    """

    method: str
    parameters: int
    forward_bytes: float
    share: float | None
    bandwidth: Bandwidth
    checks: Sequence[ForwardCheck | None]

    @property
    def reference_ratio(self) -> float | None:
        """The seconds of one-token forwards of all models / the reference's seconds; None unless all have a check."""
        checks = [check for check in self.checks if check]
        if not checks or len(checks) < len(self.checks):
            return None
        return sum(check.seconds for check in checks) / sum(check.reference_seconds for check in checks)


def slow_baseline(speed: BaselineSpeed) -> SlowBaseline | None:
    """Return by how much at most speedups over a baseline are overstated, and why; None if nothing shows that they are.

    A large baseline is slow if it reaches less than LEAST_SHARE of the memory bandwidth; at the whole bandwidth it would be
    1 / share times as fast. Any baseline is slow if its forward of one token is slower than the reference. The factor is the
    larger of 1 / share and the ratio to the reference. The methods' own times are taken as they are, so it is an upper bound
    where memory is the limit.
    """
    factors: dict[Reason, float] = {}
    is_large = speed.forward_bytes >= LEAST_BYTES
    if speed.share and speed.share < LEAST_SHARE and is_large:
        factors["bandwidth"] = 1.0 / speed.share
    ratio = speed.reference_ratio
    if ratio is not None and ratio > NOISE:
        factors["reference"] = ratio
    if not factors:
        return None
    limit = 1.0 / speed.share if speed.share and is_large else 1.0  # what memory allows
    return SlowBaseline(
        method=speed.method, parameters=speed.parameters, reasons=tuple(factors), share=speed.share,
        bandwidth=speed.bandwidth, reference_ratio=ratio, factor=max(limit, *factors.values()),
    )  # fmt: skip
