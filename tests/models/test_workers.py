"""Models in processes of their own: the same logits, and no answer to an older question."""

import multiprocessing
from functools import partial

import pytest
import torch

from specbench.config.options import Options
from specbench.decoding.session import Usage
from specbench.models.loader import load, open_alone
from specbench.models.parallel import Workers, overlapping
from specbench.models.resolve_models import Execution, device_of, resolve_models
from specbench.resolution.selection import read_pair


@pytest.fixture(scope="module")
def both():
    """A way to open sessions in one worker, and a loaded pair of the same bundled model."""
    preset, pair = read_pair("tiny", Options())
    found = resolve_models(pair, ("draft",), preset.path.parent, Execution(device_of("cpu"), "float32", "lean"))
    loaded = load(found, preset.path.parent, device_of("cpu"))
    workers = Workers(partial(open_alone, found, preset.path.parent, []))
    return lambda size=loaded.vocabulary: workers.open(loaded.reaches, size, None)[0], loaded


def test_a_worker_returns_the_models_logits(both):
    opened, loaded = both
    remote, local = opened(), loaded.session("draft", None)
    for ids in ([5, 6, 7], [5, 6, 7, 8], [5, 6, 9], [5, 6, 9, 10, 11]):
        remote.submit(ids, len(ids) - 2)
        assert torch.allclose(remote.result(), local.score(ids, len(ids) - 2), atol=1e-5)
    assert remote.usage.forwards == local.usage.forwards
    assert remote.usage.by_fed.keys() == local.usage.by_fed.keys()
    assert remote.busy > 0
    assert remote.moved > 4 * 2 * 4 * loaded.vocabulary, "four answers of two rows of float32"


def test_an_unread_answer_of_a_worker_is_dropped(both):
    opened, loaded = both
    opened().submit([1, 2, 3], 2)
    remote = opened()
    remote.submit([4, 5, 6, 7], 3)
    assert torch.allclose(remote.result(), loaded.session("draft", None).score([4, 5, 6, 7], 3), atol=1e-5)


def test_an_exception_of_a_worker_is_raised_and_the_next_sequence_works(both):
    opened, loaded = both
    bad = opened()
    bad.submit([5], 3)
    with pytest.raises(AssertionError):
        bad.result()
    good = opened()
    good.submit([1, 2], 1)
    assert torch.allclose(good.result(), loaded.session("draft", None).score([1, 2], 1), atol=1e-5)


def test_a_worker_lacks_the_tokens_beyond_its_vocabulary(both):
    opened, loaded = both
    remote = opened(loaded.vocabulary + 2)
    remote.submit([5, 6, 7], 2)
    rows = remote.result()
    assert torch.allclose(rows[:, :-2], loaded.session("draft", None).score([5, 6, 7], 2), atol=1e-5)
    assert bool((rows[:, -2:] == -torch.inf).all())
    with pytest.raises(ValueError, match="model 'draft' cannot read token 1024: it has 1024 tokens"):
        remote.submit([5, 1024], 1)


def requested(remote, ids):
    remote.submit(ids, len(ids) - 1)
    return remote.result()


def test_a_worker_that_ended_is_reported_and_replaced(both):
    opened, _ = both
    remote = opened()
    requested(remote, [1, 2])
    (process,) = (each for each in multiprocessing.active_children() if each.name == "specbench draft")
    process.kill()
    process.join()
    with pytest.raises(RuntimeError, match="specbench draft' ended"):
        requested(remote, [1, 2, 3])
    assert len(requested(opened(), [1, 2, 3])) == 1


def test_overlapping_time_is_recorded_once():
    usage = [Usage(seconds=2.0, prefill_seconds=0.1), Usage(seconds=3.0, prefill_seconds=0.4), Usage(seconds=3.0)]
    overlapping(usage)
    assert sum(each.seconds - each.overlapped_seconds for each in usage) == 3.0
    assert sum(each.prefill_seconds - each.prefill_overlapped_seconds for each in usage) == 0.4
