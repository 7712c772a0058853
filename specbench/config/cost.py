"""The cost of a larger model, which a pair gives to one of its models. Imports no torch."""

import re
from dataclasses import dataclass

COUNT = re.compile(r"\d+(\.\d+)?[KMB]")  # of parameters
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}
MAX_SCALE = 1000.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The weights that a forward of one token reads: `scale` times those of an architecture, or a number of `parameters`.

    `like` is a name or hub id of configs/architectures/. `parameters` is a count such as `80M` or `1.5B`.
    """

    like: str = ""
    scale: float = 1.0
    parameters: str = ""

    def __post_init__(self) -> None:
        if self.like and self.parameters:
            raise ValueError("takes `like` or `parameters`, not both")
        if not (self.like or self.parameters):
            raise ValueError('needs `like` or `parameters`: { like = "llama-2-7b", scale = 0.012 }')
        if self.parameters and self.scale != 1.0:
            raise ValueError(f"scale = {self.scale} goes with `like`, not with `parameters`")
        if not 0.0 < self.scale <= MAX_SCALE:
            raise ValueError(f"scale = {self.scale} must be positive and at most {MAX_SCALE:g}")
        if self.parameters and not COUNT.fullmatch(self.parameters):
            raise ValueError(f"parameters = '{self.parameters}' must be a number with K, M or B, such as 80M or 1.5B")

    @property
    def parameter_count(self) -> float:
        """`parameters` as a number."""
        return float(self.parameters[:-1]) * UNITS[self.parameters[-1]]

    @property
    def label(self) -> str:
        """The cost in words: `1/83 of llama-2-7b`."""
        if self.parameters:
            return f"{self.parameters} parameters"
        if self.scale < 1.0:
            return f"1/{float(f'{1.0 / self.scale:.3g}'):,g} of {self.like}"
        return f"{self.scale:g} x {self.like}" if self.scale > 1.0 else self.like
