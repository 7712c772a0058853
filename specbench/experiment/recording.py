"""Recording of the probabilities that the target and drafters give the outputs of a run: paths.parquet in its folder.

The file has a row per output of the run's baseline. It is valid for that run only: another temperature or filter gives
another distribution, and other texts.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
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
from specbench.methods.recorded_drafts import HEAD_DEPTH, probabilities
from specbench.models.heads import EagleHead, EagleSession
from specbench.models.loaded_pair import Models
from specbench.observer import Observer
from specbench.resolution.plan import PairPlan, PlannedRun
from specbench.runs.record import Record
from specbench.runs.run_folder import PATHS, read

WRITTEN_EVERY = 16  # outputs
Outputs = dict[tuple[str, int], RecordedOutput]  # by sample and repeat


@dataclass(frozen=True)
class Recording:
    """A recorded output of the baseline, and the record of its generation."""

    record: Record
    output: RecordedOutput


def record_outputs(
    plan: PairPlan, run: PlannedRun, drafters: Sequence[str], observer: Observer | None = None
) -> list[Recording]:
    """Return the outputs of a run's baseline with their probabilities, and record those that are missing.

    At temperature 0, all repeats of a prompt have one output, and only the first one is recorded. Raises ConfigError if the
    baseline declares no distribution.
    """
    if run.methods[run.spec.baseline].declared_distribution() is None:
        raise ConfigError(f"{run.spec.baseline} declares no distribution that its output follows")
    path = run.folder / PATHS
    outputs = _read(path, run.spec.key, drafters)
    records = list(_records(run))
    missing = [record for record in records if not _is_recorded(record, outputs)]
    if missing:
        with (observer or Observer()).progress("recording outputs", len(missing)) as advance:
            for count, (record, output) in enumerate(_score(plan, run, drafters, missing), 1):
                outputs[record.sample, record.repeat] = output
                advance()
                if count % WRITTEN_EVERY == 0 or count == len(missing):
                    _write(path, run.spec.key, outputs)
    return [Recording(record, outputs[record.sample, record.repeat]) for record in records]


def _is_recorded(record: Record, outputs: Outputs) -> bool:
    output = outputs.get((record.sample, record.repeat))
    return output is not None and output.tokens == record.tokens


def _records(run: PlannedRun) -> Iterator[Record]:
    """Yield the baseline's generations that are recorded."""
    greedy = run.spec.decoding.temperature == 0.0
    for record in read(run.folder):
        if record.method == run.spec.baseline and record.error is None and (not greedy or record.repeat == 0):
            yield record


def _score(
    plan: PairPlan, run: PlannedRun, drafters: Sequence[str], records: Sequence[Record]
) -> Iterator[tuple[Record, RecordedOutput]]:
    """Yield each record with its output's probabilities, from forwards of every model and head over the output."""
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
        models, tokens = pair.open(prompt), record.tokens
        with torch.inference_mode():
            heads = [role for role in drafters if role in run.spec.pair.heads]
            logits, scored = _logits(models, scorers, drafters, heads, tokens)
            rooms = {role: _rooms(models, scorers[0], role, tokens) for role in drafters}
            pi, given = probabilities(scored, target, logits, setting.sampler(record.seed, sample), tokens, rooms)
        yield (
            record,
            RecordedOutput(
                ids=models.ids,
                tokens=tokens,
                most=limits.criteria(len(models.ids)).length - len(models.ids),
                eos=limits.eos,
                vocabulary=models.vocabulary,
                pi=pi,
                drafters=given,
            ),
        )


def _rooms(models: Models, base: str, role: str, tokens: list[int]) -> list[int]:
    """Return how many tokens a model can draft before each of the tokens of an output, or a head on `base`."""
    is_head = role not in models.sessions
    rooms = [models[base if is_head else role].room(models.ids + tokens[:i]) for i in range(len(tokens))]
    return [0, *rooms[1:]] if is_head and len(models.ids) < 2 else rooms  # a head reads two tokens


def _logits(
    models: Models, scorers: tuple[str, ...], drafters: Sequence[str], heads: Sequence[str], tokens: list[int]
) -> tuple[dict[str, Iterable[Tensor]], list[Tensor]]:
    """Return the logits (m, V) of an output by drafter and place in the draft, and those of each scorer."""
    base = models[scorers[0]]
    sessions = {role: EagleSession(models.head(role, EagleHead), base) for role in heads}  # before the base reads
    of_models = output_logits(models, [*scorers, *(role for role in drafters if role not in heads)], tokens)
    logits: dict[str, Iterable[Tensor]] = {role: [of_models[role]] for role in drafters if role not in heads}
    for role, session in sessions.items():
        logits[role] = _widened(session.score_drafts(models.ids, tokens, HEAD_DEPTH), models.vocabulary)
    return logits, [of_models[role] for role in scorers]


def _widened(logits: Iterable[Tensor], vocabulary: int) -> Iterator[Tensor]:
    """Yield logits (m, V) with -inf for the tokens that the head's LM head lacks."""
    for rows in logits:
        yield F.pad(rows, (0, vocabulary - rows.shape[-1]), value=-torch.inf)


def _read(path: Path, key: str, drafters: Sequence[str]) -> Outputs:
    """Return the outputs that a folder has of this run with all of these drafters; none if the file is damaged."""
    if not path.exists():
        return {}
    try:
        table = pd.read_parquet(path)
        rows = table[table["run"] == key].to_dict("records")
        return {(str(row["sample"]), int(row["repeat"])): _output_of(row, drafters) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(path: Path, key: str, outputs: Outputs) -> None:
    rows = [
        {"run": key, "sample": sample, "repeat": repeat} | _row_of(output)
        for (sample, repeat), output in outputs.items()
    ]
    buffer = BytesIO()
    pd.DataFrame(rows).to_parquet(buffer, index=False)
    write_bytes(path, buffer.getvalue())


def _row_of(output: RecordedOutput) -> dict[str, object]:
    """Return an output as a row. `q` and `rank` of its drafters are stored depth by depth."""
    row: dict[str, object] = vars(output) | {"eos": sorted(output.eos)}
    del row["drafters"]
    for role, given in output.drafters.items():
        row |= {f"{role}:{name}": array.ravel() for name, array in vars(given).items()}
    return row


def _output_of(row: Mapping[Hashable, Any], drafters: Sequence[str]) -> RecordedOutput:
    tokens = [int(token) for token in row["tokens"]]
    return RecordedOutput(
        ids=[int(token) for token in row["ids"]],
        tokens=tokens,
        most=int(row["most"]),
        eos=frozenset(int(token) for token in row["eos"]),
        vocabulary=int(row["vocabulary"]),
        pi=np.asarray(row["pi"]),
        drafters={role: _drafter_of(row, role, len(tokens)) for role in drafters},
    )


def _drafter_of(row: Mapping[Hashable, Any], role: str, count: int) -> DrafterProbabilities:
    """Return what a drafter gives the tokens of an output. Raises ValueError for a head recorded to another depth."""
    arrays = {name: np.asarray(row[f"{role}:{name}"]) for name in DrafterProbabilities.__dataclass_fields__}
    if len(arrays["q"]) not in (count, HEAD_DEPTH * count) or any(len(array) % count for array in arrays.values()):
        raise ValueError(role)
    return DrafterProbabilities(**arrays | {name: arrays[name].reshape(-1, count) for name in ("q", "rank")})
