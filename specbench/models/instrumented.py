"""A transformers model that a library runs itself, with its forwards counted and timed like a session's."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.decoding.session import Usage


def _hook(stack: ExitStack, module: Any, before: Callable[..., None], after: Callable[..., None]) -> None:
    """Call `before` and `after` around a module's forwards, until the stack is closed."""
    stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)


class InstrumentedSession:
    """A loaded model and the ids that it reads: the prompt, or the encoder's input. It does not provide logits."""

    def __init__(self, model: PreTrainedModel, prompt: list[int]) -> None:
        self.model, self.prompt = model, prompt
        self.usage = Usage()
        self.fed: list[int] = []  # tokens of every forward, including the first
        self._marks: list[
            tuple[int, int | None, Any, Any]
        ] = []  # tokens fed, tokens cached before, times before and after

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
