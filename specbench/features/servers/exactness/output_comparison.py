"""Two ways to compare served outputs: with log-probabilities of a reference, or with outputs of another server."""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from specbench.errors import ConfigError
from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.exactness.calibration import Deviation, measured_deviation
from specbench.features.servers.exactness.reference import MISSING, Reference, Weights
from specbench.features.servers.exactness.seeds import (
    SeedCheck,
    SeededOutputs,
    chance_of_output,
    least_repeated,
    p_of_exchanges,
)
from specbench.features.servers.exactness.served_checks import (
    KindResult,
    ReferenceRow,
    SampledCheck,
    again_of,
    counts_of,
    greedy_check,
    greedy_texts,
)
from specbench.features.servers.exactness.smallest import SmallestRequest, smallest_request
from specbench.features.servers.exactness.two_samples import (
    CONTROL,
    ComparedOutputs,
    Output,
    PromptOutputs,
    TwoSampleCheck,
    permutations_for,
    units_of,
)
from specbench.features.servers.exactness.verify_request import Keyed, Prompt
from specbench.features.servers.request_key import RequestKey, RequestKind, Role
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import ServedRequest, ServedSampling
from specbench.observer import Observer

CALIBRATIONS = 48  # prefixes whose first token is compared
OTHER_SEEDS = 10**6  # added to the seeds of requests to the other server, so that the samples are independent


class Comparison(ABC):
    """How the outputs of a server are compared.

    Attributes:
        name: The reference.
        deviation: How far the server's logits are from the reference's; None without log-probabilities.
        control_deviation: The same of the server without speculation; None if it was not measured.
        tolerance: The deviation of logits that the tests allow.
        as_text: Whether prompts are sent as texts and texts are compared.
    """

    name: str
    deviation: Deviation | None = None
    control_deviation: Deviation | None = None
    tolerance: float = 0.0
    as_text: bool = False

    async def prepare(self, prompts: Sequence[Prompt], seed: int, observer: Observer) -> None:  # noqa: B027
        """Measure what the comparison needs. Raises ConfigError and RequestFailed."""

    def requests_to_off(self, kind: RequestKind, requests: Keyed) -> Keyed:
        """Return the requests of a kind that the server without speculation is sent."""
        return []

    @abstractmethod
    async def result(
        self, kind: RequestKind, entries: Sequence[LoggedRequest], of_off: Sequence[LoggedRequest]
    ) -> KindResult:
        """Return the result of a kind, from the requests that both servers finished without failure."""

    async def smallest(self, result: KindResult, entries: Sequence[LoggedRequest]) -> SmallestRequest | None:
        """Return the smallest request that shows the difference of a kind; None if it is not searched or found."""
        return None


class ByReference(Comparison):
    """Served ids against the distributions of a reference.

    Args:
        on: The server.
        off: A server without speculation, whose logits are compared too; None without.
        reference: The reference.
        drafts: Drafting models, whose distributions one more test each compares with.
    """

    def __init__(self, on: Endpoint, off: Endpoint | None, reference: Reference, drafts: Mapping[str, Weights]) -> None:
        self.name = reference.name
        self._on, self._off, self._reference, self._drafts = on, off, reference, drafts

    async def prepare(self, prompts: Sequence[Prompt], seed: int, observer: Observer) -> None:
        chooser = random.Random(seed)
        whole = [prompt for prompt in prompts if not isinstance(prompt, str)]
        cut = [prompt[: chooser.randint(2, len(prompt))] for prompt in whole if len(prompt) > 2]
        prefixes = [*whole, *cut][:CALIBRATIONS]
        sides = [self._on, *([self._off] if self._off and isinstance(self._reference, Weights) else [])]
        with observer.progress("compare logits", len(sides) * len(prefixes)) as advance:
            found = [await measured_deviation(side, self._reference, prefixes, advance) for side in sides]
        if found[0] is None:
            url = self._on.description.url
            raise ConfigError(f"{url} returns no log-probabilities: its rounding cannot be measured")
        self.deviation, self.control_deviation = found[0], found[1] if len(found) > 1 else None
        if self.control_deviation is not None and (fault := self.control_deviation.fault):
            raise ConfigError(f"--off does not follow the weights, so it cannot be the control: {fault}")
        self.tolerance = (self.control_deviation or self.deviation).allowed

    async def result(
        self, kind: RequestKind, entries: Sequence[LoggedRequest], of_off: Sequence[LoggedRequest]
    ) -> KindResult:
        testable = [entry for entry in entries if entry.tokens and entry.prompt]
        if not testable:
            return KindResult(kind, note="the server returns no token ids here")
        rows = {entry.key: await self._row(entry) for entry in testable}
        firsts = {key: row for key, row in rows.items() if key.role is Role.sample}
        counts = counts_of(testable)
        if kind.sampling.is_greedy:
            greedy = greedy_check(firsts.items(), self.tolerance)
            return KindResult(kind, len(firsts), greedy=greedy, acceptance=counts)
        sampled = SampledCheck(kind.sampling, self.tolerance)
        for row in firsts.values():
            sampled.add(row)
        seeds = self._seeds(rows, kind.sampling) if kind.is_seeded else None
        return KindResult(kind, len(firsts), sampled=sampled, seeds=seeds, acceptance=counts)

    def _seeds(self, rows: Mapping[RequestKey, ReferenceRow], sampling: ServedSampling) -> SeedCheck:
        """Compare outputs with equal seeds, and those with different seeds with what the reference lets expect."""
        first_rows: dict[int, ReferenceRow] = {}
        counts: Counter[int] = Counter()
        for key, row in rows.items():
            if key.role is Role.sample:
                first_rows.setdefault(key.prompt, row)
                counts[key.prompt] += 1
        chances = [
            chance
            for prompt, row in first_rows.items()
            for chance in [chance_of_output(row.logits, row.tokens, sampling, self.tolerance)] * (counts[prompt] - 1)
        ]
        outputs = _seeded({key: row.tokens for key, row in rows.items()})
        length = max((len(row.tokens) for row in rows.values()), default=0)
        repeating = least_repeated(self.tolerance, sampling.temperature, length)
        return outputs.check(chances, None, repeating if self._on.description.repeats_seeds else None)

    async def _row(self, entry: LoggedRequest) -> ReferenceRow:
        assert entry.prompt is not None and entry.tokens is not None
        logits = await self._reference.logits(entry.prompt, entry.tokens)
        drafts = {name: await draft.logits(entry.prompt, entry.tokens) for name, draft in self._drafts.items()}
        size = max(rows.shape[1] for rows in (logits, *drafts.values()))
        drafts = {name: _padded(rows, size) for name, rows in drafts.items()}
        return ReferenceRow(tuple(entry.prompt), tuple(entry.tokens), _padded(logits, size), drafts)

    async def smallest(self, result: KindResult, entries: Sequence[LoggedRequest]) -> SmallestRequest | None:
        return await smallest_request(self._on, self._reference, result, entries, self.tolerance)


class BySamples(Comparison):
    """Outputs of a server against those of a server without speculation: ids if both return them, else texts.

    The control, outputs of `off` at a higher temperature, is sent once for each sampling.
    """

    def __init__(self, on: Endpoint, off: Endpoint, sampled_kinds: int) -> None:
        self.name = f"{off.description.label} at {off.description.url}"
        self.as_text = not (on.description.has_ids and off.description.has_ids)
        self._permutations = permutations_for(
            6 * sampled_kinds
        )  # first and later tokens, kinds alone and together, and seeds
        self._controlled: dict[ServedSampling, RequestKind] = {}  # the kind with which the control was sent
        self._controls: dict[ServedSampling, ComparedOutputs] = {}

    def requests_to_off(self, kind: RequestKind, requests: Keyed) -> Keyed:
        """Return each request, twice if it is greedy; for the first kind of a sampling, the control too."""
        firsts = [(replace(key, side="off"), request) for key, request in requests if key.role is Role.sample]
        if kind.sampling.is_greedy:
            return [*firsts, *((again_of(key), request) for key, request in firsts)]
        rows = [(key, _with_other_seed(request)) for key, request in firsts]
        if self._controlled.setdefault(kind.sampling, kind) == kind:
            hotter = replace(kind.sampling, temperature=CONTROL * kind.sampling.temperature)
            rows += [(replace(key, role=Role.control), replace(request, sampling=hotter)) for key, request in firsts]
        return rows

    async def result(
        self, kind: RequestKind, entries: Sequence[LoggedRequest], of_off: Sequence[LoggedRequest]
    ) -> KindResult:
        firsts = _of_role(entries, Role.sample)
        counts = counts_of(entries)
        if kind.sampling.is_greedy:
            return KindResult(kind, len(firsts), texts=greedy_texts(firsts, of_off), acceptance=counts)
        off = _of_role(of_off, Role.sample)
        if hotter := _of_role(of_off, Role.control):
            self._controls[kind.sampling] = ComparedOutputs(self._by_prompt(hotter, off), self._permutations)
        control = self._controls.setdefault(kind.sampling, ComparedOutputs([]))
        sampled = TwoSampleCheck(
            kind.sampling, ComparedOutputs(self._by_prompt(firsts, off), self._permutations), control
        )
        seeds = None
        if kind.is_seeded:
            outputs = {entry.key: units_of(entry, self.as_text) for entry in entries}
            seeds = self._seeds(_seeded(outputs), self._by_prompt(firsts, off))
        return KindResult(kind, len(firsts), sampled=sampled, seeds=seeds, acceptance=counts)

    def _seeds(self, outputs: SeededOutputs, both: Sequence[PromptOutputs]) -> SeedCheck:
        """Compare outputs with equal seeds, and those with different seeds with those of the other server."""
        chances = [_share_of_equal([each.off]) for each in both for _ in each.on[1:]]
        p = p_of_exchanges(both, self._permutations) if chances else 1.0
        return outputs.check(chances, p, None)  # without log-probabilities, rounding is unknown

    def _outputs_by_prompt(self, entries: Iterable[LoggedRequest]) -> dict[int, list[Output]]:
        return _grouped({entry.key: units_of(entry, self.as_text) for entry in entries})

    def _by_prompt(self, on: Iterable[LoggedRequest], off: Iterable[LoggedRequest]) -> list[PromptOutputs]:
        ours, theirs = self._outputs_by_prompt(on), self._outputs_by_prompt(off)
        return [PromptOutputs(tuple(ours[at]), tuple(theirs[at])) for at in ours if at in theirs]


def _with_other_seed(request: ServedRequest) -> ServedRequest:
    return replace(request, seed=None if request.seed is None else request.seed + OTHER_SEEDS)


def _padded(logits: Tensor, size: int) -> Tensor:
    """Return logits with tokens of probability 0 up to a vocabulary's size: that of a drafting model may be padded less."""
    return torch.nn.functional.pad(logits, (0, size - logits.shape[1]), value=MISSING)


def _of_role(entries: Iterable[LoggedRequest], role: Role) -> list[LoggedRequest]:
    return [entry for entry in entries if entry.key.role is role]


def _grouped(outputs: Mapping[RequestKey, Output]) -> dict[int, list[Output]]:
    """Return outputs by prompt."""
    out: dict[int, list[Output]] = {}
    for key, output in outputs.items():
        out.setdefault(key.prompt, []).append(output)
    return out


def _share_of_equal(outputs_of: Sequence[Sequence[Output]]) -> float:
    """Return the share of pairs of outputs to one prompt that are equal."""
    pairs = [a == b for outputs in outputs_of for a, b in combinations(outputs, 2)]
    return sum(pairs) / len(pairs) if pairs else 1.0


def _seeded(outputs: Mapping[RequestKey, Output]) -> SeededOutputs:
    """Group outputs of requests with seeds."""
    firsts = {key: output for key, output in outputs.items() if key.role is Role.sample}
    again = [(output, outputs[again_of(key)]) for key, output in firsts.items() if again_of(key) in outputs]
    return SeededOutputs(_grouped(firsts), again)
