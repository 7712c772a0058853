"""Forwards, and whole drafts, as CUDA graphs: a single launch each, at any position."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampler
from specbench.models.draft_graph import Drafted, Drafting, Start
from specbench.models.engine.cache import Cache
from specbench.models.engine.network import Network
from specbench.models.engine.place import Place

WARM_UPS = 2  # runs before a capture, which CUDA requires
Out = TypeVar("Out")


class Stepping(Protocol):
    """The part of a model or head that draft graphs need."""

    def new_cache(self, source: Tensor | None) -> Cache: ...

    def fused(self) -> AbstractContextManager[None]: ...

    def step(self, token: Tensor, cache: Cache, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed a token (1,) after a forward with states (1, H). Returns logits (1, rows of the LM head) and states (1,
        H).
        """

    def tables(self) -> tuple[Tensor, ...]: ...


class Capture:
    """Captures the graphs of one model on its own stream and memory pool, fused or not.

    cuBLAS has one workspace per stream, and graphs of a pool share memory, so the graphs of two models, which may run
    concurrently, must share neither. On a CPU nothing is captured, and a replay runs the same operations again.
    """

    def __init__(self, device: torch.device, context: Callable[[], AbstractContextManager[None]]) -> None:
        cuda: Any = torch.cuda
        self._context = context
        self._is_cuda = device.type == "cuda"
        self._stream: Any = cuda.Stream(device) if self._is_cuda else None
        self._pool = cuda.graph_pool_handle() if self._is_cuda else None

    def __call__(
        self, run: Callable[[], Out], reset: Callable[[], object] = lambda: None
    ) -> tuple[Callable[[], Out], Out]:
        """Record `run`. Returns a function that replays it and returns its outputs, which keep their addresses, and the
        outputs.

        `reset` undoes the effects of a run, before each warm-up and before the recording.
        """

        def inside() -> Out:
            with self._context():
                return run()

        if not self._is_cuda:
            return inside, inside()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                reset()
                inside()
            reset()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            out = inside()

        def replay() -> Out:
            graph.replay()
            return out

        return replay, out


class Graph:
    """One forward of n tokens at variable positions."""

    def __init__(self, network: Network, place: Place, capture: Capture) -> None:
        self._network, self._place = network, place
        self._tokens = torch.zeros_like(place.positions)  # (n,)
        self._steps = place.positions.clone()  # 0 .. n - 1
        self._replay, _ = capture(self._run)
        self._kept = network.tables()  # the graph refers to their addresses

    def replay(self, tokens: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Return logits (n, rows of the LM head) and states (n, H) of `tokens` (n,) at positions from `first` on.

        They are valid until the next replay.
        """
        self._tokens.copy_(tokens)
        torch.add(self._steps, first, out=self._place.positions)
        return self._replay()

    def _run(self) -> tuple[Tensor, Tensor]:
        self._place.begin()
        hidden = self._network.forward(self._tokens, self._place)
        return self._network.logits(hidden), hidden


class DraftGraph:
    """A draft of k tokens, all draws and forwards, during which the host neither waits nor launches a kernel.

    With `feeds` the draft begins with a forward of the last token, otherwise with that forward's logits.
    """

    def __init__(self, model: Stepping, place: Place, drafting: Drafting, like: Start, capture: Capture) -> None:
        self._model, self._drafting, self._place = model, drafting, place
        self._sampler = Sampler(drafting.temperature, drafting.top_k, drafting.top_p)
        self._start = Start(*(None if each is None else each.clone() for each in like))
        self._uniforms = torch.full((drafting.k,), 0.5, dtype=torch.float64, device=place.positions.device)
        self._replay, _ = capture(self._run, self._place.positions.zero_)
        self._kept = model.tables()

    def replay(self, start: Start, uniforms: Tensor | None, first: int) -> Drafted:
        """Draft from `start` with uniforms (k,), feeding positions from `first` on.

        The result is valid until the next replay.
        """
        for held, given in zip(self._start, start, strict=True):
            if held is not None and given is not None:
                held.copy_(given)
        if uniforms is not None:
            self._uniforms.copy_(uniforms)
        self._place.positions.fill_(first)
        return self._replay()

    def _run(self) -> Drafted:
        logits, states, token = self._start
        drawn: list[tuple[Tensor, Tensor]] = []
        read: list[tuple[Tensor, Tensor]] = []
        for i in range(self._drafting.k):
            if token is not None:
                if read:
                    self._place.positions.add_(1)
                self._place.begin()
                logits, states = self._model.step(token.clamp_min(0), self._place, states)  # INVALID has no embedding
                logits = logits[:, : self._drafting.vocabulary]
                read.append((logits, states))
            assert logits is not None
            drawn.append(self._sampler.draw(logits, self._uniforms[i : i + 1]))
            token = drawn[-1][0]
        return Drafted(*(torch.cat([each[j] for each in pairs]) for pairs in (drawn, read) for j in (0, 1)))
