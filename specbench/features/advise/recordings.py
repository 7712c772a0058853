"""Predicted speedups of candidates, from one run: its prices, and its baseline's outputs, on which they are replayed.

The output of a lossless method has the baseline's distribution. So the probabilities that a drafter and the target assign to
the baseline's outputs give the expected rounds of every candidate with that drafter, without decoding with it. The prices of
forwards turn rounds into seconds.

paths.parquet in the run's folder holds these probabilities, a row per output. It is valid for that run only: another
temperature or filter gives another distribution, and other texts.
"""

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import is_covered
from specbench.analysis.recorded_output import DrafterProbabilities, RecordedOutput
from specbench.analysis.run_metrics import Records, complete, seconds, token_count
from specbench.analysis.theory import drafting_sizes
from specbench.data.prompting import encode
from specbench.decoding.loop import output_logits
from specbench.decoding.method import Method
from specbench.decoding.session import Ends
from specbench.errors import ConfigError
from specbench.experiment.generation import Setting
from specbench.experiment.runner import Conversations
from specbench.features.advise.candidate_set import TARGET
from specbench.features.advise.candidates import (
    Candidate,
    CandidateResult,
    Drafter,
    Prices,
    pilot_prices,
    predicted_speedup,
)
from specbench.files import write_bytes
from specbench.methods.proposers import Chain
from specbench.methods.recorded_drafts import HEAD_DEPTH, Replay, probabilities, replay_of
from specbench.models.heads import EagleHead, EagleSession
from specbench.models.loaded_pair import LoadedPair, Models
from specbench.observer import Observer
from specbench.resolution.run_plan import PlannedRun
from specbench.runs.record import Record
from specbench.runs.run_folder import PATHS, read, timed_forwards

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


def predict_all(
    load: LoadPair,
    run: PlannedRun,
    methods: Mapping[Candidate, Method],
    pilots: Sequence[Candidate],
    observer: Observer,
) -> list[CandidateResult]:
    """Return all candidates with their predicted speedups over the baseline of a run whose blocks are timed.

    Predictions miss costs that depend on how a method drafts. So each pilot's measured seconds per token are divided by its
    predicted ones, and this ratio corrects candidates with the same kind of draft and the same drafter. Between the draft
    lengths of pilots, the ratio is interpolated: if pilots need 1.1 times the predicted seconds at length 2 and 1.3 times at
    length 6, a candidate with length 4 is predicted to need 1.2 times.

    Args:
        load: Returns the models of the run. It is called if outputs are not recorded yet.
        run: The run.
        methods: The candidates, as methods.
        pilots: Candidates that the run measured. They give the prices, and correct the predictions of candidates that draft
            in the same way.
        observer: Receives progress.
    """
    records = list(read(run.folder))
    base = complete(records, run.spec.baseline)
    rows = {pilot: complete(records, pilot.name) for pilot in pilots}
    prices = _prices(run, base, rows)
    temperature = run.spec.decoding.temperature
    replays = {candidate: _replay_of(candidate, method, temperature) for candidate, method in methods.items()}
    recordings = _recorded(load, run, replays.values(), observer) if prices else []
    of_base, tokens = _seconds_by_output(base, recordings), token_count([recording.record for recording in recordings])
    corrections = defaultdict[tuple[str, str], dict[int, float]](dict)  # by kind and drafter, and by draft length
    out = []
    for candidate in dict.fromkeys((*rows, *methods)):  # pilots first: they correct the others
        replayed = replays[candidate]
        priced = _prices_for(candidate, replayed, prices)
        if isinstance(priced, str) or isinstance(replayed, str) or candidate.kind is None:
            out.append(CandidateResult(candidate=candidate, why=str(priced)))
            continue
        prediction = _predicted(replayed, candidate.kind, priced, prices, recordings)
        by_length = corrections[candidate.kind, candidate.drafter]
        predicted = sum(prediction.seconds.values()) / tokens if tokens else 0.0
        if rows.get(candidate) and predicted > 0.0:
            by_length[candidate.gamma] = _per_token(rows[candidate]) / predicted
        if by_length:
            prediction = replace(prediction, factor=_interpolated(by_length, candidate.gamma))
        out.append(CandidateResult(candidate=candidate, predicted=prediction.speedup(of_base, priced, recordings)))
    return out


def _interpolated(by_length: Mapping[int, float], gamma: int) -> float:
    """Return the correction at a draft length, interpolated between measured lengths, and constant outside of them."""
    lengths = sorted(by_length)
    return float(np.interp(gamma, lengths, [by_length[length] for length in lengths]))


def _recorded(load: LoadPair, run: PlannedRun, replays: Iterable[Replay | str], observer: Observer) -> list[Recording]:
    """Return the outputs of a run, with the probabilities by each model and head of the run that a replay needs."""
    needed = {name for replay in replays if isinstance(replay, Replay) for name in replay.drafters}
    drafters = sorted(needed & {*run.spec.pair.models, *run.spec.pair.heads})
    return record_outputs(load, run, drafters, observer)


def _replay_of(candidate: Candidate, method: Method, temperature: float) -> Replay | str:
    """Return how a candidate is replayed, or why it cannot be, or has no price."""
    replayed = replay_of(method, (TARGET,), temperature)
    if isinstance(replayed, Replay) and candidate.kind is None:
        return "forwards of a head over a tree have no price"
    return replayed


def _prices_for(candidate: Candidate, replayed: Replay | str, prices: Mapping[str, Prices]) -> Prices | str:
    """Return the prices of a candidate's rounds, or why it has no prediction."""
    if isinstance(replayed, str):
        return replayed
    missing = [name for name in replayed.drafters if name not in prices]
    if missing:
        return f"no method that was run drafts with {missing[0]} alone"
    priced = prices.get(candidate.drafter, next(iter(prices.values()), None))
    if priced is None:
        return "no draft model was measured, which predictions need"
    proposer = replayed.method.proposer
    largest = [(proposer.nodes + 1, priced.verifier.largest)]
    if candidate.kind == "tree":
        largest.append((max(drafting_sizes(proposer.shape or ())[1:], default=1), priced.largest_of_drafter))
    if isinstance(proposer, Chain):
        largest.append((proposer.proposer.nodes + 1, prices[replayed.drafters[-1]].largest_of_drafter))
    if any(size > known for size, known in largest):
        return "its blocks are larger than the timed ones"
    return priced


def _prices(run: PlannedRun, base: Records, rows: Mapping[Candidate, Records]) -> dict[str, Prices]:
    """Return the prices of each draft model and head that a run measured, from its first method that has prices.

    Blocks of other pilots with the same drafter have prices too.
    """
    timed, prices = timed_forwards(run.folder), dict[str, Prices]()
    others: dict[Drafter, Records] = {
        pilot.kind: records for pilot, records in rows.items() if pilot.kind and pilot.kind not in ("model", "head")
    }
    for pilot, records in rows.items():
        theory = run.spec.methods[pilot.name].traits.theory
        if (
            pilot.kind in ("model", "head")
            and theory
            and is_covered(theory, records, base)
            and pilot.drafter not in prices
        ):
            more = [
                row
                for other in rows
                if other is not pilot and (other.kind, other.drafter) == (pilot.kind, pilot.drafter)
                for row in rows[other]
            ]
            prices[pilot.drafter] = pilot_prices(theory, records, base, timed, more, others)
    return prices


@dataclass(frozen=True)
class _Prediction:
    """The predicted seconds of a method by output, and the seconds of the target's blocks by size, without correction.

    `factor` corrects the seconds by output. It is measured / predicted seconds of methods that draft in the same way.
    """

    seconds: Mapping[OutputKey, float]
    blocks: Mapping[int, float]
    factor: float = 1.0

    def speedup(self, base: Mapping[OutputKey, float], prices: Prices, recordings: Sequence[Recording]) -> Estimate:
        """Return the predicted speedup over the baseline's seconds by output."""
        ours, theirs = defaultdict[str, float](float), defaultdict[str, float](float)
        for record in (recording.record for recording in recordings):
            key = record.sample, record.repeat
            ours[record.prompt] += self.factor * self.seconds[key]
            theirs[record.prompt] += base[key]
        prompts = [prompt for prompt in ours if ours[prompt] > 0.0]
        return predicted_speedup(
            [theirs[prompt] for prompt in prompts], [ours[prompt] for prompt in prompts], self.blocks, prices.verifier
        )


def _predicted(
    replayed: Replay, kind: Drafter, prices: Prices, of_drafters: Mapping[str, Prices], recordings: Sequence[Recording]
) -> _Prediction:
    """Return the predicted seconds of a method on recorded outputs, at the prices of its drafter."""
    shape, bonus = replayed.method.proposer.shape or (), replayed.method.bonus != "none"
    spent, blocks = dict[OutputKey, float](), defaultdict[int, float](float)
    for recording in recordings:
        rounds = replayed.rounds(recording.output)
        key = recording.record.sample, recording.record.repeat
        if kind == "chain":
            middle = of_drafters[replayed.drafters[-1]]
            spent[key] = prices.seconds_of_chain(rounds, middle, is_lookup=len(replayed.drafters) == 1)
        else:
            spent[key] = prices.seconds(rounds, kind, shape, bonus)
        for k, count in enumerate(rounds.drafted.sum(axis=0)):
            size = max(k + bonus, 1)
            blocks[size] += float(count) * prices.verifier.of(size)
    return _Prediction(spent, blocks)


def _per_token(rows: Records) -> float:
    """Return decoding seconds / tokens."""
    return sum(map(seconds, rows)) / token_count(rows)


def _seconds_by_output(rows: Records, recordings: Sequence[Recording]) -> dict[OutputKey, float]:
    """Return the decoding seconds of each recorded output; at temperature 0, the mean over the repeats of its sample."""
    repeats = defaultdict[str, list[float]](list)
    for record in rows:
        repeats[record.sample].append(seconds(record))
    of_output = {(record.sample, record.repeat): seconds(record) for record in rows}
    greedy = all(recording.record.repeat == 0 for recording in recordings)
    keys = [
        (recording.record.sample, recording.record.repeat)
        for recording in recordings
        if recording.record.sample in repeats
    ]
    return {key: float(np.mean(repeats[key[0]])) if greedy else of_output[key] for key in keys}
