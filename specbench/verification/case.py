"""Floor 4: what is verified, and what a check says."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.decoding.method import Method
from specbench.decoding.targets import Target
from specbench.methods.autoregressive import Autoregressive
from specbench.verification.reference import Decoding, Openable, Output


@dataclass(frozen=True)
class Case:
    """A method on a loaded pair, a second loading of that pair to hold it against, and what both are asked.

    The reference should share nothing with what is tested: other weights in memory, transformers' own modules.
    """

    method: Method
    pair: Openable
    reference: Openable
    dtype: torch.dtype  # the coarsest of the models'
    prompts: list[list[int]]
    decoding: Decoding
    temperature: float = 2.0  # of the sampled checks: small models are sure of themselves, and certainty hides mistakes
    cuts: int = 6  # outputs that are sampled, a prompt
    warmer: float = 1.25  # the temperature of a control that is no model of its own, in units of the law's

    @property
    def declared(self) -> tuple[tuple[str, ...], Target]:
        declared = self.method.declared_distribution()
        assert declared is not None
        return declared

    @property
    def plain(self) -> Method:
        """The method that has the declared law by construction."""
        scorers, target = self.declared
        return Autoregressive(scorers=scorers, target=target)


@dataclass(frozen=True)
class Check:
    """What one check found. `passed` is None where it could not be made; a control `passed` where it was told apart."""

    name: str
    found: str
    measure: str
    passed: bool | None
    numbers: dict[str, Any] = field(default_factory=dict)  # raw, as JSON takes them
    is_control: bool = False


def first_tests(output: Output, roles: tuple[str, ...]) -> Iterator[tuple[int, str, bool]]:
    """Of each round whose first tested token a model drew: its place in the output, the model, whether it was accepted.

    That token was drawn behind the committed tokens alone, whatever kind of round: a model's draft begins there, a pending
    bonus stands there, and a chain's draft follows its model's law.
    """
    at = 0
    for step in output.rounds:
        if step.tested and step.proposers and step.proposers[0] in roles:
            yield at, step.proposers[0], step.accepted > 0
        at += len(step.tokens)


def undrafted(method: Method) -> str:
    found = method.verification()
    return "nothing is drafted" if found is None else f"'{found[0]}' drafts, whose law no model of the pair gives"
