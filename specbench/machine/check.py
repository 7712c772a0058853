"""The result of one check of a machine or a server."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]  # fail: it cannot be used


@dataclass(frozen=True)
class Check:
    """The result of one check: its state, what was found, and advice."""

    name: str
    state: State
    found: str
    help: str = ""
