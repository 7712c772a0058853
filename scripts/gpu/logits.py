"""Checks of `make gpu-check` on logits: every engine against the modules of transformers."""

import math
import random

from scripts.gpu.common import SOURCE, VOCABULARY, Small
from scripts.gpu.exactness import Verdict
from specbench.decoding.session import Session
from specbench.models.cached_session import CachedSession
from specbench.models.lean import GraphModelRunner, LeanModelRunner
from specbench.models.model_runner import Feed, Output
from specbench.models.transformers_session import EagerModelRunner

LIMIT = 2e-4  # float32 rounding of logits of size 10
GROWTH = 248  # tokens added at once, to pass the first span of a graph


def walk(small: Small, session: Session, steps: int) -> dict[str, float]:
    """Return the largest error of a session's logits in prefills, in decoding, and after rollbacks.

    The sequence grows, shrinks and changes at random: from a short prefix, then beyond the first span of a graph, then from a
    short prefix again. Each result is compared with the result of a new eager session.
    """
    rng, device = random.Random(5), small.reference.device
    ids, before, worst = [0, 11, 12], list[int](), dict.fromkeys(("prefill", "decode", "rollback"), 0.0)
    for step in range(steps):
        if step == steps // 3:
            ids = ids + [rng.randrange(VOCABULARY) for _ in range(GROWTH)]
        elif step == 2 * steps // 3:
            ids = ids[:5]
        elif before:
            ids = _changed(ids, rng)
        kind = "prefill" if not before else "decode" if before == ids[: len(before)] else "rollback"
        start = rng.randrange(max(0, len(ids) - 8), len(ids))
        found = session.score(ids, start)
        assert found.shape == (len(ids) - start, VOCABULARY) and found.device.type == device.type
        truth = CachedSession(EagerModelRunner(small.reference, VOCABULARY, SOURCE if small.seq2seq else None)).score(
            ids, start
        )
        error = float((found - truth).abs().nan_to_num(nan=math.inf).max())
        worst[kind], before = max(worst[kind], error), ids
    session.finish()
    return worst


def _changed(ids: list[int], rng: random.Random) -> list[int]:
    """Return the sequence with up to four tokens more or fewer, or with another token near its end."""
    kind = rng.random()
    if kind < 0.6 or len(ids) < 8:
        return ids + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 4))]
    at = len(ids) - rng.randint(1, 4)
    return ids[:at] if kind < 0.8 else [*ids[:at], (ids[at] + 1) % VOCABULARY, *ids[at + 1 :]]


def logits_agree(small: Small, session: Session, steps: int) -> Verdict:
    """Compare a session's logits with the logits of transformers along a random walk."""
    worst = walk(small, session, steps)
    return (
        ", ".join(f"{kind} {error:.0e}" for kind, error in worst.items()),
        f"error <= {LIMIT:.0e}",
        max(worst.values()) <= LIMIT,
    )


class StaleLean(LeanModelRunner):
    """A model runner with a deliberate mistake: after a rejection one stale position stays in the cache."""

    end = shift = 0

    def feed(self, feed: Feed, rows: int) -> Output:
        return super().feed(_shifted(self, feed), rows)


class StaleGraph(GraphModelRunner):
    """Graphs with the same mistake."""

    end = shift = 0

    def feed(self, feed: Feed, rows: int) -> Output:
        return super().feed(_shifted(self, feed), rows)


def _shifted(model_runner: StaleLean | StaleGraph, feed: Feed) -> Feed:
    """Return the feed after one position too many, from the first rejection on."""
    model_runner.shift = 1 if feed.start < model_runner.end else model_runner.shift
    model_runner.end = feed.start + len(feed.tokens)
    return feed._replace(start=feed.start + model_runner.shift)
