"""The kinds of requests that `server verify` tests, and what kinds with a fault have in common."""

from collections.abc import Callable, Sequence
from enum import StrEnum

from specbench.features.servers.request_key import PromptKind, RequestKind
from specbench.features.servers.served import ServedSampling

SAMPLINGS = (
    ServedSampling(),
    ServedSampling(temperature=1.0),
    ServedSampling(temperature=0.7, top_p=0.95),
)  # of `server verify`, unless the user gives others


def kinds_of(
    samplings: tuple[ServedSampling, ...], concurrencies: tuple[int, ...], seeds: bool, prompts: tuple[PromptKind, ...]
) -> list[RequestKind]:
    """Return the kinds of requests to test: raw prompts in all combinations, other prompts alone without seeds.

    Greedy requests have no seeds.
    """
    kinds = [
        RequestKind(sampling=sampling, concurrency=concurrency, is_seeded=is_seeded)
        for sampling in samplings
        for concurrency in concurrencies
        for is_seeded in ((False, True) if seeds and not sampling.is_greedy else (False,))
    ]
    others = [
        RequestKind(sampling=sampling, prompt=prompt)
        for prompt in prompts
        if prompt is not PromptKind.raw
        for sampling in samplings
    ]
    return kinds + others


class Cause(StrEnum):
    """What kinds of requests can have in common."""

    greedy = "only at T = 0"
    sampled = "only at temperatures above 0"
    seeded = "only with a seed"
    unseeded = "only without a seed"
    concurrent = "only above concurrency 1"
    cached = "only after a prefix-cache hit"
    chat = "only in chats"
    top_p = "only with top-p"
    top_k = "only with top-k"
    min_p = "only with min-p"


HOLDS: dict[Cause, Callable[[RequestKind], bool]] = {
    Cause.greedy: lambda kind: kind.sampling.is_greedy,
    Cause.sampled: lambda kind: not kind.sampling.is_greedy,
    Cause.seeded: lambda kind: kind.is_seeded,
    Cause.unseeded: lambda kind: not kind.is_seeded and not kind.sampling.is_greedy,
    Cause.concurrent: lambda kind: kind.concurrency > 1,
    Cause.cached: lambda kind: kind.prompt is PromptKind.cached,
    Cause.chat: lambda kind: kind.prompt is PromptKind.chat,
    Cause.top_p: lambda kind: kind.sampling.top_p < 1.0,
    Cause.top_k: lambda kind: kind.sampling.top_k > 0,
    Cause.min_p: lambda kind: kind.sampling.min_p > 0.0,
}


def shared_causes(failed: Sequence[RequestKind], passed: Sequence[RequestKind]) -> list[Cause]:
    """Return what the failed kinds have in common and no passed kind has; empty unless both occur."""
    if not failed or not passed:
        return []
    found = [cause for cause, holds in HOLDS.items() if all(map(holds, failed)) and not any(map(holds, passed))]
    if Cause.sampled in found:
        found = [cause for cause in found if cause is not Cause.unseeded]  # says less
    return found
