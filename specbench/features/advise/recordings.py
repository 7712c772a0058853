"""Recorded probabilities of a run's outputs, on which candidates are replayed (`replay_predictions.py`).

The output of a lossless method has the baseline's distribution. So the probabilities that a drafter and the target assign to
the baseline's outputs give the expected rounds of every candidate with that drafter, without decoding with it. The costs of
forwards turn rounds into seconds.

paths.parquet in the run's folder holds these probabilities, a row per output. It is valid for that run only: another
temperature or filter gives another distribution, and other texts.
"""

import math
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.analysis.recorded_output import DrafterProbabilities, RecordedOutput
from specbench.data.prompting import encode
from specbench.decoding.loop import output_logits
from specbench.decoding.session import Ends
from specbench.errors import ConfigError
from specbench.experiment.generation import Setting
from specbench.experiment.runner import Conversations
from specbench.files import write_bytes
from specbench.methods.recorded_drafts import HEAD_DEPTH, probabilities
from specbench.models.heads import EagleHead, EagleSession
from specbench.models.loaded_pair import LoadedPair, Models
from specbench.observer import Observer
from specbench.resolution.run_plan import PlannedRun
from specbench.runs.record import Record
from specbench.runs.run_folder import PATHS, read

LoadPair = Callable[[], LoadedPair]
WRITTEN_EVERY = 16  # outputs
ROW_CHECKSUM = "crc32"  # the column of paths.parquet with the checksum of a row
OutputKey = tuple[str, int]  # sample and repeat
Outputs = dict[OutputKey, RecordedOutput]


@dataclass(frozen=True)
class Recording:
    """A recorded output of the baseline, and the record of its generation."""

    record: Record
    output: RecordedOutput


def record_outputs(
    load: LoadPair, run: PlannedRun, drafters: Sequence[str], observer: Observer | None = None
) -> list[Recording]:
    """Return the outputs of a run's baseline with their probabilities, and record missing ones.

    `load` returns the run's models. It is called only if outputs are missing. At temperature 0, all repeats of a prompt have
    the same output, and only the first one is recorded. Raises ConfigError if the baseline declares no distribution.
    """
    if run.methods[run.spec.baseline].declared_distribution() is None:
        raise ConfigError(f"{run.spec.baseline} declares no distribution that its output follows")
    path = run.folder / PATHS
    outputs = _read(path, run.spec.key, drafters)
    records = list(_records(run))
    missing = [record for record in records if not _is_recorded(record, outputs)]
    if missing:
        with (observer or Observer()).progress("recording outputs", len(missing)) as advance:
            for count, (record, output) in enumerate(_score(load(), run, drafters, missing), 1):
                outputs[record.sample, record.repeat] = output
                advance()
                if count % WRITTEN_EVERY == 0 or count == len(missing):
                    _write(path, run.spec.key, outputs)
    return [Recording(record, outputs[record.sample, record.repeat]) for record in records]


def _is_recorded(record: Record, outputs: Outputs) -> bool:
    output = outputs.get((record.sample, record.repeat))
    return output is not None and output.tokens == record.tokens


def _records(run: PlannedRun) -> Iterator[Record]:
    """Yield the baseline's generations to record: those without an error; at temperature 0, only the first repeat."""
    greedy = run.spec.decoding.temperature == 0.0
    for record in read(run.folder):
        if record.method == run.spec.baseline and record.error is None and (not greedy or record.repeat == 0):
            yield record


def _score(
    loaded: LoadedPair, run: PlannedRun, drafters: Sequence[str], records: Sequence[Record]
) -> Iterator[tuple[Record, RecordedOutput]]:
    """Yield each record with the probabilities of its output, from forwards of every model and head over the output."""
    pair, method = run.pair_of(loaded), run.methods[run.spec.baseline]
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
        prompt, _ = encode(pair.tokenizer, run.task, sample, history, pair.window, pair.encoder_decoder)
        models, tokens = pair.open(prompt, Ends(limits.eos, limits.max_new_tokens)), record.tokens
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
    """Return for each token of an output how many tokens a model, or a head on `base`, can draft from there on."""
    is_head = role not in models.sessions
    rooms = [models[base if is_head else role].room(models.ids + tokens[:i]) for i in range(len(tokens))]
    return [0, *rooms[1:]] if is_head and len(models.ids) < 2 else rooms  # a head reads two tokens


def _logits(
    models: Models, scorers: tuple[str, ...], drafters: Sequence[str], heads: Sequence[str], tokens: list[int]
) -> tuple[dict[str, Iterable[Tensor]], list[Tensor]]:
    """Return the logits (m, V) of an output: by drafter and position in the draft, and by scorer."""
    base = models[scorers[0]]
    whole = models.vocabulary  # sessions of heads are opened before the base reads
    sessions = {role: EagleSession(models.head(role, EagleHead), base, vocabulary=whole) for role in heads}
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
    """Return the recorded outputs of this run, without damaged rows.

    Returns none if the file is missing or unreadable, or if an output lacks one of these drafters.
    """
    if not path.exists():
        return {}
    try:
        table = pd.read_parquet(path)
        rows = [row for row in table[table["run"] == key].to_dict("records") if row.get(ROW_CHECKSUM) == _checksum(row)]
        return {(str(row["sample"]), int(row["repeat"])): _output_of(row, drafters) for row in rows}
    except Exception:  # of any type, from the parser
        return {}


def _write(path: Path, key: str, outputs: Outputs) -> None:
    rows = [
        {"run": key, "sample": sample, "repeat": repeat} | _row_of(output)
        for (sample, repeat), output in outputs.items()
    ]
    rows = [{**row, ROW_CHECKSUM: _checksum(row)} for row in rows]
    buffer = BytesIO()
    pd.DataFrame(rows).to_parquet(buffer, index=False)
    write_bytes(path, buffer.getvalue())


def _checksum(row: Mapping[Any, Any]) -> int:
    """Return the CRC-32 of the names and values of a row's columns, except empty columns and the checksum itself."""
    checksum = 0
    for name in sorted(map(str, row)):
        value = row[name]
        if name == ROW_CHECKSUM or value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        content = value.encode() if isinstance(value, str) else np.asarray(value, dtype=float).tobytes()
        checksum = zlib.crc32(content, zlib.crc32(name.encode(), checksum))
    return checksum


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
    """Return a drafter's probabilities of the tokens of an output. Raises ValueError for a head recorded to another depth."""
    arrays = {name: np.asarray(row[f"{role}:{name}"]) for name in DrafterProbabilities.__dataclass_fields__}
    if len(arrays["q"]) not in (count, HEAD_DEPTH * count) or any(len(array) % count for array in arrays.values()):
        raise ValueError(role)
    return DrafterProbabilities(**arrays | {name: arrays[name].reshape(-1, count) for name in ("q", "rank")})
