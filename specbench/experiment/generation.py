"""Decoding of one prompt by one method, into a record of a run."""

import hashlib
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.data.prompting import Turn, continuation, encode, pieces
from specbench.data.task import Sample, Task, without
from specbench.decoding.loop import Generation, GenerationLimits, decode, output_logits
from specbench.decoding.method import Method, Round
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Target
from specbench.decoding.targets.target import wrong_tokens
from specbench.machine.hardware import OtherLoad
from specbench.models.loaded_pair import LoadedPair, Models
from specbench.resolution.plugins import location_of
from specbench.runs.record import Record, round_record, rounded, usage_record
from specbench.runs.run_spec import DecodingSpec


@dataclass(frozen=True)
class Setting:
    """What generations share: the loaded pair, the task, and how to sample.

    `declared` are the scorers and the target that greedy tokens are compared with; None if they are not compared.
    """

    pair: LoadedPair
    task: Task
    decoding: DecodingSpec
    declared: tuple[tuple[str, ...], Target] | None = None

    def sampler(self, seed: int, sample: Sample) -> Sampler:
        """Return a sampler whose draws depend on the prompt and the seed alone, not on what ran before."""
        digest = hashlib.sha256(f"{seed}:{sample.id}".encode()).digest()
        generator = torch.Generator(self.pair.device).manual_seed(int.from_bytes(digest[:8]) >> 1)
        return Sampler(self.decoding.temperature, self.decoding.top_k, self.decoding.top_p, generator)

    def limits(self, method: Method) -> GenerationLimits:
        """Return the limits of a generation by a method."""
        tokenizer, free = self.pair.tokenizer, self.decoding.ignore_eos
        window = self.pair.window_of(method.deciding)
        return GenerationLimits(
            eos=frozenset() if free else self.pair.eos,
            max_new_tokens=self.decoding.max_new_tokens,
            window=window.length,
            window_of=window.role,
            stop=() if free else self.task.stop,
            detokenize=lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
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
    prompt, record.prompt_cut = encode(pair.tokenizer, task, sample, history, pair.window)
    record.prompt_tokens, record.prompt_ends = len(prompt), prompt[:8] + prompt[8:][-8:]
    record.captured, record.capture_seconds = capture(pair, setting.longest(len(prompt)))
    models, limits = pair.open(prompt), setting.limits(method)
    if cuda:
        for device in _gpus(pair):
            torch.cuda.reset_peak_memory_stats(device)
            torch.cuda.synchronize(device)
    load = OtherLoad()
    with torch.inference_mode():
        out = decode(method, models, setting.sampler(record.seed, sample), limits)
    other = load.seconds()
    record.other_cpu_seconds = None if other is None else rounded(other)
    _fill(record, out, models, pair.tokenizer)
    record.text = without(limits.stop, continuation(pair.tokenizer, prompt, out.tokens, pair.encoder_decoder))
    record.pieces = pieces(pair.tokenizer, prompt, out.tokens, pair.encoder_decoder)
    record.peak_bytes = sum(map(torch.cuda.max_memory_allocated, _gpus(pair))) if cuda else None
    if setting.declared:
        record.wrong_tokens = _wrong_tokens(setting.declared, pair, prompt, out.tokens)
    return out


def _wrong_tokens(
    declared: tuple[tuple[str, ...], Target], pair: LoadedPair, prompt: list[int], tokens: list[int]
) -> int:
    """Return how many greedy tokens the declared distribution excludes, by one forward of each scorer over the output."""
    roles, target = declared
    with torch.inference_mode():
        logits = output_logits(pair.open(prompt), roles, tokens)
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
                prompt, _ = encode(setting.pair.tokenizer, setting.task, sample, [], setting.pair.window)
                sampler = setting.sampler(setting.decoding.seed, sample)
                with torch.inference_mode():
                    out = decode(method, setting.pair.open(prompt), sampler, setting.limits(method))
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
    if any(step.drafted or step.counters for step in out.rounds):
        record.rounds = [round_record(step) for step in out.rounds]
        for entry, step in zip(record.rounds, out.rounds, strict=True):
            if step.rejected:
                entry["rejected"] = rejected_text(step, tokenizer)


def rejected_text(step: Round, tokenizer: Any) -> str:
    """Return the text of a rejected draft; of a tree, the rejected siblings, separated."""
    if step.siblings:
        return "|".join(tokenizer.decode([token]) for token in step.rejected)
    text: str = tokenizer.decode(step.rejected)
    return text
