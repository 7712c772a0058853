"""Engines, which run a model's forwards, and loaded models: weights in memory, as one engine runs them.

A plugin adds an engine as a subclass of Engine, which a pair names: `engine = "NAME"`.
"""

import copy
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.config.construct import Named, Table
from specbench.config.pair import ModelSpec, folder
from specbench.errors import ConfigError, PluginError, hint, short_repr
from specbench.machine.hardware import ForwardCheck
from specbench.models import simulated
from specbench.models.checkpoints import Checkpoint, in_memory, load_model, load_tokenizer
from specbench.models.lean import GraphModelRunner, Graphs, LeanModelRunner, Network, can_fuse, network_of, unsupported
from specbench.models.model_runner import Feed, ModelRunner
from specbench.models.placed import loading_settings, on, remove_with
from specbench.models.quantization import quantization_method, quantize
from specbench.models.quantized_files.registry import stored_format
from specbench.models.resolved_model import Architecture, ResolvedModel
from specbench.models.transformers_session import EagerModelRunner, boundary_of, new_cache, reads_trees, window_of
from specbench.models.widening import widen

REQUIRED = {  # attributes of every loaded model
    "name": str, "tokenizer": PreTrainedTokenizerBase, "device": torch.device, "dtype": torch.dtype, "embedded": int,
    "vocabulary": int, "window": int | None, "eos": Set, "start": int | None,
}  # fmt: skip
T = TypeVar("T")
CONTEXT = 64  # tokens after which a forward of one token is timed, fewer in a shorter window
WARM_UPS, REPETITIONS = 2, 5  # of such forwards
SLOW_FORWARD = 1.0  # seconds; if the first forward takes longer, it is not repeated
AUTO = ("graph", "lean", "eager")  # the first that can run a model is the fastest


class LoadedModel(ABC):
    """A model in memory, as one engine runs it. Sequences use it one after another.

    `device` is where it reads its input. It can read token ids below `embedded` and write token ids below `vocabulary`.
    `window` is the length of the longest sequence (None: unlimited), and `eos` the ids with which it ends an output. `start`
    is the decoder's first token in an encoder-decoder model; None for a decoder-only model.
    """

    name: str  # for messages
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    embedded: int
    vocabulary: int
    window: int | None = None
    eos: frozenset[int] = frozenset()
    start: int | None = None
    packing_seconds: float = 0.0  # for storing matrices as the engine reads them
    check: ForwardCheck | None = None  # its forward of one token beside transformers' own; information only
    has_graphs: bool = False  # whether `prepare` captures CUDA graphs
    boundary: int | None = None  # a length at which all rotary angles change (`switching_session`)
    rules: Table = {}  # noqa: RUF012 -- never changed; rules of its generation config that apply to its logits, by key
    branches: bool = False  # whether its model runners can read trees

    @abstractmethod
    def model_runner(self, vocabulary: int, source: list[int] | None) -> ModelRunner:
        """Return a model runner for a new sequence, whose logits are (rows, `vocabulary`).

        `source` holds the encoder's input ids; None for a decoder-only model.
        """

    @property
    def devices(self) -> set[torch.device]:
        """Every device that a part of it is on."""
        return {self.device}

    def shared(self) -> "LoadedModel":
        """Return the model for another role with the same weights: itself, unless it holds the cache of a sequence."""
        return self

    def prepare(self, length: int, blocks: Iterable[int]) -> int:
        """Prepare for sequences of up to `length` tokens, and for forwards of n tokens for each n in `blocks`.

        Returns the number of captured CUDA graphs.
        """
        return 0

    def forget_drafts(self) -> None:
        """Release the graphs of whole drafts. By default there are none."""
        return

    def transformers(self) -> PreTrainedModel:
        """Return transformers' model. Raises ConfigError for an engine without one."""
        raise ConfigError(
            f"{self.name}: its engine has no transformers model, which hf-*, heads and training need; help: --engine eager"
        )


class TransformersModel(LoadedModel):
    """transformers' model, whose own modules run eagerly. `inputs` is where a model on several devices reads its input."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, inputs: torch.device | None = None
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.name, self.dtype = model.config.name_or_path, model.dtype
        self.device = inputs or model.device
        self.window = window_of(model)
        self.embedded = model.get_input_embeddings().num_embeddings
        self.vocabulary = model.get_output_embeddings().out_features
        eos = (model.generation_config or model.config).eos_token_id
        self.eos = frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)
        self.start = model.config.decoder_start_token_id if model.config.is_encoder_decoder else None
        self.branches = reads_trees(model)
        self.boundary = boundary_of(model.config)

    def model_runner(self, vocabulary: int, source: list[int] | None) -> ModelRunner:
        return EagerModelRunner(self.model, vocabulary, source, self.device)

    @property
    def devices(self) -> set[torch.device]:
        parts: Sequence[Any] = [*set((getattr(self.model, "hf_device_map", None) or {}).values())]  # by accelerate
        return {self.device, *(torch.device(part) for part in parts if part != "disk")}

    def transformers(self) -> PreTrainedModel:
        return self.model


class LeanModel(TransformersModel):
    """Our own forward over the weights of transformers' model."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, network: Network) -> None:
        super().__init__(model, tokenizer)
        self.network, self.branches = network, True

    def model_runner(self, vocabulary: int, source: list[int] | None) -> ModelRunner:
        return LeanModelRunner(self.network, vocabulary, source)


class GraphModel(LeanModel):
    """Our own forward as CUDA graphs, with a cache for one sequence at a time."""

    has_graphs = True

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, network: Network, fused: bool = False
    ) -> None:
        super().__init__(model, tokenizer, network)
        self.graphs, self._is_fused = Graphs(network, self.device, fused=fused), fused

    def model_runner(self, vocabulary: int, source: list[int] | None) -> ModelRunner:
        return GraphModelRunner(self.graphs, vocabulary)

    def shared(self) -> LoadedModel:
        model = GraphModel(self.model, self.tokenizer, self.network, self._is_fused)
        model.check = self.check
        return model

    def prepare(self, length: int, blocks: Iterable[int]) -> int:
        with on(self.device):
            sizes = sorted(blocks)
            longest = min(length, self.window or length) + (
                sizes[-1] if sizes else 0
            )  # a tree's branches need room too
            return self.graphs.prepare(longest, sizes)

    def forget_drafts(self) -> None:
        self.graphs.forget_drafts()


class Engine(Named):
    """What runs a model's forwards."""

    has_graphs = False  # whether it captures CUDA graphs

    def __init_subclass__(cls, name: str | None = None) -> None:
        if name == "auto":
            raise ConfigError("an engine cannot have the name 'auto', which selects one")
        super().__init_subclass__(name)

    @abstractmethod
    def unsupported(self, model: ModelSpec, architecture: Architecture, device: torch.device) -> str:
        """Return why the engine cannot run a model on a device; empty if it can."""

    @abstractmethod
    def load(self, role: str, model: ResolvedModel, base: Path, device: torch.device) -> LoadedModel:
        """Return the model with its weights and tokenizer. `base` is the folder that relative paths start from.

        Raises MissingAsset if files are missing, ConfigError if they do not fit the pair.
        """


class Eager(Engine, name="eager"):
    """transformers' own modules: any architecture, quantized files, several devices."""

    def unsupported(self, model: ModelSpec, architecture: Architecture, device: torch.device) -> str:
        return ""

    def load(self, role: str, model: ResolvedModel, base: Path, device: torch.device) -> LoadedModel:
        return TransformersModel(*load_transformers(role, model, base, device), device)


class Lean(Engine, name="lean"):
    """Our own forwards of the architectures in `specbench/models/lean/`."""

    is_checked = True  # whether loading times a forward beside transformers' own

    def unsupported(self, model: ModelSpec, architecture: Architecture, device: torch.device) -> str:
        if model.parallel != "none":
            return f'{self.name} runs a model on one device, and it has parallel = "{model.parallel}"; help: --engine eager'
        return unsupported(architecture.config, device)

    def load(self, role: str, model: ResolvedModel, base: Path, device: torch.device) -> LoadedModel:
        loaded, tokenizer = load_transformers(role, model, base, device)
        reference = _checked_seconds(TransformersModel(loaded, tokenizer)) if self.is_checked else None
        begin = time.perf_counter()
        network = network_of(loaded)  # which may release weights
        seconds = time.perf_counter() - begin
        made = self.made(loaded, tokenizer, network)
        made.packing_seconds = seconds
        if reference:
            own = _checked_seconds(self.made(loaded, tokenizer, network))  # captures graphs of its own
            made.check = ForwardCheck(*reference, own[1]) if own else None
        return made

    def made(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, network: Network) -> LeanModel:
        """Return the loaded model over its network."""
        return LeanModel(model, tokenizer, network)


class Graph(Lean, name="graph"):
    """Our own forwards as CUDA graphs."""

    has_graphs = True
    fused = False  # whether torch.compile fuses elementwise operations

    def unsupported(self, model: ModelSpec, architecture: Architecture, device: torch.device) -> str:
        if why := super().unsupported(model, architecture, device):
            return why
        if device.type != "cuda":
            return "CUDA graphs need a CUDA device; help: --engine lean"
        return "no graphs of encoder-decoder models" if architecture.encoder_decoder else ""

    def made(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, network: Network) -> LeanModel:
        return GraphModel(model, tokenizer, network, fused=self.fused)


class Compiled(Graph, name="compiled"):
    """Our own forwards as CUDA graphs, with elementwise operations fused by torch.compile."""

    fused = True
    is_checked = False  # compiling for the check alone would take longer than loading

    def unsupported(self, model: ModelSpec, architecture: Architecture, device: torch.device) -> str:
        if why := Lean.unsupported(self, model, architecture, device):
            return why
        if not can_fuse(architecture.config):
            return f"torch.compile is not used for {architecture.family}; help: --engine graph"
        return super().unsupported(model, architecture, device)


def _checked_seconds(model: LoadedModel) -> tuple[int, float] | None:
    """Return what `token_seconds` does; None if the forward fails, since loading does not depend on it."""
    try:
        return token_seconds(model)
    except (RuntimeError, ValueError):  # such as too little memory
        return None


def token_seconds(model: LoadedModel) -> tuple[int, float]:
    """Return the number of cached tokens, at most CONTEXT, and the median seconds of a forward of one token after them.

    If the first forward takes longer than SLOW_FORWARD, it is the only one.
    """
    context = CONTEXT if model.window is None else max(min(CONTEXT, model.window - 1), 1)
    ids = [i % model.embedded for i in range(context)]
    model.prepare(context + 1, [1])
    model_runner = model.model_runner(model.vocabulary, None if model.start is None else ids)
    with torch.inference_mode(), on(model.device):
        model_runner.feed(Feed(torch.tensor(ids, device=model.device), 0), 1)
        token, times = torch.tensor(ids[:1], device=model.device), list[float]()
        while len(times) < WARM_UPS + REPETITIONS and not (times and times[0] > SLOW_FORWARD):
            _synchronize(model.device)
            begin = time.perf_counter()
            model_runner.feed(Feed(token, context), 1)
            _synchronize(model.device)
            times.append(time.perf_counter() - begin)
    model_runner.finish()
    return context, median(times[WARM_UPS:] or times)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def engine_of(choice: str, model: ModelSpec, architecture: Architecture, device: torch.device) -> str:
    """Return the name of the engine that runs a model: the chosen engine, or with `auto` the fastest that can run it.

    `auto` never selects `graph` for nf4, since it is unknown whether torchao's unpacking can be captured. Raises ValueError,
    with the reason, if the chosen engine cannot run the model, and ConfigError if there is no such engine.
    """
    if choice != "auto":
        engine = engine_named(choice)
        why = _called(f"engine '{choice}': unsupported()", lambda: engine.unsupported(model, architecture, device))
        if why:
            raise ValueError(why)
        return choice
    names = AUTO[1:] if model.quantization.weights == "nf4" else AUTO
    return next(name for name in names if not engine_named(name).unsupported(model, architecture, device))


def engine_named(name: str) -> Engine:
    """Return an engine by name. Raises ConfigError, with the nearest name, if there is none."""
    if name not in Engine.members:
        raise ConfigError(f"unknown engine{hint(name, Engine.members)}; help: --plugin FILE adds one")
    engine: Engine = _called(f"engine '{name}'", Engine.members[name])
    return engine


def load_model_on(name: str, role: str, model: ResolvedModel, base: Path, device: torch.device) -> LoadedModel:
    """Load a model on an engine. Raises what `Engine.load` does, and PluginError if that returns no complete model.

    Raises MissingAsset if the model does not fit into memory.
    """
    engine = engine_named(name)
    with in_memory(role, model.spec.path, device):
        loaded: object = _called(f"engine '{name}': load()", lambda: engine.load(role, model, base, device))
    if not isinstance(loaded, LoadedModel):
        raise PluginError(f"engine '{name}': load() returned {short_repr(loaded)}, which is not a LoadedModel")
    if missing := [key for key in REQUIRED if not hasattr(loaded, key)]:
        raise PluginError(f"engine '{name}': load() returned a model without {', '.join(missing)}")
    for key, kind in REQUIRED.items():
        if not isinstance(value := getattr(loaded, key), kind):
            needed = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.") if isinstance(kind, type) else kind
            raise PluginError(
                f"engine '{name}': load() returned a model with {key} = {short_repr(value)}; needed: {needed}"
            )
    return loaded


def _called(what: str, call: Callable[[], T]) -> T:
    """Call a plugin's function. Raises PluginError, which names it, if it has other parameters than the interface."""
    try:
        return call()
    except TypeError as error:
        if traceback.extract_tb(error.__traceback__)[-1].filename != __file__:  # raised inside of it
            raise
        raise PluginError(f"{what}: {error}") from None


def load_transformers(
    role: str, model: ResolvedModel, base: Path, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a model of transformers and its tokenizer, quantized if the pair says so.

    Raises MissingAsset if files are missing, ConfigError for dummy weights on several devices and for an unsupported cache.
    """
    config = model.config
    source = str(folder(model.spec.path, base) or model.spec.path)
    if model.weights == "dummy":
        tokenizer = load_tokenizer(role, str(simulated.TOKENIZERS[config.is_encoder_decoder]))
        if model.spec.placement.parallel != "none":
            raise ConfigError(
                f"model '{role}': dummy weights cannot be split over devices; help: --place {role}=cuda:0"
            )
        loaded, is_placed = simulated.random_model(config, model.dtype, device, role), False
    else:
        name = model.spec.gguf_file
        tokenizer = load_tokenizer(role, source, model.revision or None, name)
        dtype = getattr(torch, model.dtype)
        rounded = model.spec.quantization.rounds_inputs
        narrow = copy.deepcopy(model.narrow) or config
        checkpoint = Checkpoint(role, source, narrow, model.revision or None, model.spec.allowed_keys, name, rounded)
        settings = loading_settings(model.spec.placement)
        loaded = load_model(checkpoint, dtype, device, settings)
        is_placed = bool(quantization_method(config)) and stored_format(config, device) is None
        remove_with(loaded, settings)
        if model.narrow is not None:
            widen(loaded, config)
    if model.chat_template:
        tokenizer.chat_template = model.chat_template.text
    try:
        new_cache(loaded)
    except ValueError as error:
        raise ConfigError(f"model '{role}': {error}") from None
    if not is_placed and model.spec.placement.parallel == "none":  # others are where they must stay
        loaded = loaded.to(device)
    loaded.eval().requires_grad_(False)
    if model.spec.quantization and not quantization_method(config):
        quantize(loaded, model.spec.quantization)
    return loaded, tokenizer
