"""Predictions for draft trees: expected lengths by enumeration of outcomes, and the best tree against all trees."""

import itertools

import pytest

from specbench.analysis.acceptance import acceptance_by_rank, survival
from specbench.analysis.theory import acceptances, best_tree, drafting_sizes, tree_speedup, tree_with_most_accepted
from specbench.decoding.targets import Last
from specbench.decoding.traits import Theory
from specbench.decoding.trees import children_of, shape_of_widths
from specbench.methods.speculative import Speculative
from specbench.methods.trees import EagleTree, ModelTree
from tests.fixtures.records import record

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
    assert tree_speedup(chain, (0.8,), lambda i, k: (0.05, 1.0)[i], 1.0) == pytest.approx(2.951, abs=1e-3)


def test_the_best_tree_depends_on_the_price_of_a_block():
    def cost(per_token):
        return lambda i, k: 0.05 if i == 0 else 1.0 + per_token * (k - 1)

    free, dear = (best_tree(THEORY, RATES, cost(price), 1.0, 17, 8) for price in (0.0, 0.3))
    assert len(free.shape) == 16 and len(dear.shape) < 4 and free.speedup > dear.speedup
    assert free.text == f"16 tokens, depth {free.depth}, {free.speedup:.2f}x"


def test_trees_have_a_formula_that_plans_and_reports_take():
    for proposer in (ModelTree(model="draft", widths=(2, 1)), EagleTree(head="eagle", base="target")):
        theory = Speculative(proposer=proposer, scorers=("target",), target=Last()).theory()
        assert theory.formula == "tree" and theory.shape == proposer.shape and theory.gamma == (proposer.longest,)


def test_acceptance_by_rank_and_survival():
    rounds = [
        {"tokens": 3, "drafted": 6, "tested": 2, "accepted": 2, "proposers": ["draft"] * 2, "siblings": [1, 2]},
        {"tokens": 2, "drafted": 6, "tested": 2, "accepted": 1, "proposers": ["draft"] * 2, "siblings": [2, 2]},
        {"tokens": 1, "drafted": 6, "tested": 1, "accepted": 0, "proposers": ["draft"], "siblings": [2]},
    ]
    rows = [record(rounds=rounds)]
    # First children: tested in all five depths, accepted once; second ones: four depths, accepted twice
    assert acceptance_by_rank(rows) == [1 / 5, 2 / 4]
    assert survival(rows) == [2 / 3, 1 / 3]
