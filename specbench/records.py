"""Floor 0: one JSON line a generation, appended and flushed, so that a finished sample is never lost."""

import dataclasses
import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError

SAMPLES = "samples.jsonl"
SCORES = "scores.json"
CONFIG = "run.toml"
JUDGED = "judged.json"
SEMANTICS = 4  # bumped when the meaning of a recorded number changes, so that old runs are not mixed with new ones


@dataclass(kw_only=True)
class Record:
    """One prompt, decoded once by one method. A failed one has an `error`, and no tokens and no timing."""

    method: str
    sample: str
    repeat: int
    seed: int  # the run's, plus the repeat; with the sample it makes the generator's
    order: int  # how many generations were timed before it in this process: for drift
    prompt_tokens: int = 0
    prompt_cut: int = 0  # tokens of the prompt that were cut away
    prompt_ends: list[int] = field(default_factory=list)  # its first and last eight ids
    tokens: list[int] = field(default_factory=list)  # committed ids, the first stop included
    text: str = ""  # without what follows a stop string
    pieces: list[str] = field(default_factory=list)  # what each token adds to the text
    finish: str = ""  # eos | stop | length | window
    # Of methods that draft or note: tokens, drafted, tested, accepted, by, and where there is any noted, untested, inner, and
    # the text that was refused.
    rounds: list[dict[str, Any]] = field(default_factory=list)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)  # role -> session.Calls
    first_token_seconds: float | None = None  # from the prompt to the first committed tokens
    prefill_seconds: float | None = None  # each model's first forward, its encoder's included
    decode_seconds: float | None = None  # all else between the prompt and the last token
    peak_bytes: int | None = None  # CUDA only
    made_up: str = ""  # what about the models is not real: dummy weights, synthetic laws
    error: str | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.method, self.sample, self.repeat


class Recorder:
    """Appends records to a run folder's samples.jsonl, and knows which are there already.

    A half-written last line, which a kill can leave, is cut off and measured again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / SAMPLES
        self._path.touch()
        whole = self._path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            with self._path.open("rb+") as file:
                file.truncate(end)
        self.done = {record.key for record in read(folder)}

    def append(self, record: Record) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(record), ensure_ascii=False) + "\n")
        self.done.add(record.key)


def read(folder: Path) -> Iterator[Record]:
    """The complete records of a run folder, in the order in which they were measured. Raises ConfigError for a bad line."""
    with (folder / SAMPLES).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.endswith("\n"):
                try:
                    record = Record(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise ConfigError(f"{folder / SAMPLES}:{number}: damaged: {error}") from None
                yield record


def run_config(folder: Path) -> dict[str, Any]:
    """The resolved config of a run folder. Raises ConfigError where it holds no run, or a damaged one."""
    path = folder / CONFIG
    if not path.exists():
        raise ConfigError(f"{folder} holds no run (no {CONFIG}); help: specbench run")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: damaged: {error}") from None


def read_json(path: Path) -> Any:
    """What a JSON file of ours holds. Raises ConfigError where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: damaged: {error}") from None


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
