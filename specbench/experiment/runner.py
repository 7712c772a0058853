"""Measurement of a planned run. Methods are interleaved prompt by prompt in one process, after the same warm-up."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import tomli_w
import torch

from specbench.config.request import Access
from specbench.data.prompting import Turn, encode_firsts
from specbench.data.task import Data, Sample
from specbench.decoding.method import Earlier, Method
from specbench.errors import ConfigError
from specbench.experiment.generation import Setting, attempt, calibrated, capture
from specbench.files import read_with_checksum, write, write_with_checksum
from specbench.machine.hardware import (
    Environment,
    Fingerprint,
    ForwardCheck,
    conditions,
    configure,
    fingerprint,
    incomparable,
)
from specbench.machine.memory import copy_bandwidth, read_bandwidth
from specbench.machine.threads import Threads
from specbench.models.loaded_pair import LoadedPair
from specbench.resolution.run_plan import PlannedRun
from specbench.runs.locking import FolderLock
from specbench.runs.record import Record
from specbench.runs.run_folder import (
    ATTEMPTS,
    BLOCKS,
    CONFIG,
    ENVIRONMENT,
    JUDGED,
    MANIFEST,
    PATHS,
    SAMPLES,
    SCORES,
    SUMMARY,
    Manifest,
    Recorder,
    read,
    spec_of,
)
from specbench.runs.run_spec import RunSpec

WARM_UP_TOKENS = 16


def open_recorder(
    run: PlannedRun,
    lock: FolderLock,
    access: Access,
    checks: Mapping[str, ForwardCheck] | None = None,
    threads_reason: str = "",
    translations: Mapping[str, str] | None = None,
) -> Recorder:
    """Return the recorder of a run's folder. A folder without records first gets the spec, manifest and environment.

    With `access.restart`, records that were measured under other conditions are moved into `attempts/`. With `access.fresh`,
    they are deleted.

    Args:
        run: The run.
        lock: The lock of its folder.
        access: How the folder is accessed.
        checks: The checks of the loaded models' forwards, by role.
        threads_reason: Why torch uses its number of threads.
        translations: How much of the vocabulary of a draft model with another tokenizer is mapped, by role.

    Raises:
        ConfigError: The folder has records of another run, or without a config, or measured under other conditions: times of
            two conditions are not comparable.
    """
    lock.require()
    device = run.spec.device
    configure(torch.device(device))
    folder, environment = lock.folder, fingerprint(device)
    if access.untimed:
        environment["untimed"] = True
    if threads_reason:
        environment["threads_reason"] = threads_reason
    if access.restart and other_conditions(folder, environment):
        _set_aside(folder)
    if access.fresh:
        for name in (SAMPLES, SCORES, JUDGED, SUMMARY, BLOCKS, PATHS):
            (folder / name).unlink(missing_ok=True)
    recorder = Recorder(lock, run.expected)
    if recorder.done:
        _require_same(run.spec, folder, environment)
    else:
        manifest = Manifest(run.spec.checksum, [sample.id for sample in run.data.samples])
        measured: Environment = {
            **environment,
            "copy_bytes_per_second": copy_bandwidth(device),
            "read_bytes_per_second": read_bandwidth(device),
            "forward_checks": {role: check for role, check in (checks or {}).items() if role in run.spec.roles},
            "translations": {role: words for role, words in (translations or {}).items() if role in run.spec.roles},
        }
        write_with_checksum(folder / ENVIRONMENT, measured, indent=2)
        write_with_checksum(folder / MANIFEST, dataclasses.asdict(manifest))
        write(folder / CONFIG, tomli_w.dumps(run.spec.to_toml()))
    return recorder


def _require_same(spec: RunSpec, folder: Path, environment: Fingerprint) -> None:
    """Raise ConfigError if a folder's config is missing or another run's, or if its conditions differ from `environment`."""
    if not (folder / CONFIG).exists():
        raise ConfigError(f"{folder} has records but no {CONFIG}; help: restore it, or measure again with --fresh")
    if spec_of(folder).sha256 != spec.sha256:
        raise ConfigError(
            f"{folder / CONFIG} is not the config of this run; help: restore it, or measure again with --fresh"
        )
    if changed := other_conditions(folder, environment):
        raise ConfigError(
            f"{folder} was measured under other conditions, and times would not be comparable ({'; '.join(changed)});"
            " help: measure again with --fresh, or use another folder with --out"
        )


def other_conditions(folder: Path, environment: Fingerprint | None = None) -> list[str]:
    """Return the conditions in which a folder's records differ from an environment, by default this process's.

    Empty for a folder without an environment.
    """
    if not (folder / ENVIRONMENT).exists():
        return []
    here = conditions(environment or fingerprint(spec_of(folder).device))
    return incomparable(conditions(read_with_checksum(folder / ENVIRONMENT, Environment)), here)


def recorded_threads(folder: Path) -> Threads | None:
    """Return the threads with which a folder's records were measured; None for a folder without records."""
    if not (folder / SAMPLES).exists() or not (folder / ENVIRONMENT).exists():
        return None
    environment = read_with_checksum(folder / ENVIRONMENT, Environment)
    return Threads(environment["threads"], environment.get("threads_reason", ""))


def _set_aside(folder: Path) -> None:
    """Move the files of an interrupted run into attempts/N of its folder, so that no reader pools them with new records."""
    attempts = folder / ATTEMPTS
    number = len(list(attempts.iterdir())) + 1 if attempts.is_dir() else 1
    aside = attempts / str(number)
    aside.mkdir(parents=True)
    for name in (
        SAMPLES,
        ENVIRONMENT,
        MANIFEST,
        CONFIG,
        SCORES,
        JUDGED,
        SUMMARY,
        BLOCKS,
        PATHS,
    ):  # records without the rest are unusable
        with suppress(FileNotFoundError):
            (folder / name).rename(aside / name)


def check_prompts(run: PlannedRun, loaded: LoadedPair) -> None:
    """Raise ConfigError, before anything is decoded, for prompts that cannot be encoded or are too long.

    All samples of a run are checked, also for a shard.
    """
    pair = run.pair_of(loaded)
    try:
        encode_firsts(pair.tokenizer, run.task, run.data.all_samples, pair.window, pair.encoder_decoder)
    except ConfigError as error:
        raise ConfigError(f"task {run.spec.task.name}: {error}") from None


class Trial(NamedTuple):
    """One generation: a method on a sample, in one repeat."""

    method: str
    repeat: int
    sample: Sample


def rotation(run: PlannedRun) -> Iterator[Trial]:
    """Yield trials prompt by prompt. The order of the methods rotates, so that no method is always first.

    Methods a, b and c decode the first prompt in the order a b c, the second in the order b c a. A slow change of the
    machine, such as heat, then affects all methods alike.
    """
    labels = list(run.spec.methods)
    for repeat in range(run.spec.decoding.repeats):
        for i, sample in enumerate(run.data.samples):
            for label in labels[i % len(labels) :] + labels[: i % len(labels)]:
                yield Trial(label, repeat, sample)


def decode_missing(
    run: PlannedRun,
    loaded: LoadedPair,
    recorder: Recorder,
    schedule: Callable[[PlannedRun], Iterable[Trial]] = rotation,
) -> Iterator[Record]:
    """Decode the missing generations of a run in the order of a schedule, and yield each record after it is written.

    Before the first one, CUDA graphs are captured, and the methods are calibrated and warmed up. The number of these graphs
    and their seconds are added to the first record. Repeat r uses seed + r. In the first repeat, greedy tokens of lossless
    methods are compared with the declared distribution, unless the models are simulated.

    Args:
        run: The run.
        loaded: The loaded models, of this and perhaps of other runs.
        recorder: The recorder of the run's folder.
        schedule: Yields the trials of a run. A turn must come after the earlier turns of its conversation.
    """
    spec, data = run.spec, run.data
    conversations = Conversations(data, recorder.folder)
    todo = [trial for trial in schedule(run) if (trial.method, trial.sample.id, trial.repeat) not in recorder.done]
    if not todo:
        return
    pair = run.pair_of(loaded)
    setting = Setting(pair, run.task, spec.decoding)
    for model in pair.models.values():
        model.forget_drafts()
    pilots = [sample for sample in data.all_samples if not sample.after]
    captured = capture(pair, _longest(setting, data), {n for method in run.methods.values() for n in method.blocks})
    lacking = {trial.method for trial in todo}
    methods = {label: calibrated(method, setting, pilots) for label, method in run.methods.items() if label in lacking}
    baseline = run.methods[spec.baseline].declared_distribution()
    compared = dataclasses.replace(setting, declared=baseline) if _has_greedy_reference(spec) else setting
    same = first_samples(data.samples)
    captured = _warm_up(methods, setting, run, captured)
    earlier = defaultdict[tuple[str, int], Earlier](Earlier)
    for done in sorted(read(recorder.folder), key=lambda record: record.order) if recorder.done else ():
        if done.error is None:
            earlier[done.method, done.repeat].outputs.append(done.tokens)
    for order, (label, repeat, sample) in enumerate(todo, len(recorder.done)):
        blank = _blank(spec, label, sample.id, (repeat, order))
        blank.same_as = same.get(sample.id, "")
        how = compared if repeat == 0 and spec.methods[label].lossless else setting
        how = dataclasses.replace(how, earlier=earlier[label, repeat])
        record = attempt(methods[label], blank, how, sample, conversations.before(sample, label, repeat))
        record.simulated = spec.pair.simulated
        record.captured, record.capture_seconds = record.captured + captured[0], record.capture_seconds + captured[1]
        captured = 0, 0.0
        record = recorder.append(record)
        conversations.add(record)
        if record.error is None:
            earlier[label, repeat].outputs.append(record.tokens)
        yield record


def _warm_up(
    methods: Mapping[str, Method],
    setting: Setting,
    run: PlannedRun,
    captured: tuple[int, float],
) -> tuple[int, float]:
    """Decode a few tokens by each method. `captured` is the number of CUDA graphs captured before, and their seconds.

    Returns both with the graphs of the warm-up added.
    """
    brief = dataclasses.replace(
        setting, decoding=dataclasses.replace(setting.decoding, max_new_tokens=WARM_UP_TOKENS), declared=None
    )
    for label, method in methods.items():
        for sample in run.data.samples:  # until one is decoded: a failed generation is no warm-up
            if sample.after:
                continue
            record = attempt(method, _blank(run.spec, label, sample.id, (0, -1)), brief, sample, [])
            captured = captured[0] + record.captured, captured[1] + record.capture_seconds
            if record.error is None:
                break
    return captured


def _blank(spec: RunSpec, label: str, sample: str, position: tuple[int, int]) -> Record:
    """Return the record of a generation before it is decoded; `position` is its repeat and its order."""
    repeat, order = position
    return Record(
        method=label, sample=sample, repeat=repeat, seed=spec.decoding.seed + repeat, order=order, run=spec.key
    )


def _has_greedy_reference(spec: RunSpec) -> bool:
    """Return whether tokens are compared with the declared distribution: greedy ones of models that are not simulated."""
    return spec.decoding.temperature == 0.0 and not spec.pair.simulated


def first_samples(samples: Sequence[Sample]) -> dict[str, str]:
    """Return the id of the first sample with the same prompt, for each sample that repeats an earlier prompt.

    Two later turns have the same prompt if their conversations are equal up to there. If samples a and b have one prompt, and
    a2 and b2 continue them with one question, the result is {b: a, b2: a2}.
    """
    firsts: dict[tuple[str, str], str] = {}
    out: dict[str, str] = {}
    for sample in samples:
        before = out.get(sample.after, sample.after)
        first = firsts.setdefault((before, f"{sample.prompt}\0{sample.turn}"), sample.id)
        if first != sample.id:
            out[sample.id] = first
    return out


def _longest(setting: Setting, data: Data) -> int:
    """Estimate the maximum sequence length: for each turn, the longest first prompt and the maximum number of new tokens.

    Prompts of later turns depend on answers, and are assumed to be no longer than the first ones.
    """
    pair = setting.pair
    firsts = encode_firsts(pair.tokenizer, setting.task, data.samples, pair.window, pair.encoder_decoder)
    longest = max(map(len, firsts), default=0)
    length = most_turns(data) * (longest + setting.decoding.max_new_tokens)
    return length if pair.window is None else min(length, pair.window)


class Conversations:
    """The answers of each method to samples that a later sample continues, also those that the folder already holds."""

    def __init__(self, data: Data, folder: Path) -> None:
        self._samples = {sample.id: sample for sample in data.samples}
        self._needed = {sample.after for sample in data.samples if sample.after}
        self._texts: dict[tuple[str, str, int], str | None] = {}
        if self._needed:
            for record in read(folder):
                self.add(record)

    def add(self, record: Record) -> None:
        """Keep the text of a generation that a later sample continues; None for a failed one."""
        if record.sample in self._needed:
            self._texts[record.key] = record.text if record.error is None else None

    def before(self, sample: Sample, method: str, repeat: int) -> list[Turn] | None:
        """Return the turns before a sample, in order; None if one of them failed."""
        turns: list[Turn] = []
        while sample.after:
            sample = self._samples[sample.after]
            answer = self._texts[method, sample.id, repeat]
            if answer is None:
                return None
            turns.insert(0, (sample, answer))
        return turns


def most_turns(data: Data) -> int:
    """Return the number of turns of the longest conversation."""
    following = {sample.after: sample.id for sample in data.samples if sample.after}
    longest = 1
    for sample in data.samples:
        count, at = 1, sample.id
        while at in following:
            count, at = count + 1, following[at]
        longest = max(longest, count)
    return longest
