"""transformers' own decoding, as peers to measure against: `generate`, and assisted generation.

They run the loaded transformers models whatever engine the other methods run on. Their forwards are watched, not changed.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import InstrumentedModel


@dataclass(frozen=True, kw_only=True)
class Generate(Method, name="hf-generate"):
    """`model.generate`, greedy or sampled. A static cache is compiled by transformers where the device is a GPU."""

    model: str
    cache: Literal["dynamic", "static"] = "dynamic"

    def roles(self) -> tuple[str, ...]:
        return (self.model,)

    def rounds(self, models: Sessions, sampler: Sampler, end: StopCriteria) -> Iterator[Round]:
        target = models.instrumented(self.model)
        rounds = _Rounds(target, models.ids, end)
        implementation = {"cache_implementation": "static"} if self.cache == "static" else {}
        with target.instrument():
            _generate(target, models.ids, sampler, end, rounds, **implementation)
        yield from rounds.steps()


@dataclass(frozen=True, kw_only=True)
class Assisted(Method, name="hf-assisted"):
    """Assisted generation (Leviathan et al. 2023 as transformers has it), gamma fixed, its confidence threshold off."""

    draft: str
    model: str
    gamma: int

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise ValueError(f"gamma = {self.gamma} must be at least 1")

    def roles(self) -> tuple[str, ...]:
        return (self.draft, self.model)

    @property
    def draft_length(self) -> str:
        return str(self.gamma)

    def rounds(self, models: Sessions, sampler: Sampler, end: StopCriteria) -> Iterator[Round]:
        draft, target = models.instrumented(self.draft), models.instrumented(self.model)
        if draft.model is target.model:
            raise ValueError("transformers' assisted generation needs two models; the draft and the target are one")
        rounds = _Rounds(target, models.ids, end)
        told = {
            "num_assistant_tokens": self.gamma,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
            "eos_token_id": sorted(end.eos) or None,
        }
        with ExitStack() as stack:
            for each in (draft, target):
                stack.enter_context(each.instrument())
            stack.enter_context(_set(draft.model.generation_config, told))
            _generate(target, models.ids, sampler, end, rounds, assistant_model=draft.model)
        yield from rounds.steps(self.draft)


class _Rounds(StoppingCriteria):  # type: ignore[misc]  # transformers is untyped
    """What the library tells while it runs: a streamer that notes its tokens, and a criterion that knows the stop strings."""

    def __init__(self, target: InstrumentedModel, start: list[int], end: StopCriteria) -> None:
        self._target, self._start, self._end = target, start, end
        self._told: list[tuple[list[int], float]] = []  # tokens of a round, seconds since the beginning
        self._looked, self._begin = len(start), time.perf_counter()

    def put(self, tokens: Tensor) -> None:
        self._told.append((tokens.reshape(-1).tolist(), time.perf_counter() - self._begin))

    def end(self) -> None:
        pass

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Whether a stop string is complete; looking for it is on nobody's clock."""
        ids, stopped = input_ids[0].tolist(), False  # this waits for the device, on the clock
        begin = time.perf_counter()
        if self._end.stopped is not None:
            new = ids[len(self._start) :]
            stopped = any(self._end.stopped(new[:i]) for i in range(self._looked - len(self._start) + 1, len(new) + 1))
        self._looked = len(ids)
        self._target.usage.off_clock += time.perf_counter() - begin
        return torch.tensor([stopped], device=input_ids.device)

    def steps(self, draft: str = "") -> Iterator[Round]:
        """A step a round; the first thing told is what the sequence starts with."""
        feeds = self._target.fed
        for i, (tokens, seconds) in enumerate(self._told[1:]):
            drafted = feeds[i] - (len(self._start) if i == 0 else 1) if draft else 0
            accepted = min(len(tokens) - 1, drafted) if draft else 0
            tested = min(accepted + 1, drafted)
            yield Round(tokens, drafted, tested, accepted, proposers=(draft,) * tested, at=seconds)


def _generate(
    target: InstrumentedModel, start: list[int], sampler: Sampler, end: StopCriteria, rounds: _Rounds, **more: Any
) -> None:
    """One call, with nothing left to the model's own generation config. Chance comes from the sampler's generator."""
    seq2seq = target.model.config.is_encoder_decoder
    chance = {"temperature": sampler.temperature, "top_k": sampler.top_k, "top_p": sampler.top_p}
    config = GenerationConfig(
        max_new_tokens=end.length - len(start),
        do_sample=sampler.temperature > 0.0,
        eos_token_id=sorted(end.eos) or None,
        pad_token_id=min(end.eos, default=0),
        repetition_penalty=1.0,
        **(chance if sampler.temperature > 0.0 else {}),
        **({"decoder_start_token_id": start[0]} if seq2seq else {}),
        **({"cache_implementation": more.pop("cache_implementation")} if "cache_implementation" in more else {}),
    )
    device = target.model.device
    fed = torch.tensor([target.prompt], device=device)
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        _set(target.model, {"generation_config": config}),
    ):
        torch.manual_seed(int(torch.randint(2**62, (), generator=sampler.generator, device=device)))
        target.model.generate(
            fed,
            attention_mask=torch.ones_like(fed),
            generation_config=config,
            streamer=rounds,
            stopping_criteria=StoppingCriteriaList([rounds] if end.stopped else []),
            **more,
        )


@contextmanager
def _set(thing: Any, values: dict[str, Any]) -> Iterator[None]:
    """Attributes as told, and behind it as they were."""
    before = {key: getattr(thing, key) for key in values}
    try:
        for key, value in values.items():
            setattr(thing, key, value)
        yield
    finally:
        for key, value in before.items():
            setattr(thing, key, value)
