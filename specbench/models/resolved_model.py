"""A resolved model, without weights: its source, architecture, precision and engine, and its sizes.

Sizes are parameters, bytes of weights and cache, and layers.
"""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from transformers import GenerationConfig, PreTrainedConfig

from specbench.config.construct import Table
from specbench.config.pair import ModelSpec
from specbench.config.presets import ChatTemplate
from specbench.config.quantization_kind import NOT_QUANTIZED, QuantizationKind
from specbench.models.checkpoints import CONSTRUCTION, class_of
from specbench.models.experts import share_of_experts
from specbench.models.generation_rules import ignored_in, rules_of, sampling_of
from specbench.models.products import PANELED
from specbench.models.quantization import quantization_method, sizes
from specbench.models.quantized_files.registry import label_of, stored_sizes
from specbench.runs.run_spec import GenerationKeys, ModelSource, Shape

PUBLISHED = {"gpt2": 4, "gpt_neo": 4, "t5": 4}  # bytes per weight of the files on the hub; 2 for other architectures


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The sizes of a model at a precision, in bytes where the name says so.

    `parameters` counts tied weights once. `resident_bytes` are all weights in memory. With the lean engine an x86-64 CPU also
    holds `packed_head_bytes`, a copy of the LM head if it is also the embedding. `forward_bytes` are the weights that a
    decoding forward reads at least: without lookup tables, an encoder, and weights that a decoder applies once to the
    encoder's output, and with the experts of one token only. A quantized matrix counts its codes and scales. `rebuilt_bytes`
    are what a forward on a GPU writes and reads in addition, where the GPU has no kernel that reads the codes.

    `position_bytes` are the keys and values that one position adds to the cache, and `download_bytes` the published weights.
    `lm_head_bytes` are the LM head, and `embedding_bytes` the embedding and the LM head. `context` is the longest sequence; 0
    for an architecture without a limit.
    """

    parameters: int
    resident_bytes: int
    packed_head_bytes: int
    forward_bytes: int
    rebuilt_bytes: int
    position_bytes: int
    download_bytes: int
    lm_head_bytes: int
    embedding_bytes: int
    layers: int
    context: int

    def cache_bytes(self, positions: int) -> int:
        """Return the size of the cache of a sequence. An encoder-decoder model also holds positions of the prompt."""
        return self.position_bytes * (min(positions, self.context) if self.context else positions)


@dataclass(frozen=True)
class Architecture:
    """What a model is, apart from its weights, by the config of its folder or hub id."""

    config: PreTrainedConfig

    @property
    def family(self) -> str:
        """The model type, such as `llama`."""
        name: str = self.config.model_type
        return name

    @property
    def encoder_decoder(self) -> bool:
        """Whether an encoder reads the prompt."""
        return bool(self.config.is_encoder_decoder)

    @cached_property
    def shape(self) -> Shape:
        """Its layers, hidden size and heads."""
        return shape_of(self.config)

    def size(self, dtype: str, quantization: QuantizationKind = NOT_QUANTIZED) -> ModelSize:
        """Return its sizes at a precision."""
        return size_of(self.config, dtype, quantization)


def generation_keys(config: GenerationConfig) -> GenerationKeys | None:
    """Return what run.toml holds of a generation config; None if it sets nothing of interest."""
    keys = GenerationKeys(rules=rules_of(config), ignored=ignored_in(config), sampling=sampling_of(config))
    return None if keys == GenerationKeys() else keys


def size_of(config: PreTrainedConfig, dtype: str, quantization: QuantizationKind = NOT_QUANTIZED) -> ModelSize:
    """Return the sizes of a model that is built on the meta device; cached, since a suite has many runs of one model."""
    return _size_of(_Key(config.to_json_string(), config), dtype, quantization)


def shape_of(config: PreTrainedConfig) -> Shape:
    """Return the sizes that SPRINTER's FLOPs formula needs; for an encoder-decoder model, its decoder's."""
    config = config.get_text_config(decoder=True)
    keys = ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "decoder_ffn_dim")
    width = next((value for key in keys if (value := getattr(config, key, None))), None)
    return Shape(
        layers=getattr(config, "num_decoder_layers", None) or config.num_hidden_layers,
        d=config.hidden_size,
        heads=config.num_attention_heads,
        d_ff=width or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
    )


@dataclass(frozen=True)
class _Key:
    """A config that is hashed by its text."""

    text: str
    config: PreTrainedConfig = field(compare=False)


@lru_cache(maxsize=256)
def _size_of(key: _Key, dtype: str, quantization: QuantizationKind) -> ModelSize:
    config, itemsize = key.config, getattr(torch, dtype).itemsize
    with CONSTRUCTION, torch.device("meta"):
        model = class_of(config).from_config(config)
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    is_tied = embedding is head and not _has_untied_head(config)
    unread = {id(table.weight) for table in model.modules() if isinstance(table, torch.nn.Embedding)} - {id(head)}
    if (
        config.get_text_config(decoder=True) is not config and not config.is_encoder_decoder
    ):  # a checkpoint with pictures
        unread |= {id(p) for p in model.parameters()} - {id(p) for p in model.get_decoder().parameters()} - {id(head)}
    if config.is_encoder_decoder:
        unread |= {id(p) for p in model.get_encoder().parameters() if p is not head}
        once = (".EncDecAttention.k.", ".EncDecAttention.v.")
        unread |= {id(p) for name, p in model.named_parameters() if any(word in name for word in once)}
    is_stored = bool(quantization_method(config))
    precision = getattr(torch, dtype)
    quantized = stored_sizes(model, config, precision) if is_stored else sizes(model, quantization, precision)
    weights = {id(p): quantized[id(p)].read if id(p) in quantized else p.numel() * itemsize for p in model.parameters()}
    share, experts = share_of_experts(config), {id(p) for name, p in model.named_parameters() if ".experts." in name}

    def share_of(p: int) -> float:
        return share if p in experts else 1.0

    uncounted = head.numel() if embedding is head and not is_tied else 0
    parameters, layers = sum(p.numel() for p in model.parameters()) + uncounted, shape_of(config).layers
    is_packed = is_tied and getattr(torch, dtype) in PANELED and id(head) not in quantized
    context = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or 0
    return ModelSize(
        parameters=parameters,
        resident_bytes=sum(weights.values()) + uncounted * itemsize,
        packed_head_bytes=head.numel() * itemsize if is_packed else 0,
        forward_bytes=round(sum(size * share_of(p) for p, size in weights.items() if p not in unread)),
        rebuilt_bytes=round(sum(size.rebuilt * share_of(p) for p, size in quantized.items() if p not in unread))
        if quantization.weights or is_stored
        else 0,
        position_bytes=_position_bytes(config, itemsize),
        download_bytes=parameters * PUBLISHED.get(config.model_type, 2),
        lm_head_bytes=weights[id(head)],
        embedding_bytes=weights[id(head)] + (0 if is_tied else weights[id(embedding)]),
        layers=layers,
        context=context,
    )


def _has_untied_head(config: PreTrainedConfig) -> bool:
    """Return whether a checkpoint has an LM head that Transformers ties until it reads it: T5 v1.1 and mT5."""
    is_v1_1 = config.model_type == "t5" and not getattr(config, "scale_decoder_outputs", True)
    return is_v1_1 or config.model_type == "mt5"


def _position_bytes(config: PreTrainedConfig, itemsize: int) -> int:
    """Return the bytes of keys and values of one position, over all layers."""
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "num_decoder_layers", None) or text.num_hidden_layers
    return int(layers * values_of(config) * itemsize)


def values_of(config: PreTrainedConfig) -> int:
    """Return the number of keys and values of one position in one layer."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    dim = getattr(text, "d_kv", None) or getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * heads * dim)


@dataclass(frozen=True)
class ResolvedModel:
    """A model as described by its config: source, commit or checksum, dtype and engine."""

    spec: ModelSpec
    architecture: Architecture
    dtype: str
    engine: str = "eager"
    weights: str = "real"
    revision: str = ""  # the commit; empty for a local folder, which `checksum` identifies
    checksum: str = ""
    chat_template: ChatTemplate | None = None  # in place of the tokenizer's
    is_local: bool = False  # a folder, not a hub id
    generation: GenerationConfig | None = None  # of the checkpoint; None if it is not used or not read
    narrow: PreTrainedConfig | None = None  # of the checkpoint, if the architecture is widened

    @cached_property
    def size(self) -> ModelSize:
        """The sizes of the model by its config alone."""
        return self.architecture.size(self.dtype, self.spec.quantization)

    @property
    def config(self) -> PreTrainedConfig:
        """transformers' config, for engines and heads that need it."""
        return self.architecture.config

    @property
    def rules(self) -> Table:
        """The rules of the checkpoint's generation config that apply to the model's logits, by key."""
        return rules_of(self.generation) if self.generation else {}

    @cached_property
    def source(self) -> ModelSource:
        """The model as run.toml holds it."""
        return ModelSource(
            source=self.spec.path,
            dtype=self.dtype,
            engine=self.engine,
            revision=self.revision,
            checksum=self.checksum,
            quantization=str(self.spec.quantization),
            cost=self.spec.cost,
            gguf_file=self.spec.gguf_file or None,
            stored=self._stored,
            allowed_keys=self.spec.allowed_keys,
            weights="real" if self.weights == "real" else "dummy",
            changes=self.spec.config,
            chat_template=self.chat_template.label if self.chat_template else None,
            placement=self.spec.placement.label,
            generation=generation_keys(self.generation) if self.generation else None,
            parameters=self.size.parameters,
            forward_bytes=float(self.size.forward_bytes),
            position_bytes=float(self.size.position_bytes),
            shape=self.architecture.shape,
        )

    @property
    def _stored(self) -> str | None:
        """How the files hold quantized weights; None if they are not quantized."""
        return (label_of(self.config) or None) if self.weights == "real" else None

    def copy_of(self, role: str) -> str:
        """Return a key that is equal for roles which share one copy of the weights. Random weights are not shared."""
        revision = self.revision or self.spec.revision  # for another machine, no commit is resolved
        return (
            f"{self.identity} {revision} {self.engine} {self.spec.placement} {'' if self.weights == 'real' else role}"
        )

    @property
    def identity(self) -> Table:
        """The source, revision and checksum. Results with models of equal identity are comparable."""
        return self.source.identity
