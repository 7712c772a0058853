"""The mixture-model-like ensemble: the distribution of the weighted ensemble, with one forward of one model per token."""

import random
from collections import Counter

import pytest
import torch

from specbench.decoding.drafting import common_prefix
from specbench.decoding.method import StopCriteria
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Mixture
from specbench.features.verify.enumeration import TableModels, TableSession, distance, joint_distribution, tables
from specbench.methods.autoregressive import Autoregressive, MixtureLike
from specbench.methods.theories.mixture_theory import drawn_model
from tests.fixtures.console import specbench

MODELS = ("a", "b")


class Row(TableSession):
    """A model whose next token has one distribution, and which counts the tokens that each forward reads."""

    def __init__(self, probabilities: tuple[float, ...]) -> None:
        super().__init__(len(probabilities), 0)
        self.row, self.reads = torch.tensor(probabilities, dtype=torch.float64).log(), []

    def score(self, ids, start, tree=None):
        self.reads.append(len(ids) - common_prefix(ids, self.last_scored))
        self.last_scored = list(ids)
        return self.row.expand(len(ids) - start, -1)


def rows(ids: list[int] | None = None) -> TableModels:
    return TableModels({"a": Row((0.9, 0.1)), "b": Row((0.2, 0.8))}, ids)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, (0.55, 0.45)),
        ({"temperature": 2.0}, (0.541667, 0.458333)),  # each model is tempered, and not the mixture
        ({"top_k": 1}, (0.5, 0.5)),  # each model is filtered
    ],
)
def test_a_token_follows_the_mixture_of_tempered_and_filtered_models(sampling, expected):
    found = joint_distribution(MixtureLike(scorers=MODELS, target=Mixture()), rows(), 1, **sampling)
    assert [found[0,], found[1,]] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("weights", [(), (0.2, 0.8), (1.0, 0.0)])
def test_three_tokens_follow_the_weighted_ensemble(weights):
    target, world = Mixture(weights=weights), tables(MODELS, 3)
    found = joint_distribution(MixtureLike(scorers=MODELS, target=target), world, 3)
    exact = joint_distribution(Autoregressive(scorers=MODELS, target=target), world, 3)
    assert distance(found, exact) < 1e-12


def test_a_model_reads_what_the_others_wrote_when_it_is_drawn_next(monkeypatch):
    models, drawn = rows([0, 1, 0]), iter([0, 0, 0, 0, 1, 0, 0, 0])  # a model and a token in turn: a, a, b, a
    monkeypatch.setattr(Sampler, "choose", lambda self, probs, uniform=None: torch.tensor([next(drawn)]))
    list(MixtureLike(scorers=MODELS, target=Mixture()).rounds(models, Sampler(), StopCriteria(frozenset(), 7)))
    assert (models["a"].reads, models["b"].reads) == ([3, 1, 2], [5])


def test_the_counts_of_theory_are_those_of_decoding():
    weights, tokens = (0.3, 0.7), 20_000
    chooser, read, counted = random.Random(0), [0, 0], (Counter(), Counter())
    for written in range(1, tokens + 1):
        model = chooser.choices((0, 1), weights)[0]
        counted[model][written - read[model]] += 1
        read[model] = written
    for found, expected in zip(counted, drawn_model(weights).forwards, strict=True):
        for size in range(1, 5):
            assert found[size] / tokens == pytest.approx(expected[size], abs=0.01)
        assert sum(expected.values()) == pytest.approx(sum(found.values()) / tokens, abs=0.01)


def test_it_is_faster_than_the_ensemble_in_theory_and_undefined_at_temperature_0(tmp_path):
    speedup = drawn_model((0.5, 0.5)).speedup(lambda i, k: (1.0, 3.0)[i], 4.0)
    assert speedup == pytest.approx(2.0)  # the sum of the times over their weighted mean
    done = specbench("plan", "-m", "me", "-p", "tiny", "-t", "gsm8k", "--temperature", "0", cwd=tmp_path, code=2)
    assert "me is not defined at T = 0: the arg max of a drawn model" in done.stderr


def test_a_role_that_is_listed_twice_is_an_error():
    with pytest.raises(ValueError, match="list each role once"):
        MixtureLike(scorers=("a", "a"), target=Mixture())
