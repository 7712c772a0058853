"""Chains are exact: joint laws of five tokens by enumeration, for three and four levels over every kind of drafter.

The target is the last of `roles`; a middle's tokens are verified with its own law, whoever drafted them (methods 7.1).
"""

import pytest
import torch
from worlds import until_eos

from specbench.laws import Law, Opened, distance, law, tables
from specbench.method import End
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.speculative import Speculative
from specbench.proposers import Chain, DraftModel, Eagle, PromptLookup
from specbench.sampling import Draft, Sampler, exact_law
from specbench.stops import AdaEDL, Confidence
from specbench.targets import Last

ROUNDING = 1e-9
LENGTH = 5
SHARP = {"temperature": 1.0, "top_p": 0.8}  # most rows of spread-out tables are one-hot then, which keeps branches few
HEADS = {"eagle": "eagle"}


def drafter(kind: str, base: str):
    return {
        "model": DraftModel(model="a", gamma=1),
        "pld": PromptLookup(gamma=1, ngram=2),
        "eagle": Eagle(head="eagle", base=base, gamma=1),
        "eagle, no catch-up": Eagle(head="eagle", base=base, gamma=1, catch_up=False),
    }[kind]


DRAFTERS = ("model", "pld", "eagle", "eagle, no catch-up")


def over(proposer, target: str) -> Speculative:
    return Speculative(proposer=proposer, scorers=(target,), target=Last())


def three(kind: str, threshold: int) -> Speculative:
    return over(Chain(proposer=drafter(kind, "b"), model="b", threshold=threshold), "c")


def four(kind: str, thresholds: tuple[int, int]) -> Speculative:
    inner = Chain(proposer=drafter(kind, "b"), model="b", threshold=thresholds[0])
    return over(Chain(proposer=inner, model="c", threshold=thresholds[1]), "d")


def world(roles: str, seed: int = 0, spread: float = 1.5, vocabulary: int = 2) -> Opened:
    return tables(tuple(roles), vocabulary, seed, spread, heads=HEADS)


def plain(models: Opened, target: str, length: int = LENGTH, **sampling) -> Law:
    return law(Autoregressive(scorers=(target,), target=Last()), models, length, **sampling)


@pytest.mark.parametrize("threshold", [1, 2, 3])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_chain_of_three_has_the_targets_law(kind, threshold):
    models = world("abc", seed=1)
    assert distance(law(three(kind, threshold), models, LENGTH), plain(models, "c")) < ROUNDING
