"""`specbench server verify`: sends requests of each kind, compares the outputs, and gives a verdict."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path

import torch

from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.answer_notes import (
    acceptance_notes,
    answer_notes,
    cache_notes,
    counter_notes,
    fault_notes,
    id_notes,
    remote_notes,
)
from specbench.features.servers.endpoint import SPARE, Endpoint, connected
from specbench.features.servers.exactness.kinds import kinds_of
from specbench.features.servers.exactness.output_comparison import ByReference, BySamples, Comparison
from specbench.features.servers.exactness.reference import Served, Weights
from specbench.features.servers.exactness.served_checks import KindResult, counts_of
from specbench.features.servers.exactness.served_evidence import Evidence
from specbench.features.servers.exactness.smallest import SmallestRequest, as_sent
from specbench.features.servers.exactness.stored_verdict import ServerVerification, verification_of
from specbench.features.servers.exactness.verify_request import (
    Keyed,
    Prompt,
    ServerVerifyRequest,
    encoded,
    requests_of,
)
from specbench.features.servers.readiness import Patience
from specbench.features.servers.request_key import PromptKind, RequestKind, Role
from specbench.features.servers.request_log import LOG_VERSION, LoggedRequest, RequestLog, compact
from specbench.features.servers.sending import ServerDied, send_all
from specbench.features.servers.served import Counters, ServedRequest
from specbench.features.servers.served_results import VERIFICATION, write_result
from specbench.http_client import RequestFailed
from specbench.machine.threads import using
from specbench.note import Note, warning
from specbench.observer import Observer

REQUESTS = "requests.jsonl"
DRAFTED = "drafted"  # an empty file: tokens were drafted


async def verify_server(request: ServerVerifyRequest, out: Path, observer: Observer) -> tuple[ServerVerification, Path]:
    """Test whether a server's outputs follow a reference, and return the verdict and the folder in `out` that contains it.

    Raises:
        ConfigError: There is no reference, or a setting does not fit the server.
        MissingAsset: A server does not answer, or the weights cannot be read.
    """
    if not request.weights and request.off is None:
        raise ConfigError("a reference is missing; help: --weights FOLDER of the same model, or --off URL")
    with using(request.threads):
        return await _verified(request, out, observer)


async def _verified(request: ServerVerifyRequest, out: Path, observer: Observer) -> tuple[ServerVerification, Path]:
    connections = max(request.concurrencies) + SPARE
    async with AsyncExitStack() as stack:
        on, off = [
            None
            if server is None
            else await stack.enter_async_context(
                connected(server, request.model, connections, Patience(seconds=server.seconds, observer=observer))
            )
            for server in (request.on, request.off)
        ]
        assert on is not None
        dtype = getattr(torch, request.dtype)
        with observer.status("load the reference"):
            weights = Weights(request.weights, dtype) if request.weights else None
            drafts = {"draft": Weights(request.draft, dtype)} if request.draft else {}
        if weights is not None:
            comparison: Comparison = ByReference(on, off, weights, drafts)
        else:
            assert off is not None
            if on.description.has_ids and await _returns_distributions(off):
                comparison = ByReference(on, off, Served(off), drafts)
            else:
                comparison = BySamples(on, off, sum(not kind.sampling.is_greedy for kind in _kinds(request)))
        verification = _Verification(request, out, (on, off), comparison, weights, observer)
        found = await verification.result()
        write_result(verification.folder / VERIFICATION, found)
        return found, verification.folder


def _kinds(request: ServerVerifyRequest) -> list[RequestKind]:
    return kinds_of(request.samplings, request.concurrencies, request.seeds, request.kinds)


async def _returns_distributions(off: Endpoint) -> bool:
    """Return whether a server returns the log-probabilities of its whole vocabulary. Raises MissingAsset."""
    if not off.description.has_ids:
        return False
    try:
        await Served(off).logits([1, 2], [3])
    except ConfigError:
        return False
    except RequestFailed as error:
        if error.status:
            return False
        raise MissingAsset(f"{off.description.url}: {error}") from None
    return True


class _Verification:
    """One verification in progress."""

    def __init__(
        self,
        request: ServerVerifyRequest,
        out: Path,
        servers: tuple[Endpoint, Endpoint | None],
        comparison: Comparison,
        weights: Weights | None,
        observer: Observer,
    ) -> None:
        self.request, (self.on, self.off), self.comparison, self.weights = request, servers, comparison, weights
        self.observer, self.notes = observer, list[Note]()
        self.folder = out / f"verify-{self._hash()}"
        self.log = RequestLog(self.folder / REQUESTS)

    def _hash(self) -> str:
        """Return a hash of what the outputs depend on besides their keys."""
        described = {
            "version": LOG_VERSION,
            "on": asdict(self.on.description),
            "prompts": [prompt.text for prompt in self.request.prompts],
            "tokens": [self.request.max_tokens, self.request.max_prompt_tokens],
            "seed": self.request.seed,
            "reference": [self.comparison.name, self.request.draft],
        }
        if isinstance(self.comparison, BySamples) and self.off is not None:
            described["off"] = asdict(self.off.description)
        return hashlib.sha256(compact(described).encode()).hexdigest()[:10]

    async def result(self) -> ServerVerification:
        """Send the requests, and return the verdict."""
        self._note_servers()
        try:
            prompts = await encoded(self.request, self.on, self.comparison.as_text)
            await self._check_tokenizers(prompts.raw)
            await self.comparison.prepare(prompts.raw, self.request.seed, self.observer)
        except RequestFailed as error:
            raise MissingAsset(f"{self.on.description.url}: {error}") from None
        request = self.request
        kinds = _kinds(request)
        sent = {kind: requests_of(request, kind, prompts, self.on) for kind in kinds}
        to_off = {kind: self.comparison.requests_to_off(kind, sent[kind]) for kind in kinds}
        results, has_died = list[KindResult](), False
        before = await self.on.counters()
        total = sum(map(len, (*sent.values(), *to_off.values())))
        with self.observer.progress(f"verify {request.on.host}", total) as advance:
            for kind in kinds:
                try:
                    await self._send(kind, sent[kind], to_off[kind], advance)
                except ServerDied as error:
                    if error.url != self.on.description.url:
                        raise
                    has_died = True
                    break
                try:
                    results.append(await self._result(kind, sent[kind], to_off[kind]))
                except RequestFailed as error:
                    raise MissingAsset(f"the reference, {self.comparison.name}: {error}") from None
        after = None if has_died else await self.on.counters()
        self.notes += counter_notes((before, after), "on")
        drafted = self.folder / DRAFTED
        if _has_drafted(results, before, after):
            drafted.touch()
        self._note_seeds(results)
        evidence = Evidence(
            description=self.on.description,
            reference=self.comparison.name,
            results=results,
            deviation=self.comparison.deviation,
            control_deviation=self.comparison.control_deviation,
            tolerance=self.comparison.tolerance,
            has_drafted=drafted.exists(),  # also before an interruption
            has_died=has_died,
        )
        with self.observer.status("compare the outputs"):  # the first use of the tests makes them
            found = verification_of(evidence)
        smallest = None if has_died else await self._smallest(evidence)
        return replace(found, notes=self.notes, request=request.stored(), smallest_request=smallest)

    def _note_servers(self) -> None:
        self.notes += remote_notes(filter(None, (self.request.on, self.request.off)))
        if isinstance(self.comparison, BySamples):
            text = (
                "without complete log-probabilities, outputs are compared with samples of the other server, which finds large"
                " deviations only"
            )
            has_ids = self.on.description.has_ids
            self.notes.append(warning("two samples", text, help="--weights FOLDER of its model" if has_ids else ""))

    def _note_seeds(self, results: Sequence[KindResult]) -> None:
        """Note how many outputs equal seeds repeat, if the server does not promise that they do."""
        seeds = [result.seeds for result in results if result.seeds and not self.on.description.repeats_seeds]
        equal, pairs = sum(each.equal for each in seeds), sum(each.pairs for each in seeds)
        if equal < pairs:
            text = (
                f"equal seeds repeat {equal} of {pairs} outputs; {self.on.backend.name} does not promise that they do"
            )
            self.notes.append(warning("seeds not promised", text, help=self.on.backend.seeds_help))

    async def _check_tokenizers(self, prompts: Sequence[Prompt]) -> None:
        """Warn if the weights' tokenizer splits the first prompt otherwise. Raises ConfigError for servers without ids."""
        if self.weights is None:
            return
        if isinstance(prompts[0], str):
            raise ConfigError(
                f"{self.on.description.url} speaks the backend {self.on.backend.name}, without token ids: its outputs cannot"
                " be compared with weights; help: --off URL of the same server without speculation"
            )
        text = self.request.prompts[0].text
        ids, own = await self.on.tokenize(text), tuple(self.weights.tokenizer(text)["input_ids"])
        if ids != own:
            text = (
                f"the server splits the first prompt into {len(ids or ())} tokens, the weights' tokenizer into {len(own)};"
                f" they differ from token {_first_difference(ids or (), own)} on; the tests use the server's"
            )
            self.notes.append(warning("tokenizers differ", text))

    async def _send(self, kind: RequestKind, requests: Keyed, to_off: Keyed, advance: Callable[[], None]) -> None:
        """Send the requests of a kind that are not logged yet. Raises ServerDied."""

        async def fill_cache(request: ServedRequest) -> None:
            await self.on.complete(replace(request, max_tokens=1, seed=None))

        before = fill_cache if kind.prompt is PromptKind.cached else None
        await send_all(self.on, requests, self.log, kind.concurrency, advance, before)
        if self.off is not None and to_off:
            await send_all(self.off, to_off, self.log, kind.concurrency, advance)

    async def _result(self, kind: RequestKind, requests: Keyed, to_off: Keyed) -> KindResult:
        entries = [self.log.entries[key] for key, _ in requests]
        of_off = [self.log.entries[key] for key, _ in to_off]
        done = [entry for entry in entries if entry.error is None]
        failures = [entry for entry in (*entries, *of_off) if entry.error is not None]
        if not done:
            return KindResult(kind, failures=len(failures), note=f"every request failed: {failures[0].error}")
        if kind.prompt is PromptKind.cached and not any(entry.cached_tokens for entry in done):
            return KindResult(kind, failures=len(failures), note="the server reports no cache hit")
        self._note_answers(kind, done)
        found = await self.comparison.result(kind, done, [entry for entry in of_off if entry.error is None])
        return replace(found, failures=len(failures))

    def _note_answers(self, kind: RequestKind, entries: Sequence[LoggedRequest]) -> None:
        """Warn about echoed parameters, other models, cache hits, and acceptance rates that are not plausible."""
        self.notes += answer_notes(entries, self.on.description.model, kind.label) + fault_notes(entries, kind.label)
        if kind.prompt is not PromptKind.chat:
            self.notes += id_notes(entries, self.on.description, kind.label)
        if kind.prompt is PromptKind.raw:
            self.notes += cache_notes(entries, kind.label)
        self.notes += acceptance_notes(counts_of(entries), kind.label)

    async def _smallest(self, evidence: Evidence) -> SmallestRequest | None:
        """Return the smallest request that shows a difference of the first kind that differs."""
        differing = evidence.differing
        if not differing:
            return self._sent_twice(evidence.unseeded[0]) if evidence.unseeded else None
        result = next(result for result in evidence.results if result.kind in differing)
        entries = [entry for entry in self._entries(result.kind, Role.sample) if entry.error is None]
        with self.observer.status("look for the smallest request that shows it"):
            return await self.comparison.smallest(result, entries)

    def _sent_twice(self, kind: RequestKind) -> SmallestRequest | None:
        """Return the first request of a kind whose equal seed did not repeat its output."""
        for again in self._entries(kind, Role.again):
            first = self.log.entries[replace(again.key, role=Role.sample)]
            if first.error is None and again.error is None and first.tokens != again.tokens and first.prompt:
                request = ServedRequest(
                    prompt=tuple(first.prompt), sampling=kind.sampling, max_tokens=self.request.max_tokens,
                    seed=first.seed,
                )  # fmt: skip
                return as_sent(self.on, request, times=2)
        return None

    def _entries(self, kind: RequestKind, role: Role) -> list[LoggedRequest]:
        """Return the logged requests of a kind and a role to the tested server."""
        return [
            entry for key, entry in self.log.entries.items() if (key.kind, key.role, key.side) == (kind, role, "on")
        ]


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the index of the first token that differs."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _has_drafted(results: Sequence[KindResult], before: Counters | None, after: Counters | None) -> bool:
    """Return whether a server drafted tokens, by its answers or its counters; True if neither says."""
    counts = [result.acceptance for result in results if result.acceptance]
    if any(each.drafted for each in counts):
        return True
    if before is not None and after is not None and before.speculation is not None and after.speculation is not None:
        change = after.speculation - before.speculation
        return bool(change.drafted) if not change.fault else not counts
    return not counts
