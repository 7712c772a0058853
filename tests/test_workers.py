"""Models in processes of their own: the same logits, and no answer to an older question."""

import pytest
import torch

from specbench.found import device_of, find
from specbench.models import load
from specbench.options import Options
from specbench.suite import read_pair
from specbench.workers import RemoteSession, Workers


@pytest.fixture(scope="module")
def both():
    """A worker and a loaded pair of the same bundled model."""
    preset, pair = read_pair("tiny", Options())
    found = find(pair, ("draft",), preset.path.parent, device_of("cpu"), "float32", "lean")
    loaded = load(found, preset.path.parent, device_of("cpu"))
    (worker,) = Workers(found, preset.path.parent)(("draft",), loaded.vocabulary)
    return worker, loaded


def test_a_worker_says_what_the_model_says(both):
    worker, loaded = both
    remote, local = RemoteSession(worker, None), loaded.session("draft", None)
    for ids in ([5, 6, 7], [5, 6, 7, 8], [5, 6, 9], [5, 6, 9, 10, 11]):
        remote.ask(ids, len(ids) - 2)
        assert torch.allclose(remote.answer(), local.score(ids, len(ids) - 2), atol=1e-5)
    assert remote.calls.forwards == local.calls.forwards
    assert remote.calls.by_fed.keys() == local.calls.by_fed.keys()
    assert remote.busy > 0
    assert remote.moved > 4 * 2 * 4 * loaded.vocabulary, "four answers of two rows of float32"


def test_an_answer_that_nobody_fetched_is_dropped(both):
    worker, loaded = both
    RemoteSession(worker, None).ask([1, 2, 3], 2)
    remote = RemoteSession(worker, None)
    remote.ask([4, 5, 6, 7], 3)
    assert torch.allclose(remote.answer(), loaded.session("draft", None).score([4, 5, 6, 7], 3), atol=1e-5)


def test_what_a_worker_raises_is_raised_and_the_next_sequence_works(both):
    worker, loaded = both
    bad = RemoteSession(worker, None)
    bad.ask([10**9], 0)
    with pytest.raises((IndexError, RuntimeError)):
        bad.answer()
    good = RemoteSession(worker, None)
    good.ask([1, 2], 1)
    assert torch.allclose(good.answer(), loaded.session("draft", None).score([1, 2], 1), atol=1e-5)


def test_a_worker_that_is_gone_is_told(both):
    worker, _ = both
    remote = RemoteSession(worker, None)
    remote.ask([1, 2], 1)
    remote.answer()
    worker._process.kill()
    worker._process.join()
    with pytest.raises((RuntimeError, BrokenPipeError)):
        remote.ask([1, 2, 3], 2)
        remote.answer()
