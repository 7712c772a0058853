"""The smallest request that shows a difference from the reference, sent again to confirm it."""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE
from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.exactness.reference import Reference
from specbench.features.servers.exactness.served_checks import (
    KindResult,
    ReferenceRow,
    SampledCheck,
    greedy_check,
)
from specbench.features.servers.request_key import PromptKind
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import ServedRequest
from specbench.http_client import RequestFailed

LENGTHS = (1, 2, 4, 8, 16, 32)  # tokens of an output to try
CANDIDATES = 2  # prompts to try
MOST_REQUESTS = 32  # of one candidate and length
MOST_IN_ALL = 320


@dataclass(frozen=True)
class SmallestRequest:
    """A request that shows a difference when it is sent so many times.

    Args:
        request: The request. If it has a seed, its repeats have the next ones.
        path: Where it is sent.
        body: Its JSON.
        times: How often it was sent until the difference showed; 1 for a greedy request.
        expected: The token that the reference has at the end of a greedy output.
        found: The token that the server has there.
        p: The p of the repeats, for a sampled request.
    """

    request: ServedRequest
    path: str
    body: dict[str, object]
    times: int
    expected: int | None = None
    found: int | None = None
    p: float | None = None

    def curl(self, url: str, key_env: str) -> str:
        """Return a command line that sends the request once, without streaming."""
        plain = {
            key: value for key, value in self.body.items() if key not in ("stream", "stream_options", "cache_salt")
        }
        key = f' -H "Authorization: Bearer ${key_env}"' if os.environ.get(key_env) else ""
        data = shlex.quote(json.dumps(plain))
        return f"curl -s {url}{self.path} -H 'Content-Type: application/json'{key} -d {data}"


async def smallest_request(
    endpoint: Endpoint, reference: Reference, result: KindResult, entries: Sequence[LoggedRequest], deviation: float
) -> SmallestRequest | None:
    """Return the shortest request of a kind that shows its difference again; None if none did.

    Requests are sent alone, so a difference that needs concurrency does not show.
    """
    try:
        if result.greedy:
            return await _greedy(endpoint, reference, result, deviation)
        return await _sampled(endpoint, reference, result, entries, deviation)
    except RequestFailed:
        return None


async def _greedy(
    endpoint: Endpoint, reference: Reference, result: KindResult, deviation: float
) -> SmallestRequest | None:
    assert result.greedy is not None
    for fault in sorted(result.greedy.faults, key=lambda fault: (len(fault.tokens), len(fault.prompt)))[:CANDIDATES]:
        request = ServedRequest(
            prompt=fault.prompt, sampling=result.kind.sampling, max_tokens=len(fault.tokens),
            reuse_cache=result.kind.prompt is PromptKind.cached,
        )  # fmt: skip
        tokens = (await endpoint.complete(request)).tokens or ()
        if not tokens:
            continue
        row = ReferenceRow(fault.prompt, tokens, await reference.logits(fault.prompt, tokens))
        again = greedy_check([(fault.key, row)], deviation).faults
        if again:
            found = again[0]
            request = replace(request, max_tokens=len(found.tokens))
            return as_sent(endpoint, request, times=1, expected=found.expected, found=found.tokens[-1])
    return None


async def _sampled(
    endpoint: Endpoint, reference: Reference, result: KindResult, entries: Sequence[LoggedRequest], deviation: float
) -> SmallestRequest | None:
    """Send candidates in order of length until one rejects at SIGNIFICANCE, after a correction for their number."""
    prompts = await _most_suspicious(reference, result, entries, deviation)
    assert isinstance(result.sampled, SampledCheck)
    begins = 1 if result.sampled.groups_that_differ(1) == ("later",) else 0  # where the first token is right
    lengths = LENGTHS[begins:]
    alarm = SIGNIFICANCE / (len(lengths) * max(len(prompts), 1))
    sent = 0
    for length in lengths:
        for prompt in prompts:
            check = SampledCheck(result.kind.sampling, deviation)
            for times in range(1, MOST_REQUESTS + 1):
                request = ServedRequest(
                    prompt=prompt, sampling=result.kind.sampling, max_tokens=length,
                    seed=7000 + times if result.kind.is_seeded else None,
                    reuse_cache=result.kind.prompt is PromptKind.cached,
                )  # fmt: skip
                if sent == MOST_IN_ALL:
                    return None
                tokens, sent = (await endpoint.complete(request)).tokens or (), sent + 1
                if tokens:
                    check.add(ReferenceRow(prompt, tokens, await reference.logits(prompt, tokens)))
                ps = [each.p for group in GROUPS for each in check.results(group).values()]
                p = min((each * len(ps) for each in ps), default=1.0)
                if p <= alarm:
                    first = replace(request, seed=7001) if result.kind.is_seeded else request
                    return as_sent(endpoint, first, times=times, p=p)
    return None


async def _most_suspicious(
    reference: Reference, result: KindResult, entries: Sequence[LoggedRequest], deviation: float
) -> list[tuple[int, ...]]:
    """Return the prompts whose outputs depart most from the reference, CANDIDATES at most."""
    checks: dict[tuple[int, ...], SampledCheck] = {}
    for entry in entries:
        if entry.prompt and entry.tokens:
            prompt, tokens = tuple(entry.prompt), tuple(entry.tokens)
            check = checks.setdefault(prompt, SampledCheck(result.kind.sampling, deviation))
            check.add(ReferenceRow(prompt, tokens, await reference.logits(prompt, tokens)))
    return sorted(checks, key=lambda prompt: -checks[prompt].log_wealth)[:CANDIDATES]


def as_sent(
    endpoint: Endpoint, request: ServedRequest, *, times: int, expected: int | None = None, found: int | None = None,
    p: float | None = None,
) -> SmallestRequest:  # fmt: skip
    """Return a request with the path and the body that are sent."""
    path, body = endpoint.backend.body(request, endpoint.description.model)
    return SmallestRequest(request, path, body, times, expected, found, p)
