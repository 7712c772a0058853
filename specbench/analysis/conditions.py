"""The conditions of a run, filled from its resolved config. No other module of analysis, report or regression's summaries
reads the config.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.analysis.rows import Rows, complete
from specbench.analysis.run_metrics import Context
from specbench.files import checked

SD = "sd"  # plain speculative decoding, SPRINTER's reference
Table = dict[str, Any]  # a table of the resolved config whose keys depend on what it describes
FULL_DISTRIBUTION = {"temperature": 1, "top_k": 0, "top_p": 1}


@dataclass(frozen=True)
class Model:
    """A model of the pair. `checksum` and `revision` identify its weights; `config` has a dummy model's changes."""

    source: str
    dtype: str
    revision: str | None = None
    checksum: str | None = None
    quantization: str = ""
    allowed_keys: tuple[str, ...] = ()
    weights: str = "real"
    config: Table | None = None


@dataclass(frozen=True)
class Head:
    """A trained head: its base model, its own test results (`report`), and what it was trained on (`data`)."""

    source: str
    kind: str
    base: str
    revision: str | None = None
    checksum: str | None = None
    weights: str = "real"
    report: Table = field(default_factory=dict)
    data: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """The prompts: their source, hashes, and how many of `total` were used."""

    source: str
    sha256: str
    prompts_sha256: str
    samples: int
    later_turns: int
    total: int
    revision: str | None = None


@dataclass(frozen=True)
class Decoding:
    """Settings that all methods of a run share."""

    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    ignore_eos: bool
    seed: int
    repeats: int


@dataclass(frozen=True)
class Engine:
    """The engine and its device."""

    name: str
    device: str


@dataclass(frozen=True)
class Synthetic:
    """Synthetic logits: the acceptance rate that was set for one method's drafts, and the spread that gives it."""

    spread: float
    acceptance: float | None = None
    method: str = ""
    proposer: str = ""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How a run was set up. `task` includes the version. `made_up` names what is not real: `dummy`, `synthetic`."""

    pair: str
    models: dict[str, Model]
    heads: dict[str, Head]
    synthetic: Synthetic | None
    made_up: str
    task: str
    task_options: Table
    continues: bool
    data: Data
    decoding: Decoding
    engine: Engine
    baseline: str
    clock: str

    @property
    def task_name(self) -> str:
        """The task without its version."""
        return self.task.partition("@")[0]

    @property
    def task_version(self) -> str:
        return self.task.rpartition("@")[2]

    @property
    def target(self) -> str:
        """The model that verifies last; empty for a run without models."""
        return next(reversed(self.models), "")

    @property
    def end_to_end(self) -> bool:
        """Whether the run's main speedup includes prefill."""
        return self.clock == "end to end"

    @property
    def labels(self) -> list[str]:
        """Labels of what is not real about the models, `(dummy)` and `(synthetic)`."""
        return [f"({word})" for word in self.made_up.split()]


def conditions_of(config: Table) -> Conditions:
    """The conditions in a resolved config. Raises ConfigError for a wrong type."""
    pair, task = config["pair"], config["task"]
    table = {
        "pair": pair["name"],
        "models": pair["models"],
        "heads": pair.get("heads", {}),
        "synthetic": pair.get("synthetic"),
        "made_up": pair.get("made_up", ""),
        "task": f"{task['name']}@{task['version']}",
        "task_options": task["options"],
        "continues": task["continues"],
        "data": task["data"],
        "decoding": config["decoding"],
        "engine": config["engine"],
        "baseline": config["baseline"],
        "clock": config["clock"],
    }
    return checked(table, Conditions, "run.toml")


def method_tables(config: Table) -> dict[str, Table]:
    """Every method's table in a resolved config, by the method's name."""
    return dict(config["methods"])


def context_of(method: str, config: Table, records: Rows, bandwidth: float) -> Context:
    """What the metrics of one method may use. `records` are those of all methods."""
    pair = config["pair"]
    return Context(
        baseline=complete(records, config["baseline"]),
        sd=complete(records, SD) if method != SD else [],
        table=config["methods"][method],
        shapes=pair["shapes"],
        traffic=pair["traffic"],
        bandwidth=bandwidth,
        target=next(reversed(pair["models"]), ""),
        later_turns=config["task"]["data"]["later_turns"] > 0,
        predicted_distance=_predicted_distance(config["methods"][method], config),
    )


def _predicted_distance(table: Mapping[str, Any], config: Table) -> float | None:
    """The distance from the target that Theorem 1 gives on the test texts of a verifier's head.

    None except for SPRINTER at T = 1, unfiltered, with tau_inf = 1/2, on a task that these texts are from.
    """
    if table["name"] != "sprinter" or table.get("threshold", 0.5) != 0.5:
        return None
    if any(config["decoding"][key] != value for key, value in FULL_DISTRIBUTION.items()):
        return None
    head = config["pair"].get("heads", {}).get(table.get("head", ""), {})
    if config["task"]["name"] not in head.get("data", {}).get("tasks", []):
        return None
    distance: float | None = head.get("report", {}).get("predicted_tv")
    return distance
