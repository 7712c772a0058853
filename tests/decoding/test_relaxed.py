"""Lenient acceptance rules: which tokens they accept, the distributions of targets, and one round of the published rules."""

import itertools

import pytest
import torch

from specbench.config.options import Options
from specbench.decoding.rejection import BY_TOKEN
from specbench.decoding.relaxed_rejection import FlyRejection, RelaxedRejection, ThresholdsRejection, TypicalRejection
from specbench.decoding.sampling import Draft, Sampler, exact_distribution
from specbench.decoding.targets.relaxed import Relaxed, Thresholds, Typical, Unscaled, chosen, drawn
from specbench.errors import ConfigError
from specbench.features.verify.enumeration import examine
from specbench.methods.proposers import Chain, DraftModel
from specbench.methods.speculative import Speculative
from specbench.resolution.methods import method_on
from specbench.resolution.selection import read_pair
from tests.fixtures.console import specbench


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rule", "p", "accepted"),
    [
        (TypicalRejection(), (0.5, 0.3, 0.15, 0.05), {0, 1, 2}),
        (TypicalRejection(epsilon=0.3, alpha=0.09), (0.5, 0.3, 0.15, 0.05), {0, 1, 2, 3}),  # exchanged
        (TypicalRejection(), (0.05,) * 20, set(range(20))),
        (RelaxedRejection(top=10, delta=0.25), (0.5, 0.3, 0.15, 0.05), {0, 1}),
        (RelaxedRejection(top=10, delta=0.36), (0.5, 0.3, 0.15, 0.05), {0, 1, 2}),
        (RelaxedRejection(top=1, delta=0.36), (0.5, 0.3, 0.15, 0.05), {0}),
        (RelaxedRejection(top=2, delta=0.0), (0.4, 0.4, 0.2), {0, 1}),  # a tie
    ],
)
def test_the_accepted_tokens_are_those_of_the_published_rule(rule, p, accepted):
    assert set(rule.acceptance(row(*p)).nonzero().flatten().tolist()) == accepted


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ThresholdsRejection(accumulated=0.5), (0.342857, 0.6, 0.057143)),
        (ThresholdsRejection(single=0.25), (0.0, 1.0, 0.0)),
        (ThresholdsRejection(), (0.6, 0.3, 0.1)),  # exact
    ],
)
def test_the_first_token_of_a_chosen_draft_has_the_distribution_of_thresholds(rule, expected):
    p = row(0.6, 0.3, 0.1)
    assert drawn(row(0.0, 1.0, 0.0), p, rule.acceptance(p)).tolist() == pytest.approx(expected, abs=1e-6)
    assert first_tokens(rule, row(0.0, 1.0, 0.0), p) == pytest.approx(expected, abs=1e-6)


def test_a_most_likely_token_replaces_rejected_ones():
    assert chosen(row(0.5, 0.5), row(0.9, 0.1), row(1.0, 0.5)).tolist() == pytest.approx([0.75, 0.25])


def first_tokens(rule, q: torch.Tensor, p: torch.Tensor) -> list[float]:
    """Return the distribution of the first token of a round with a draft of two tokens from q, over all choices."""

    def run(sampler: Sampler) -> int:
        tokens = [int(sampler.choose(q)) for _ in range(2)]
        return rule(Draft(tokens, q.expand(2, -1)), p.expand(3, -1), sampler).tokens[0]

    found = exact_distribution(run)
    return [found.get(token, 0.0) for token in range(len(p))]


@pytest.mark.parametrize(
    "rule", [TypicalRejection(), RelaxedRejection(top=2, delta=0.2), ThresholdsRejection(accumulated=0.6)]
)
@pytest.mark.parametrize("q", [(0.2, 0.3, 0.5), (0.0, 0.0, 1.0)])
@pytest.mark.parametrize("p", [(0.5, 0.4, 0.1), (0.9, 0.06, 0.04)])
def test_one_round_of_a_published_rule_follows_its_formula(rule, q, p):
    q, p = row(*q), row(*p)
    expected = (drawn if rule.draws else chosen)(q, p, rule.acceptance(p))
    assert first_tokens(rule, q, p) == pytest.approx(expected.tolist(), abs=1e-12)
    assert expected.sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("target", [Typical(), Relaxed(top=2, delta=0.2), Thresholds(single=0.8, accumulated=0.5)])
def test_methods_with_a_target_follow_it(target):
    method = Speculative(proposer=DraftModel(model="draft", gamma=2), scorers=("draft", "target"), target=target)
    assert all(comparison.exact for comparison in examine(method))


@pytest.mark.parametrize("rule", [TypicalRejection(), RelaxedRejection(), ThresholdsRejection(), FlyRejection()])
def test_a_published_rule_declares_no_distribution_and_no_chain_has_it(rule):
    drafter = DraftModel(model="draft", gamma=2)
    assert (
        Speculative(proposer=drafter, scorers=("target",), target=Unscaled(), rejection=rule).declared_distribution()
        is None
    )
    with pytest.raises(ValueError, match="needs a rule whose tokens follow pi"):
        Chain(proposer=drafter, model="middle", threshold=2, rejection=rule)


# Trees


def tree_tokens(rule, p: torch.Tensor, tokens: list[int], parents: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Return the distribution of the tokens of a round whose draft is a tree of chosen tokens."""
    q = torch.nn.functional.one_hot(torch.tensor(tokens), len(p)).double()
    pi = p.expand(len(tokens) + 1, -1)
    return exact_distribution(lambda sampler: tuple(rule(Draft(tokens, q, parents=parents), pi, sampler).tokens))


def test_children_share_a_number_in_thresholds():
    found = tree_tokens(ThresholdsRejection(accumulated=0.5), row(0.6, 0.3, 0.1), [1, 2], (-1, -1))
    firsts = {token: sum(mass for tokens, mass in found.items() if tokens[0] == token) for token in range(3)}
    assert firsts == pytest.approx({0: 0.2, 1: 0.6, 2: 0.2})
    found = tree_tokens(ThresholdsRejection(), row(0.6, 0.3, 0.1), [1, 2], (-1, -1))
    assert sum(mass for tokens, mass in found.items() if tokens[0] == 0) == pytest.approx(0.6), "exact"


def test_typical_acceptance_commits_the_longest_accepted_path():
    p = row(0.5, 0.4, 0.06, 0.04)
    assert tree_tokens(TypicalRejection(), p, [1, 0, 1], (-1, -1, 0)) == {
        (1, 1, 0): 1.0
    }  # two tokens, though less likely
    assert tree_tokens(TypicalRejection(), p, [1, 0], (-1, -1)) == {(0, 0): 1.0}  # the more likely one of equal lengths
    assert tree_tokens(TypicalRejection(), p, [3, 2, 0], (-1, -1, 0)) == {(0,): 1.0}  # below a rejected token


def test_only_relaxed_acceptance_is_lossy_at_temperature_0():
    logits = [row(0.1, 0.5, 0.4).log(), row(0.5, 0.4, 0.1).log()]  # the draft prefers token 1, the target 0
    for target in (Typical(), Thresholds(accumulated=0.1, single=0.1)):
        assert target(logits, Sampler(0.0)).tolist() == [1.0, 0.0, 0.0]
    assert Relaxed()(logits, Sampler(0.0)).tolist() == [0.0, 1.0, 0.0]


# The phase


THINK, DONE = 7, 8


@pytest.mark.parametrize(
    ("ids", "is_relaxed"), [([1], False), ([THINK, 2], True), ([THINK, 2, DONE], False), ([THINK, DONE, THINK], True)]
)
def test_a_rule_applies_in_its_phase_of_the_committed_tokens(ids, is_relaxed):
    assert (TypicalRejection(phase=(THINK, DONE)).after(ids) == TypicalRejection()) is is_relaxed
    assert is_relaxed or TypicalRejection(phase=(THINK, DONE)).after(ids) is BY_TOKEN
    assert RelaxedRejection(phase=(THINK, DONE), delta=0.4).after(ids).delta == (0.4 if is_relaxed else 0.0)


def test_a_token_after_the_end_of_the_phase_in_a_draft_is_tested_as_in_the_phase():
    p = torch.full((4, 9), 0.05, dtype=torch.float64)
    p[:, DONE] = 0.6
    draft = Draft([1, DONE, 2], torch.eye(9, dtype=torch.float64)[[1, DONE, 2]])
    rule = RelaxedRejection(top=9, delta=0.6, phase=(THINK, DONE))
    assert rule.after([THINK])(draft, p, Sampler(0.0)).accepted == 3
    assert rule.after([THINK, DONE])(draft, p, Sampler(0.0)).accepted == 0


# FLy


def fly(matches: str, flat: set[int], window: int = 3) -> int:
    """Return how many drafted tokens are accepted: matches as a word of = and x, and where p is flat."""
    p = torch.zeros(len(matches) + 1, 4, dtype=torch.float64)
    p[:, 0] = 0.98
    p[:, 1:3] = 0.01
    for i in flat & set(range(len(matches))):
        p[i] = row(0.4, 0.3, 0.2, 0.1)
    tokens = [0 if match == "=" else 1 for match in matches]
    out = FlyRejection(window=window)(Draft(tokens, torch.eye(4, dtype=torch.float64)[tokens]), p, Sampler(0.0))
    assert out.tokens == [*tokens[: out.accepted], 0]
    return out.accepted


def test_fly_accepts_a_mismatch_where_p_is_flat_and_what_follows_matches():
    everywhere = set(range(8))
    assert fly("==x==", everywhere) == 5
    assert fly("==x==", set()) == 2  # the target is sure
    assert fly("==x=x", everywhere) == 2  # a second mismatch follows
    assert fly("===x=", everywhere) == 3  # too few tokens follow
    assert fly("x==x==", everywhere) == 6
    for word in map("".join, itertools.product("=x", repeat=4)):
        assert fly(word, everywhere, window=5) == (word + "x").index("x")  # longer than the draft: strict


def test_fly_is_greedy_only_and_verify_says_why_a_published_rule_cannot_be_verified(tmp_path):
    done = specbench("plan", "-m", "fly", "-p", "tiny", "-t", "gsm8k", "--temperature", "1", cwd=tmp_path, code=2)
    assert "FLy is defined for greedy decoding only" in " ".join(done.stderr.split())
    done = specbench("verify", "-m", "typical-published", "-p", "tiny", "-t", "gsm8k", cwd=tmp_path, code=6)
    assert "the rule 'typical' accepts do not follow the scorers" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("name", "temperature", "lossless"),
    [
        ("typical", 0.0, True), ("typical", 1.0, False), ("thresholds", 0.0, True), ("relaxed", 0.0, False),
        ("typical-published", 0.0, True), ("typical-published", 1.0, None), ("thresholds-published", 0.0, True),
        ("relaxed-published", 0.0, None), ("fly", 0.0, None),
    ],
)  # fmt: skip
def test_the_table_calls_only_relaxed_acceptance_lossy_at_temperature_0(name, temperature, lossless):
    """`run` shows the others as lossless there."""
    options = Options(temperature=temperature)
    pair = read_pair("tiny", options)[1]
    assert method_on(name, pair, options).lossless is lossless


@pytest.mark.parametrize(
    "rule", [TypicalRejection(epsilon=0.0, alpha=0.0), TypicalRejection(), ThresholdsRejection(accumulated=0.1)]
)
def test_published_rules_are_exact_where_one_token_has_all_probability(rule):
    pi = torch.eye(4, dtype=torch.float64)[[2, 0, 3]]
    for tokens in itertools.product(range(4), repeat=2):
        out = rule(Draft(list(tokens), torch.eye(4, dtype=torch.float64)[list(tokens)]), pi, Sampler(0.0))
        assert out.tokens == [2, 0, 3][: len(out.tokens)] and len(out.tokens) == 1 + out.accepted
        assert out.accepted == (2 if tokens == (2, 0) else int(tokens[0] == 2))


@pytest.mark.parametrize("rule", [TypicalRejection(), ThresholdsRejection(accumulated=0.1)])
@pytest.mark.parametrize(("first", "expected"), [(2, [2, 0, 3]), (1, [1, 1]), (0, [0])])
def test_published_rules_are_exact_in_trees_where_one_token_has_all_probability(rule, first, expected):
    """The root has the children 2 and 1, and token 2 has 0 and 3."""
    tokens, parents = [2, 1, 0, 3], (-1, -1, 0, 0)
    tree = Draft(tokens, torch.eye(4, dtype=torch.float64)[tokens], parents=parents)
    pi = torch.eye(4, dtype=torch.float64)[[first, 0, 1, 3, 0]]  # of the root and after each token
    assert rule(tree, pi, Sampler(0.0)).tokens == expected


@pytest.mark.parametrize("p", [[0.1] * 10, [0.25, 0.25, 0.5]])
def test_thresholds_commit_a_child_if_the_children_are_the_whole_support(p):
    """Rounding of their sum leaves nothing to draw from."""
    n = len(p)
    rule, tree = ThresholdsRejection(), Draft(list(range(n)), torch.eye(n, dtype=torch.float64), parents=(-1,) * n)
    pi = torch.tensor([p] * (n + 1), dtype=torch.float64)
    found = exact_distribution(lambda sampler: tuple(rule(tree, pi, sampler).tokens[:1]), temperature=1.0)
    assert sum(found.values()) == pytest.approx(1.0)
    for token, share in enumerate(p):
        assert found[(token,)] == pytest.approx(share)


@pytest.mark.parametrize("changes", [{"window": 0}, {"entropy": -1.0}])
def test_fly_rejects_parameters_out_of_range(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        FlyRejection(**changes)


@pytest.mark.parametrize("name", ["fly", "relaxed-published"])
def test_a_rule_that_reads_probabilities_needs_a_target_that_has_them(name, tmp_path):
    """With a one-hot target at T = 0, the rule would be the strict one without a word."""
    words = ("-m", name, "-p", "tiny", "-t", "gsm8k", "--temperature", "0", "--set", "method.target.name=last")
    done = specbench("plan", *words, cwd=tmp_path, code=2)
    assert 'help: target = { name = "unscaled" }' in " ".join(done.stderr.split())


def test_a_parameter_out_of_range_is_an_error():
    with pytest.raises(ConfigError):
        Speculative.build({"name": "speculative", "proposer": {"name": "model", "model": "a"}, "scorers": ["b"],
                           "target": {"name": "last"}, "rejection": {"name": "thresholds", "single": 0.0}}, "x")  # fmt: skip
