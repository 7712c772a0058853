"""The kinds of requests that `server verify` tests, and what kinds with a fault have in common."""

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


def shared_cause(failed: list[RequestKind], passed: list[RequestKind]) -> str:
    """Return what the failed kinds have in common and no passed kind has, in words; empty if nothing does.

    For example `only with a seed`, or `only above concurrency 1`. A cause needs a passed kind without it.
    """
    tests = {
        "only at T = 0": lambda kind: kind.sampling.is_greedy,
        "only at temperatures above 0": lambda kind: not kind.sampling.is_greedy,
        "only with a seed": lambda kind: kind.is_seeded,
        "only without a seed": lambda kind: not kind.is_seeded and not kind.sampling.is_greedy,
        "only above concurrency 1": lambda kind: kind.concurrency > 1,
        "only after a prefix-cache hit": lambda kind: kind.prompt is PromptKind.cached,
        "only in chats": lambda kind: kind.prompt is PromptKind.chat,
        "only with top-p": lambda kind: kind.sampling.top_p < 1.0,
        "only with top-k": lambda kind: kind.sampling.top_k > 0,
        "only with min-p": lambda kind: kind.sampling.min_p > 0.0,
    }
    found = [
        words
        for words, holds in tests.items()
        if failed and all(map(holds, failed)) and passed and not any(map(holds, passed))
    ]
    if "only at temperatures above 0" in found:
        found = [words for words in found if words != "only without a seed"]  # says less
    return ", ".join(found)
