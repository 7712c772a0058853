"""Feeds of several continuations: each branch has the logits of its own sequence, and a path through them can be kept."""

import pytest
import torch

from specbench.decoding.sampling import depths
from specbench.models.lean import LeanModelRunner, network_of
from specbench.models.model_runner import Feed
from tests.fixtures.worlds import FAMILIES, random_model

PREFIX = [3, 8, 1, 22, 13, 8, 30, 5, 19, 2]
TREE = [7, 9, 11, 4, 6, 31]
PARENTS = (-1, -1, 0, 2, 1, 2)  # 7 -> 11 -> 4 or 31, and 9 -> 6
SOURCE = [7, 3, 9, 1]


def model_runner_of(family: str) -> LeanModelRunner:
    model = random_model(family, 1)
    return LeanModelRunner(network_of(model), 40, SOURCE if model.config.is_encoder_decoder else None)


def logits(
    model_runner: LeanModelRunner, ids: list[int], start: int, parents: tuple[int, ...] | None = None
) -> torch.Tensor:
    return model_runner.feed(Feed(torch.tensor(ids), start, parents), len(ids)).logits


def branch(place: int) -> list[int]:
    """The tokens from the root of the tree to a place."""
    path = [place]
    while PARENTS[path[-1]] >= 0:
        path.append(PARENTS[path[-1]])
    return [TREE[each] for each in reversed(path)]


def test_depths_count_the_tokens_above():
    assert depths(PARENTS) == [0, 0, 1, 2, 1, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_gives_each_branch_the_logits_of_its_own_sequence(family):
    tree, alone = model_runner_of(family), model_runner_of(family)
    logits(tree, PREFIX, 0)
    rows = logits(tree, TREE, len(PREFIX), PARENTS)
    for place in range(len(TREE)):
        logits(alone, PREFIX, 0)
        expected = logits(alone, branch(place), len(PREFIX))[-1]
        assert torch.allclose(rows[place], expected, atol=2e-4)


@pytest.mark.parametrize("family", ["llama", "mistral-window", "gemma3", "t5"])
def test_a_kept_path_continues_as_if_it_had_been_fed_alone(family):
    tree, alone = model_runner_of(family), model_runner_of(family)
    logits(tree, PREFIX, 0)
    logits(tree, TREE, len(PREFIX), PARENTS)
    tree.keep(len(PREFIX), [0, 2, 5])
    sequence = [*PREFIX, 7, 11, 31]
    logits(alone, sequence, 0)
    for model_runner in (tree, alone):
        assert model_runner.branches
    assert torch.allclose(logits(tree, [12, 4], len(sequence)), logits(alone, [12, 4], len(sequence)), atol=2e-4)


def test_a_path_that_is_not_kept_is_detected():
    tree, alone = model_runner_of("llama"), model_runner_of("llama")
    logits(tree, PREFIX, 0)
    logits(tree, TREE, len(PREFIX), PARENTS)  # positions now hold 7, 9, 11
    sequence = [*PREFIX, 7, 11, 31]
    logits(alone, sequence, 0)
    assert not torch.allclose(logits(tree, [12], len(sequence)), logits(alone, [12], len(sequence)), atol=1e-2)
