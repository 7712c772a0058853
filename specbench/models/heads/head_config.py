"""Schemas of the config.json of draft heads. Each key is read, or does not change what a head computes, or is rejected.

The schemas list what is read. `NEUTRAL` lists keys that change a forward and are not computed, with the values that change
nothing. A key that is in neither is rejected if its name says that it may change a forward.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from huggingface_hub.errors import StrictDataclassError
from msgspec import Meta, Struct
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from specbench.errors import MissingAsset, short_repr

Size = Annotated[int, Meta(ge=1, le=1 << 20)]  # a width, or a number of tokens or positions in a block
Count = Annotated[int, Meta(ge=1, le=1 << 14)]  # of heads or layers
Tokens = Annotated[int, Meta(ge=0, le=1 << 24)]
Number = Annotated[float, Meta(gt=0.0, le=1e12)]
Layer = Annotated[int, Meta(ge=0, le=1 << 14)]
Schema = TypeVar("Schema", bound=Struct)

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "mistral": MistralConfig}  # by model type
OPTIONAL_WINDOW = ("qwen2", "qwen3")  # model types whose window is off unless `use_sliding_window` turns it on
FULL, SLIDING = "full_attention", "sliding_attention"


class NamingKeys(Struct, frozen=True):
    """The keys that say which drafter a folder holds."""

    architectures: list[str] | None = None
    speculators_model_type: str | None = None
    hidden_size: Size | None = None
    markov_rank: Tokens | None = None
    num_nextn_predict_layers: Tokens | None = None
    model_type: str | None = None


class LayerKeys(Struct, frozen=True):
    """The keys that describe the decoder layers of a head."""

    hidden_size: Size
    num_attention_heads: Count
    intermediate_size: Size
    num_key_value_heads: Count | None = None
    head_dim: Size | None = None
    rms_norm_eps: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    hidden_act: str | None = None
    attention_bias: bool | None = None
    max_position_embeddings: Annotated[int, Meta(ge=1, le=1 << 28)] | None = None
    rope_theta: Number | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    model_type: str | None = None
    sliding_window: Annotated[int, Meta(ge=1)] | None = None
    use_sliding_window: bool | None = None
    layer_types: list[str] | None = None


class VocabularyKeys(Struct, frozen=True):
    """The keys that state how many tokens a head drafts, for all drafters."""

    draft_vocab_size: Tokens | None = None
    truncated_vocab_size: Tokens | None = None  # nebius, and vLLM's converted EAGLE-1 heads


class VerifierKeys(Struct, frozen=True):
    """The base of a head, by speculators' keys: its model classes."""

    architectures: list[str] | None = None


class SpeculatorsKeys(Struct, frozen=True):
    """The part of `speculators_config` that is read: the base that the head was trained for."""

    verifier: VerifierKeys | None = None


class Eagle3Table(Struct, frozen=True):
    """`eagle_config` of SpecForge and NVIDIA."""

    eagle_aux_hidden_state_layer_ids: list[Layer] | None = None
    use_aux_hidden_state: bool | None = None
    norm_before_fc: bool | None = None
    norm_before_residual: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None


class Eagle3Keys(Struct, frozen=True):
    """The keys of an EAGLE-3 head besides those of its layer."""

    target_hidden_size: Size | None = None
    eagle_aux_hidden_state_layer_ids: list[Layer] | None = None
    target_layer_ids: list[Layer] | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    tie_word_embeddings: bool | None = None
    eagle_config: Eagle3Table | None = None
    speculators_config: SpeculatorsKeys | None = None
    transformer_layer_config: dict[str, Any] | None = None


class BlockKeys(Struct, frozen=True):
    """The keys of a DFlash or DSpark head besides those of its layers. z-lab nests some in `dflash_config`."""

    mask_token_id: Tokens | None = None
    block_size: Annotated[int, Meta(ge=1, le=1 << 10)] | None = None
    aux_hidden_state_layer_ids: list[Layer] | None = None
    target_layer_ids: list[Layer] | None = None
    sample_from_anchor: bool | None = None
    query_zero_predicts_next: bool | None = None
    target_hidden_size: Size | None = None
    markov_rank: Tokens | None = None
    markov_head_type: str | None = None
    dflash_config: dict[str, Any] | None = None
    transformer_layer_config: dict[str, Any] | None = None


class Eagle1Keys(Struct, frozen=True):
    """The keys of an EAGLE-1 head besides those of its layer. vLLM's converter nests the latter in `model`."""

    bias: bool | None = None
    eagle_fc_bias: bool | None = None
    vocab_size: Tokens | None = None
    model: dict[str, Any] | None = None


NEUTRAL: Mapping[str, tuple[object, ...]] = {  # values that change nothing, besides null
    "mlp_bias": (False,), "qkv_bias": (False,), "logit_scale": (1,), "logits_scaling": (1,), "logit_softcapping": (0,),
    "final_logit_softcapping": (0,), "attn_logit_softcapping": (0,), "embedding_multiplier": (1,),
    "residual_multiplier": (1,), "attention_multiplier": (1,), "input_embedding_scale": (1,), "partial_rotary_factor": (1,),
    "rotary_pct": (1,), "is_neox_style": (True,), "rope_interleaved": (False,), "rope_interleave": (False,),
    "causal": (False,), "is_causal": (True,), "use_swa": (False,), "swa_window_size": (0,), "attn_output_gate": (False,),
    "attention_sink_bias": (False,), "clip_qkv": (0,), "add_para_norm": (False,), "parallel_drafting": (False,),
    "parallel_draft_step": (0, 1), "parallel_draft_heads_num_layers": (0,), "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,), "use_mtp_layernorm": (False,), "next_layer_regular": (True,), "conv_kernel_size": (0,),
    "selector_rank": (0,), "selector_top_k": (0,), "lilicorr_candidate_topk": (0,), "use_bidirectional_attention": (False,),
}  # fmt: skip
IRRELEVANT = frozenset({  # to what a head computes, though their names look as if they were not
    "attention_dropout", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
    "sliding_window_non_causal", "max_window_layers", "use_qk_norm", "qk_norm", "num_aux_hidden_states", "layer_norm_eps",
    "position_embedding_type", "add_cross_attention", "cross_attention_hidden_size", "output_attentions",
    "num_logits_to_keep", "attention_backend", "mrope_section", "mrope_interleaved",
    *(key for keys in (NamingKeys, LayerKeys, VocabularyKeys, Eagle3Keys, Eagle3Table, BlockKeys, Eagle1Keys)
      for key in keys.__struct_fields__),
})  # fmt: skip
TRAINING = re.compile(
    r"loss|lr|learning|train|decay|warmup|epoch|optimi[sz]er|dropout|init|noise|grad|dataset|^_|_version$"
)
FORWARD = re.compile(  # in names of keys that may change a forward, besides those whose weights would show it
    r"norm|rope|rotary|window|swa|sink|scal|softcap|multiplier|causal|attn|attention|act_fn|activation|residual|interleav"
    r"|logit|layer_ids|aux_|fusion|parallel|position|embed|gate|candidate|per_layer"
)
ROPE_TYPES = ("type", "rope_type")
ROPE_NUMBERS = (
    "rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast",
    "beta_slow", "attention_factor", "mscale", "mscale_all_dim",
)  # fmt: skip
OF_IMAGES = ("mrope_section", "mrope_interleaved")  # positions of texts are alike on all axes


class Config:
    """A table of a head's config, with the folder and the place that messages name."""

    def __init__(self, folder: Path, table: Mapping[str, Any], at: str = "") -> None:
        self.folder, self.table, self.at = folder, table, at

    def read(self, schema: type[Schema]) -> Schema:
        """Return the keys of a schema. Raises MissingAsset, naming the key, for a missing key or a wrong value."""
        known = {key: value for key, value in self.table.items() if key in schema.__struct_fields__}
        try:
            return msgspec.convert(known, schema)
        except (msgspec.ValidationError, RecursionError) as error:
            raise self._wrong(str(error)) from None

    def within(self, key: str) -> "Config":
        """Return the table at a key; an empty one if there is none. Raises MissingAsset if it is no table."""
        table = self.table.get(key)
        if table is not None and not isinstance(table, dict):
            raise self.error(key, f"is {short_repr(table)}, and a table is needed")
        return Config(self.folder, table or {}, f"{self.at}{key}.")

    def require_known(self, neutral: Iterable[str] = ()) -> None:
        """Raise MissingAsset for a key that changes what the head computes, and that is not computed.

        `neutral` are keys that change nothing for this drafter, whatever their value.
        """
        for key, value in self.table.items():
            if value is None or key in neutral:
                continue
            if key in NEUTRAL:
                if isinstance(value, dict | list) or value not in NEUTRAL[key]:
                    raise self.error(key, f"is {short_repr(value)}, which is not supported")
            elif value and key not in IRRELEVANT and FORWARD.search(key.lower()) and not TRAINING.search(key.lower()):
                raise self.error(
                    key,
                    f"is unknown, and its value {short_repr(value)} may change what the head computes; help: if it does"
                    " not, remove it in a copy of the folder",
                )

    def error(self, key: str, why: str) -> MissingAsset:
        """Return the error for a key of this table."""
        return MissingAsset(f"{self.folder}: config.json: {self.at}{key} {why}")

    def _wrong(self, why: str) -> MissingAsset:
        """Return the error for a message of msgspec, such as "Expected `int`, got `str` - at `$.hidden_size`"."""
        place = re.search(r" - at `\$\.([^`]*)`", why)
        if place is None:
            missing = re.search(r"missing required field `([^`]*)`", why)
            return self.error(missing[1], "is missing") if missing else self.error("", why)
        key = place[1]
        value: Any = self.table.get(re.split(r"[.\[]", key)[0])
        text = why[: place.start()]
        return self.error(key, f"is wrong: {text[:1].lower()}{text[1:]} ({short_repr(value)})")


def layer_config(config: Config) -> LlamaConfig:
    """Return the config of a head's layers. Keys that are missing have the defaults of the drafter's own config class.

    Raises MissingAsset, naming the key, for a wrong value or rotary positions that are not supported.
    """
    keys = config.read(LayerKeys)
    of_type = CONFIGS.get(keys.model_type or "llama", LlamaConfig)
    given = {
        key: value
        for key in LayerKeys.__struct_fields__
        if (value := getattr(keys, key)) is not None
        and not key.startswith(("rope_", "sliding", "use_sliding", "layer_"))
    }
    ropes: dict[str, Any] = {
        key: _rope(config.within(key)) for key in ("rope_scaling", "rope_parameters") if config.table.get(key)
    }
    if len(ropes) == 2 and len({str(sorted(_without_theta(rope).items())) for rope in ropes.values()}) == 2:
        raise config.error("rope_scaling", "contradicts rope_parameters")
    if keys.rope_theta is not None:
        ropes["rope_theta"] = keys.rope_theta
    kv_heads = keys.num_key_value_heads
    if kv_heads is not None and keys.num_attention_heads % kv_heads:
        raise config.error(
            "num_key_value_heads", f"is {kv_heads}, which does not divide {keys.num_attention_heads} heads"
        )
    given.pop("model_type", None)
    try:
        made = of_type(**given, **ropes)
        layer = LlamaConfig(**(given | _defaults(made)), **ropes)
    except (ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:  # of transformers
        raise config.error("(layer)", f"cannot be read: {' '.join(str(error).split())[:200]}") from None
    if layer.head_dim % 2:
        raise config.error("head_dim", f"is {layer.head_dim}, and rotary positions need an even number")
    return layer


def _without_theta(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return what rotary positions are scaled by: older configs state the base apart."""
    return {key: value for key, value in rope.items() if key != "rope_theta"}


def _defaults(config: Any) -> dict[str, Any]:
    """Return what a drafter's own config class says for keys that its file may lack."""
    heads = config.num_attention_heads
    return {
        "num_key_value_heads": config.num_key_value_heads or heads, "rms_norm_eps": config.rms_norm_eps,
        "head_dim": getattr(config, "head_dim", None) or max(2, config.hidden_size // heads),
        "hidden_act": config.hidden_act, "max_position_embeddings": config.max_position_embeddings,
    }  # fmt: skip


def _rope(config: Config) -> dict[str, Any]:
    """Return a table of rotary parameters for transformers. Raises MissingAsset for one that is not computed."""
    found: dict[str, Any] = {}
    for key, value in config.table.items():
        if value is None or key in OF_IMAGES:
            continue
        if isinstance(value, dict):
            raise config.error(key, "is a table: rotary parameters of several kinds of layers are not supported")
        if key in ROPE_TYPES and isinstance(value, str):
            found[key] = "default" if value == "mrope" else value
        elif (
            key in ROPE_NUMBERS and isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
        ) or (key == "truncate" and isinstance(value, bool)):
            found[key] = value
        elif not (key == "partial_rotary_factor" and value == 1):
            raise config.error(key, f"is {short_repr(value)}, which is not supported")
    return found


def window_of(config: Config, layers: int) -> int | None:
    """Return the sliding window of a head's `layers` layers; None if they attend to every position.

    Raises MissingAsset, naming the key, if the layers differ, or if the config does not say which of them have the window.
    """
    keys = config.read(LayerKeys)
    kinds = keys.layer_types
    if kinds is None:
        if keys.model_type == "mistral":
            has_own = "sliding_window" in config.table  # null is no window, and a missing key the default one
            return keys.sliding_window if has_own else MistralConfig.sliding_window
        is_off = not keys.use_sliding_window if keys.model_type in OPTIONAL_WINDOW else keys.use_sliding_window is False
        if keys.sliding_window is None or is_off:
            return None
        raise config.error("sliding_window", f"is {keys.sliding_window}, and there are no layer_types that say where")
    if beyond := sorted({*kinds} - {FULL, SLIDING}):
        raise config.error("layer_types", f"names {beyond[0]!r}; supported: {FULL}, {SLIDING}")
    of_head = {*kinds[:layers]}
    if len(of_head) != 1:
        raise config.error("layer_types", f"is {short_repr(kinds)}; layers of different kinds are not supported")
    if of_head == {FULL}:
        return None
    if keys.sliding_window is None:
        raise config.error("sliding_window", f"is missing, and layer_types names {SLIDING}")
    return keys.sliding_window
