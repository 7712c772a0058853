"""`specbench server verify`: sends requests of each kind, compares the outputs with a reference, and gives a verdict."""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import torch

from specbench.errors import ConfigError, MissingAsset
from specbench.features.servers.calibration import Deviation, measured_deviation
from specbench.features.servers.endpoint import Endpoint, connected
from specbench.features.servers.exactness import (
    ALARM,
    KindResult,
    ReferenceRow,
    SampledCheck,
    SeedCheck,
    chance_of_equal_outputs,
    counts_of,
    greedy_check,
    pooled,
)
from specbench.features.servers.kinds import SAMPLINGS, PromptKind, RequestKind, kinds_of, shared_cause
from specbench.features.servers.prompts import ServedPrompt
from specbench.features.servers.reference import Reference, Served, Weights
from specbench.features.servers.request_log import LoggedRequest, RequestLog, compact
from specbench.features.servers.sending import ServerDied, send_all
from specbench.features.servers.served import Counters, Description, ServedRequest, ServedSampling, named
from specbench.features.servers.smallest import SmallestRequest, as_sent, smallest_request
from specbench.http_client import RequestFailed, Server
from specbench.machine.threads import using
from specbench.note import Note, warning
from specbench.observer import Observer

REPEATED = 8  # requests of a seeded kind that are sent twice
CALIBRATIONS = 48  # prefixes whose first token is compared
FEWEST_DRAFTED = 50  # drafted tokens from which on an acceptance rate of 0 or 1 is suspicious
LONG_PROMPT = 272  # tokens of a prompt with a cached prefix, more than two of vLLM's blocks
REQUESTS = "requests.jsonl"
DRAFTED = "drafted"  # an empty file: tokens were drafted


class Outcome(StrEnum):
    """The possible results of a verification of a server."""

    exact = "exact"  # no check failed, and the control was rejected
    differs = "differs"  # tokens do not follow the reference, or seeds do not repeat outputs
    inconclusive = "inconclusive"  # nothing failed, and the control was not rejected, or too little could be tested


@dataclass(frozen=True, kw_only=True)
class ServerVerifyRequest:
    """A server to verify, and the reference that it should follow.

    Args:
        on: The server.
        weights: A checkpoint of the model that it serves, for our own forward; empty without.
        off: A server of the same model without speculation, which returns log-probabilities; None without.
        model: The model's name on the server, if it serves several.
        draft: A checkpoint of the drafting model, whose distribution one more test compares with; empty without.
        dtype: The dtype of our own forward.
        prompts: The prompts.
        samplings: The sampling parameters to test.
        concurrencies: Numbers of requests in flight.
        seeds: Whether requests with seeds are tested too.
        kinds: Kinds of prompts.
        outputs: Outputs of each sampled kind.
        max_tokens: The largest number of tokens of an output.
        max_prompt_tokens: Of longer prompts, the last tokens are sent.
        seed: Of the seeds of requests.
        threads: CPU threads of our own forward and of the tests; few, since the server may share the processors.
        out: The folder of the log.
    """

    on: Server
    weights: str = ""
    off: Server | None = None
    model: str = ""
    draft: str = ""
    dtype: str = "float32"
    prompts: Sequence[ServedPrompt]
    samplings: tuple[ServedSampling, ...] = SAMPLINGS
    concurrencies: tuple[int, ...] = (1, 8)
    seeds: bool = True
    kinds: tuple[PromptKind, ...] = (PromptKind.raw, PromptKind.cached, PromptKind.chat)
    outputs: int = 64
    max_tokens: int = 32
    max_prompt_tokens: int = 160
    seed: int = 0
    threads: int = 1
    out: Path = Path("results/servers")


@dataclass(frozen=True, kw_only=True)
class ServerVerification:
    """The verdict on a server, and what led to it."""

    outcome: Outcome
    line: str
    description: Description
    reference: str
    deviation: Deviation | None
    control_deviation: Deviation | None = None  # of the server without speculation
    results: list[KindResult]
    number_of_tests: int
    notes: list[Note] = field(default_factory=list)
    smallest: SmallestRequest | None = None
    folder: Path = Path()


async def verify_server(request: ServerVerifyRequest, observer: Observer) -> ServerVerification:
    """Test whether a server's outputs follow a reference.

    Raises:
        ConfigError: There is no reference, or a setting does not fit the server.
        MissingAsset: A server does not answer, or the weights cannot be read.
    """
    if not request.weights and request.off is None:
        raise ConfigError("a reference is missing; help: --weights FOLDER of the same model, or --off URL")
    with using(request.threads):
        return await _verified(request, observer)


async def _verified(request: ServerVerifyRequest, observer: Observer) -> ServerVerification:
    dtype = getattr(torch, request.dtype)
    with observer.status("load the reference"):
        weights = Weights(request.weights, dtype) if request.weights else None
        drafts = {"draft": Weights(request.draft, dtype)} if request.draft else {}
    async with connected(request.on, request.model) as on:
        if request.off is None:
            assert weights is not None
            return await _Verification(request, on, None, weights, drafts, observer).result()
        async with connected(request.off, request.model) as off:
            reference = weights or Served(off)
            return await _Verification(request, on, off, reference, drafts, observer).result()


def _has_drafted(results: Sequence[KindResult], before: Counters | None, after: Counters | None) -> bool:
    """Return whether a server drafted tokens, by its answers or its counters; True if neither says."""
    counts = [result.acceptance for result in results if result.acceptance]
    if any(drafted for _, drafted in counts):
        return True
    if before is not None and after is not None and before.speculation is not None and after.speculation is not None:
        return after.speculation.drafted > before.speculation.drafted
    return not counts


class _Verification:
    """One verification in progress."""

    def __init__(
        self,
        request: ServerVerifyRequest,
        on: Endpoint,
        off: Endpoint | None,
        reference: Reference,
        drafts: dict[str, Weights],
        observer: Observer,
    ) -> None:
        self.request, self.on, self.off, self.reference, self.drafts = request, on, off, reference, drafts
        self.observer, self.notes = observer, list[Note]()
        self.folder = request.out / f"verify-{self._hash()}"
        self.log = RequestLog(self.folder / REQUESTS)
        self.tolerance = 0.0
        self.has_drafted = False

    def _hash(self) -> str:
        """Return a hash of what the outputs depend on besides their keys."""
        described = {
            "on": self.on.description.identity,
            "prompts": [prompt.text for prompt in self.request.prompts],
            "tokens": [self.request.max_tokens, self.request.max_prompt_tokens],
            "seed": self.request.seed,
        }
        return hashlib.sha256(compact(described).encode()).hexdigest()[:10]

    async def result(self) -> ServerVerification:
        """Send the requests, and return the verdict."""
        for server in filter(None, (self.request.on, self.request.off)):
            if not server.is_local:
                self.notes.append(warning("remote server", f"prompts leave this machine: {server.host} receives them"))
        try:
            prompts = await self._encoded()
            deviation, of_off = await self._deviations(prompts)
        except RequestFailed as error:
            raise MissingAsset(f"{self.on.description.url}: {error}") from None
        self.tolerance = (of_off or deviation).allowed
        kinds = kinds_of(self.request.samplings, self.request.concurrencies, self.request.seeds, self.request.kinds)
        requests = {kind: self._requests(kind, prompts) for kind in kinds}
        results, death = list[KindResult](), None
        before = await self.on.counters()
        with self.observer.progress(f"verify {self.request.on.host}", sum(map(len, requests.values()))) as advance:
            for kind in kinds:
                try:
                    results.append(await self._of_kind(kind, requests[kind], advance))
                except ServerDied as error:
                    death = error
                    break
        after = await self.on.counters() if death is None else None
        drafted = self.folder / DRAFTED
        if _has_drafted(results, before, after):
            drafted.touch()
        self.has_drafted = drafted.exists()  # also before an interruption
        return await self._verdict(results, deviation, of_off, death)

    async def _encoded(self) -> list[tuple[int, ...]]:
        """Return the prompts as the server's ids, cut at random places, so that the next token is uncertain.

        Of longer prompts than `max_prompt_tokens` or the context, the last tokens are kept.
        """
        chooser = random.Random(self.request.seed)
        context = self.on.description.context or 2**20
        room = min(context - self.request.max_tokens - 1, self.request.max_prompt_tokens)
        encoded: list[tuple[int, ...]] = []
        for prompt in self.request.prompts:
            ids = await self.on.tokenize(prompt.text)
            if ids is None:
                raise ConfigError(
                    f"{self.on.description.url} speaks the dialect {self.on.dialect.name}, without token ids: its outputs"
                    " cannot be compared with probabilities; help: vLLM, llama.cpp or SGLang"
                )
            if not encoded and isinstance(self.reference, Weights):
                own = tuple(self.reference.tokenizer(prompt.text)["input_ids"])
                if own != ids:
                    text = f"the server splits the first prompt into {named(ids)}, the weights' tokenizer into {named(own)}"
                    self.notes.append(warning("tokenizers differ", text))
            end = chooser.randint(max(len(ids) // 2, 1), max(len(ids), 1))
            encoded.append(ids[:end][-room:])
        return encoded

    async def _deviations(self, prompts: list[tuple[int, ...]]) -> tuple[Deviation, Deviation | None]:
        """Return the deviations of logits from the reference: of the server, and of the one without speculation."""
        chooser = random.Random(self.request.seed)
        cut = [prompt[: chooser.randint(2, len(prompt))] for prompt in prompts if len(prompt) > 2]
        prefixes = [*prompts, *cut][:CALIBRATIONS]
        sides = [self.on, self.off] if self.off and isinstance(self.reference, Weights) else [self.on]
        found = list[Deviation | None]()
        with self.observer.progress("compare logits", len(sides) * len(prefixes)) as advance:
            for side in filter(None, sides):
                found.append(await measured_deviation(side, self.reference, prefixes, advance))
        if found[0] is None:
            raise ConfigError(
                f"{self.on.description.url} returns no log-probabilities: its rounding cannot be measured"
            )
        return found[0], found[1] if len(found) > 1 else None

    def _requests(self, kind: RequestKind, prompts: list[tuple[int, ...]]) -> list[tuple[str, ServedRequest]]:
        """Return the requests of a kind by key."""
        count = len(prompts) if kind.sampling.is_greedy else self.request.outputs
        rows = []
        for i in range(count):
            at = i % len(prompts)
            seed = 1000 * (self.request.seed + 1) + i if kind.is_seeded else None
            request = ServedRequest(
                prompt=() if kind.prompt is PromptKind.chat else self._prompt(kind, prompts, at),
                messages=self.request.prompts[at].messages if kind.prompt is PromptKind.chat else (),
                sampling=kind.sampling,
                max_tokens=self.request.max_tokens,
                seed=seed,
                reuse_cache=kind.prompt is PromptKind.cached,
            )
            rows.append((f"{kind.label}|{at}|{i // len(prompts)}", request))
        again = [(f"{key}|again", request) for key, request in rows[:REPEATED]] if kind.is_seeded else []
        return rows + again

    def _prompt(self, kind: RequestKind, prompts: list[tuple[int, ...]], at: int) -> tuple[int, ...]:
        """Return a prompt; for a cached prefix, several in succession, since servers cache blocks of many tokens."""
        if kind.prompt is not PromptKind.cached:
            return prompts[at]
        room = (self.on.description.context or 2**20) - self.request.max_tokens - 1
        longer, i = prompts[at], at
        while len(longer) < LONG_PROMPT and i < at + 64:
            i += 1
            longer = (*prompts[i % len(prompts)], *longer)
        return longer[-room:]

    async def _of_kind(
        self, kind: RequestKind, requests: list[tuple[str, ServedRequest]], advance: Callable[[], None]
    ) -> KindResult:
        """Send the requests of a kind, and check their outputs. Raises ServerDied."""

        async def fill_cache(request: ServedRequest) -> None:
            await self.on.complete(replace(request, max_tokens=1, seed=None))

        before = fill_cache if kind.prompt is PromptKind.cached else None
        await send_all(self.on, requests, self.log, kind.concurrency, advance, before)
        entries = [self.log.entries[key] for key, _ in requests]
        done = [entry for entry in entries if entry.error is None]
        failures = [entry for entry in entries if entry.error is not None]
        if not done:
            return KindResult(kind, failures=len(failures), note=f"every request failed: {failures[0].error}")
        testable = [entry for entry in done if entry.tokens and entry.prompt]
        if not testable:
            return KindResult(kind, failures=len(failures), note="the server returns no token ids here")
        if kind.prompt is PromptKind.cached and not any(entry.cached_tokens for entry in testable):
            return KindResult(kind, failures=len(failures), note="the server reports no cache hit")
        rows = {entry.key: await self._row(entry) for entry in testable}
        firsts = {key: row for key, row in rows.items() if not key.endswith("|again")}
        greedy = sampled = None
        if kind.sampling.is_greedy:
            greedy = greedy_check(firsts.items(), self.tolerance)
        else:
            sampled = SampledCheck(kind.sampling, self.tolerance)
            for row in firsts.values():
                sampled.add(row)
        self._note_oddities(kind, done)
        return KindResult(
            kind, len(firsts), len(failures), greedy, sampled,
            self._seeds(kind, rows) if kind.is_seeded else None, counts_of(testable),
        )  # fmt: skip

    async def _row(self, entry: LoggedRequest) -> ReferenceRow:
        assert entry.prompt is not None and entry.tokens is not None
        logits = await self.reference.logits(entry.prompt, entry.tokens)
        drafts = {name: await draft.logits(entry.prompt, entry.tokens) for name, draft in self.drafts.items()}
        return ReferenceRow(tuple(entry.prompt), tuple(entry.tokens), logits, drafts)

    def _seeds(self, kind: RequestKind, rows: dict[str, ReferenceRow]) -> SeedCheck:
        """Compare outputs that were sampled twice with one seed, and outputs of one prompt with different seeds."""
        again = [(rows[key], rows[f"{key}|again"]) for key in rows if f"{key}|again" in rows]
        equal = sum(one.tokens == two.tokens for one, two in again)
        by_chance = sum(chance_of_equal_outputs(one, kind.sampling) for one, _ in again)
        of_prompt: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for key, row in rows.items():
            if not key.endswith("|again"):
                of_prompt.setdefault(row.prompt, []).append(row.tokens)
        most = max(of_prompt.values(), key=len, default=[])
        return SeedCheck(len(again), equal, (len(set(most)), len(most)), by_chance)

    def _note_oddities(self, kind: RequestKind, entries: Sequence[LoggedRequest]) -> None:
        """Warn about echoed parameters, other models, cache hits, and acceptance rates that are not plausible."""
        name = self.on.description.model
        if other := next((entry.model for entry in entries if entry.model and entry.model != name), ""):
            self.notes.append(warning("another model", f"answers name the model {other!r}, {name!r} was requested"))
        changed = next((entry.changed for entry in entries if entry.changed), None)
        for parameter, (sent, echoed) in (changed or {}).items():
            text = f"{parameter} = {sent:g} was sent, and the server answers that it used {echoed:g} ({kind.label})"
            self.notes.append(warning("changed parameter", text, subject=parameter))
        hits = sum(bool(entry.cached_tokens) for entry in entries)
        if hits and kind.prompt is PromptKind.raw:
            self.notes.append(
                warning("cache hits", f"{hits} of {len(entries)} prompts were read from a cache ({kind.label})")
            )
        counts = counts_of(entries)
        if counts and counts[1] >= FEWEST_DRAFTED and counts[0] in (0, counts[1]):
            rate = "none" if counts[0] == 0 else "all"
            self.notes.append(
                warning("acceptance", f"{rate} of {counts[1]} drafted tokens were accepted ({kind.label})")
            )

    async def _verdict(
        self, results: list[KindResult], deviation: Deviation, of_off: Deviation | None, death: ServerDied | None
    ) -> ServerVerification:
        together = pooled(results)
        checks = [*(result.sampled for result in results if result.sampled), *together]
        tests = sum(check.number_of_tests() for check in checks)
        differing = {result.kind: groups for result in results if (groups := result.groups_that_differ(tests))}
        unseeded = [result.kind for result in results if result.seeds and result.seeds.holds is False]
        equal = [result.kind for result in results if result.seeds and result.seeds.are_different_seeds_equal]
        found = list[str]()
        if differing:
            tested = [r.kind for r in results if (r.greedy or r.sampled) and r.kind not in differing]
            where = "from the first token on" if any("first" in groups for groups in differing.values()) else (
                "from the second token on, where speculation begins"
            )  # fmt: skip
            cause = shared_cause(list(differing), tested)
            share = f"{len(differing)} of {len(differing) + len(tested)} kinds of requests"
            found.append(
                f"outputs depart from {self.reference.name} in {share}, {where}{f', {cause}' if cause else ''}"
            )
        elif whole := next((check for check in together if check.groups_that_differ(tests)), None):
            found.append(f"outputs of all kinds at {whole.sampling} together depart from {self.reference.name}")
        if deviation.fault:
            found.append(deviation.fault)
        elif of_off is not None and deviation.largest > 2.0 * of_off.allowed:
            found.append(
                f"its own logits deviate by up to {deviation.largest:.2g} from the reference, those of the server without"
                f" speculation by {of_off.largest:.2g}: {deviation.explanation}"
            )
        if unseeded:
            cause = shared_cause(unseeded, [r.kind for r in results if r.seeds and r.seeds.holds])
            found.append(f"equal seeds do not repeat outputs{f', {cause}' if cause else ''}")
        if equal:
            found.append("different seeds give one output")
        if death is not None:
            found.append("the server died during a request, which requests.jsonl names last")
        smallest = None
        if differing and death is None:
            with self.observer.status("look for the smallest request that shows it"):
                smallest = await self._smallest(results, differing)
        elif unseeded and death is None:
            smallest = self._sent_twice(unseeded[0])
        outcome, line = self._conclusion(results, checks, found, tests)
        return ServerVerification(
            outcome=outcome, line=line, description=self.on.description, reference=self.reference.name,
            deviation=deviation, control_deviation=of_off, results=results, number_of_tests=tests, notes=self.notes,
            smallest=smallest, folder=self.folder,
        )  # fmt: skip

    def _conclusion(
        self, results: list[KindResult], sampled: list[SampledCheck], found: list[str], tests: int
    ) -> tuple[Outcome, str]:
        label = self.on.description.label
        if found:
            return Outcome.differs, f"NOT exact: {label}: {'; '.join(found)}"
        greedy = [result.greedy for result in results if result.greedy]
        if self.on.description.speculation.is_on and not self.has_drafted:
            return Outcome.inconclusive, (
                f"inconclusive: {label}: no check failed, but nothing was drafted, so speculation was not tested; help: other"
                " prompts (-t, --data), a larger --max-prompt-tokens or --max-new-tokens"
            )
        if not sampled and not greedy:
            return Outcome.inconclusive, f"inconclusive: {label}: nothing could be tested"
        if sampled and not any(check.control_p("later") * tests <= ALARM for check in sampled):
            return Outcome.inconclusive, (
                f"inconclusive: {label}: no check failed, but the control, at 1.25 times the temperature, was not rejected"
                " either; help: more --outputs"
            )
        power: dict[ServedSampling, float] = {}
        for check in sampled:
            if smallest := check.smallest_temperature(ALARM / max(tests, 1)):
                power[check.sampling] = min(smallest, power.get(check.sampling, smallest))
        shown = f"; a temperature {max(power.values()):.2f} times the requested one would be found" if power else ""
        how = "greedy and sampled" if greedy and sampled else "greedy" if greedy else "sampled"
        return Outcome.exact, (
            f"exact: {label}: {how} outputs follow {self.reference.name}, up to {self.tolerance:.2g} of a logit{shown}"
        )

    def _sent_twice(self, kind: RequestKind) -> SmallestRequest | None:
        """Return the first request of a kind whose equal seed did not repeat its output."""
        for key, again in self.log.entries.items():
            if key.startswith(f"{kind.label}|") and key.endswith("|again"):
                first = self.log.entries[key.removesuffix("|again")]
                if first.tokens != again.tokens and first.prompt:
                    request = ServedRequest(
                        prompt=tuple(first.prompt), sampling=kind.sampling, max_tokens=self.request.max_tokens,
                        seed=first.seed,
                    )  # fmt: skip
                    return as_sent(self.on, request, times=2)
        return None

    async def _smallest(
        self, results: list[KindResult], differing: dict[RequestKind, tuple[str, ...]]
    ) -> SmallestRequest | None:
        """Return the smallest request that shows a difference of the first kind that differs."""
        result = next(result for result in results if result.kind in differing)
        keys = [key for key in self.log.entries if key.startswith(f"{result.kind.label}|")]
        entries = [self.log.entries[key] for key in keys if not key.endswith("|again")]
        return await smallest_request(self.on, self.reference, result, entries, self.tolerance)
