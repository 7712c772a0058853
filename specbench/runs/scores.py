"""The types of scores.json and judged.json in a run folder."""

from typing import NotRequired, TypedDict

from specbench.config.construct import Table
from specbench.runs.record import Count


class MetricTable(TypedDict):
    """One metric of scores.json."""

    name: str
    signature: str
    combine: str


class ScoreRow(TypedDict):
    """The scores of one generation in scores.json."""

    method: str
    sample: str
    repeat: Count
    group: str
    values: dict[str, float | list[float]]


class Scores(TypedDict):
    """A run folder's scores.json."""

    version: str
    metrics: list[MetricTable]
    headline: str
    sandbox: NotRequired[str | None]
    not_executed: bool
    records: Count
    samples: NotRequired[dict[str, dict[str, str]]]
    rows: list[ScoreRow]


class Judged(TypedDict):
    """A run folder's judged.json: the last judge's comparisons, and those of judges and methods before it."""

    judge: Table
    label: str
    of: str
    against: str
    comparisons: Count
    rows: list["JudgedRow"]
    earlier: NotRequired[list["Judged"]]


class JudgedRow(TypedDict):
    """One comparison of judged.json: 1 if the first method won, 0 if the second did, 0.5 for a tie.

    `unclear` counts the answers that name no letter. `key` identifies the judge and the texts. `prompt` is the first sample
    with an equal prompt. `equal` texts are ties, without a question to the judge. Older files lack the last two.
    """

    sample: str
    prompt: NotRequired[str]
    repeat: Count
    verdict: float
    unclear: Count
    key: str
    exchanges: list["StoredExchange"]
    equal: NotRequired[bool]


class StoredExchange(TypedDict):
    """A judge's prompt and its answer."""

    prompt: str
    answer: str
