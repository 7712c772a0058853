"""Draft trees: shapes, growth, and the multi-round test, exact by enumeration for every kind of tree; mutants are not."""

import dataclasses

import pytest
import torch

from specbench.decoding import rejection, trees
from specbench.decoding.method import StopCriteria
from specbench.decoding.rejection import BY_TOKEN, BlockRejection
from specbench.decoding.sampling import Draft, Sampler, Tree, exact_distribution, read_tokens
from specbench.decoding.speculation import without_leaves
from specbench.decoding.targets import Last, Mixture, Opt
from specbench.decoding.trees import Growth, shape_of_paths, shape_of_widths
from specbench.features.verify.enumeration import (
    ROUNDING,
    SETTINGS,
    distance,
    examine,
    examine_drafts,
    generate,
    joint_distribution,
    tables,
)
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.block_drafts import BlockDraft
from specbench.methods.proposers import Chain, DraftModel, Eagle
from specbench.methods.speculative import Speculative
from specbench.methods.tree_drafts import EAGLE_TREE, Eagle2, EagleTree, ModelTree
from specbench.models.heads.block_session import ConfidenceCut
from tests.fixtures.worlds import until_eos

WIDE = ModelTree(model="draft", widths=(2, 2), children="sampled")
CHOSEN = ModelTree(model="draft", widths=(2, 1), children="chosen")
HEADS = {"eagle": "eagle"}
STATIC = EagleTree(head="eagle", base="target", paths=((0,), (1,), (0, 0), (0, 1), (1, 0)), children="sampled")
DYNAMIC = Eagle2(head="eagle", base="target", width=2, depth=2, size=4)


def last(proposer) -> Speculative:
    return Speculative(proposer=proposer, scorers=("target",), target=Last())


EXACT = {
    "sampled": (last(WIDE), {}),
    "chosen": (last(CHOSEN), {}),
    "static tree of a head": (last(STATIC), HEADS),
    "dynamic tree of a head": (last(DYNAMIC), HEADS),
    "mixture": (Speculative(proposer=WIDE, scorers=("draft", "target"), target=Mixture(), bonus="none"), {}),
    "cascade": (Speculative(proposer=CHOSEN, scorers=("draft", "target"), target=Opt(alpha=0.3), bonus="exact"), {}),
    "in a chain": (last(Chain(proposer=CHOSEN, model="middle", threshold=2)), {}),
}


def error_of(method: Speculative, heads: dict[str, str], length: int, vocabulary: int = 2, **setting: float) -> float:
    """The distance of the joint distribution of some tokens from the declared one."""
    scorers, target = method.declared_distribution()
    world = tables(method.roles(), vocabulary, heads=heads)
    plain = Autoregressive(scorers=scorers, target=target)
    return distance(*(joint_distribution(each, world, length, **setting) for each in (method, plain)))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", EXACT)
def test_trees_are_exact_at_every_setting(name, setting):
    assert error_of(*EXACT[name], 3, **SETTINGS[setting]) < ROUNDING


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rejection", [None, BlockRejection()])
@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_chains_of_a_head_are_exact(kind, rejection, setting):
    """The EAGLE-3 head drafts two of three tokens; the residual gives the third its probability."""
    chain = Speculative(
        proposer=Eagle(head="eagle", base="target", gamma=2), scorers=("target",), target=Last(),
        **({"rejection": rejection} if rejection else {}),
    )  # fmt: skip
    assert error_of(chain, {"eagle": kind}, 3, 3, **SETTINGS[setting]) < ROUNDING


CUTS = {"whole": {}, "threshold": {"threshold": 0.5}, "costs": {"costs": (1.2, 1.9)}}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rejection", [None, BlockRejection()])
@pytest.mark.parametrize(("kind", "cut"), [("dflash", "whole"), *(("dspark", cut) for cut in CUTS)])
def test_blocks_of_a_head_are_exact(kind, cut, rejection, setting):
    """DSpark has a Markov head, and a confidence that reads the tokens before."""
    method = Speculative(
        proposer=BlockDraft(head=kind, base="target", gamma=2, **CUTS[cut]), scorers=("target",), target=Last(),
        **({"rejection": rejection} if rejection else {}),
    )  # fmt: skip
    assert error_of(method, {kind: kind}, 3, 3, **SETTINGS[setting]) < ROUNDING


def test_a_schedule_over_all_lengths_of_a_draft_is_not_exact():
    """Whether the first token is tested then depends on the second one. The method declares no distribution."""
    proposer = BlockDraft(head="dspark", base="target", gamma=2, costs=(1.55, 1.56), all_prefixes=True)
    method = Speculative(proposer=proposer, scorers=("target",), target=Last())
    assert method.declared_distribution() is None and method.traits().published_rule == "all_prefixes"
    world, plain = (
        tables(method.roles(), 3, heads={"dspark": "dspark"}),
        Autoregressive(scorers=("target",), target=Last()),
    )
    assert distance(*(joint_distribution(each, world, 4) for each in (method, plain))) > 0.05


@pytest.mark.parametrize(("all_prefixes", "expected"), [(False, 0.7), (True, 0.85)])
def test_the_counterexample_of_dspark(all_prefixes, expected):
    """Appendix A of the paper: p = (.7, .3), q = (.5, .5), forwards of 1, .5 and .45 per second, c_1 = .8, and c_2 = 1 after
    token 0 and 0 after token 1.
    """
    cut = ConfidenceCut(costs=(1 / 0.5, 1 / 0.45), all_prefixes=all_prefixes)
    p, q = torch.tensor([[0.7, 0.3]] * 3, dtype=torch.float64), torch.tensor([[0.5, 0.5]] * 2, dtype=torch.float64)

    def first_token(sampler: Sampler) -> tuple[int]:
        drafted = [read_tokens(sampler.choose(row[None]))[0] for row in q]
        kept = cut.length([0.8, 1.0 if drafted[0] == 0 else 0.0])
        draft = Draft(drafted[:kept], q[:kept])
        return (BY_TOKEN(draft, p[: kept + 1], sampler).tokens[0],)

    assert exact_distribution(first_token, temperature=1.0)[(0,)] == pytest.approx(expected)


@pytest.mark.parametrize("proposer", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_trees_of_a_head_that_leaves_a_token_out_are_exact(proposer):
    assert error_of(last(proposer), {"eagle": "eagle3"}, 2, 3) < ROUNDING


CHAIN = Speculative(
    proposer=DraftModel(model="draft", gamma=3), scorers=("target",), target=Last(), rejection=BlockRejection()
)


@pytest.mark.parametrize("name", [*(name for name in EXACT if name != "mixture"), "block"])
def test_four_tokens_are_exact(name):
    """Two rounds at least, so that the second draft follows a path through the first."""
    method, heads = (CHAIN, {}) if name == "block" else EXACT[name]
    assert error_of(method, heads, 4) < ROUNDING


THREE_TOKENS = {
    "sampled": (last(ModelTree(model="draft", widths=(2,), children="sampled")), {}),
    "chosen": EXACT["chosen"],
    "dynamic": EXACT["dynamic tree of a head"],
}


@pytest.mark.parametrize("name", THREE_TOKENS)
def test_trees_over_three_tokens_are_exact(name):
    """Two children of three tokens leave a residual."""
    method, heads = THREE_TOKENS[name]
    compared = examine(method, heads, vocabulary=3)
    assert all(comparison.exact for comparison in compared), compared


def test_first_rounds_are_exact_at_every_depth():
    deep = last(ModelTree(model="draft", widths=(2, 1), children="sampled"))
    compared = examine_drafts(deep, vocabulary=3)
    assert compared and all(comparison.exact for comparison in compared)


def with_replacement(draws: int):
    """A proposer's tree whose children are drawn with replacement: their rows are q, and equal tokens may be siblings."""

    def propose(models, sampler, ids, room):
        probs = sampler.probs(models["draft"].score(ids, len(ids) - 1)).expand(draws, -1)  # (draws, V)
        return Draft([int(sampler.choose(row)) for row in probs], probs, parents=(-1,) * draws)

    return propose


def test_children_drawn_with_replacement_are_exact():
    world = tables(("draft", "target"), 3)

    def run(sampler: Sampler) -> int:
        draft = with_replacement(3)(world, sampler, [0], 3)
        pi = sampler.probs(world["target"].score([0], 0, Tree(draft.tokens, draft.parents)))
        return rejection.verify_tree(draft, pi, sampler).tokens[0]

    pi = Sampler().probs(world["target"].score([0], 0))[0]
    found = exact_distribution(run)
    assert [found[token] for token in range(3)] == pytest.approx(pi.tolist(), abs=1e-12)


def test_an_eos_in_a_tree_does_not_bias_the_output():
    world = tables(("draft", "target"), 3)
    tree = last(ModelTree(model="draft", widths=(2, 1), children="chosen"))
    one = exact_distribution(lambda sampler: until_eos(tree, world, 1, sampler))
    two = exact_distribution(lambda sampler: until_eos(last(DraftModel(model="draft", gamma=2)), world, 1, sampler))
    assert all(one.get(key, 0.0) == pytest.approx(two.get(key, 0.0), abs=1e-9) for key in one.keys() | two.keys())


# Mutants


def reranked(right):
    """Two sampled children of the root, ordered by their probabilities."""

    def mutant(logits, counts, is_open, sampler):
        drawn = right(logits, counts, is_open, sampler)
        one, two = drawn.tokens.tolist()
        if drawn.probs[0, two] > drawn.probs[0, one]:
            return drawn._replace(tokens=drawn.tokens.flip(0))
        return drawn

    return mutant


def earlier_sibling_kept(right):
    """The rows of later children still contain the earlier ones."""

    def mutant(logits, counts, is_open, sampler):
        return right(logits, counts, is_open, sampler)._replace(probs=sampler.probs(logits).expand(2, -1))

    return mutant


def treated_as_sampled(right):
    """Chosen children have the rows of sampled ones."""

    def mutant(logits, counts, is_open):
        drawn = right(logits, counts, is_open)
        return drawn._replace(probs=logits.softmax(-1).repeat(max(counts), 1))

    return mutant


@pytest.mark.parametrize(
    ("part", "change", "method"),
    [
        ("sampled_children", reranked, "sampled"),
        ("sampled_children", earlier_sibling_kept, "sampled"),
        ("chosen_children", treated_as_sampled, "chosen"),
    ],
)
def test_mutants_of_growth_are_not_exact(part, change, method, monkeypatch):
    monkeypatch.setattr(trees, part, change(getattr(trees, part)))
    assert not all(comparison.exact for comparison in examine(THREE_TOKENS[method][0], vocabulary=3))


def test_the_residual_of_the_wrong_prefix_is_not_exact(monkeypatch):
    right = rejection.rows_of_tree
    monkeypatch.setattr(rejection, "rows_of_tree", lambda children, count: [0, *right(children, count)[:-1]])
    assert error_of(*EXACT["sampled"], 3) > 0.01


def test_the_wrong_path_is_not_exact(monkeypatch):
    right = rejection.path_to
    monkeypatch.setattr(rejection, "path_to", lambda parents, token: right(parents, token)[-1:])
    assert error_of(*EXACT["sampled"], 3) > 0.01


# Acceptance, shapes and growth


def accepted(proposer, seed: int, temperature: float = 1.0) -> float:
    """The expected number of accepted tokens of the first draft."""
    world = tables(("draft", "target"), 3, seed)
    stop = StopCriteria(frozenset(), 4)
    counts = exact_distribution(
        lambda sampler: next(last(proposer).rounds(world, sampler, stop)).accepted, temperature=temperature
    )
    return sum(count * mass for count, mass in counts.items())


@pytest.mark.parametrize("seed", range(2))
def test_a_tree_accepts_more_than_the_chain_in_it(seed):
    assert accepted(WIDE, seed) > accepted(DraftModel(model="draft", gamma=2), seed) + 0.01
    chosen = dataclasses.replace(WIDE, children="chosen")
    assert accepted(chosen, seed, 0.0) >= accepted(DraftModel(model="draft", gamma=2), seed, 0.0)


def test_rounds_count_the_tested_children_of_every_depth():
    world, rounds = tables(("draft", "target"), 3), []
    for seed in range(40):
        sampler = Sampler(generator=torch.Generator().manual_seed(seed))
        rounds += generate(last(WIDE), world, sampler, 6)[1]
    for entry in rounds:
        assert len(entry.siblings) == entry.tested and entry.tested - entry.accepted in (0, 1)
        assert all(1 <= children <= 2 for children in entry.siblings)
        assert entry.drafted <= 6 and len(entry.tokens) == entry.accepted + 1
    assert {children for entry in rounds for children in entry.siblings} == {1, 2}
    assert any(entry.tested > entry.accepted for entry in rounds) and any(entry.accepted == 2 for entry in rounds)


def test_shapes():
    assert shape_of_widths((2, 2)) == (-1, -1, 0, 0, 1, 1)
    assert shape_of_paths([(1,), (0,), (0, 0)]) == (-1, -1, 0)
    assert len(EAGLE_TREE) == len(set(EAGLE_TREE)) == len(shape_of_paths(EAGLE_TREE)) == 25
    assert without_leaves(Tree([5, 6, 7, 8], (-1, -1, 1, 2))) == Tree([6, 7], (-1, 0))
    for paths in ([(1,)], [(0,), (0, 1)], [(0, 0)]):
        with pytest.raises(ValueError, match="is missing"):
            shape_of_paths(paths)


def test_a_sampled_tree_at_temperature_zero_is_a_chain_and_the_default_chooses():
    logits = torch.tensor([[0.0, 3.0, 1.0]])

    def grow(children):
        growth = Growth(logits, lambda tokens, parents: logits.expand(len(tokens), -1), 2, frozenset())
        return growth.grow(shape_of_widths((2, 1)), Sampler(temperature=0.0), children)

    assert grow("sampled").tokens == [1, 1] and grow("auto").tokens == [1, 2, 1, 1]


def test_top_k_leaves_fewer_children_than_asked():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    growth = Growth(logits, lambda tokens, parents: logits.expand(len(tokens), -1), 1, frozenset())
    draft = growth.grow(shape_of_widths((4,)), Sampler(top_k=2), "sampled")
    assert sorted(draft.tokens) == [1, 3] and draft.probs[1].max() == 1.0


def test_nothing_follows_an_eos():
    logits = torch.tensor([[5.0, 3.0, 1.0]])
    growth = Growth(logits, lambda tokens, parents: logits.expand(len(tokens), -1), 3, frozenset({0}))
    static = growth.grow(shape_of_widths((2, 2)), Sampler(), "chosen")
    assert static.tokens == [0, 1, 0, 1] and static.parents == (-1, -1, 1, 1)
    dynamic = growth.grow_by_confidence(2, 3, 6)
    assert all(dynamic.tokens[parent] != 0 for parent in dynamic.parents if parent >= 0)


def test_a_dynamic_tree_has_the_most_probable_tokens():
    probs = torch.tensor([[0.6, 0.3, 0.1]])
    growth = Growth(probs.log(), lambda tokens, parents: probs.log().expand(len(tokens), -1), 3, frozenset())
    draft = growth.grow_by_confidence(2, 3, 4)
    # 0.6, 0.36 and 0.3 come before 0.216 (three times the first token) and 0.18
    assert draft.tokens == [0, 1, 0, 0] and draft.parents == (-1, -1, 0, 2)
    assert draft.probs.tolist() == torch.eye(3)[[0, 1, 0, 0]].tolist()


@pytest.mark.parametrize("children", ["auto", "sampled", "chosen"])
def test_block_verification_rejects_trees(children):
    tree = ModelTree(model="draft", children=children)
    with pytest.raises(ValueError, match="tests chains"):
        Speculative(proposer=tree, scorers=("target",), target=Last(), rejection=BlockRejection())
    with pytest.raises(ValueError, match="tests chains"):
        Chain(proposer=tree, model="middle", rejection=BlockRejection())


@pytest.mark.parametrize("bonus", ["deferred", "paper"])
def test_a_tree_of_a_scorer_needs_a_bonus_that_is_defined(bonus):
    with pytest.raises(ValueError, match='"exact" or "none"'):
        Speculative(proposer=WIDE, scorers=("draft", "target"), target=Mixture(), bonus=bonus)
