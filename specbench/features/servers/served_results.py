"""Stored results of server commands: what `compare`, `gate` and passports read from summary.json and verdict.json."""

from pathlib import Path
from typing import Any

import msgspec

from specbench.errors import ConfigError
from specbench.features.servers.load.server_run import Load
from specbench.features.servers.served import Description, SpeculationCounts

RUN, VERIFICATION = "summary.json", "verdict.json"
RUN_KIND, VERIFICATION_KIND = "server run", "server verification"


class LevelResult(msgspec.Struct, kw_only=True):
    """One concurrency of a run: ratios of throughput by pair, acceptance by prompt, and counts of drafts."""

    concurrency: int
    pairs: int
    is_queueing: bool
    ratios: list[float]
    accepted: dict[int, float]
    accepted_unit: str
    counts: SpeculationCounts | None


class RunResult(msgspec.Struct, kw_only=True):
    """A run of `server run`. `scores` are by side and metric: values by the index of the prompt."""

    kind: str
    on: Description
    off: Description
    load: Load
    levels: list[LevelResult]
    scores: dict[str, dict[str, dict[int, float]]]
    notes: list[str]
    command: list[str]

    @property
    def name(self) -> str:
        """What was measured, in a few words."""
        return f"{self.on.dialect} {self.on.model}, {self.load.task}, {self.load.sampling}"


class KindVerdict(msgspec.Struct, kw_only=True):
    """The verdict on one kind of requests: the groups of tokens that differ from the reference."""

    kind: str
    outputs: int
    differs: list[str]


class VerificationResult(msgspec.Struct, kw_only=True):
    """A verification of `server verify`."""

    kind: str
    outcome: str
    line: str
    description: Description
    reference: str
    kinds: list[KindVerdict]
    command: list[str]

    @property
    def name(self) -> str:
        """What was verified, in a few words."""
        return f"{self.description.dialect} {self.description.model}"


Result = RunResult | VerificationResult


def results_in(path: Path) -> list[Result]:
    """Return the results in a folder or in the folders in it; empty if it contains none. Raises ConfigError if damaged."""
    found: list[Result] = []
    for folder in (path, *sorted(each for each in path.iterdir() if each.is_dir())) if path.is_dir() else ():
        for name, kind in ((RUN, RunResult), (VERIFICATION, VerificationResult)):
            if (file := folder / name).exists() and _kind_of(file) in (RUN_KIND, VERIFICATION_KIND):
                found.append(read_result(file, kind))
    return found


def read_result(file: Path, kind: type[Any]) -> Any:
    """Return the result in a file. Raises ConfigError if it is damaged or of another version."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: not a result of this version ({error}); help: measure again") from None


def _kind_of(file: Path) -> str:
    try:
        return str(msgspec.json.decode(file.read_bytes(), type=dict[str, Any]).get("kind", ""))
    except msgspec.DecodeError:
        return ""
