"""Theory against the table of methods 3.7, against simulation with synthetic acceptance, and against counted forwards."""

import random

import pytest
import torch

from specbench.laws import Opened
from specbench.method import End
from specbench.methods import speculative_ensemble as module
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.presets import preset
from specbench.sampling import Sampler, Verified
from specbench.session import Calls
from specbench.targets import Target
from specbench.theory import acceptance_of, alternate_proposal, expected_accepted, speculative, speculative_ensemble

TABLE = [  # a_q, a_p, gamma_q, gamma_p, c, exact, Theorem 3.6, Theorem 3.1
    (0.8, 0.8, 1, 1, 1.0, 1.6667, 1.6667, 1.0000),
    (0.8, 0.8, 1, 1, 0.1, 1.7742, 1.0784, 1.0000),
    (0.8, 0.8, 5, 1, 0.1, 2.6937, 2.6041, 2.4652),
    (0.7, 0.9, 5, 1, 0.2, 1.7617, 1.7891, 1.6639),
    (0.6, 0.6, 5, 1, 1.0, 0.7904, 0.8539, 0.7685),
    (0.6, 0.6, 2, 3, 0.5, 1.2088, 1.2685, 1.2000),
]


@pytest.mark.parametrize(("a_q", "a_p", "gamma_q", "gamma_p", "c", "exact", "theorem_36", "theorem_31"), TABLE)
def test_the_published_table(a_q, a_p, gamma_q, gamma_p, c, exact, theorem_36, theorem_31):
    def cost(i, k):
        return (c, 1.0)[i]

    assert speculative_ensemble([a_q, a_p], [gamma_q, gamma_p], cost) == pytest.approx(exact, abs=5e-5)
    assert speculative(a_q, gamma_q, cost, 1 + c, bonus=False, scorers=1) == pytest.approx(theorem_31, abs=5e-5)
    if a_q == a_p:
        assert alternate_proposal(a_q, gamma_q, gamma_p, c) == pytest.approx(theorem_36, abs=5e-5)


@pytest.mark.parametrize(("n", "a"), [(2, 0.5), (3, 0.75), (4, 0.9)])
def test_n_equal_models(n, a):
    found = speculative_ensemble([a] * n, [1] * n, lambda i, k: 1.0)
    assert found == pytest.approx(n / (n - (n - 1) * a))


def test_speculative_sampling():
    assert speculative(0.8, 5, lambda i, k: (0.05, 1.0)[i], 1.0, bonus=True, scorers=1) == pytest.approx(2.95, abs=5e-3)
    assert expected_accepted(1.0, 4) == 4.0


def test_certain_acceptance_has_a_limit():
    assert speculative_ensemble([1.0, 1.0], [1, 1], lambda i, k: 1.0) == pytest.approx(2.0, rel=1e-3)


class Coin(Target, name="test-coin"):
    """Synthetic acceptance over a vocabulary of owners: model i always draws token i; it is kept with probability a[i].

    A refused token is replaced by a token of nobody's.
    """

    def __init__(self, a: list[float]) -> None:
        self.a = a

    def __call__(self, logits, sampler):
        return torch.tensor([[*self.a, 0.0]]).expand(len(logits[0]), -1)  # (k, n + 1), by owner


class Fixed:
    """A session that always draws its own token, and counts what it is fed."""

    def __init__(self, own: int, n: int) -> None:
        self.calls, self.read = Calls(), []
        self.row = torch.full((n + 1,), -torch.inf)
        self.row[own] = 0.0

    def score(self, ids, start):
        known = next(
            (i for i, (x, y) in enumerate(zip(ids, self.read, strict=False)) if x != y), min(len(ids), len(self.read))
        )
        if known < len(ids):
            self.calls.decoding(len(ids) - known, 0.0)
            self.read = list(ids)
        return self.row.expand(len(ids) - start, -1)


@pytest.mark.parametrize(
    ("a", "gamma"), [([0.8, 0.8], (1, 1)), ([0.7, 0.9], (5, 1)), ([0.6, 0.6], (2, 3)), ([0.9, 0.7, 0.8], (3, 2, 1))]
)
def test_the_algorithm_costs_what_theory_says(a, gamma, monkeypatch):
    """Counted forwards of the real method over 6,000 tokens against the formula, within 3 %, with a price for block size."""
    rng, n = random.Random(3), len(a)

    def verify(draft, pi, sampler):
        """Synthetic acceptance: the owner is the token."""
        for i, owner in enumerate(draft.tokens):
            if rng.random() >= a[owner]:
                return Verified([*draft.tokens[:i], n], i)
        return Verified(draft.tokens, len(draft.tokens))

    monkeypatch.setattr(module, "verify", verify)
    roles = tuple("abc"[:n])

    models = Opened({role: Fixed(i, n) for i, role in enumerate(roles)}, [n])
    method = SpeculativeEnsemble(models=roles, gamma=gamma, target=Coin(a))
    tokens = sum(len(s.tokens) for s in method.steps(models, Sampler(), End(frozenset(), 6001)))

    def cost(i, k):
        return (1.0, 0.6, 1.4)[i] * (1 + 0.1 * (k - 1))

    spent = sum(count * cost(i, k) for i, r in enumerate(roles) for k, (count, _) in models[r].calls.by_fed.items())
    measured = tokens * sum(cost(i, 1) for i in range(n)) / spent
    assert measured == pytest.approx(speculative_ensemble(a, gamma, cost), rel=0.03)


def test_an_acceptance_rate_is_found_again_from_the_speedup_it_gives():
    def cost(i: int, fed: int) -> float:
        return [0.2, 1.0][i] * (1 + 0.05 * fed)

    for a in (0.1, 0.6, 0.95):
        assert acceptance_of(speculative_ensemble([a, a], [3, 1], cost), [3, 1], cost) == pytest.approx(a, abs=1e-6)
    with pytest.raises(ValueError, match=r"not between 1\.00 and 2\.00"):
        acceptance_of(2.5, [1, 1], lambda i, fed: 1.0)


TABLE_2 = {  # SE, Table 2, WE-SE: HumanEval, GSM8K, MMLU, CNNDM
    "llama-vicuna": (1.58, 1.52, 1.41, 1.46), "qwen-3b": (1.62, 1.52, 1.42, 1.38),
    "qwen-1.5b": (1.56, 1.46, 1.34, 1.35), "qwen-1.5b-3": (1.85, 1.53, 1.38, 1.27),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE_2)
def test_the_pairs_synthetic_acceptance_is_what_table_2_implies(name):
    table = preset("pair", name).table
    models = len(table["ensemble"])
    for task, speedup in zip(("humaneval", "gsm8k", "mmlu", "cnndm"), TABLE_2[name], strict=True):
        a = table["acceptance"][task]
        assert speculative_ensemble([a] * models, [1] * models, lambda i, fed: 1.0) == pytest.approx(speedup, abs=0.005)
