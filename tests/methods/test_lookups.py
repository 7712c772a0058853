"""Drafts without a model: suffix trees and n-gram tables, cold and with earlier outputs."""

import json
import random

import pytest

from specbench.decoding.method import Earlier
from specbench.decoding.sampling import exact_distribution
from specbench.decoding.targets import Last
from specbench.features.verify.enumeration import distance, examine, generate, joint_distribution, tables
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.lookups import PromptLookup
from specbench.methods.ngram_tables import NgramCache, NgramMod
from specbench.methods.speculative import Speculative
from specbench.methods.suffix import Suffix, SuffixTree
from tests.fixtures.console import specbench

RULES = {
    "suffix": Suffix(gamma=3, depth=4),
    "ngram-mod": NgramMod(gamma=3, ngram=1, shortest=1, chunk=1),
    "ngram-cache": NgramCache(gamma=3),
    "pld": PromptLookup(gamma=3),
}


def continued(rule, ids: list[int], most: int = 99, earlier: Earlier | None = None) -> list[int]:
    return rule.index(earlier).continuation(ids, most)


@pytest.mark.parametrize("name", RULES)
def test_a_lookup_is_exact(name):
    method = Speculative(proposer=RULES[name], scorers=("target",), target=Last())
    assert all(comparison.exact for comparison in examine(method))
    world, drafted = tables(("target",), 2), 0

    def run(sampler) -> tuple[int, ...]:
        nonlocal drafted
        tokens, rounds = generate(method, world, sampler, 6)
        drafted += sum(each.drafted for each in rounds)
        return tuple(tokens)

    plain = Autoregressive(scorers=("target",), target=Last())
    assert distance(exact_distribution(run), joint_distribution(plain, world, 6)) < 1e-12 and drafted > 50


# Suffix decoding


def test_the_longest_match_with_the_largest_sum_is_followed():
    assert continued(Suffix(), [1, 2, 3, 1, 2, 3, 1, 2]) == [3, 1, 2]
    assert continued(Suffix(least=0.6), [1, 2, 3, 1, 2, 3, 1, 2])[:2] == [3, 1]  # m = 2: 2 of 3 occurrences
    assert continued(Suffix(factor=0.4), [1, 2, 3, 1, 2, 3, 1, 2]) == [3, 1]  # 5 x 0.4 tokens
    assert continued(Suffix(), [1, 2, 3, 4]) == []
    assert continued(Suffix(), [1, 2, 3, 1, 2, 3, 1, 2], most=1) == [3]


def counts_by_hand(ids: list[int], depth: int) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], int] = {}
    for begin in range(len(ids)):
        for end in range(begin + 1, min(begin + depth, len(ids)) + 1):
            found[tuple(ids[begin:end])] = found.get(tuple(ids[begin:end]), 0) + 1
    return found


def test_the_counts_of_a_tree_are_those_of_all_paths_also_after_dropped_tokens():
    chooser, tree, ids = random.Random(0), SuffixTree(3), list[int]()
    for _ in range(300):
        if ids and chooser.random() < 0.4:
            tree.remove(ids.pop())
        else:
            ids.append(chooser.randrange(3))
            tree.append(ids[-1])
    expected = counts_by_hand(ids, 3)
    assert counts_in(tree) == expected


def counts_in(tree: SuffixTree) -> dict[tuple[int, ...], int]:
    found, waiting = {}, [((), tree.root)]
    while waiting:
        path, node = waiting.pop()
        for token, child in node.children.items():
            found[(*path, token)] = child.count
            waiting.append(((*path, token), child))
    return found


def test_a_discarded_sequence_leaves_the_counts_of_the_others():
    chooser, trees = random.Random(3), (SuffixTree(4), SuffixTree(4))
    sequences = [[chooser.randrange(3) for _ in range(40)] for _ in range(3)]
    for tree, kept in zip(trees, (sequences, sequences[1:]), strict=True):
        for sequence in kept:
            tree.begin()
            for token in sequence:
                tree.append(token)
    trees[0].discard(sequences[0])
    assert counts_in(trees[0]) == counts_in(trees[1])


def test_an_index_that_follows_a_sequence_equals_a_new_one():
    chooser, ids = random.Random(1), list[int]()
    for rule in (Suffix(depth=4), NgramCache()):
        index = rule.index()
        for _ in range(200):
            ids = ids[: chooser.randrange(len(ids) + 1)] if chooser.random() < 0.2 else [*ids, chooser.randrange(3)]
            assert index.continuation(ids, 8) == continued(rule, ids, 8)


def test_earlier_outputs_are_followed_where_the_sequence_says_less():
    earlier = Earlier([[5, 6, 7, 8, 9]])
    assert continued(Suffix(remember=True), [1, 5, 6], earlier=earlier) == [7, 8]
    assert continued(Suffix(), [1, 5, 6]) == []
    earlier.outputs.append([5, 6, 4])
    earlier.outputs.append([5, 6, 4])
    assert continued(Suffix(remember=True), [1, 5, 6], earlier=earlier) == [4]
    assert (
        continued(Suffix(remember=True, cached=1), [1, 6, 7], earlier=earlier) == []
    )  # the oldest outputs are dropped


# Tables of n-grams


def test_a_table_of_ngrams_is_followed_until_it_has_no_continuation():
    rule = NgramMod(ngram=2, chunk=1, shortest=1, gamma=6)
    assert continued(rule, [5, 6, 7, 5, 6]) == [7, 5, 6, 7, 5, 6]
    assert continued(NgramMod(ngram=2, chunk=1, shortest=7, gamma=8), [5, 6, 7, 5, 6], most=6) == []
    assert continued(rule, [1, 2, 3, 4]) == []
    assert continued(NgramMod(ngram=2, chunk=8, shortest=1, gamma=6), [5, 6, 7, 5, 6]) == []  # no whole chunk yet


def test_the_table_is_shared_and_cleared_after_three_bad_drafts():
    rule = NgramMod(ngram=1, chunk=1000, shortest=1, gamma=2, remember=True)
    earlier, ids = Earlier([[1, 2, 3]]), [1]
    index = rule.index(earlier)
    for _ in range(3):
        assert index.continuation(ids, 2) == continued(rule, [1], earlier=earlier) == [2, 3]
        index.proposed([2, 3])
        ids = [*ids, 9, 1]  # the draft is rejected
    assert index.continuation(ids, 2) == continued(rule, [1], earlier=earlier) == []


def test_a_method_that_reads_earlier_outputs_has_no_shards(tmp_path):
    words = ("-m", "suffix", "-p", "tiny", "-t", "gsm8k", "-n", 4, "--shard", "1/2")
    done = specbench("run", *words, "--set", "method.proposer.remember=true", cwd=tmp_path, code=2)
    assert "suffix reads earlier outputs" in " ".join(done.stderr.split())


def test_a_cache_of_ngrams_needs_enough_occurrences():
    assert continued(NgramCache(), [1, 2, 3, 4, 5, 1, 2, 3, 4], most=1) == [5]  # once after four tokens
    assert continued(NgramCache(), [4, 5, 1, 4], most=1) == []  # once after one token
    earlier = Earlier([[1, 2, 3, 4, 5]])
    assert continued(NgramCache(remember=True), [1, 2, 3, 4], most=1, earlier=earlier) == []  # strict: twice
    earlier.outputs.append([1, 2, 3, 4, 5])
    assert continued(NgramCache(remember=True), [1, 2, 3, 4], most=1, earlier=earlier) == [5]


# In a run


def test_a_lookup_that_remembers_drafts_more_and_resumes_as_it_began(tmp_path):
    words = (
        "run", "-m", "suffix", "-p", "tiny", "-t", "gsm8k", "-n", 4, "--repeats", 2, "--max-new-tokens", 12,
        "--over", "method.proposer.remember=[false, true]",
    )  # fmt: skip

    def records(folder) -> dict:
        (path,) = folder.glob("results/*/samples.jsonl")
        return {
            (row["method"], row["sample"], row["repeat"]): row for row in map(json.loads, path.read_text().splitlines())
        }

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        specbench(*words, cwd=folder)
    drafted = dict.fromkeys((True, False), 0)
    for (method, *_), row in records(whole).items():
        if "remember" in method:
            drafted["true" in method] += sum(each["drafted"] for each in row["rounds"])
    assert drafted[True] > drafted[False]
    (path,) = cut.glob("results/*/samples.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    specbench(*words, cwd=cut)
    first, second = records(whole), records(cut)
    counts = [
        {key: [each["drafted"] for each in row["rounds"]] for key, row in rows.items()} for rows in (first, second)
    ]
    assert counts[0] == counts[1]
