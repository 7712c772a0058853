"""The properties of a method that reports need, as plain data that run.toml can hold."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Theory:
    """The formula that predicts a method's speed, and the parameters that it takes from the method.

    `formula` is the name of a formula (`specbench/analysis/formula.py`). `models` are the roles whose forwards cost time,
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

    Args:
        roles: The models that the method runs, the target last.
        heads: The trained heads that it reads.
        draft_length: Text for a table (`5`, `5, 1`, `up to 10`); empty for methods that do not draft.
        adaptive: Whether a stop rule decides how long a draft is.
        theory: The formula of its speed; None if there is none.
        flops: The positions of a round that SPRINTER's count of FLOPs has for the target; empty if the count does not apply.
        published_rule: A rejection whose tokens follow no declared distribution.
        longest_draft: The largest number of drafted tokens that a round can accept; None without drafts, and in runs of
            earlier revisions unless all drafts have one length.
        predicts_distance: Whether Theorem 1 of SPRINTER holds for the method.
        is_reference: Whether other methods are compared with it besides the baseline.
    """

    roles: tuple[str, ...]
    heads: tuple[str, ...] = ()
    draft_length: str = ""
    adaptive: bool = False
    theory: Theory | None = None
    flops: Positions = ""
    longest_draft: int | None = None
    predicts_distance: bool = False
    is_reference: bool = False
    published_rule: str | None = None
