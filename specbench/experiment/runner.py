"""Floor 4: cells to records. Baseline and methods take turns prompt by prompt, in one process, after the same warm-up."""

import dataclasses
import hashlib
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
import torch

from specbench.data.prompting import Turn, continuation, encode, pieces
from specbench.data.task import Data, Sample, Task, without
from specbench.decoding.loop import Generation, Limits, decode
from specbench.decoding.method import Method, Step
from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError
from specbench.experiment.method_resolution import Arm
from specbench.experiment.run_spec import Cell
from specbench.files import read_sealed, write, write_sealed
from specbench.machine.hardware import Environment, conditions, configure, copy_bandwidth, fingerprint, incomparable
from specbench.models.loader import LoadedPair, Models
from specbench.runs.locking import FolderLock
from specbench.runs.record import (
    CONFIG,
    ENVIRONMENT,
    JUDGED,
    MANIFEST,
    SAMPLES,
    SCORES,
    SUMMARY,
    Expected,
    Manifest,
    Record,
    Recorder,
    config_sha256,
    read,
    round_of,
    run_config,
    usage_of,
)

WARM_UP_TOKENS = 16


def expected(cell: Cell, data: Data) -> Expected:
    """The generations of a cell."""
    ids = [sample.id for sample in data.samples]
    return Expected(tuple(arm.name for arm in cell.arms), cell.config["decoding"]["repeats"], len(ids), frozenset(ids))


def prepare(cell: Cell, data: Data, lock: FolderLock, fresh: bool) -> Recorder:
    """The recorder of a cell's run folder, which holds the resolved config, the manifest and the environment.

    Raises ConfigError where the folder was begun under other conditions, since their timings would not mix, and where what it
    holds is not this cell's.
    """
    lock.require()
    configure(torch.device(cell.config["engine"]["device"]))
    folder, environment = lock.folder, fingerprint()
    if fresh:
        for name in (SAMPLES, SCORES, JUDGED, SUMMARY):
            (folder / name).unlink(missing_ok=True)
    recorder = Recorder(lock, expected(cell, data))
    if recorder.done:
        _require_same(cell, folder, environment)
    else:
        environment["copy_bytes_per_second"] = copy_bandwidth(cell.config["engine"]["device"])
        manifest = Manifest(config_sha256(cell.config), [sample.id for sample in data.samples])
        write_sealed(folder / ENVIRONMENT, environment, indent=2)
        write_sealed(folder / MANIFEST, dataclasses.asdict(manifest))
        write(folder / CONFIG, tomli_w.dumps(cell.config))
    return recorder


def _require_same(cell: Cell, folder: Path, environment: dict[str, Any]) -> None:
    """Raise ConfigError where a run was begun under other conditions than it would be resumed under."""
    if not (folder / CONFIG).exists():
        raise ConfigError(f"{folder} has records but no {CONFIG}; help: restore it, or measure again with --fresh")
    if config_sha256(run_config(folder)) != config_sha256(cell.config):
        raise ConfigError(
            f"{folder / CONFIG} is not the config of this run; help: restore it, or measure again with --fresh"
        )
    if changed := incomparable(
        conditions(dict(read_sealed(folder / ENVIRONMENT, Environment))), conditions(environment)
    ):
        raise ConfigError(
            f"{folder} was begun under other conditions, and timings of both would not compare ({'; '.join(changed)});"
            " help: --fresh measures it again, --out starts another folder"
        )


def measure(cell: Cell, loaded: LoadedPair, task: Task, data: Data, recorder: Recorder) -> Iterator[Record]:
    """Decode what is missing, yielding each record once it is on disk.

    Repeat r uses seed + r. The order of the methods rotates from prompt to prompt, so that none always runs first.
    """
    decoding, pair = cell.config["decoding"], loaded.only(cell.roles, cell.spread)
    talks = _Talks(data, recorder)
    todo = [
        (repeat, sample, arm)
        for repeat in range(decoding["repeats"])
        for i, sample in enumerate(data.samples)
        for arm in cell.arms[i % len(cell.arms) :] + cell.arms[: i % len(cell.arms)]
        if (arm.name, sample.id, repeat) not in recorder.done
    ]
    if not todo:
        return
    firsts = [sample for sample in data.samples if not sample.after]
    for graphs in pair.graphs.values():
        graphs.forget_drafts()
    most = max(arm.method.most_fed for arm in cell.arms)
    captured = _capture(pair, _longest(pair, task, data, decoding["max_new_tokens"]), most)
    brief = decoding | {"max_new_tokens": WARM_UP_TOKENS}
    wanted = {arm.name for _, _, arm in todo}
    arms = {arm.name: piloted(arm, pair, task, firsts, decoding) for arm in cell.arms if arm.name in wanted}
    for arm in arms.values():
        for sample in firsts:  # until one prompt is decoded: a failed one warms nothing up
            warm_up = _attempt(arm, pair, task, sample, [], brief, repeat=0, order=-1)
            captured = captured[0] + warm_up.captured, captured[1] + warm_up.capture_seconds
            if warm_up.error is None:
                break
    for order, (repeat, sample, arm) in enumerate(todo, len(recorder.done)):
        record = _attempt(
            arms[arm.name], pair, task, sample, talks.before(sample, arm.name, repeat), decoding, repeat, order
        )
        record.made_up = cell.config["pair"].get("made_up", "")
        record.captured, record.capture_seconds = record.captured + captured[0], record.capture_seconds + captured[1]
        captured = 0, 0.0
        record = recorder.append(record)
        talks.heard(record)
        yield record


def _capture(pair: LoadedPair, length: int, most: int = 0) -> tuple[int, float]:
    """Capture the CUDA graphs that sequences of `length` tokens lack: how many, and the seconds, which no clock counts."""
    if not pair.graphs:
        return 0, 0.0
    begin = time.perf_counter()
    return pair.prepare(length, most), time.perf_counter() - begin


def _longest(pair: LoadedPair, task: Task, data: Data, new: int) -> int:
    """Tokens of the longest sequence to expect, later turns included; a prompt that cannot be encoded fails in its turn."""
    longest = 0
    for sample in data.samples:
        if not sample.after:
            with suppress(ValueError):
                longest = max(longest, len(encode(pair.tokenizer, task, sample, [], pair.window)[0]))
    following = {sample.after: sample.id for sample in data.samples if sample.after}
    turns = [1]
    for sample in data.samples:
        count, at = 1, sample.id
        while at in following:
            count, at = count + 1, following[at]
        turns.append(count)
    most = max(turns) * (longest + new)
    return most if pair.window is None else min(most, pair.window)


class _Talks:
    """What each method answered, where a later sample goes on with it."""

    def __init__(self, data: Data, recorder: Recorder) -> None:
        self._samples = {sample.id: sample for sample in data.samples}
        self._needed = {sample.after for sample in data.samples if sample.after}
        self._texts: dict[tuple[str, str, int], str | None] = {}
        if self._needed:
            for record in read(recorder.folder):
                self.heard(record)

    def heard(self, record: Record) -> None:
        if record.sample in self._needed:
            self._texts[record.key] = record.text if record.error is None else None

    def before(self, sample: Sample, method: str, repeat: int) -> list[Turn] | None:
        """The turns before a sample, the first one first; None where one of them failed."""
        turns: list[Turn] = []
        while sample.after:
            sample = self._samples[sample.after]
            answered = self._texts[method, sample.id, repeat]
            if answered is None:
                return None
            turns.insert(0, (sample, answered))
        return turns


def _attempt(
    arm: Arm,
    pair: LoadedPair,
    task: Task,
    sample: Sample,
    history: list[Turn] | None,
    decoding: dict[str, Any],
    repeat: int,
    order: int,
) -> Record:
    """One generation, or its failure: an error, and no tokens and no timing."""
    seed = decoding["seed"] + repeat
    record = Record(method=arm.name, sample=sample.id, repeat=repeat, seed=seed, order=order)
    try:
        if history is None:
            raise ValueError(f"the turn before it, {sample.after}, failed")
        generate(record, arm, pair, task, sample, history, decoding)
    except AssertionError:  # a bug of ours, not of the sample
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        record = Record(
            method=arm.name, sample=sample.id, repeat=repeat, seed=seed, order=order,
            prompt_tokens=record.prompt_tokens, captured=record.captured, capture_seconds=record.capture_seconds,
            error=message,
        )  # fmt: skip
    return record


def generate(
    record: Record,
    arm: Arm,
    pair: LoadedPair,
    task: Task,
    sample: Sample,
    history: list[Turn],
    decoding: dict[str, Any],
) -> Generation:
    """One generation, by the record's seed; the record is told all of it but what the rounds' tokens were.

    Raises ValueError for a prompt that cannot be encoded, or does not fit.
    """
    cuda = pair.device.type == "cuda"
    prompt, record.prompt_cut = encode(pair.tokenizer, task, sample, history, pair.window)
    record.prompt_tokens, record.prompt_ends = len(prompt), prompt[:8] + prompt[8:][-8:]
    record.captured, record.capture_seconds = _capture(pair, _length(len(prompt), decoding, pair))
    models, limits = pair.open(prompt), _limits(decoding, pair, task)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    out = decode(arm.method, models, _sampler(decoding, record.seed, sample, pair), limits)
    _fill(record, out, models, pair.tokenizer)
    record.text = without(limits.stop, continuation(pair.tokenizer, prompt, out.tokens, pair.encoder_decoder))
    record.pieces = pieces(pair.tokenizer, prompt, out.tokens, pair.encoder_decoder)
    record.peak_bytes = torch.cuda.max_memory_allocated() if cuda else None
    return out


def _length(prompt: int, decoding: dict[str, Any], pair: LoadedPair) -> int:
    """Tokens of a sequence at its longest."""
    length: int = prompt + decoding["max_new_tokens"]
    return length if pair.window is None else min(length, pair.window)


def piloted(arm: Arm, pair: LoadedPair, task: Task, samples: list[Sample], decoding: dict[str, Any]) -> Arm:
    """The arm with what its method leaves to a pilot settled on these prompts, as the first repeat decodes them."""

    def pilot(method: Method) -> Iterator[list[Step]]:
        for sample in samples:
            try:
                prompt, _ = encode(pair.tokenizer, task, sample, [], pair.window)
                sampler = _sampler(decoding, decoding["seed"], sample, pair)
                yield decode(method, pair.open(prompt), sampler, _limits(decoding, pair, task)).rounds
            except AssertionError:
                raise
            except Exception:
                continue  # a sample that fails does so again in its turn, and is recorded

    return dataclasses.replace(arm, method=arm.method.piloted(pilot))


def _sampler(decoding: dict[str, Any], seed: int, sample: Sample, pair: LoadedPair) -> Sampler:
    return Sampler(decoding["temperature"], decoding["top_k"], decoding["top_p"], _generator(seed, sample, pair))


def _limits(decoding: dict[str, Any], pair: LoadedPair, task: Task) -> Limits:
    return Limits(
        eos=frozenset() if decoding["ignore_eos"] else pair.eos,
        max_new_tokens=decoding["max_new_tokens"],
        window=pair.window,
        stop=() if decoding["ignore_eos"] else task.stop,
        detokenise=lambda ids: pair.tokenizer.decode(ids, skip_special_tokens=True),
    )


def _fill(record: Record, out: Generation, models: Models, tokenizer: Any) -> None:
    record.tokens, record.finish = out.tokens, out.finish
    record.first_token_seconds = out.first_token_seconds
    record.prefill_seconds, record.decode_seconds = out.prefill_seconds, out.decode_seconds
    record.models = {role: usage_of(session.calls) for role, session in models.sessions.items()}
    if any(step.drafted or step.noted for step in out.rounds):
        record.rounds = [round_of(step) for step in out.rounds]
        for told, step in zip(record.rounds, out.rounds, strict=True):
            if step.refused:
                told["refused"] = tokenizer.decode(step.refused)


def _generator(seed: int, sample: Sample, pair: LoadedPair) -> torch.Generator:
    """A generator of this prompt and seed alone: neither order nor what ran before changes a draw."""
    digest = hashlib.sha256(f"{seed}:{sample.id}".encode()).digest()
    return torch.Generator(pair.device).manual_seed(int.from_bytes(digest[:8]) >> 1)
