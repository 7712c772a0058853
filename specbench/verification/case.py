"""What is verified, and the result of one check."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from specbench.config.construct import Table
from specbench.decoding.method import Method
from specbench.decoding.targets import Target
from specbench.methods.autoregressive import Autoregressive
from specbench.verification.reference import Decoding, Openable, Output


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
    temperature: float = (
        2.0  # of the sampled checks; small models are confident, and one-hot distributions hide mistakes
    )
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


@dataclass(frozen=True)
class Check:
    """The result of one check. `passed` is None if the check could not be made; a control passes if it is rejected."""

    name: str
    found: str
    measure: str
    passed: bool | None
    numbers: Table = field(default_factory=dict)  # raw values for JSON output
    is_control: bool = False


def first_tested_tokens(output: Output, roles: tuple[str, ...]) -> Iterator[tuple[int, str, bool]]:
    """Yield the position, drafting model and outcome of each round's first tested token, if a model of `roles` drew it.

    That token was drawn after committed tokens only, in every kind of round: a model's draft begins there, a pending
    bonus is tested there, and a chain's draft follows its model's distribution.
    """
    position = 0
    for each in output.rounds:
        if each.tested and each.proposers and each.proposers[0] in roles:
            yield position, each.proposers[0], each.accepted > 0
        position += len(each.tokens)


def no_first_tests(method: Method) -> str:
    """Return why acceptance cannot be checked."""
    found = method.verification()
    return (
        "nothing is drafted"
        if found is None
        else f"'{found[0]}' drafts, and no model of the pair computes its distribution"
    )
