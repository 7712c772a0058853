"""transformers' own decoding as baselines: `generate`, and assisted generation.

They run the loaded transformers models on any engine. Their forwards are instrumented, not changed.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from specbench.config.construct import Table
from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler
from specbench.decoding.session import InstrumentedModel


@dataclass(frozen=True, kw_only=True)
class Generate(Method, name="hf-generate"):
    """`model.generate`, greedy or sampled. transformers compiles a static cache on a GPU."""

    needs_transformers = True

    model: str
    cache: Literal["dynamic", "static"] = "dynamic"

    def roles(self) -> tuple[str, ...]:
        return (self.model,)

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        target = models.instrumented(self.model)
        rounds = _Rounds(target, models.ids, stop)
        implementation = {"cache_implementation": "static"} if self.cache == "static" else {}
        with target.instrument():
            _generate(target, models.ids, sampler, stop, rounds, **implementation)
        yield from rounds.rounds()


@dataclass(frozen=True, kw_only=True)
class Assisted(Method, name="hf-assisted"):
    """Assisted generation, as transformers has it, with fixed gamma and the confidence threshold disabled.

    See Leviathan et al. 2023.
    """

    needs_transformers = True

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

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        draft, target = models.instrumented(self.draft), models.instrumented(self.model)
        if draft.model is target.model:
            raise ValueError(
                "transformers' assisted generation needs two models; the draft and the target are the same"
            )
        sizes = [instrumented.model.config.get_text_config().vocab_size for instrumented in (draft, target)]
        if len(set(sizes)) > 1:
            raise ValueError(f"transformers' assisted generation needs models of one vocab_size, not {sizes}; help: sd")
        rounds = _Rounds(target, models.ids, stop)
        settings: Table = {
            "num_assistant_tokens": self.gamma,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
            "eos_token_id": sorted(stop.eos) or None,
        }
        with ExitStack() as stack:
            for instrumented in (draft, target):
                stack.enter_context(instrumented.instrument())
            stack.enter_context(_set(draft.model.generation_config, settings))
            _generate(target, models.ids, sampler, stop, rounds, assistant_model=draft.model)
        yield from rounds.rounds(self.draft)


class _Rounds(StoppingCriteria):  # type: ignore[misc]  # transformers is untyped
    """Records tokens and times while transformers decodes.

    It is both a streamer, which gets the tokens, and a stopping criterion, which checks stop strings.
    """

    def __init__(self, target: InstrumentedModel, start: list[int], stop: StopCriteria) -> None:
        self._target, self._start, self._stop = target, start, stop
        self._recorded: list[tuple[list[int], float]] = []  # tokens per round, seconds since the start
        self._checked, self._begin = len(start), time.perf_counter()

    def put(self, tokens: Tensor) -> None:
        """Record the tokens of one round (transformers' streamer interface)."""
        self._recorded.append((tokens.reshape(-1).tolist(), time.perf_counter() - self._begin))

    def end(self) -> None:
        """Do nothing (transformers' streamer interface)."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Return whether a stop string is complete, as a bool tensor (1,). The search is excluded from all timings."""
        ids, stopped = input_ids[0].tolist(), False  # waits for the device, which is timed
        begin = time.perf_counter()
        if self._stop.stopped is not None:
            new = ids[len(self._start) :]
            stopped = any(
                self._stop.stopped(new[:i]) for i in range(self._checked - len(self._start) + 1, len(new) + 1)
            )
        self._checked = len(ids)
        self._target.usage.excluded_seconds += time.perf_counter() - begin
        return torch.tensor([stopped], device=input_ids.device)

    def rounds(self, draft: str = "") -> Iterator[Round]:
        """Yield the recorded rounds, without the ids that the sequence starts with, which are recorded first."""
        feeds = self._target.fed
        for i, (tokens, seconds) in enumerate(self._recorded[1:]):
            drafted = feeds[i] - (len(self._start) if i == 0 else 1) if draft else 0
            accepted = min(len(tokens) - 1, drafted) if draft else 0
            tested = min(accepted + 1, drafted)
            yield Round(tokens, drafted, tested, accepted, proposers=(draft,) * tested, at=seconds)


def _generate(
    target: InstrumentedModel, start: list[int], sampler: Sampler, stop: StopCriteria, rounds: _Rounds, **more: Any
) -> None:
    """Call `generate`. Of the model's own generation config, only the rules that change logits apply.

    Random numbers come from the sampler's generator.
    """
    seq2seq = target.model.config.is_encoder_decoder
    sampling = {"temperature": sampler.temperature, "top_k": sampler.top_k, "top_p": sampler.top_p}
    config = GenerationConfig(
        max_new_tokens=stop.length - len(start),
        do_sample=sampler.temperature > 0.0,
        eos_token_id=sorted(stop.eos) or None,
        pad_token_id=min(stop.eos, default=0),
        **{"repetition_penalty": 1.0, **target.rules},
        **(sampling if sampler.temperature > 0.0 else {}),
        **({"decoder_start_token_id": start[0]} if seq2seq else {}),
        **({"cache_implementation": more.pop("cache_implementation")} if "cache_implementation" in more else {}),
    )
    device = target.model.device
    fed = torch.tensor([target.prompt], device=device)  # (1, n)
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
            stopping_criteria=StoppingCriteriaList([rounds] if stop.stopped else []),
            **more,
        )


@contextmanager
def _set(thing: Any, values: Table) -> Iterator[None]:
    """Set attributes of an object, and restore them on exit."""
    before = {key: getattr(thing, key) for key in values}
    try:
        for key, value in values.items():
            setattr(thing, key, value)
        yield
    finally:
        for key, value in before.items():
            setattr(thing, key, value)
