"""The properties of a method that reports need, as plain data that run.toml can hold."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Theory:
    """The formula that predicts a method's speed, and the parameters that it takes from the method.

    `formula` is a key of `specbench.analysis.predictions.FORMULAS`. `models` are the roles whose forwards cost time,
    the default proposer first and the target last. `thresholds` has one entry per middle model of a chain, the
    innermost first. `drafter_scores` says whether the proposer is also a scorer. `shape` holds the parent of every token of
    a static draft tree. `parameters` holds other numbers that the formula takes, by name.
    """

    formula: str
    models: tuple[str, ...]
    gamma: tuple[int, ...] = ()
    thresholds: tuple[int, ...] = ()
    bonus: str = ""
    drafter_scores: bool = False
    shape: tuple[int, ...] | None = None
    parameters: dict[str, float] | None = None


Positions = Literal["", "drafted", "tested"]  # of a round


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The properties of a method that are stored with its results.

    `draft_length` is text for a table (`5`, `5, 1`, `up to 10`); empty for methods that do not draft. `adaptive` says
    that a stop rule decides how long a draft is. `flops` says which positions of a round SPRINTER's count of FLOPs has for
    the target, the last of `roles`: the drafted or the tested ones; empty if the count does not apply. `published_rule` names
    a rejection whose tokens follow no declared distribution. `predicts_distance` says that Theorem 1 of SPRINTER holds for
    the method, `is_reference` that other methods are compared with it.
    """

    roles: tuple[str, ...]
    heads: tuple[str, ...] = ()
    draft_length: str = ""
    adaptive: bool = False
    theory: Theory | None = None
    flops: Positions = ""
    predicts_distance: bool = False
    is_reference: bool = False
    published_rule: str | None = None
