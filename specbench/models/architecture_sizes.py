"""The size of a model from the keys of its config alone: closed forms per architecture, without torch or transformers.

`specbench.models.sizes` counts the parameters of the model itself; tests compare the two.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import gcd, inf
from typing import Literal

from specbench.config.construct import Table
from specbench.errors import ConfigError, hint

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PUBLISHED = {"gpt2": 4, "gpt_neo": 4, "t5": 4}  # bytes per weight of the files on the hub; 2 for other architectures
GROUPS = {"int4": (128, 64, 32), "nf4": (64,)}  # as in specbench.models.quantization
NF4_SCALES = 256
LARGE = 1 << 18  # as in specbench.models.products
LEAST_PACKED = {"float32": LARGE, "bfloat16": 1 << 15}
ENCODER_DECODER = ("t5",)

# What a decoding forward does with a matrix. An `other` one is read but never quantized; `once` is a layer that is not read.
Use = Literal["linear", "other", "unread", "once"]


@dataclass(frozen=True)
class Matrix:
    """`count` equal matrices, or vectors with one input."""

    inputs: int
    outputs: int
    count: int = 1
    use: Use = "linear"

    @property
    def numbers(self) -> int:
        """The number of their weights."""
        return self.inputs * self.outputs * self.count

    def bytes(self, quantization: str, itemsize: int) -> int:
        """The size of the matrices, quantized if they are linear layers of a width that a group divides."""
        group = self._group(quantization)
        if not group:
            return self.numbers * itemsize
        one = self.inputs * self.outputs
        scales = one // group
        if quantization == "nf4":
            return self.count * (one // 2 + scales + scales // gcd(NF4_SCALES, scales) * itemsize)
        return self.count * (one // 2 + 2 * scales * itemsize if quantization == "int4" else one + scales * itemsize)

    def copy_bytes(self, quantization: str, dtype: str) -> int:
        """The size of the bfloat16 copies that multiply blocks on a CPU, of large matrices that torch's kernels read."""
        kernel = {"int4": self.outputs % 16 == 0, "int8": self.inputs % 32 == 0}.get(quantization, False)
        large = self.inputs * self.outputs >= LARGE and dtype in LEAST_PACKED
        return 2 * self.numbers if kernel and large and self._group(quantization) else 0

    def _group(self, quantization: str) -> int:
        """Return the number of inputs that share a scale; 0 if the matrices are not quantized."""
        if not quantization or self.use not in ("linear", "once"):
            return 0
        return next((size for size in GROUPS.get(quantization, (self.inputs,)) if self.inputs % size == 0), 0)


@dataclass(frozen=True, kw_only=True)
class ArchitectureSize:
    """The sizes of a model at a precision.

    `resident_bytes` are all weights in memory. On an x86-64 CPU there are also `block_copy_bytes`, the copies of
    quantized matrices for blocks, and, with the lean engine, `packed_head_bytes` for an LM head that is also the
    embedding. `forward_bytes` are the weights that a decoding forward reads, `position_bytes` the keys and values of one
    position of the cache, and `download_bytes` the published weights. `layer_bytes` are the matrices of one decoder layer
    without quantization, `embedding_bytes` the embedding and the LM head. `context` is the longest sequence; 0 if the
    architecture sets no limit.
    """

    parameters: int
    resident_bytes: int
    block_copy_bytes: int
    packed_head_bytes: int
    forward_bytes: int
    position_bytes: int
    download_bytes: int
    layer_bytes: int
    lm_head_bytes: int
    embedding_bytes: int
    layers: int
    context: int
    encoder_decoder: bool


def architecture_size(config: Table, dtype: str, quantization: str = "") -> ArchitectureSize:
    """Return the sizes of an architecture. Raises ConfigError for an architecture without a closed form."""
    kind = str(config.get("model_type", ""))
    if kind not in MATRICES:
        raise ConfigError(f"model_type = '{kind}': no formula for the size of this architecture{hint(kind, MATRICES)}")
    keys, itemsize = _Keys(config), BYTES[dtype]
    matrices = [each for each in MATRICES[kind](keys) if each.numbers]
    if kind == "gpt2":  # transformers' Conv1D layers are not quantized
        matrices = [replace(each, use="other") if each.use == "linear" else each for each in matrices]
    layers = keys.first("num_decoder_layers", "num_hidden_layers", "num_layers", "n_layer")
    heads = keys.first("num_attention_heads", "num_heads", "n_head")
    width = keys.get("d_kv", 0) or keys.get("head_dim", 0) or keys.first("hidden_size", "d_model", "n_embd") // heads
    parameters, head = (
        sum(each.numbers for each in matrices),
        matrices[0].numbers * itemsize,
    )  # `_embedding` comes first
    tied = matrices[1].use != "unread" or matrices[1].outputs != matrices[0].outputs
    return ArchitectureSize(
        parameters=parameters,
        resident_bytes=sum(each.bytes(quantization, itemsize) for each in matrices),
        block_copy_bytes=sum(each.copy_bytes(quantization, dtype) for each in matrices),
        packed_head_bytes=head if tied and matrices[0].numbers >= LEAST_PACKED.get(dtype, inf) else 0,
        forward_bytes=sum(
            each.bytes(quantization, itemsize) for each in matrices if each.use not in ("unread", "once")
        ),
        position_bytes=2 * layers * keys.get("num_key_value_heads", heads) * width * itemsize,
        download_bytes=parameters * PUBLISHED.get(kind, 2),
        layer_bytes=sum(each.numbers for each in matrices if each.use == "linear") * itemsize // layers,
        lm_head_bytes=head,
        embedding_bytes=itemsize * sum(each.numbers for each in matrices[:2] if each.outputs == matrices[0].outputs),
        layers=layers,
        context=keys.get("max_position_embeddings", 0) or keys.get("n_positions", 0),
        encoder_decoder=kind in ENCODER_DECODER,
    )


class _Keys:
    """The integer and boolean keys of a config."""

    def __init__(self, config: Table) -> None:
        self.config = config

    def get(self, key: str, default: int) -> int:
        """Return an integer, or the default if the key is missing. Raises ConfigError for another type."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, int):
            raise ConfigError(f"config.{key} = {value!r} must be an integer")
        return int(value)

    def first(self, *keys: str) -> int:
        """Return the first of several keys. Raises ConfigError if none is there, or if it is not at least 1."""
        value = next((found for key in keys if (found := self.get(key, 0))), 0)
        if value < 1:
            raise ConfigError(f"config: a value of at least 1 for '{keys[0]}' is missing")
        return value

    def is_set(self, key: str, default: bool) -> bool:
        """Return a boolean key."""
        return bool(self.config.get(key, default))


def _embedding(vocabulary: int, width: int, tied: bool) -> Iterator[Matrix]:
    """Yield the embedding and the LM head; a tied matrix is read as the head."""
    yield Matrix(width, vocabulary, use="other")
    if not tied:
        yield Matrix(width, vocabulary, use="unread")


def _llama(keys: _Keys) -> Iterator[Matrix]:
    d, layers, ff = keys.first("hidden_size"), keys.first("num_hidden_layers"), keys.first("intermediate_size")
    heads = keys.first("num_attention_heads")
    head = keys.get("head_dim", 0) or d // heads
    q, kv = heads * head, keys.get("num_key_value_heads", heads) * head
    qwen = keys.config.get("model_type") == "qwen2"
    yield from _embedding(keys.first("vocab_size"), d, keys.is_set("tie_word_embeddings", False))
    yield from (Matrix(d, q, layers), Matrix(d, kv, 2 * layers), Matrix(q, d, layers))
    yield from (Matrix(d, ff, 2 * layers), Matrix(ff, d, layers))
    if qwen or keys.is_set("attention_bias", False):
        yield Matrix(1, q + 2 * kv + (0 if qwen else d), layers, "other")
    if keys.is_set("mlp_bias", False):
        yield Matrix(1, 2 * ff + d, layers, "other")
    yield Matrix(1, d, 2 * layers + 1, "other")  # norms


def _gpt2(keys: _Keys) -> Iterator[Matrix]:
    d, layers = keys.first("n_embd"), keys.first("n_layer")
    ff = keys.get("n_inner", 0) or 4 * d
    yield from _embedding(keys.first("vocab_size"), d, keys.is_set("tie_word_embeddings", True))
    yield Matrix(d, keys.first("n_positions"), use="unread")
    yield from (Matrix(d, d, 4 * layers), Matrix(d, ff, layers), Matrix(ff, d, layers))
    yield Matrix(1, 4 * d + ff + d, layers, "other")  # biases
    yield Matrix(1, d, 2 * (2 * layers + 1), "other")  # norms


def _gpt_neo(keys: _Keys) -> Iterator[Matrix]:
    d, layers = keys.first("hidden_size"), keys.first("num_layers")
    ff = keys.get("intermediate_size", 0) or 4 * d
    yield from _embedding(keys.first("vocab_size"), d, keys.is_set("tie_word_embeddings", True))
    yield Matrix(d, keys.first("max_position_embeddings"), use="unread")
    yield from (Matrix(d, d, 4 * layers), Matrix(d, ff, layers), Matrix(ff, d, layers))
    yield Matrix(1, d + ff + d, layers, "other")  # biases; queries, keys and values have none
    yield Matrix(1, d, 2 * (2 * layers + 1), "other")  # norms


def _opt(keys: _Keys) -> Iterator[Matrix]:
    d, layers, ff = keys.first("hidden_size"), keys.first("num_hidden_layers"), keys.first("ffn_dim")
    word = keys.get("word_embed_proj_dim", d)
    if word != d:
        raise ConfigError(f"config.word_embed_proj_dim = {word}: only hidden_size = {d} has a formula for its size")
    yield from _embedding(keys.first("vocab_size"), d, keys.is_set("tie_word_embeddings", True))
    yield Matrix(d, keys.first("max_position_embeddings") + 2, use="unread")
    yield from (Matrix(d, d, 4 * layers), Matrix(d, ff, layers), Matrix(ff, d, layers))
    yield Matrix(1, 4 * d + ff + d, layers, "other")  # biases
    yield Matrix(1, d, 2 * (2 * layers + 1), "other")  # norms


def _t5(keys: _Keys) -> Iterator[Matrix]:
    """Yield a T5's matrices. A decoding forward reads neither the encoder nor the keys and values of its output."""
    d, ff = keys.first("d_model"), keys.first("d_ff")
    encoder = keys.first("num_layers")
    decoder = keys.get("num_decoder_layers", encoder)
    inner = keys.first("num_heads") * keys.first("d_kv")
    wide = 2 if str(keys.config.get("feed_forward_proj", "relu")).startswith("gated") else 1
    yield from _embedding(keys.first("vocab_size"), d, keys.is_set("tie_word_embeddings", True))
    yield Matrix(keys.first("num_heads"), keys.get("relative_attention_num_buckets", 32), 2, "unread")
    yield from (Matrix(d, inner, 3 * encoder, "once"), Matrix(inner, d, encoder, "once"))
    yield from (Matrix(d, ff, wide * encoder, "once"), Matrix(ff, d, encoder, "once"))
    yield Matrix(1, d, 2 * encoder + 1, "unread")
    yield from (Matrix(d, inner, 4 * decoder), Matrix(d, inner, 2 * decoder, "once"), Matrix(inner, d, 2 * decoder))
    yield from (Matrix(d, ff, wide * decoder), Matrix(ff, d, decoder))
    yield Matrix(1, d, 3 * decoder + 1, "other")


MATRICES: dict[str, Callable[[_Keys], Iterator[Matrix]]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "gpt2": _gpt2,
    "gpt_neo": _gpt_neo,
    "opt": _opt,
    "t5": _t5,
}
