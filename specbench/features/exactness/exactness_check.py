"""One check of exactness: what it is about, what it found, and whether it passed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CheckKind(StrEnum):
    """What a check is about."""

    tokens = "tokens"  # whether tokens follow the distribution
    acceptance = "acceptance"  # whether drafts are accepted as often as they should be
    enumeration = "enumeration"  # the exact distribution on lookup tables
    logits = "logits"  # whether logits differ from the reference's by no more than rounding
    seeds = "seeds"  # whether equal seeds repeat outputs, and different seeds give independent ones
    process = "process"  # whether the server still runs
    control = "control"  # tokens that do not follow the distribution: the check passes if they are rejected


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Args:
        kind: What it is about.
        name: What was tested, in a few words.
        found: What was found, in words.
        measure: The p or the gap that decides, in words; empty if nothing was measured.
        passed: Whether it passed; None if it could not be made. A control passes if it is rejected.
        numbers: Raw values, by name.
        case: The kind of requests that it is about; empty if it is about all outputs.
    """

    kind: CheckKind
    name: str
    found: str
    measure: str = ""
    passed: bool | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    case: str = ""

    @property
    def is_failed(self) -> bool:
        """Whether outputs do not follow their distribution. A control that is not rejected does not count."""
        return self.passed is False and self.kind is not CheckKind.control

    @property
    def word(self) -> str:
        """The result in a word."""
        return {True: "passed", False: "FAILED", None: "not tested"}[self.passed]
