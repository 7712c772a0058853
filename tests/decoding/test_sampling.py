"""The primitives: distributions from logits, the one choice, verification."""

import math

import pytest
import torch

from specbench.decoding.rejection import residual, tv, verify, verify_at_once
from specbench.decoding.sampling import Draft, EnumeratingSampler, Sampler, exact_distribution
from specbench.decoding.targets import Contrastive, Last, Mixture, Realigned

Q = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
P = torch.tensor([0.2, 0.2, 0.5, 0.1], dtype=torch.float64)
VECTORS = [  # docs/papers/speculative-ensemble.md, Test vectors: target, pi, acceptance of q's draft, of p's
    (Last(), (0.2, 0.2, 0.5, 0.1), 0.6, 1.0),
    (Mixture(weights=(0.25, 0.75)), (0.275, 0.225, 0.4125, 0.0875), 0.7, 0.9),
    (Mixture(), (0.35, 0.25, 0.325, 0.075), 0.8, 0.8),
    (Mixture(weights=(0.75, 0.25)), (0.425, 0.275, 0.2375, 0.0625), 0.9, 0.7),
    (Contrastive(mu=0.1), (0.1818, 0.1913, 0.5125, 0.1144), 0.573, 0.973),
    (Contrastive(mu=0.5), (0.1185, 0.1530, 0.5410, 0.1874), 0.4716, 0.8716),
    (Contrastive(mu=1.0), (0.0625, 0.1042, 0.5208, 0.3125), 0.3667, 0.7667),
    (Realigned(lam=0.5), (0.3491, 0.2704, 0.3024, 0.0781), 0.8196, None),
]


@pytest.mark.parametrize(("target", "pi", "by_q", "by_p"), VECTORS)
def test_targets_give_the_published_vectors(target, pi, by_q, by_p):
    found = target([Q.log().unsqueeze(0), P.log().unsqueeze(0)], Sampler())[0]
    assert found.tolist() == pytest.approx(pi, abs=6e-5)
    assert 1.0 - tv(Q, found).item() == pytest.approx(by_q, abs=6e-5)
    if by_p is not None:
        assert 1.0 - tv(P, found).item() == pytest.approx(by_p, abs=6e-5)


def test_contrastive_subtracts_the_amateur_from_the_expert():
    """The wrong order, amateur minus expert, targets a distribution close to the proposer's.

    See docs/papers/speculative-ensemble.md, Reference code.
    """
    amateur, expert = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    weights = [math.exp(-0.5), math.exp(1.0), 1.0]
    expected = [w / sum(weights) for w in weights]
    assert Contrastive(mu=0.5)([amateur, expert], Sampler())[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("target", "pi", "by_q", "by_p"), VECTORS)
def test_verification_returns_pi_and_accepts_one_minus_tv(target, pi, by_q, by_p):
    """Exactly.

    The distribution of the token is pi, the odds of acceptance 1 - TV, and a replacement never is the rejected token.
    """
    law_pi = target([Q.log().unsqueeze(0), P.log().unsqueeze(0)], Sampler())

    def run(sampler: Sampler):
        drafted = int(sampler.choose(Q))
        out = verify(Draft([drafted], Q.unsqueeze(0)), law_pi, sampler)
        assert out.accepted == 1 or out.tokens != [drafted]
        return out.tokens[0], out.accepted

    found = exact_distribution(run)
    for token in range(4):
        assert sum(w for (t, _), w in found.items() if t == token) == pytest.approx(law_pi[0, token].item(), abs=1e-12)
    assert sum(w for (_, accepted), w in found.items() if accepted) == pytest.approx(1 - tv(Q, law_pi[0]).item())


def test_choosing_the_accepted_length_equals_sequential_tests():
    """`verify` draws the accepted count at once.

    Its distribution is that of k accept-or-reject tests, the first rejection ending.
    """
    q = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.25, 0.75]], dtype=torch.float64)
    pi = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    stay = [0.4, 2 / 3, 0.8]  # of token 0
    found = exact_distribution(lambda sampler: verify(Draft([0, 0, 0], q), pi, sampler).accepted)
    expected = {0: 1 - stay[0], 1: stay[0] * (1 - stay[1]), 2: stay[0] * stay[1] * (1 - stay[2]), 3: math.prod(stay)}
    assert found == pytest.approx(expected)


def test_greedy_distributions_are_one_hot_at_the_lowest_of_equal_ids():
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, 5.0, 5.0]])
    assert Sampler(temperature=0.0).probs(logits).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_greedy_verification_is_matching():
    one_hot = torch.eye(3)
    sampler = Sampler(temperature=0.0)
    assert verify(Draft([1, 2], one_hot[[1, 2]]), one_hot[[1, 0, 2]], sampler).tokens == [1, 0]
    assert verify(Draft([1, 2], one_hot[[1, 2]]), one_hot[[1, 2, 0]], sampler).tokens == [1, 2, 0]


def test_top_k_keeps_k_and_ties_go_to_the_lowest_id():
    assert Sampler(top_k=2).probs(torch.tensor([0.0, 1.0, 1.0, 1.0])).tolist() == pytest.approx([0, 0.5, 0.5, 0])


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert Sampler(top_p=0.5).probs(logits).tolist() == pytest.approx([1, 0, 0, 0])
    assert Sampler(top_p=0.6).probs(logits).tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert Sampler(top_p=1e-9).probs(logits).tolist() == pytest.approx([1, 0, 0, 0])


def test_filters_apply_after_temperature_and_k_before_p():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    tempered = (logits / 0.7).softmax(-1)
    kept = tempered[:2] / tempered[:2].sum()
    expected = [1.0, 0.0] if kept[0] >= 0.7 else kept.tolist()
    assert Sampler(temperature=0.7, top_k=2, top_p=0.7).probs(logits)[:2].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_impossible_settings_are_rejected(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampler(**bad)


def test_a_residual_without_mass_is_pi():
    assert residual(P, P).tolist() == P.tolist()


def test_token_zero_and_a_draft_distribution_of_zero_are_accepted_by_definition():
    q = torch.tensor([[0.0, 1.0]])
    out = verify(Draft([0], q), torch.tensor([[0.5, 0.5]]), Sampler())
    assert out.tokens == [0]
    assert out.accepted == 1


def test_nan_probabilities_are_rejected():
    for row in ([math.nan, 1.0], [0.0, 0.0]):
        with pytest.raises(FloatingPointError):
            Sampler().choose(torch.tensor(row))


def test_tokens_of_zero_probability_are_never_sampled():
    draws = Sampler(generator=torch.Generator().manual_seed(0)).choose(
        torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(9000, -1)
    )
    assert set(draws.tolist()) == {1, 3}
    assert draws.shape == (9000,)


def test_an_empty_draft_gives_one_token_of_pi():
    out = verify(Draft([], torch.empty(0, 0)), torch.tensor([[0.0, 1.0]]), Sampler())
    assert (out.tokens, out.accepted) == ([1], 0)


def _draws(seed: int, count: int = 4000) -> torch.Tensor:
    sampler = Sampler(generator=torch.Generator().manual_seed(seed))
    return sampler.choose(torch.full((count, 4), 0.25))


def test_same_seed_same_tokens_and_other_seeds_differ():
    assert torch.equal(_draws(1), _draws(1))
    assert not torch.equal(_draws(1), _draws(2))


def test_choices_are_uniform_and_independent():
    """Chi-square over pairs of neighbours, 15 degrees of freedom: a false alarm in a million above 56; seed fixed."""
    draws = _draws(3, 64_000)
    counts = torch.bincount(draws[::2] * 4 + draws[1::2], minlength=16).double()
    expected = counts.sum() / 16
    assert ((counts - expected) ** 2 / expected).sum() < 56


def test_the_enumerating_sampler_covers_all_mass_and_forks_only_at_uncertain_choices():
    found = exact_distribution(lambda sampler: tuple(sampler.choose(torch.tensor([[0.25, 0.75], [1.0, 0.0]])).tolist()))
    assert found == pytest.approx({(0, 0): 0.25, (1, 0): 0.75})
    assert EnumeratingSampler([]).choose(torch.tensor([0.0, 1.0])).item() == 1


@pytest.mark.parametrize("seed", range(20))
def test_greedy_verification_compares_tokens_with_the_result_of_the_tests(seed):
    """One-hot pi, and drafts from any distribution; `verify_at_once` computes acceptance and residual."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.rand(4, 3, dtype=torch.float64, generator=generator)
    q /= q.sum(-1, keepdim=True)
    tokens = torch.multinomial(q, 1, generator=generator).flatten().tolist()
    certain = [token if i < seed % 5 else (token + 1) % 3 for i, token in enumerate([*tokens, 0])]
    pi = torch.eye(3, dtype=torch.float64)[certain]  # (5, 3)
    draft, sampler = Draft(tokens, q), Sampler(temperature=0.0)
    assert verify(draft, pi, sampler) == verify_at_once(draft, pi, sampler)
    assert verify(draft, pi[:4], sampler) == verify_at_once(draft, pi[:4], sampler)


@pytest.mark.parametrize("row", [[1.0, math.nan], [1.0, 0.5], [2.0, 0.0], [0.0, 0.0]])
def test_greedy_rows_that_are_no_distributions_raise(row):
    pi = torch.tensor([[1.0, 0.0], row, [0.0, 1.0]])
    with pytest.raises(FloatingPointError):
        verify(Draft([0, 0], torch.tensor([[1.0, 0.0], [1.0, 0.0]])), pi, Sampler(temperature=0.0))
