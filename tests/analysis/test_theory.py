"""Theory against the table of docs/papers/speculative-ensemble.md, Long-run speedup, against simulation with synthetic
acceptance, and against counted forwards.
"""

import itertools
import random
from collections import Counter

import pytest
import torch

from specbench.analysis.acceptance import acceptance_by_rank, survival
from specbench.analysis.theory import (
    Scheme,
    acceptances,
    best_tree,
    drafting_sizes,
    expected_accepted,
    speculative,
    tree,
    tree_with_most_accepted,
)
from specbench.config.presets import preset
from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.method import StopCriteria
from specbench.decoding.rejection import Rejection, Verified, tv
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Usage
from specbench.decoding.targets import Diff, Last, Opt, Target
from specbench.decoding.traits import Theory
from specbench.decoding.trees import children_of, shape_of_widths
from specbench.features.verify.enumeration import TableModels, generate
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.methods.theories.cascade_theory import sequential_cascade
from specbench.methods.theories.ensemble_theory import alternate_proposal
from specbench.methods.tree_drafts import EagleTree, ModelTree
from specbench.runs.record import RoundRecord
from tests.fixtures.formulas import (
    acceptance_of,
    better_proposer,
    ensemble_speedup,
    least_acceptance,
    least_useful_acceptance,
    mixture_acceptance,
    never_slower,
    regret_bound,
    rejection,
    useful_proposer,
)
from tests.fixtures.records import record
from tests.fixtures.worlds import table_world

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
    """Speculative Ensemble, Theorem 3.1, whose proof is Appendix A.2, and the long-run speedup."""

    def cost(i, k):
        return (c, 1.0)[i]

    assert ensemble_speedup([a_q, a_p], [gamma_q, gamma_p], cost) == pytest.approx(exact, abs=5e-5)
    assert speculative(Scheme(gamma=gamma_q, bonus="none"), a_q).speedup(cost, 1 + c) == pytest.approx(
        theorem_31, abs=5e-5
    )
    if a_q == a_p:
        assert alternate_proposal(a_q, gamma_q, gamma_p, c) == pytest.approx(theorem_36, abs=5e-5)


@pytest.mark.parametrize(("n", "a"), [(2, 0.5), (3, 0.75), (4, 0.9)])
def test_the_formula_of_n_equal_models(n, a):
    found = ensemble_speedup([a] * n, [1] * n, lambda i, k: 1.0)
    assert found == pytest.approx(n / (n - (n - 1) * a))


def test_the_formula_of_speculative_sampling():
    assert speculative(Scheme(gamma=5, bonus="exact"), 0.8).speedup(lambda i, k: (0.05, 1.0)[i], 1.0) == pytest.approx(
        2.95, abs=5e-3
    )
    assert expected_accepted(1.0, 4) == 4.0


def test_certain_acceptance_has_a_limit():
    assert ensemble_speedup([1.0, 1.0], [1, 1], lambda i, k: 1.0) == pytest.approx(2.0, rel=1e-3)


class Coin(Target, name="test-coin"):
    """A vocabulary of owners: model i always draws token i, and the last token belongs to none.

    The distribution has all its mass on that token. The rejection rule ignores it; an exact bonus is drawn from it.
    """

    def __init__(self, a: list[float]) -> None:
        self.a = a

    def __call__(self, logits, sampler):
        return torch.eye(len(self.a) + 1)[-1:].expand(len(logits[0]), -1)  # (k, n + 1)


class Fixed:
    """A session that always draws its own token, and counts what it is fed."""

    def __init__(self, own: int, n: int) -> None:
        self.usage, self.read = Usage(), []
        self.row = torch.full((n + 1,), -torch.inf)
        self.row[own] = 0.0

    def score(self, ids, start):
        known = common_prefix(ids, self.read)
        if known < len(ids):
            self.usage.decoding(len(ids) - known, 0.0)
            self.read = list(ids)
        return self.row.expand(len(ids) - start, -1)

    def roll(self, ids, k, sampler, eos):
        return roll(self, ids, k, sampler, eos)

    def room(self, ids):
        return 10**9


class AtOwnersRate(Rejection, name="test-at-owners-rate"):
    """Accepts a proposal at its owner's rate; the owner is the token, and n belongs to none."""

    def __init__(self, a, seed=3):
        self.a, self.chance = a, random.Random(seed)

    def __call__(self, draft, pi, sampler, unread=None):
        read, n = [] if unread is None else unread.tolist(), len(self.a)
        for i, owner in enumerate(draft.tokens):
            if self.chance.random() >= self.a[owner]:
                return Verified([*draft.tokens[:i], n], i, read)
        return Verified([*draft.tokens, *[n] * (len(pi) - len(draft.tokens))], len(draft.tokens), read)


def cycles(method, a, tokens):
    """Counted forwards of the real method over so many tokens, as {(model, tokens fed): forwards}."""
    n, counted = len(a), Counter()
    for _ in range(RUNS):
        models = TableModels({role: Fixed(i, n) for i, role in enumerate("abc"[:n])}, [n])
        committed = sum(
            len(s.tokens) for s in method.rounds(models, Sampler(), StopCriteria(frozenset(), tokens // RUNS + 1))
        )
        assert committed == tokens // RUNS
        for i, role in enumerate("abc"[:n]):
            counted.update({(i, k): count for k, (count, _) in models[role].usage.by_fed.items()})
    return counted


RUNS = 6  # that share the tokens, since long sequences are slow to copy
COSTS = [0.1, 0.3, 1.0]
GRID = [(a, gamma) for gamma in [(1, 1), (5, 1), (2, 3)] for a in [(0.5, 0.9), (0.9, 0.5), (0.95, 0.95)]] + [
    ((0.9, 0.7, 0.8), (3, 2, 1)),
    ((0.75, 0.75, 0.75), (1, 1, 1)),
]


@pytest.mark.parametrize(("a", "gamma"), GRID[::2])
def test_speculative_ensembles_cost_what_is_predicted(a, gamma):
    """Measured cycles are within 2 % of the exact long-run speedup, for every c and two costs of a block."""
    n, tokens = len(a), 8_000
    method = SpeculativeEnsemble(models=tuple("abc"[:n]), gamma=gamma, target=Coin(a), rejection=AtOwnersRate(a))
    counted = cycles(method, a, tokens)
    for c in COSTS:
        for more in (0.0, 0.1):

            def cost(i, k, c=c, more=more):
                return ((c, 1.0) if n == 2 else (c, 1.0, 0.7))[i] * (1 + more * (k - 1))

            spent = sum(count * cost(i, k) for (i, k), count in counted.items())
            measured = tokens * sum(cost(i, 1) for i in range(n)) / spent
            assert measured == pytest.approx(ensemble_speedup(a, gamma, cost), rel=0.02)


def closed_form(a_q, a_p, gq, gp, c):
    """docs/papers/speculative-ensemble.md, Long-run speedup: two models, three kinds of rounds."""
    A, B, e_q, e_p = a_q**gq, a_p**gp, sum(a_q**j for j in range(gq)), sum(a_p**j for j in range(gp))
    P, Q, F = A / (1 + A), A * B / (1 + A), (1 - A * B) / (1 + A)
    cost = F * (c * gq + 1) + P * (gp - 1 + c) + Q * (c * (gq - 1) + 1)
    return (1 + c) * ((F + Q) * e_q + P * e_p) / cost


def test_the_long_run_speedup_is_the_closed_form_and_not_theorem_36():
    """Speculative Ensemble, Theorem 3.6.

    Equal over the whole grid for two models; Theorem 3.6 is off by more than 2 % on most of it.

    See erratum SE-4, docs/papers/speculative-ensemble.md, Errata.
    """
    apart = 0
    pairs = [(a, gamma, c) for a, gamma in GRID if len(a) == 2 for c in COSTS]
    for a, gamma, c in pairs:
        exact = ensemble_speedup(a, gamma, lambda i, k, c=c: (c, 1.0)[i])
        assert exact == pytest.approx(closed_form(*a, *gamma, c), rel=1e-9)
        apart += abs(alternate_proposal(a[0], *gamma, c) / exact - 1) > 0.02
    assert apart > len(pairs) / 2
    assert alternate_proposal(0.8, 1, 1, 1.0) == pytest.approx(closed_form(0.8, 0.8, 1, 1, 1.0)), "where c = 1 = gamma"


@pytest.mark.parametrize(
    ("a", "gamma", "bonus"),
    [((0.5, 0.9), 1, "deferred"), ((0.8, 0.4), 3, "exact"), ((0.95, 0.7), 5, "none"), ((0.8, 0.4), 3, "paper")],
)
def test_cascades_cost_what_is_predicted(a, gamma, bonus):
    """Every bonus mode, where the drafting model is a scorer: measured cycles within 2 % of the formula."""
    tokens = 8_000
    method = Speculative(
        proposer=DraftModel(model="a", gamma=gamma), scorers=("a", "b"), target=Coin(a), bonus=bonus,
        rejection=AtOwnersRate(a),
    )  # fmt: skip
    counted = cycles(method, a, tokens)
    for c in COSTS:

        def cost(i, k, c=c):
            return (c, 1.0)[i] * (1 + 0.1 * (k - 1))

        measured = tokens * cost(1, 1) / sum(count * cost(i, k) for (i, k), count in counted.items())
        counts = speculative(Scheme(gamma=gamma, bonus=bonus, drafter_scores=True), a[0], a[1])
        assert measured == pytest.approx(counts.speedup(cost, cost(1, 1)), rel=0.02)


def test_the_deferred_bonus_is_the_cheapest_exact_one():
    """docs/papers/speccascade.md, Bonus token, for a rule that always keeps q:

    .317 and .350 per token for exact and none, deferred below both.
    """

    def cost(i, k):
        return (0.15, 1.0)[i]

    def spent(bonus, pending=0.0):
        return 1 / speculative(Scheme(gamma=5, bonus=bonus, drafter_scores=True), 1.0, pending).speedup(cost, 1.0)

    assert spent("exact") == pytest.approx(0.317, abs=5e-4)
    assert spent("none") == pytest.approx(0.350, abs=5e-4)
    costs = [spent("deferred", pending) for pending in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert costs[0] == pytest.approx(spent("exact")), "where every t is rejected, each costs a forward"
    assert costs == sorted(costs, reverse=True)


def random_pairs(n=2000, vocabulary=6):
    generator = torch.Generator().manual_seed(5)
    rows = torch.rand(3, n, vocabulary, generator=generator, dtype=torch.float64) ** 3
    return tuple(rows / rows.sum(-1, keepdim=True))


def test_theorem_32_and_the_acceptance_of_mixtures():
    """Speculative Ensemble, Theorem 3.2."""
    q, p, _ = random_pairs()
    for weight in (0.1, 0.5, 0.8):
        pi = weight * q + (1 - weight) * p
        accepted = torch.minimum(q, pi).sum(-1)
        for rate, distance in zip(accepted.tolist()[:50], tv(q, p).tolist(), strict=False):
            assert rate == pytest.approx(mixture_acceptance(weight, distance))
        assert (accepted >= least_acceptance(weight)).all()
    disjoint = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    mixed = 0.3 * disjoint[0] + 0.7 * disjoint[1]
    assert torch.minimum(disjoint[0], mixed).sum().item() == pytest.approx(least_acceptance(0.3))


def test_corollaries_33_to_35():
    """Speculative Ensemble, Corollaries 3.3 to 3.5."""
    for weight in (0.2, 0.5, 0.7):
        rates = {"q": least_acceptance(weight), "p": least_acceptance(1 - weight)}
        assert rates[better_proposer(weight)] == max(rates.values()) >= 0.5

    def two(a, c):
        return speculative(Scheme(gamma=2, bonus="none"), a).speedup(lambda i, k: (c, 1.0)[i], 1 + c)

    for c in (0.1, 0.5, 1.0, 3.0):
        least = least_useful_acceptance(c)
        assert two(least, c) == pytest.approx(1.0)
        assert two(least - 0.01, c) < 1.0 < two(least + 0.01, c)
        for weight in (0.1, 0.3, 0.5, 0.9):  # 3.5: by the weights alone, one proposer is good enough
            useful = useful_proposer(weight, c)
            a, cost = (weight, c) if useful == "q" else (1 - weight, 1 / c)
            assert two(a, cost) >= 1.0 - 1e-12


def test_corollary_37_holds_at_draft_lengths_of_one_only():
    """Speculative Ensemble, Corollary 3.7."""
    for a_q in (0.1, 0.5, 0.99):
        for a_p in (0.1, 0.6, 0.99):
            for c in (0.05, 0.5, 1.0):
                found = ensemble_speedup([a_q, a_p], [1, 1], lambda i, k, c=c: (c, 1.0)[i])
                assert found == pytest.approx(never_slower(a_q, a_p, c))
                assert found >= 1.0
    assert ensemble_speedup([0.6, 0.6], [5, 1], lambda i, k: 1.0) < 0.8, (
        "erratum SE-5, docs/papers/speculative-ensemble.md, Errata"
    )


def test_lemma_3_in_counted_rejections():
    """SpecCascade, Lemma 3.

    Rejections of a cascade's drafts over 8,000 first tokens: within five standard errors of the mean of delta TV."""
    models, target, n = table_world(5, seed=3), Diff(alpha=0.05), 8000
    sampler = Sampler(generator=torch.Generator().manual_seed(1))
    method = Speculative(proposer=DraftModel(model="a", gamma=1), scorers=("a", "b"), target=target, bonus="none")
    rejected = sum(not generate(method, models, sampler, 1)[1][0].accepted for _ in range(n)) / n
    logits = [models[role].score([0], 0) for role in "ab"]
    deferred = target.with_deferral(logits, sampler)[1]
    q, p = (sampler.probs(each) for each in logits)
    expected = rejection(deferred.tolist(), tv(q, p).tolist())
    assert 0.1 < expected < 0.9
    assert abs(rejected - expected) < 5 * (expected * (1 - expected) / n) ** 0.5


def test_lemma_5_bounds_the_regret_of_the_plug_in():
    """SpecCascade, Lemma 5.

    Cost of the plug-in's choice under the truth P, minus the best choice's, at most max |P - q| + max |P - p|."""
    q, p, truth = random_pairs()
    worst = 0.0
    for alpha in (0.0, 0.3, 1.0):
        losses = [1 - truth.gather(-1, probs.argmax(-1, keepdim=True)).squeeze(-1) for probs in (q, p)]
        keep, defer = losses[0], losses[1] + alpha * tv(q, p)
        chosen = torch.where(Opt(alpha=alpha).with_deferral([q.log(), p.log()], Sampler())[1], defer, keep)
        regrets = chosen - torch.minimum(keep, defer)
        bounds = [regret_bound(*rows) for rows in zip(truth.tolist(), q.tolist(), p.tolist(), strict=True)]
        assert (regrets <= torch.tensor(bounds) + 1e-12).all()
        worst = max(worst, regrets.max().item())
    assert worst > 0.05, "the plug-in is wrong at times, or the bound would be tested by nothing"


def test_the_formula_of_sequential_cascades():
    def cost(i, k):
        return (0.2, 1.0)[i] * (1 + 0.1 * (k - 1))

    assert sequential_cascade(0.3).speedup(cost, cost(1, 1)) == pytest.approx(1 / 0.5)
    assert sequential_cascade(0.0).speedup(cost, cost(1, 1)) == pytest.approx(5.0)
    assert sequential_cascade(0.5, tokens=2).speedup(cost, cost(1, 1)) == pytest.approx(1 / (0.2 + 0.5 * 1.1))


def test_an_acceptance_rate_is_found_again_from_the_speedup_it_gives():
    def cost(i: int, fed: int) -> float:
        return [0.2, 1.0][i] * (1 + 0.05 * fed)

    for a in (0.1, 0.6, 0.95):
        assert acceptance_of(ensemble_speedup([a, a], [3, 1], cost), [3, 1], cost) == pytest.approx(a, abs=1e-6)
    with pytest.raises(ValueError, match=r"not between 1\.00 and 2\.00"):
        acceptance_of(2.5, [1, 1], lambda i, fed: 1.0)


TABLE_2 = {  # SE, Table 2, WE-SE: HumanEval, GSM8K, MMLU, CNNDM
    "llama-vicuna": (1.58, 1.52, 1.41, 1.46), "qwen-3b": (1.62, 1.52, 1.42, 1.38),
    "qwen-1.5b": (1.56, 1.46, 1.34, 1.35),
    "qwen-1.5b-3": (1.85, 1.53, 1.38, 1.30),  # 1.27 on CNNDM is printed, but below what the method can give (erratum SE-18)
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE_2)
def test_the_pairs_synthetic_acceptance_is_what_table_2_implies(name):
    table = preset("pair", name).table
    models = len(table["ensemble"])
    for task, speedup in zip(("humaneval", "gsm8k", "mmlu", "cnndm"), TABLE_2[name], strict=True):
        a = table["acceptance"][task]
        assert ensemble_speedup([a] * models, [1] * models, lambda i, fed: 1.0) == pytest.approx(speedup, abs=0.005)


RATES = (0.6, 0.4, 0.3)
THEORY = Theory(formula="tree", models=("draft", "target"), gamma=(2,), bonus="exact")


def walked(shape: tuple[int, ...], rates: tuple[float, ...]) -> float:
    """The expected number of accepted tokens, by following every walk from the root."""
    below = children_of(shape)

    def after(token: int) -> float:
        total, left = 0.0, 1.0
        for child, rate in zip(below[token + 1], rates, strict=False):
            total += left * rate * (1.0 + after(child))
            left *= 1.0 - rate
        return total

    return after(-1)


@pytest.mark.parametrize("shape", [(-1,), (-1, -1, 0, 0, 1), shape_of_widths((3, 2, 1)), shape_of_widths((4,))])
def test_expected_lengths_are_those_of_all_walks(shape):
    """A child whose rank is beyond the rates is never accepted."""
    assert sum(acceptances(shape, RATES)) == pytest.approx(walked(shape, RATES), abs=1e-12)


def all_shapes(size: int):
    """Every tree of this many tokens, children in order."""
    return itertools.product(*(range(-1, i) for i in range(size)))


@pytest.mark.parametrize(("size", "depth"), [(3, 3), (5, 2), (5, 5), (6, 3)])
@pytest.mark.parametrize("rates", [RATES, (0.5, 0.1, 0.9)])
def test_dynamic_programming_finds_the_fullest_tree(size, depth, rates):
    def deep(shape):
        depths = []
        for parent in shape:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return max(depths)

    best = max(
        walked(shape, rates)
        for shape in all_shapes(size)
        if deep(shape) <= depth and all(len(children) <= len(rates) for children in children_of(shape))
    )
    found = tree_with_most_accepted(size, depth, rates)
    assert deep(found) <= depth and walked(found, rates) == pytest.approx(best, abs=1e-12)


def test_no_tree_has_more_tokens_than_the_ranks_allow():
    assert tree_with_most_accepted(4, 1, RATES) is None and tree_with_most_accepted(3, 1, RATES) == (-1, -1, -1)


def test_the_drafter_reads_tokens_with_children_depth_by_depth():
    assert drafting_sizes((-1, -1, 0, 0, 1, 2)) == [1, 2, 1]
    assert drafting_sizes((-1, -1)) == [1]


def test_the_speed_of_a_chain_is_that_of_speculation():
    """Leviathan et al. 2023, Theorem 3.8: a = .8, gamma = 5, c = .05 gives 2.95."""
    chain = Theory(**(vars(THEORY) | {"shape": (-1, 0, 1, 2, 3)}))
    assert tree(chain, (0.8,)).speedup(lambda i, k: (0.05, 1.0)[i], 1.0) == pytest.approx(2.951, abs=1e-3)


def test_the_best_tree_depends_on_the_cost_of_a_block():
    def cost(per_token):
        return lambda i, k: 0.05 if i == 0 else 1.0 + per_token * (k - 1)

    free, dear = (
        best_tree(THEORY, RATES, lambda _, counts, p=each: counts.speedup(cost(p), 1.0), 17, 8) for each in (0.0, 0.3)
    )
    assert len(free.shape) == 16 and len(dear.shape) < 4 and free.speedup > dear.speedup
    assert free.text == f"16 tokens, depth {free.depth}, {free.speedup:.2f}x"


def test_trees_have_a_formula_that_plans_and_reports_take():
    for proposer in (ModelTree(model="draft", widths=(2, 1)), EagleTree(head="eagle", base="target")):
        theory = Speculative(proposer=proposer, scorers=("target",), target=Last()).theory()
        assert theory.formula == "tree" and theory.shape == proposer.shape and theory.gamma == (proposer.longest,)


def test_acceptance_by_rank_and_survival():
    rounds = [
        RoundRecord(
            **{"tokens": 3, "drafted": 6, "tested": 2, "accepted": 2, "proposers": ["draft"] * 2, "siblings": [1, 2]}
        ),
        RoundRecord(
            **{"tokens": 2, "drafted": 6, "tested": 2, "accepted": 1, "proposers": ["draft"] * 2, "siblings": [2, 2]}
        ),
        RoundRecord(**{"tokens": 1, "drafted": 6, "tested": 1, "accepted": 0, "proposers": ["draft"], "siblings": [2]}),
    ]
    rows = [record(rounds=rounds)]
    # First children: tested in all five depths, accepted once; second ones: four depths, accepted twice
    assert acceptance_by_rank(rows) == [1 / 5, 2 / 4]
    assert survival(rows) == [2 / 3, 1 / 3]
