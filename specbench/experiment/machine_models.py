"""The models of a pair as they would be on another machine: sizes from their architectures, engines, and download."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from specbench.config.architectures import architecture_of
from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.pair import ModelSpec, Pair, folder
from specbench.config.placement import Placement
from specbench.errors import ConfigError, MissingAsset
from specbench.machine.accelerator import GIB
from specbench.models.architecture_sizes import ArchitectureSize, architecture_size

CONTEXT = 1 * GIB  # assumed: CUDA's context, the libraries' workspaces and activations
GRAPHS = GIB // 2  # assumed: the graphs and buffers of a model on an engine with CUDA graphs
WITH_GRAPHS = ("graph", "compiled")


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model on another machine. `download_bytes` is 0 for a local folder and for dummy weights."""

    role: str
    source: str
    config: Table
    dtype: str
    size: ArchitectureSize
    engine: str
    quantization: str
    placement: Placement = field(default_factory=Placement)
    download_bytes: int

    @property
    def can_be_quantized(self) -> bool:
        """Whether it has linear layers that `quantization` applies to; GPT-2 has none."""
        return self.config.get("model_type") != "gpt2"

    @property
    def head_bytes(self) -> int:
        """The bytes that a forward of an EAGLE head on this model reads: about one layer, and the model's LM head."""
        return self.size.layer_bytes + self.size.lm_head_bytes

    def cache_bytes(self, prompt: int, output: int) -> int:
        """Return the size of its cache. An encoder-decoder model holds keys and values of the prompt, too."""
        positions = prompt + output
        return self.size.position_bytes * (min(positions, self.size.context) if self.size.context else positions)


def planned_models(pair: Pair, base: Path, roles: Iterable[str], options: Options) -> dict[str, PlannedModel]:
    """Return the models of these roles on a GPU, without network access.

    Raises MissingAsset for a model whose architecture is not known, and ConfigError for an engine that it cannot use.
    """
    return {role: _planned(role, pair, base, options) for role in roles}


def _planned(role: str, pair: Pair, base: Path, options: Options) -> PlannedModel:
    spec = pair.models[role]
    dtype = options.dtype if spec.dtype == "auto" else spec.dtype
    dtype = "bfloat16" if dtype == "auto" else dtype
    try:
        config = architecture_of(spec, base)
        size = architecture_size(config, dtype, spec.quantization)
    except (ConfigError, MissingAsset) as error:
        raise type(error)(f"model '{role}': {error}") from None
    local = folder(spec.path, base) is not None or pair.weights == "dummy"
    return PlannedModel(
        role=role,
        source=spec.path,
        config=config,
        dtype=dtype,
        size=size,
        engine=_engine(role, spec, size, options.engine),
        quantization=spec.quantization,
        placement=spec.placement,
        download_bytes=0 if local else size.download_bytes,
    )


def _engine(role: str, spec: ModelSpec, size: ArchitectureSize, choice: str) -> str:
    """Return the engine of a model on a GPU, as `specbench.models.resolve.engine_of` chooses it."""
    if spec.placement.parallel != "none":
        if choice not in ("auto", "eager"):
            raise ConfigError(f"--engine {choice}: model '{role}' is split over devices, which only eager does")
        return "eager"
    if choice == "auto":
        return "lean" if size.encoder_decoder or spec.quantization == "nf4" else "graph"
    if choice in WITH_GRAPHS and size.encoder_decoder:
        raise ConfigError(f"--engine {choice}: model '{role}': no graphs of encoder-decoder models")
    return choice
