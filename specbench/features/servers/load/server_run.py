"""What `specbench server run` is given, and what it measures, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from specbench.analysis.intervals import Estimate
from specbench.features.servers.load.blocks import Pace
from specbench.features.servers.load.load_metrics import Acceptance, Percentiles
from specbench.features.servers.load.managed import ServerCommands
from specbench.features.servers.load.pays import PredictedSpeedup
from specbench.features.servers.prompts import PromptSource, ServedPrompt, read_again
from specbench.features.servers.request_log import LOG_VERSION
from specbench.features.servers.served import Description, ServedSampling
from specbench.http_client import Server
from specbench.note import Note

RUN_KIND = "server run"
PILOT = 6  # pairs of blocks, from whose deviation the number of pairs is chosen


@dataclass(frozen=True, kw_only=True)
class Load:
    """What both servers are sent.

    Args:
        task: The names of the tasks.
        prompts: A hash of the prompts.
        sampling: How tokens are sampled.
        max_tokens: The largest number of tokens of an output.
        ignore_eos: Whether every output has `max_tokens` tokens.
        chat: Whether prompts are sent as chats.
        pace: The duration of a block.
        seed: Of the seeds of sampled requests.
    """

    task: str = ""
    prompts: str = ""
    sampling: ServedSampling
    max_tokens: int = 64
    ignore_eos: bool = False
    chat: bool = False
    pace: Pace
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ServerRunRequest:
    """Two servers to compare under load.

    Args:
        on: The server with speculation.
        off: The server of the same model without it.
        commands: How both are started, one at a time; None if they run already.
        model: The model's name on the servers, if they serve several.
        prompts: The prompts, which both sides get in the same order.
        source: The tasks and data that they were read from; None if they cannot be read again.
        load: What is sent.
        concurrencies: Requests in flight, one level after the other.
        pairs: Pairs of blocks of each level; 0 chooses the number for an interval of +- 5 %, from 6 to 24.
        aa_pairs: Pairs of two blocks of the server without speculation; 0 leaves them out.
        together: Whether both servers are measured at the same time, each on a machine of its own.
    """

    on: Server
    off: Server
    commands: ServerCommands | None = None
    model: str = ""
    prompts: Sequence[ServedPrompt] = ()
    source: PromptSource | None = None
    load: Load
    concurrencies: tuple[int, ...] = (1, 4, 16)
    pairs: int = 0
    aa_pairs: int = PILOT
    together: bool = False

    def stored(self) -> "ServerRunRequest":
        """Return the request without its prompts, which `again` reads from `source`. Results store this form."""
        return replace(self, prompts=())

    def again(self) -> "ServerRunRequest":
        """Return a stored request with its prompts. Raises ConfigError and MissingAsset."""
        return replace(self, prompts=read_again(self.source))


@dataclass(frozen=True, kw_only=True)
class Level:
    """The results at one concurrency.

    `speedups` are of throughput and of the times in `TIMES`, above 1 where speculation is faster. `noise` is the ratio of the
    throughput of off to itself, which should be 1. A later run is compared by `ratios`, of the throughput of each pair, and
    by `accepted`, the acceptance of each prompt in the unit `accepted_unit`.
    """

    concurrency: int
    pairs: int
    throughput: Mapping[str, float]  # tokens per second by side
    speedups: Mapping[str, Estimate]
    noise: Estimate | None
    times: Mapping[str, Mapping[str, Percentiles]]  # by side and time
    acceptance: Acceptance
    is_queueing: bool
    ratios: Sequence[float]
    accepted: Mapping[int, float]
    accepted_unit: str


@dataclass(frozen=True, kw_only=True)
class MeasuredLength:
    """A measured speedup of TPOT at a draft length and a concurrency, of this or an earlier run."""

    length: int
    concurrency: int
    speedup: Estimate


@dataclass(frozen=True, kw_only=True)
class ServerRun:
    """What was measured on two servers: the content of summary.json.

    `scores` are by side and metric: the value of each prompt by its index, of prompts that were scored. `request` is what was
    asked, to measure it again; None in results of earlier revisions. `answer` says whether speculation pays.
    """

    kind: str = RUN_KIND
    on: Description
    off: Description
    load: Load
    levels: Sequence[Level]
    scores: Mapping[str, Mapping[str, Mapping[int, float]]]
    failures: Mapping[str, int]  # by side
    predictions: Sequence[PredictedSpeedup] = ()
    measured: Sequence[MeasuredLength] = ()
    notes: Sequence[Note] = ()
    request: ServerRunRequest | None = None
    answer: str = ""

    @property
    def name(self) -> str:
        """What was measured, in a few words."""
        return f"{self.on.backend} {self.on.model}, {self.load.task}, {self.load.sampling}"

    def mean_score(self, side: str, metric: str) -> float:
        """Return the mean of a metric over the prompts."""
        values = self.scores[side][metric].values()
        return sum(values) / len(values)


def described(on: Description, off: Description, request: ServerRunRequest, restarts: bool) -> dict[str, object]:
    """Return what identifies a measurement. With `restarts`, the servers are started in turn."""
    return {
        "version": LOG_VERSION,
        "on": asdict(on),
        "off": asdict(off),
        "load": asdict(request.load),
        "together": request.together,
        "restarts": restarts,
    }
