"""What is sent to a server, what it answers, and what it says about itself: values without a backend."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import NamedTuple

from specbench.data.task import Message


@dataclass(frozen=True, kw_only=True)
class ServedSampling:
    """The sampling parameters of a request. All of them are sent with each request, so that no default applies.

    Filters are applied in the order temperature, min-p, top-k, top-p. `top_k` = 0, `top_p` = 1 and `min_p` = 0 are off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0 or self.top_k < 0 or not 0.0 < self.top_p <= 1.0 or not 0.0 <= self.min_p < 1.0:
            raise ValueError(f"{self}: temperature and top-k are at least 0, top-p in (0, 1], min-p in [0, 1)")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature == 0.0

    def __str__(self) -> str:
        others = {"top-k": self.top_k, "top-p": self.top_p if self.top_p < 1.0 else 0, "min-p": self.min_p}
        return ", ".join([f"T = {self.temperature:g}", *(f"{key} {value:g}" for key, value in others.items() if value)])


@dataclass(frozen=True, kw_only=True)
class ServedRequest:
    """A request for one completion.

    Args:
        prompt: Token ids, or a text for servers that do not accept ids. Empty for a chat.
        messages: The messages of a chat, which the server renders with its template.
        sampling: How tokens are sampled.
        max_tokens: The largest number of tokens.
        seed: The seed of the request; None sends none.
        ignore_eos: Whether to continue after the end of the text.
        alternatives: Number of most likely tokens whose log-probabilities are returned with each token; 0 for none.
        reuse_cache: Whether the server may reuse the cache of an equal prefix.
    """

    prompt: tuple[int, ...] | str = ()
    messages: tuple[Message, ...] = ()
    sampling: ServedSampling = ServedSampling()
    max_tokens: int = 64
    seed: int | None = None
    ignore_eos: bool = False
    alternatives: int = 0
    reuse_cache: bool = False


class Chunk(NamedTuple):
    """Tokens that arrived together: their ids (empty if the server returns text only), text, and seconds since sending.

    `reported` is their number as the server counts them beside each chunk; 0 if it does not.
    """

    tokens: tuple[int, ...]
    text: str
    seconds: float
    reported: int = 0


@dataclass(frozen=True)
class SpeculationCounts:
    """The speculation of one request, or of a server between two readings.

    `by_position` counts the rounds in which the drafted token at that position was accepted, from the first position on.
    Unknown counts are None.
    """

    rounds: int | None
    drafted: int | None
    accepted: int
    by_position: tuple[int, ...] | None = None

    @property
    def fault(self) -> str:
        """How the counts contradict each other, which is a fault of the server; empty if they do not."""
        by, accepted = self.by_position, self.accepted
        for name, value in (("rounds", self.rounds), ("drafted tokens", self.drafted), ("accepted tokens", accepted)):
            if value is not None and value < 0:
                return f"{value} {name}"
        if self.drafted is not None and accepted > self.drafted:
            return f"{accepted} accepted tokens of {self.drafted} drafted ones"
        if self.rounds == 0 and accepted:
            return f"{accepted} accepted tokens without a round"
        if by is None:
            return ""
        if any(count < 0 for count in by) or any(later > earlier for earlier, later in pairwise(by)):
            return f"counts by position that rise or are negative: {_short(by)}"
        if by and self.rounds is not None and by[0] > self.rounds:
            return f"{by[0]} accepted tokens at the first position in {self.rounds} rounds"
        return f"{accepted} accepted tokens, and {sum(by)} by position" if sum(by) != accepted else ""

    @property
    def tokens_per_round(self) -> float | None:
        """Accepted tokens and the target's own token of each round; None if unknown."""
        return 1.0 + self.accepted / self.rounds if self.rounds else None

    @property
    def shares_by_position(self) -> tuple[float, ...]:
        """The share of rounds in which the drafted token at each position was accepted; empty if unknown."""
        return tuple(count / self.rounds for count in self.by_position or ()) if self.rounds else ()

    def __sub__(self, other: "SpeculationCounts") -> "SpeculationCounts":
        by = self.by_position
        if by is not None and (other.by_position is not None or other.accepted):
            before = other.by_position or ()  # a server may list positions only after its first drafts
            by = tuple(a - (before[i] if i < len(before) else 0) for i, a in enumerate(by)) if before else None
        rounds = None if self.rounds is None or other.rounds is None else self.rounds - other.rounds
        drafted = None if self.drafted is None or other.drafted is None else self.drafted - other.drafted
        return SpeculationCounts(rounds, drafted, self.accepted - other.accepted, by)


def of_histogram(
    rounds: int, drafted: int | None, accepted: int, histogram: Sequence[int] | None
) -> tuple[SpeculationCounts | None, tuple[str, ...]]:
    """Return counts with positions, from a histogram of rounds by accepted tokens, and the fault if it has other rounds."""
    if not histogram:
        return SpeculationCounts(rounds, drafted, accepted), ()
    if sum(histogram) != rounds:
        return None, (f"its speculation has {rounds} rounds, and its histogram {sum(histogram)}",)
    by = tuple(sum(histogram[i:]) for i in range(1, len(histogram)))
    return SpeculationCounts(rounds, drafted, accepted, by), ()


def _short(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")


def total(counts: Sequence[SpeculationCounts]) -> SpeculationCounts | None:
    """Return the sum of counts; None without any. What is unknown in one of them is unknown."""
    if not counts:
        return None
    rounds = [each.rounds for each in counts if each.rounds is not None]
    drafted = [each.drafted for each in counts if each.drafted is not None]
    positions = [each.by_position for each in counts if each.by_position is not None]
    return SpeculationCounts(
        sum(rounds) if len(rounds) == len(counts) else None,
        sum(drafted) if len(drafted) == len(counts) else None,
        sum(each.accepted for each in counts),
        tuple(map(sum, zip_longest(*positions, fillvalue=0))) if len(positions) == len(counts) else None,
    )


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A complete answer.

    Args:
        prompt: The ids of the prompt as the server reports them; None if it does not.
        tokens: The ids of the output, with the end-of-text token if the server returns it; None for text only.
        text: The text of the output, without reasoning.
        reasoning: The text of other channels: reasoning, and calls of tools.
        chunks: The generated tokens of every channel, and when they arrived. Times are in seconds since the request was sent.
        finish: `eos`, `length`, `stop` or another word of the server.
        seconds: From sending to the end of the answer.
        prompt_tokens: Number of tokens in the prompt; None if not reported.
        output_tokens: Number of tokens in the output; None if not reported.
        cached_tokens: Number of prompt tokens that were read from a cache; None if not reported.
        reasoning_tokens: Number of the output's tokens that are reasoning; None if not reported.
        queue_seconds: Time in the server's queue; None if not reported.
        speculation: The request's own counts; None if not reported.
        log_probabilities: For each token, log-probabilities by id, of the token and its alternatives.
        echo: The sampling parameters with which the server says that it sampled, by the names of `ServedSampling`.
        model: The model that the answer names.
        faults: What the server reports that contradicts itself or the output.
    """

    prompt: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None
    text: str = ""
    reasoning: str = ""
    chunks: tuple[Chunk, ...] = ()
    finish: str = ""
    seconds: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    queue_seconds: float | None = None
    speculation: SpeculationCounts | None = None
    log_probabilities: tuple[Mapping[int, float], ...] = ()
    echo: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    faults: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of output tokens: ids, else the server's usage, but at least one for each chunk.

        Some servers leave reasoning out of their usage. The disagreement is a fault of the server (`faults`).
        """
        return max(self.output_tokens or 0, len(self.chunks)) if self.tokens is None else len(self.tokens)

    def checked(self, request: ServedRequest) -> "Completion":
        """Return the completion with its faults, and without counts of speculation that contradict each other."""
        speculation = self.speculation
        if speculation is not None and speculation.fault:
            speculation = None
        return replace(self, faults=(*self.faults, *self._faults(request)), speculation=speculation)

    def _faults(self, request: ServedRequest) -> Iterator[str]:
        """Yield how the server's counts contradict what arrived, or each other."""
        arrived, reported = self.count, self.output_tokens
        may_lack_eos = self.finish in ("eos", "stop")  # some servers count it and do not return it
        if self.tokens is not None and reported is not None and not arrived <= reported <= arrived + may_lack_eos:
            yield f"its usage has {reported} output tokens, and {arrived} arrived"
        if self.tokens is None and reported is not None and len(self.chunks) > reported:
            yield f"its usage has {reported} output tokens, and {len(self.chunks)} pieces of text arrived"
        if arrived > request.max_tokens:
            yield f"{arrived} output tokens, and at most {request.max_tokens} were requested"
        if (self.reasoning_tokens or 0) > (arrived if reported is None else reported):
            yield f"its usage has {self.reasoning_tokens} reasoning tokens of {reported} output tokens"
        if self.prompt_tokens is not None and (self.cached_tokens or 0) > self.prompt_tokens:
            yield f"its usage has {self.cached_tokens} cached tokens of {self.prompt_tokens} prompt tokens"
        if request.prompt and isinstance(request.prompt, tuple):
            if self.prompt_tokens not in (None, len(request.prompt)):
                yield f"its usage has {self.prompt_tokens} prompt tokens, and {len(request.prompt)} were sent"
            if self.prompt not in (None, request.prompt):
                yield "it returns another prompt than the one that was sent"
        if self.speculation is not None and self.speculation.fault:
            yield f"its speculation has {self.speculation.fault}"

    def changed_parameters(self, sampling: ServedSampling) -> dict[str, tuple[float, float]]:
        """Return the parameters that the server echoes with another value than was sent: (sent, echoed)."""
        sent = asdict(sampling)
        return {
            name: (sent[name], value)
            for name, value in self.echo.items()
            if name in sent and abs(sent[name] - value) > 1e-4
        }


@dataclass(frozen=True, kw_only=True)
class ServedSpeculation:
    """What a server says about its speculation. None and empty fields are unknown."""

    is_on: bool | None = None
    method: str = ""
    draft: str = ""
    length: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a server says about itself, as far as it says it.

    Args:
        backend: The name of its backend.
        url: Its address.
        version: The version of the server.
        model: The name that requests use.
        weights: The path or id of its weights.
        dtype: The dtype of its computation.
        context: The largest number of tokens of prompt and output.
        vocabulary: The number of tokens in its vocabulary.
        slots: The largest number of sequences decoded at a time; further requests wait.
        defaults: Its sampling defaults.
        speculation: Its speculation.
        has_ids: Whether it accepts and returns token ids.
        repeats_seeds: Whether it promises that requests with equal seeds have equal outputs.
        chat_template: Whether it renders chats.
    """

    backend: str
    url: str
    version: str = ""
    model: str = ""
    weights: str = ""
    dtype: str = ""
    context: int | None = None
    vocabulary: int | None = None
    slots: int | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    speculation: ServedSpeculation = ServedSpeculation()
    has_ids: bool = False
    repeats_seeds: bool = True
    chat_template: bool | None = None

    @property
    def label(self) -> str:
        """Backend, version, model and speculation in a few words."""
        speculation = self.speculation
        words = {True: speculation.method or "on", False: "off", None: "unknown"}[speculation.is_on]
        if speculation.is_on and speculation.length:
            words += f", {speculation.length} tokens"
        return f"{self.backend} {self.version}".strip() + f", {self.model}, speculation {words}"


class Counters(NamedTuple):
    """A reading of a server's counters. Unknown ones are None. With a `fault` of the server, all are."""

    speculation: SpeculationCounts | None
    running: float | None = None
    waiting: float | None = None
    output_tokens: float | None = None
    cache_queries: float | None = None
    cache_hits: float | None = None
    preemptions: float | None = None
    fault: str = ""
