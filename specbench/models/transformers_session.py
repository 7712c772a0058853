"""Transformers' own modules: run eagerly, or by a library with every forward counted and timed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from specbench.config.construct import Table
from specbench.decoding.session import AuxLayers, Usage
from specbench.models.model_runner import Feed, ModelRunner, Output, require_layers

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"  # types of layers
INDEXED = ("gpt_neo", "bloom", "mpt")  # model types whose attention derives distances from where tokens are cached


class EagerModelRunner(ModelRunner):
    """The forwards of any transformers decoder-only or encoder-decoder model, run eagerly, batch size 1.

    `vocabulary` crops the logits to the V that all models of a pair share. For an encoder-decoder model `source` holds
    the encoder's ids, and the decoder is fed; the encoder runs once, with the first forward. `device` is where a model that
    is split over several devices reads its input. Raises ValueError, naming the layer type, for an architecture whose cache
    cannot be truncated (recurrent states). Trees need an architecture whose positions are arguments of its forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocabulary: int,
        source: list[int] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.name, self.device = model.config.name_or_path, device or model.device
        self._model, self._vocabulary = model, vocabulary
        self._source = source
        self.branches = reads_trees(model)
        self._encoded: Any = None
        self._cache, self._length = new_cache(model), 0

    def logits_of(self, states: Tensor) -> Tensor:
        head: Any = self._model.get_output_embeddings()
        config: Any = self._model.config
        logits: Tensor = head(states.to(self._model.dtype))[:, : self._vocabulary]
        logits = (
            logits * (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        )
        if cap := getattr(config, "final_logit_softcapping", None):
            logits = cap * torch.tanh(logits / cap)
        return logits if logits.dtype == torch.float64 else logits.float()

    def feed(self, feed: Feed, rows: int) -> Output:
        if feed.first < self._length:
            self._cache.crop(feed.first - self._length)
        self._length = feed.first + len(feed.tokens)
        ids = feed.tokens.unsqueeze(0)  # (1, n)
        flags: dict[str, Any] = {"use_cache": True, "output_hidden_states": self.keeps_states or bool(self.aux_layers)}
        if feed.parents is not None:
            flags |= self._tree_arguments(feed)
        count = 0
        with torch.inference_mode():
            if self._source is None:
                out = self._model(input_ids=ids, past_key_values=self._cache, logits_to_keep=rows, **flags)
            else:
                if self._encoded is None:
                    count, self._encoded = len(self._source), encoded(self._model, self._source, self.device)
                out = self._model(
                    decoder_input_ids=ids, encoder_outputs=self._encoded, past_key_values=self._cache, **flags
                )
            logits: Tensor = out.logits[0, -rows:, : self._vocabulary]
            states = tapped = None
            if self.keeps_states or self.aux_layers:
                every = out.hidden_states if self._source is None else out.decoder_hidden_states
                states, tapped = (
                    every[-1][0],
                    torch.cat([every[layer][0] for layer in self.aux_layers], -1) if self.aux_layers else None,
                )
                if getattr(self._model.config, "scale_decoder_outputs", False):  # as the LM head reads them
                    states = states * self._model.config.d_model**-0.5
            return Output(logits if logits.dtype == torch.float64 else logits.float(), states, count, tapped)

    def require_aux_layers(self, aux_layers: AuxLayers) -> None:
        require_layers(aux_layers, self._model.config)

    def keep(self, start: int, path: Sequence[int]) -> None:
        cache: Any = self._cache
        with torch.inference_mode():
            at = torch.tensor([*range(start), *(start + i for i in path)], device=self.device)
            for layer in cache.layers:
                layer.keys = layer.keys.index_select(-2, at.to(layer.keys.device))
                layer.values = layer.values.index_select(-2, at.to(layer.values.device))
        self._length = start + len(path)

    def _tree_arguments(self, feed: Feed) -> dict[str, Any]:
        """Return a tree's positions and masks as arguments of the model; one mask per layer type if layers differ."""
        config = self._model.config.get_text_config()
        distances, kinds = feed.distances(), set(getattr(config, "layer_types", None) or ())
        positions = torch.tensor(feed.positions(), device=self.device)  # (n,)

        def mask(kind: str) -> Tensor:
            """Return (1, 1, n, cached): -inf for what a token does not attend to."""
            hidden = distances < 0
            if kind == SLIDING:
                hidden |= distances >= config.sliding_window
            elif kind == CHUNKED:
                size = config.attention_chunk_size
                hidden |= (positions[:, None] - distances) // size != positions[:, None] // size
            seen = torch.zeros(distances.shape, dtype=self._model.dtype, device=distances.device)
            return seen.masked_fill_(hidden, -torch.inf)[None, None]

        if len(kinds) > 1:
            masks: Any = {kind: mask(kind) for kind in kinds}
        else:
            masks = mask(next(iter(kinds), SLIDING if getattr(config, "sliding_window", None) else FULL))
        return {"position_ids": positions[None], "attention_mask": masks}


def reads_trees(model: PreTrainedModel) -> bool:
    """Return whether a model can read draft trees: it takes positions, and derives distances between tokens from them."""
    config: Any = model.config
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    by_index = config.is_encoder_decoder or config.model_type in INDEXED or getattr(config, "alibi", False)
    has_supported_layers = kinds <= {FULL, SLIDING, CHUNKED}
    return has_supported_layers and not by_index and "position_ids" in signature(model.forward).parameters


def encoded(model: PreTrainedModel, source: list[int], device: torch.device | None = None) -> Any:
    """Return the encoder's output for `source`, as transformers returns it."""
    return model.get_encoder()(input_ids=torch.tensor([source], device=device or model.device))


def window_of(model: PreTrainedModel) -> int | None:
    """Return the maximum number of tokens that a model can read; None if unlimited, as with relative positions.

    In an encoder-decoder model, the limit applies to encoder and decoder. If rotary angles depend on the length of the whole
    sequence (dynamic NTK), the window ends where they begin to change.
    """
    text = model.config.get_text_config(decoder=True)
    longest = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "dynamic":
        return rope.get("original_max_position_embeddings") or longest
    return longest


def boundary_of(config: PreTrainedConfig) -> int | None:
    """Return the length beyond which the rotary angles of all positions change (longrope); None for other models."""
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    return rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)


def new_cache(model: PreTrainedModel) -> Cache:
    """Return an empty cache that can be truncated to any length. Raises ValueError, naming the layer type, if none can.

    Layers with a sliding window keep every position too; transformers' mask hides those outside the window.
    """
    if model._is_stateful:
        raise ValueError(f"{model.config.name_or_path}: recurrent states cannot go back to an earlier token")
    for layer in DynamicCache(config=model.config).layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            kind = type(layer).__name__
            raise ValueError(f"{model.config.name_or_path}: a cache of {kind} cannot be truncated after a rejection")
    return EncoderDecoderCache(DynamicCache(), DynamicCache()) if model.config.is_encoder_decoder else DynamicCache()


def _hook(stack: ExitStack, module: Any, before: Callable[..., None], after: Callable[..., None]) -> None:
    """Call `before` and `after` around a module's forwards, until the stack is closed."""
    stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)


class InstrumentedSession:
    """A loaded model and the ids that it reads: the prompt, or the encoder's input. It does not provide logits."""

    def __init__(self, model: PreTrainedModel, prompt: list[int], rules: Table | None = None) -> None:
        self.model, self.prompt, self.rules = model, prompt, rules or {}
        self.usage = Usage()
        self.fed: list[int] = []  # tokens of every forward, including the first
        self._marks: list[
            tuple[int, int | None, Any, Any]
        ] = []  # tokens fed, tokens cached before the forward, times before and after it

    @contextmanager
    def instrument(self) -> Iterator[None]:
        """Count and time every forward of the model within this context."""
        begun: list[tuple[int | None, Any]] = []

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            cache = kwargs.get("past_key_values")
            length = 0 if cache is None else cache.get_seq_length()
            # A static cache's length is a tensor
            begun.append((length if isinstance(length, int) else None, self._now()))

        def after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            ids = kwargs.get("decoder_input_ids", kwargs.get("input_ids"))
            assert isinstance(ids, Tensor)
            self.fed.append(ids.shape[-1])
            self._marks.append((ids.shape[-1], *begun.pop(), self._now()))

        def after_encoder(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            _, start = begun.pop()
            self.usage.encodes += 1
            self.usage.prefill(len(self.prompt), self._between(start, self._now()))

        def compiled(config: Any) -> Callable[..., Any]:
            """Return transformers' compiled call, timed from outside, since hooks inside it would be compiled too."""
            call = type(self.model).get_compiled_call(self.model, config)

            def timed(*args: Any, **kwargs: Any) -> Any:
                before(self.model, args, kwargs)
                hooks.close()
                output = call(*args, **kwargs)
                _hook(hooks, self.model, before, after)
                after(self.model, args, kwargs, output)
                return output

            return timed

        with ExitStack() as stack, ExitStack() as hooks:
            _hook(hooks, self.model, before, after)
            if self.model.config.is_encoder_decoder:
                _hook(stack, self.model.get_encoder(), before, after_encoder)
            self.model.get_compiled_call = compiled
            stack.callback(delattr, self.model, "get_compiled_call")
            yield

    def finish(self) -> None:
        """Record the forwards so far."""
        total = 0
        for fed, cached, begin, end in self._marks:
            seconds = self._between(begin, end)
            if total:
                self.usage.decoding(fed, seconds, total if cached is None else cached)
            else:
                self.usage.prefill(fed, seconds)
            total += fed
        self._marks = []

    def _now(self) -> Any:
        """Return the time, or a CUDA event that records it."""
        if self.model.device.type != "cuda":
            return time.perf_counter()
        cuda: Any = torch.cuda
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> float:
        """Return the seconds between two results of `_now`."""
        if isinstance(begin, float):
            return float(end - begin)
        torch.cuda.synchronize(self.model.device)
        return float(begin.elapsed_time(end)) / 1e3
