"""Sessions that score trees: every token has the logits of its own sequence, and the next sequence selects a path."""

import random

import pytest
import torch

from specbench.decoding.sampling import Sampler, Tree, path_to
from specbench.decoding.trees import growth as session_growth
from specbench.decoding.trees import shape_of_widths
from specbench.errors import ConfigError
from specbench.models.cached_session import CachedSession
from specbench.models.lean import GraphModelRunner, Graphs, LeanModelRunner, network_of
from specbench.models.lean.cache import Cache
from specbench.models.limited_session import LimitedSession, Reach
from specbench.models.simulated import SyntheticDistribution, SyntheticSession
from specbench.models.transformers_session import EagerModelRunner
from tests.fixtures.worlds import FAMILIES, random_model
from tests.models import test_families

PROMPT = [3, 8, 1, 22, 13, 8, 30, 5, 19, 2]
TREE = Tree([7, 9, 11, 4, 6, 31, 7], (-1, -1, 0, 2, 1, 2, -1))  # the last one equals the first
SOURCE = [7, 3, 9, 1]
UNSUPPORTED = {"bart", "bloom", "gpt_neo", "marian", "mpt", "mt5", "pegasus", "t5"}


def lean(family: str, keeps_hidden: bool = False) -> CachedSession:
    model = random_model(family, 1)
    session = CachedSession(LeanModelRunner(network_of(model), 40, SOURCE if model.config.is_encoder_decoder else None))
    if keeps_hidden:
        session.keep_states()
    return session


def path_of(tree: Tree, token: int) -> list[int]:
    return [tree.tokens[i] for i in path_to(tree.parents, token)]


def require_equal(rows: torch.Tensor, alone: CachedSession, ids: list[int], tree: Tree, scale: float = 1e-5) -> None:
    """Compare the logits of ids' last position and of every token with those of sequences that are scored as chains."""
    sequences = [ids, *([*ids, *path_of(tree, i)] for i in range(len(tree.tokens)))]
    for row, sequence in zip(rows, sequences, strict=True):
        expected = alone.score(sequence, len(sequence) - 1)[0]
        assert torch.allclose(row, expected, atol=scale * float(expected.abs().max()), rtol=0.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_lean_tokens_have_the_logits_of_their_paths(family):
    session, alone = lean(family), lean(family)
    session.score(PROMPT[:4], 3)
    require_equal(session.score(PROMPT, len(PROMPT) - 1, TREE), alone, PROMPT, TREE)
    assert session.usage.by_fed == {12: [1, session.usage.by_fed[12][1]]}, (
        "six ids, and six tokens of the tree once each"
    )


@pytest.mark.parametrize("family", test_families.FAMILIES)
def test_eager_tokens_have_the_logits_of_their_paths(family):
    """Beyond every window; families whose attention derives distances from the cache are rejected with the reason."""
    model = test_families.toy(family, test_families.FAMILIES[family], 1)
    source = PROMPT if model.config.is_encoder_decoder else None
    session, alone = (CachedSession(EagerModelRunner(model, test_families.VOCABULARY, source)) for _ in range(2))
    if family in UNSUPPORTED:
        with pytest.raises(ConfigError, match="cannot score draft trees"):
            session.score(PROMPT, len(PROMPT) - 1, TREE)
        return
    require_equal(session.score(PROMPT, len(PROMPT) - 1, TREE), alone, PROMPT, TREE, 1e-4)
    longer = [*PROMPT, 7, 11, 31, 12]  # a path through the tree, and one token more
    assert torch.allclose(
        session.score(longer, len(longer) - 1), alone.score(longer, len(longer) - 1), atol=1e-4, rtol=1e-4
    )
    assert session.usage.by_fed[1][0] == 1, "the path is not fed again"


def eager(family: str) -> CachedSession:
    session = CachedSession(EagerModelRunner(test_families.toy(family, test_families.FAMILIES[family], 1), 40))
    session.keep_states()
    return session


EAGERLY = ["llama", "mistral", "gemma3_text", "llama4_text", "deepseek_v3"]


@pytest.mark.parametrize(("engine", "family"), [*(("lean", f) for f in FAMILIES), *(("eager", f) for f in EAGERLY)])
def test_random_walks(engine, family):
    """Sequences that follow the tree or leave it, trees that grow, and cuts: always the logits of the sequence itself."""
    session, alone = (lean(family, keeps_hidden=True) if engine == "lean" else eager(family) for _ in range(2))
    ids, tree, rng = [*PROMPT], Tree([], ()), random.Random(1)
    for _ in range(60 if family == "llama" else 25):
        step = rng.random()
        if step < 0.35:
            tree = Tree([], ())
            for _ in range(rng.randrange(1, 7)):
                tree = Tree([*tree.tokens, rng.randrange(3)], (*tree.parents, rng.randrange(-1, len(tree.tokens))))
        elif step < 0.6 and tree.tokens:
            tree = Tree([*tree.tokens, rng.randrange(3)], (*tree.parents, rng.randrange(-1, len(tree.tokens))))
        elif step < 0.85 and tree.tokens:
            path = path_of(tree, rng.randrange(len(tree.tokens))) if step < 0.8 else []
            ids = [*ids, *path, *([rng.randrange(3, 40)] if step < 0.7 or not path else [])]
            tree = Tree([], ())
        else:
            ids = ids[: max(2, len(ids) - rng.randrange(5))]
        if len(ids) > 45:
            ids = ids[:12]
        assert session.cached_length(ids) <= len(ids)
        require_equal(session.score(ids, len(ids) - 1, tree), alone, ids, tree, 2e-5 if engine == "lean" else 2e-4)
        alone.score(ids, len(ids) - 1)
        assert torch.allclose(session.hidden(ids, len(ids) - 2), alone.hidden(ids, len(ids) - 2), atol=1e-4, rtol=1e-4)


def test_a_tree_grows_without_reading_its_tokens_again():
    session = lean("llama")
    session.score(PROMPT, len(PROMPT) - 1)
    for size in (2, 3, 6):
        session.score(PROMPT, len(PROMPT) - 1, Tree(TREE.tokens[:size], TREE.parents[:size]))
    assert {fed: count for fed, (count, _) in session.usage.by_fed.items()} == {2: 1, 1: 1, 3: 1}
    session.score([*PROMPT, 7, 11], len(PROMPT) + 1)
    assert session.usage.forwards == 3, "the path was read"


def test_a_mask_that_shows_a_cousin_is_found(monkeypatch):
    right = Cache.begin

    def begin(self, feed):
        right(self, feed._replace(parents=None))

    monkeypatch.setattr(Cache, "begin", begin)
    session = lean("llama")
    rows = session.score(PROMPT, len(PROMPT) - 1, TREE)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        require_equal(rows, lean("llama"), PROMPT, TREE)


def test_the_wrong_path_is_found(monkeypatch):
    right = LeanModelRunner.keep
    monkeypatch.setattr(LeanModelRunner, "keep", lambda self, start, path: right(self, start, list(range(len(path)))))
    session, alone = lean("llama"), lean("llama")
    session.score(PROMPT, len(PROMPT) - 1, TREE)
    longer = [*PROMPT, 7, 11, 31]
    session.score(longer, len(longer) - 1)
    assert not torch.allclose(
        session.score([*longer, 5], len(longer)), alone.score([*longer, 5], len(longer)), atol=1e-3
    )


def test_tokens_that_a_model_lacks_are_not_read():
    session, alone = lean("llama"), lean("llama")
    limited = LimitedSession(session, Reach("draft", 20, 40, None), 40, None, strict=False)
    tree = Tree([7, 25, 11, 4], (-1, -1, 1, 0))  # 25 is not embedded, nor is 11 read after it
    prompt = [3, 8, 1]
    rows = limited.score(prompt, 2, tree)
    require_equal(rows[[0, 1, 4]], alone, prompt, Tree([7, 4], (-1, 0)))
    assert torch.equal(rows[2], rows[0]) and torch.equal(rows[3], rows[0])
    with pytest.raises(ValueError, match="cannot read token 25"):
        LimitedSession(lean("llama"), Reach("target", 20, 40, None), 40, None, strict=True).score(prompt, 2, tree)


def test_synthetic_logits_are_those_of_the_path():
    def synthetic():
        return SyntheticSession(lean("llama"), SyntheticDistribution(40, 0, 1.0), torch.device("cpu"))

    rows, alone = synthetic().score(PROMPT, len(PROMPT) - 1, TREE), synthetic()
    for i in range(len(TREE.tokens)):
        sequence = [*PROMPT, *path_of(TREE, i)]
        assert torch.equal(rows[1 + i], alone.score(sequence, len(sequence) - 1)[0])


@pytest.mark.parametrize("family", [family for family in FAMILIES if "t5" not in family])
def test_the_static_form_of_graphs_gives_the_same_logits(family):
    """The first session requests a graph of the tree, which the next `prepare` captures; on a CPU it runs as it is."""
    model = random_model(family, 1)
    graphs = Graphs(network_of(model), torch.device("cpu"))
    graphs.prepare(64, {1, 7})
    for captured in (0, 1):
        session, alone = CachedSession(GraphModelRunner(graphs, 40)), lean(family)
        assert (graphs.find(7, 20, is_tree=True) is not None) == bool(captured)
        session.score(PROMPT[:-1], len(PROMPT) - 2)
        require_equal(session.score(PROMPT, len(PROMPT) - 1, TREE), alone, PROMPT, TREE, 2e-5)
        longer = [*PROMPT, 7, 11, 31, 12]
        expected = alone.score(longer, len(longer) - 1)
        assert torch.allclose(session.score(longer, len(longer) - 1), expected, atol=1e-4, rtol=1e-4)
        session.finish()
        graphs.prepare(64)


@pytest.mark.parametrize("children", ["sampled", "chosen"])
def test_trees_that_grow_before_their_tokens_are_read_are_the_same(children):
    """Also below an EOS, whose tokens are dropped, and the next sequence still selects a path without a forward."""
    shape, dropped = shape_of_widths((3, 2, 2)), 0
    eos = frozenset(lean("llama").score(PROMPT, len(PROMPT) - 1)[0].topk(3).indices[1:2].tolist())
    for seed in range(6):
        drafts, sessions = [], [lean("llama"), lean("llama")]
        for session, grow in zip(sessions, (session_growth, CachedSession.growth_at_once), strict=True):
            sampler = Sampler(2.0, generator=torch.Generator().manual_seed(seed))
            drafts.append(grow(session, PROMPT, 3, eos).grow(shape, sampler, children))
        one, two = drafts
        assert (one.tokens, one.parents) == (two.tokens, two.parents) and torch.allclose(
            one.probs, two.probs, atol=1e-5
        )
        dropped += len(shape) - len(one.tokens)
        end = next(i for i in reversed(range(len(one.parents))) if i in one.parents)  # the last token with a child
        longer = [*PROMPT, *path_of(Tree(one.tokens, one.parents), end)]
        for session in sessions:
            before = session.usage.forwards
            assert session.cached_length(longer) == len(longer)
            expected = lean("llama").score(longer, len(longer) - 1)
            assert torch.allclose(session.score(longer, len(longer) - 1), expected, atol=1e-4, rtol=1e-4)
            assert session.usage.forwards == before
    assert dropped > 0
