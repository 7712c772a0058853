"""Hidden states of every engine are those of one uncached forward, after any history, as the model's own head reads
them.
"""

import copy
import random

import pytest
import torch

from specbench.decoding.sampling import Sampler
from specbench.models.cached_session import CachedSession, States
from tests.fixtures.worlds import ENGINES, FAMILIES, open_session, random_model

SOURCE = [7, 3, 9, 1]  # what an encoder reads


def opened(family: str, engine: str, model=None):
    model = model or random_model(family, 1)
    session = open_session(model, engine, SOURCE if model.config.is_encoder_decoder else None)
    session.keep_states()
    return session


def walk(family: str, session, steps: int = 30) -> float:
    """Grow, cut back and replace at random, read states of any stretch; the largest error against a fresh eager session.

    A stretch may be one that was read long ago, or end where nothing was read yet.
    """
    rng, ids, worst, model = random.Random(2), [0, 11, 12], 0.0, random_model(family, 1)
    for _ in range(steps):
        kind = rng.random()
        if kind < 0.5 or len(ids) < 4:
            ids = ids + [rng.randrange(40) for _ in range(rng.randint(1, 4))]
        elif kind < 0.8:
            ids = ids[: rng.randint(2, len(ids) - 1)]
        else:
            ids = [*ids[:-1], (ids[-1] + 1) % 40]
        ids = ids[:40]
        if rng.random() < 0.6:
            session.score(ids, rng.randrange(len(ids)))
        start = rng.randrange(len(ids))
        found = session.hidden(ids, start)
        assert session.cached_length(ids) == len(ids)
        expected = opened(family, "eager", model).hidden(ids, start)
        assert found.shape == expected.shape == (len(ids) - start, 32)
        worst = max(worst, float((found - expected).abs().max()))
    return worst


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "t5"])
def test_hidden_states_after_any_history_equal_those_of_a_new_session(family, engine):
    if engine == "graph" and family == "t5":
        engine = "lean"  # there are no graphs of encoder-decoder models
    assert walk(family, opened(family, engine)) < 2e-4  # float32 rounding


@pytest.mark.parametrize("family", FAMILIES)
def test_the_lm_head_gives_the_logits_of_hidden_states(family):
    """In every family, eager and lean: `logits_of` of `hidden` is what `score` says, norms and scales included."""
    ids, states = [0, 5, 9, 2, 7], []
    for engine in ("eager", "lean"):
        session = opened(family, engine)
        session.score(ids[:3], 2)
        states.append(session.hidden(ids, 0))
        assert torch.allclose(session.logits_of(states[-1]), session.score(ids, 0), atol=1e-4)
    assert torch.allclose(*states, atol=1e-4)


class _Stale(CachedSession):
    """A mutant: a state too many stays after a cut."""

    def _cut(self, cached: int) -> None:
        length = self._states.length
        super()._cut(cached)
        self._states.length = min(length, cached + 1)


@pytest.mark.parametrize("engine", ["eager", "lean"])
def test_hidden_states_that_are_not_truncated_are_detected(engine):
    """Mutation control."""
    session = _Stale(open_session(random_model("llama", 1), engine).model_runner)
    session.keep_states()
    assert walk("llama", session) > 0.1


def test_hidden_states_of_a_graph_survive_its_next_replay():
    session = opened("llama", "graph")
    session.score([1, 2, 3], 2)
    first = session.hidden([1, 2, 3, 4], 3)
    kept = first.clone()
    session.score([1, 2, 3, 4, 5], 4)
    assert torch.equal(first, kept)
    assert torch.equal(session.hidden([1, 2, 3, 4, 5], 3)[:1], kept)


@pytest.mark.parametrize("engine", ["lean", "graph"])
def test_a_roll_without_reads_keeps_hidden_states(engine):
    """What a GPU does: after a roll, and after a shorter one after it, states are those of a roll that looks."""
    model = random_model("llama", 3)
    looking, blind = opened("llama", engine, copy.deepcopy(model)), opened("llama", engine, model)
    ids = [5, 11, 3]
    for seed in range(8):
        chance = [Sampler(generator=torch.Generator().manual_seed(seed)) for _ in range(2)]
        one, two = looking.roll(ids, 4, chance[0], frozenset()), blind.roll_at_once(ids, 4, chance[1], frozenset())
        assert one.tokens == two.tokens
        read = ids + two.tokens
        assert blind.cached_length(read) == len(read) - 1
        assert torch.allclose(looking.hidden(read, 1), blind.hidden(read, 1), atol=1e-4)
        ids = [*read[:-2], seed] if seed % 2 else read[:-3]  # other tokens after it are cached, and states of theirs


def test_returned_rows_are_copies():
    """A copy: what later rounds write does not reach who holds it; and the store grows past its first size."""
    states, rows = States(), torch.arange(600.0)[:, None].repeat(1, 2)
    states.append(rows[:3])
    held = states.rows(1, 3)
    states.cut(1)
    states.append(rows[100:102])
    assert held.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    states.append(rows[102:])
    assert states.length == 501
    assert states.rows(0, 3).tolist() == [[0.0, 0.0], [100.0, 100.0], [101.0, 101.0]]
    states.cut(900)
    assert states.length == 501, "nothing is cut where nothing is"
    with pytest.raises(AssertionError):
        states.rows(400, 502)


def test_hidden_states_are_not_stored_if_nothing_reads_them(monkeypatch):
    monkeypatch.setattr(States, "append", lambda *_: pytest.fail("states were stored"))
    session = open_session(random_model("llama", 1), "lean")
    session.score([1, 2, 3], 0)
    with pytest.raises(AssertionError):
        session.hidden([1, 2, 3], 0)
