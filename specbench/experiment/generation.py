"""Decoding of one prompt by one method, into a record of a run, or into a trace of its rounds."""

import hashlib
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.analysis.acceptance import TracedRound, round_origins
from specbench.config.options import Options
from specbench.config.request import Request
from specbench.data.prompting import Turn, continuation, encode, encode_firsts, pieces, special_tokens
from specbench.data.task import Data, Sample, Task
from specbench.decoding.loop import Generation, GenerationLimits, decode, output_logits
from specbench.decoding.method import Earlier, Method, Round
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import Ends
from specbench.decoding.targets.target import Target, wrong_tokens
from specbench.errors import ConfigError
from specbench.experiment.loaded_models import LoadedModels
from specbench.machine.hardware import OtherLoad
from specbench.machine.memory import without_garbage_collection
from specbench.machine.threads import using
from specbench.models.loaded_pair import LoadedPair, Models
from specbench.models.translated_session import TranslatedSession
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.resolution.plugins import location_of
from specbench.resolution.resolve import Choice, plan_on
from specbench.resolution.run_plan import PairPlan, PlannedRun
from specbench.resolution.selection import SelectedTask
from specbench.runs.record import Record, RoundRecord, round_record, rounded, usage_record
from specbench.runs.run_spec import DecodingSpec


@dataclass(frozen=True)
class Setting:
    """What generations share: the loaded pair, the task, and how to sample.

    `declared` are the scorers and the target that greedy tokens are compared with; None if they are not compared.
    `earlier` is what the method wrote before in this repeat.
    """

    pair: LoadedPair
    task: Task
    decoding: DecodingSpec
    declared: tuple[tuple[str, ...], Target] | None = None
    earlier: Earlier | None = None

    def sampler(self, seed: int, sample: Sample) -> Sampler:
        """Return a sampler whose draws depend on the prompt and the seed alone, not on what ran before."""
        digest = hashlib.sha256(f"{seed}:{sample.id}".encode()).digest()
        generator = torch.Generator(self.pair.device).manual_seed(int.from_bytes(digest[:8]) >> 1)
        return Sampler(self.decoding.temperature, self.decoding.top_k, self.decoding.top_p, generator)

    def limits(self, method: Method) -> GenerationLimits:
        """Return the limits of a generation by a method."""
        tokenizer, free = self.pair.tokenizer, self.decoding.ignore_eos
        window, stop = self.pair.window_of(method.deciding), () if free else self.task.stop
        special = [text for text in stop if any(token in text for token in special_tokens(tokenizer))]
        return GenerationLimits(
            eos=frozenset() if free else self.pair.eos,
            max_new_tokens=self.decoding.max_new_tokens,
            window=window.length,
            window_of=window.role,
            stop=stop,
            detokenize=lambda ids: tokenizer.decode(ids, skip_special_tokens=not special),
            ends=lambda text: any(token in text for token in special) or self.task.stopped(text) != text,
            vocabulary=self.pair.writable,
        )

    def longest(self, prompt: int) -> int:
        """Return the largest number of tokens that a sequence may have, given the number in its prompt."""
        length = prompt + self.decoding.max_new_tokens
        return length if self.pair.window is None else min(length, self.pair.window)


def attempt(method: Method, record: Record, setting: Setting, sample: Sample, history: list[Turn] | None) -> Record:
    """Fill a record with one generation, or return a record of its failure: an error, and no tokens and no timing."""
    try:
        if history is None:
            raise ValueError(f"the turn before it, {sample.after}, failed")
        generate(method, record, setting, sample, history)
    except Exception as error:
        if isinstance(error, AssertionError) and location_of(error) is None:  # a bug of ours, not of the sample
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        return record.as_failed(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    return record


def generate(method: Method, record: Record, setting: Setting, sample: Sample, history: list[Turn]) -> Generation:
    """Decode a prompt once, with the record's seed, and write everything into the record.

    Raises ValueError for a prompt that cannot be encoded, or does not fit.
    """
    pair, task = setting.pair, setting.task
    cuda = pair.device.type == "cuda"
    prompt, record.prompt_cut = encode(pair.tokenizer, task, sample, history, pair.window, pair.encoder_decoder)
    record.prompt_tokens, record.prompt_ends = len(prompt), prompt[:8] + prompt[8:][-8:]
    record.captured, record.capture_seconds = capture(pair, setting.longest(len(prompt)))
    limits = setting.limits(method)
    ends = Ends(limits.eos, limits.max_new_tokens)
    models = pair.open(prompt, ends, setting.earlier)
    if cuda:
        for device in _gpus(pair):
            torch.cuda.reset_peak_memory_stats(device)
            torch.cuda.synchronize(device)
    load = OtherLoad()
    with torch.inference_mode(), without_garbage_collection():
        out = decode(method, models, setting.sampler(record.seed, sample), limits)
    other = load.seconds()
    record.other_cpu_seconds = None if other is None else rounded(other)
    _fill(record, out, models, pair.tokenizer)
    text = continuation(pair.tokenizer, prompt, out.tokens, pair.encoder_decoder)
    record.text = task.stopped(text) if limits.stop else text
    record.pieces = pieces(pair.tokenizer, prompt, out.tokens, pair.encoder_decoder)
    record.peak_bytes = sum(map(torch.cuda.max_memory_allocated, _gpus(pair))) if cuda else None
    if setting.declared:
        record.wrong_tokens = _wrong_tokens(setting.declared, pair, pair.open(prompt, ends), out.tokens)
    return out


def _wrong_tokens(declared: tuple[tuple[str, ...], Target], pair: LoadedPair, models: Models, tokens: list[int]) -> int:
    """Return how many greedy tokens the declared distribution excludes, by one forward of each scorer over the output."""
    roles, target = declared
    with torch.inference_mode():
        logits = output_logits(models, roles, tokens)
    dtype = max((pair.models[role].dtype for role in roles), key=lambda dtype: torch.finfo(dtype).eps)
    return wrong_tokens(target, logits, tokens, dtype)


def _gpus(pair: LoadedPair) -> list[torch.device]:
    return [device for device in pair.all_devices if device.type == "cuda"]


def capture(pair: LoadedPair, length: int, blocks: Iterable[int] = ()) -> tuple[int, float]:
    """Capture missing CUDA graphs for sequences of `length` tokens, untimed. Returns their number and the seconds."""
    if not pair.has_graphs:
        return 0, 0.0
    begin = time.perf_counter()
    return pair.prepare(length, blocks), time.perf_counter() - begin


def calibrated(method: Method, setting: Setting, samples: list[Sample]) -> Method:
    """Return the method calibrated on the run's prompts, decoded as in the first repeat. This is not timed."""

    def pilot(method: Method) -> Iterator[list[Round]]:
        for sample in samples:
            try:
                pair = setting.pair
                prompt, _ = encode(pair.tokenizer, setting.task, sample, [], pair.window, pair.encoder_decoder)
                sampler = setting.sampler(setting.decoding.seed, sample)
                limits = setting.limits(method)
                models = setting.pair.open(prompt, Ends(limits.eos, limits.max_new_tokens))
                with torch.inference_mode():
                    out = decode(method, models, sampler, limits)
                yield out.rounds
            except Exception as error:
                if isinstance(error, AssertionError) and location_of(error) is None:
                    raise
                continue  # the sample fails again when it is measured, and is recorded then

    return method.calibrated(pilot)


def _fill(record: Record, out: Generation, models: Models, tokenizer: Any) -> None:
    record.tokens, record.finish, record.window_of = out.tokens, out.finish, out.window_of
    record.first_token_seconds = rounded(out.first_token_seconds)
    record.prefill_seconds, record.decode_seconds = rounded(out.prefill_seconds), rounded(out.decode_seconds)
    record.models = {role: usage_record(session.usage) for role, session in models.sessions.items()}
    for session in models.sessions.values():
        if isinstance(session, TranslatedSession) and session.rows and out.rounds:
            translated = {
                "outside": session.outside, "translated_positions": session.rows,
                "undraftable": sum(token not in session.draftable for token in out.tokens),
                "translated_tokens": len(out.tokens),
            }  # fmt: skip
            out.rounds[-1] = out.rounds[-1].with_counters(translated)
    if any(step.drafted or step.counters for step in out.rounds):
        record.rounds = [
            round_record(step, rejected_text(step, tokenizer) if step.rejected else "") for step in out.rounds
        ]


def rejected_text(step: Round, tokenizer: Any) -> str:
    """Return the text of a rejected draft; of a tree, the rejected siblings, separated."""
    if step.siblings:
        return "|".join(tokenizer.decode([token]) for token in step.rejected)
    text: str = tokenizer.decode(step.rejected)
    return text


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """A prompt, or a sample of a task by its index, to decode by a method on a pair."""

    method: str
    pair: str
    prompt: str | None = None
    task: str = ""
    index: int = 0
    options: Options


@dataclass(frozen=True)
class Trace:
    """A decoded prompt, with the text of the tokens of its rounds."""

    pair: str
    temperature: float
    record: Record
    rounds: list[TracedRound]


def trace_prompt(request: TraceRequest, observer: Observer) -> Trace:
    """Decode one prompt. Raises ConfigError if it does not fit, MissingAsset if a model or data are missing."""
    plan = _plan_of_prompt(request)
    (run,) = plan.runs
    with using(request.options.threads):
        with observer.status(f"loading {', '.join(plan.roles)}"):
            loaded = LoadedModels().of(plan)
        record, rounds = _decode_prompt(loaded, run)
    return Trace(run.spec.pair.name, run.spec.decoding.temperature, record, rounds)


def _plan_of_prompt(request: TraceRequest) -> PairPlan:
    """Return a plan with a single run of the method on one prompt."""
    options, tasks = request.options, (request.task if request.prompt is None else "prompts",)
    methods = (request.method,) if request.method else ()
    choice = Choice.of(Request(methods=methods, pair=request.pair, tasks=tasks, options=options, out=Path()))
    choice.require_used_options()
    if request.prompt is None:
        (selected,) = choice.tasks.by_name.values()
        data = selected.data
        firsts = [sample for sample in data.samples if not sample.after]
        if request.index >= len(firsts):
            raise ConfigError(
                f"--sample-index {request.index} is out of range: {selected.name} has {len(firsts)} samples"
            )
        data = Data([firsts[request.index]], data.source, data.revision, data.sha256, data.total)
        selected = SelectedTask(selected.name, selected.task, data)
    else:
        name, task = selection.read_task("prompts", choice.pair, options)
        digest = hashlib.sha256(request.prompt.encode()).hexdigest()
        selected = SelectedTask(name, task, Data([Sample("0", request.prompt)], "command line", None, digest, 1))
    return plan_on([selected], choice, choice.pair.on(request.task))


def _decode_prompt(loaded: LoadedPair, run: PlannedRun) -> tuple[Record, list[TracedRound]]:
    """Return the record of the last method, and its rounds with their text."""
    spec, sample, label = run.spec, run.data.samples[0], list(run.spec.methods)[-1]
    pair = run.pair_of(loaded)
    setting = Setting(pair, run.task, spec.decoding)
    record = Record(method=label, sample=sample.id, repeat=0, seed=spec.decoding.seed, order=0)
    try:
        (prompt,) = encode_firsts(pair.tokenizer, run.task, [sample], pair.window, pair.encoder_decoder)
        method = calibrated(run.methods[label], setting, [sample])
        pair.prepare(len(prompt) + spec.decoding.max_new_tokens, method.blocks)
        out = generate(method, record, setting, sample, [])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    rounds, before = [], [] if pair.encoder_decoder else prompt
    for entry, step in zip(record.rounds, out.rounds, strict=bool(record.rounds)):
        rounds.append(_with_text(entry, step, before, pair.tokenizer))
        before = before + step.tokens
    return record, rounds


def _with_text(entry: RoundRecord, step: Round, before: list[int], tokenizer: Any) -> TracedRound:
    """Return a recorded round with the ids, texts and origins of its tokens, and of the rounds that made its draft."""
    texts, inner = pieces(tokenizer, before, step.tokens, encoder_decoder=False), list[TracedRound]()
    for inner_entry, made in zip(entry.inner, step.inner, strict=True):
        inner.append(_with_text(inner_entry, made, before, tokenizer))
        before = before + made.tokens
    return TracedRound(entry, step.tokens, texts, round_origins(entry), rejected_text(step, tokenizer), inner)
