"""Decoding of one prompt, with the text of every round: `specbench trace`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from specbench.analysis.acceptance import TracedRound, round_origins
from specbench.config.options import Options, Request
from specbench.data.prompting import encode_firsts, pieces
from specbench.data.task import Data, Sample
from specbench.decoding.method import Round
from specbench.errors import ConfigError
from specbench.experiment.generation import Setting, calibrated, generate, rejected_text
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.resolution.plan import PairPlan, PlannedRun
from specbench.resolution.resolve import Choice, plan_on
from specbench.resolution.selection import SelectedTask
from specbench.runs.record import Record, RoundRecord


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
    with observer.status(f"loading {', '.join(plan.roles)}"):
        plan.load()
    record, rounds = _decode_prompt(plan, run)
    return Trace(run.spec.pair.name, run.spec.decoding.temperature, record, rounds)


def _plan_of_prompt(request: TraceRequest) -> PairPlan:
    """Return a plan with a single run of the method on one prompt."""
    options, tasks = request.options, (request.task if request.prompt is None else "prompts",)
    choice = Choice.of(Request(methods=(request.method,), pair=request.pair, tasks=tasks, options=options, out=Path()))
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


def _decode_prompt(plan: PairPlan, run: PlannedRun) -> tuple[Record, list[TracedRound]]:
    """Return the record of the last method, and its rounds with their text."""
    spec, sample, label = run.spec, run.data.samples[0], list(run.spec.methods)[-1]
    pair = run.pair_of(plan.load())
    setting = Setting(pair, run.task, spec.decoding)
    record = Record(method=label, sample=sample.id, repeat=0, seed=spec.decoding.seed, order=0)
    try:
        (prompt,) = encode_firsts(pair.tokenizer, run.task, [sample], pair.window)
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
    text = {"ids": step.tokens, "pieces": pieces(tokenizer, before, step.tokens, encoder_decoder=False)}
    text |= {"origins": round_origins(entry), "rejected": rejected_text(step, tokenizer)}
    inner: list[TracedRound] = []
    for inner_entry, made in zip(entry.get("inner", []), step.inner, strict=True):
        inner.append(_with_text(inner_entry, made, before, tokenizer))
        before = before + made.tokens
    return cast("TracedRound", {**entry, **text, "inner": inner})
