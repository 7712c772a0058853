"""Recording of the probabilities that the target and drafters give the outputs of a run: paths.parquet in its folder.

The file has a row per output of the run's baseline. It is valid for that run only: another temperature or filter gives
another distribution, and other texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.analysis.replay import DrafterProbabilities, RecordedOutput
from specbench.data.prompting import encode
from specbench.decoding.loop import output_logits
from specbench.errors import ConfigError
from specbench.experiment.generation import Setting
from specbench.experiment.runner import Conversations
from specbench.files import write_bytes
from specbench.methods.replays import probabilities
from specbench.models.heads import EagleHead, EagleSession
from specbench.models.loaded_pair import Models
from specbench.resolution.plan import PairPlan, PlannedRun
from specbench.runs.record import Record
from specbench.runs.run_folder import PATHS, read

WRITTEN_EVERY = 16  # outputs
HEAD_DEPTH = 8  # the longest draft of a head that is recorded
Rows = dict[tuple[str, int], dict[str, Any]]  # by sample and repeat


@dataclass(frozen=True)
class Recording:
    """A recorded output of the baseline, and the record of its generation."""

    record: Record
    output: RecordedOutput


def record_outputs(
    plan: PairPlan, run: PlannedRun, drafters: Sequence[str], advance: Callable[[], None] = lambda: None
) -> list[Recording]:
    """Return the outputs of a run's baseline with their probabilities, and record those that are missing.

    At temperature 0, all repeats of a prompt have one output, and only the first one is recorded. Raises ConfigError if the
    baseline declares no distribution.
    """
    baseline = run.methods[run.spec.baseline]
    declared = baseline.declared_distribution()
    if declared is None:
        raise ConfigError(f"{run.spec.baseline} declares no distribution that its output follows")
    path = run.folder / PATHS
    rows = _stored(path, run.spec.key, drafters)
    records = list(_outputs(run))
    missing = [record for record in records if not _is_recorded(record, rows)]
    if missing:
        scored = _scored(plan, run, drafters, missing)
        for count, (record, row) in enumerate(scored, 1):
            rows[record.sample, record.repeat] = row
            advance()
            if count % WRITTEN_EVERY == 0 or count == len(missing):
                _write(path, rows)
    return [Recording(record, _output_of(rows[record.sample, record.repeat], drafters)) for record in records]


def count_missing(run: PlannedRun, drafters: Sequence[str]) -> int:
    """Return how many outputs `record_outputs` would record."""
    rows = _stored(run.folder / PATHS, run.spec.key, drafters)
    return sum(not _is_recorded(record, rows) for record in _outputs(run))


def _is_recorded(record: Record, rows: Rows) -> bool:
    row = rows.get((record.sample, record.repeat))
    return row is not None and list(row["tokens"]) == record.tokens


def _outputs(run: PlannedRun) -> Iterator[Record]:
    greedy = run.spec.decoding.temperature == 0.0
    for record in read(run.folder):
        if record.method == run.spec.baseline and record.error is None and (not greedy or record.repeat == 0):
            yield record


def _scored(
    plan: PairPlan, run: PlannedRun, drafters: Sequence[str], records: Sequence[Record]
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Yield each record with its row, by one forward of every model over the output."""
    pair, method = run.pair_of(plan.load()), run.methods[run.spec.baseline]
    declared = method.declared_distribution()
    assert declared is not None
    scorers, target = declared
    setting = Setting(pair, run.task, run.spec.decoding)
    samples = {sample.id: sample for sample in run.data.samples}
    conversations = Conversations(run.data, run.folder)
    limits = setting.limits(method)
    for record in records:
        sample = samples[record.sample]
        history = conversations.before(sample, record.method, record.repeat)
        assert history is not None, "a generation without an error has the turns before it"
        prompt, _ = encode(pair.tokenizer, run.task, sample, history, pair.window)
        models = pair.open(prompt)
        ids, tokens, sampler = models.ids, record.tokens, setting.sampler(record.seed, sample)
        heads = [role for role in drafters if role in run.spec.pair.heads]
        logits = _logits(models, scorers, [role for role in drafters if role not in heads], heads, tokens)
        rooms = {role: _rooms(models, scorers[0] if role in heads else role, tokens) for role in drafters}
        if len(ids) < 2:  # a head reads two tokens
            rooms |= {role: [0, *rooms[role][1:]] for role in heads}
        pi, given = probabilities(logits, sampler, scorers, target, tokens, rooms)
        row: dict[str, Any] = {
            "run": run.spec.key, "sample": record.sample, "repeat": record.repeat, "ids": models.ids,
            "tokens": record.tokens, "most": limits.criteria(len(models.ids)).length - len(models.ids),
            "eos": sorted(limits.eos), "vocabulary": models.vocabulary, "pi": pi,
        }  # fmt: skip
        for role, values in given.items():
            row |= {f"{role}:{name}": array.ravel() for name, array in vars(values).items()}
        yield record, row


def _rooms(models: Models, role: str, tokens: list[int]) -> list[int]:
    """Return how many tokens a model can draft before each of the tokens of an output."""
    return [models[role].room(models.ids + tokens[:i]) for i in range(len(tokens))]


def _logits(
    models: Models, scorers: tuple[str, ...], drafters: Sequence[str], heads: Sequence[str], tokens: list[int]
) -> dict[str, list[Tensor]]:
    """Return the logits (m, V) of an output by model, and of heads on the target by model and place in the draft."""
    base = models[scorers[0]]
    sessions = {role: EagleSession(models.head(role, EagleHead), base) for role in heads}  # before the base reads
    with torch.inference_mode():
        of_models = output_logits(models, (*scorers, *drafters), tokens)
        logits = {role: [rows] for role, rows in of_models.items()}
        for role, session in sessions.items():
            depths = session.score_drafts(models.ids, tokens, HEAD_DEPTH)
            missing = models.vocabulary - depths[0].shape[-1]
            logits[role] = [F.pad(rows, (0, missing), value=-torch.inf) for rows in depths]
    return logits


def _stored(path: Path, key: str, drafters: Sequence[str]) -> Rows:
    """Return the rows that a folder has of this run and all of these drafters; none if the file is damaged."""
    if not path.exists():
        return {}
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError):
        return {}
    if not {f"{role}:q" for role in drafters} <= set(table.columns):
        return {}
    rows = table[table["run"] == key].to_dict("records")
    return {(row["sample"], row["repeat"]): {str(name): value for name, value in row.items()} for row in rows}


def _write(path: Path, rows: Rows) -> None:
    buffer = BytesIO()
    pd.DataFrame(list(rows.values())).to_parquet(buffer, index=False)
    write_bytes(path, buffer.getvalue())


def _output_of(row: dict[str, Any], drafters: Sequence[str]) -> RecordedOutput:
    return RecordedOutput(
        ids=[int(token) for token in row["ids"]],
        tokens=[int(token) for token in row["tokens"]],
        most=int(row["most"]),
        eos=frozenset(int(token) for token in row["eos"]),
        vocabulary=int(row["vocabulary"]),
        pi=np.asarray(row["pi"]),
        drafters={role: _drafter_of(row, role) for role in drafters},
    )


def _drafter_of(row: dict[str, Any], role: str) -> DrafterProbabilities:
    """Return what a drafter gives the m tokens of a row's output. `q` and `rank` are stored depth by depth."""
    arrays = {name: np.asarray(row[f"{role}:{name}"]) for name in DrafterProbabilities.__dataclass_fields__}
    m = len(row["tokens"])
    return DrafterProbabilities(**arrays | {name: arrays[name].reshape(-1, m) for name in ("q", "rank")})
