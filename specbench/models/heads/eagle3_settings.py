"""What the files of an EAGLE-3 head say besides its weights, in the layouts of all producers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from transformers import LlamaConfig

from specbench.decoding.session import AuxLayers
from specbench.errors import ConfigError, MissingAsset
from specbench.models.heads.draft_layers import TapKey, require_aux_layers, require_width
from specbench.models.heads.head_config import (
    Config,
    Eagle3Keys,
    Eagle3Table,
    VocabularyKeys,
    layer_config,
    window_of,
)
from specbench.models.heads.head_files import SPECULATORS, HeadFiles
from specbench.models.heads.token_table import drafted_rows

AUX_LAYERS = TapKey("eagle_aux_hidden_state_layer_ids")
OF_EAGLE = TapKey("eagle_config.eagle_aux_hidden_state_layer_ids", of_outputs=True)  # of SpecForge and NVIDIA
OF_BOUNDARIES = TapKey(OF_EAGLE.name)  # the same key, for bases whose heads number inputs in it
OUTPUTS = TapKey("target_layer_ids", of_outputs=True)  # of DeepSpec
BOUNDARIES = ("gpt_oss",)  # model types of such bases (docs/decisions/0044-heads-of-others.md)
ARCHITECTURES = "speculators_config.verifier.architectures"


@dataclass(frozen=True, kw_only=True)
class Eagle3Settings:
    """What the files of a head say besides its weights.

    Attributes:
        layer: The config of its decoder layer.
        states: The number m of inputs that it reads.
        state_width: Their width, the base's.
        reads_aux_layers: Whether it reads inputs of layers and fuses them; otherwise the feature is what the base's LM head
            reads.
        layers: The layers that it reads, as `key` numbers them; None for the second, the middle and the last but two of the
            base's layers.
        key: The key that says so.
        window: The number of positions that its attention reads; None for all.
        vocabulary: The number V' of tokens that it drafts.
        adds_normed: Whether the layer's residual is the normed feature.
        returns_normed: Whether the next feature is the normed output.
        norms_states: Whether all inputs are normed together before they are fused.
        norms_each_state: Whether each input is normed alone before they are fused.
        norms_heads: Whether queries and keys are normed.
        stated: The numbers of tokens that the config states.
        base_architectures: The architectures of its base, if they are known.
    """

    layer: LlamaConfig
    states: int
    state_width: int
    reads_aux_layers: bool = True
    layers: AuxLayers | None = None
    key: TapKey | None = None
    window: int | None = None
    vocabulary: int
    adds_normed: bool = False
    returns_normed: bool = False
    norms_states: bool = False
    norms_each_state: bool = False
    norms_heads: bool = False
    stated: VocabularyKeys = field(default_factory=VocabularyKeys)
    base_architectures: tuple[str, ...] = ()

    @classmethod
    def of(cls, files: HeadFiles, weights: Mapping[str, Tensor]) -> "Eagle3Settings":
        """Return the settings of files whose weights have been renamed. Raises MissingAsset for a layout that is not read."""
        config, is_speculators = files.keys, SPECULATORS in files.config
        keys, nested = config.read(Eagle3Keys), config.within("eagle_config")
        table = nested.read(Eagle3Table)
        of_layer = config.within("transformer_layer_config") if keys.transformer_layer_config else config
        for part in (config, nested, of_layer):
            part.require_known()
        if str(of_layer.table.get("model_type", "llama")).startswith("gemma"):
            raise MissingAsset(f"{files.folder}: EAGLE-3 heads with Gemma's layers are not supported")
        if beyond := sorted(name for name in weights if name.startswith("layers.")):
            raise MissingAsset(f"{files.folder}: EAGLE-3 heads of several layers are not supported ({beyond[0]})")
        layer, fc, head = layer_config(of_layer), weights.get("fc.weight"), weights.get("lm_head.weight")
        stated = config.read(VocabularyKeys)
        vocabulary = drafted_rows(config, head, stated)
        reads_aux_layers, states, width = table.use_aux_hidden_state is not False, 1, layer.hidden_size
        if not reads_aux_layers and keys.target_hidden_size not in (None, width):
            raise config.error(
                "target_hidden_size", f"is {keys.target_hidden_size}, and without aux_layers it is hidden_size"
            )
        if reads_aux_layers:
            if fc is None:
                raise MissingAsset(f"{files.folder} is not an EAGLE-3 head: it has no fc.weight")
            width = require_width(files, layer.hidden_size, keys.target_hidden_size, fc)
            states = fc.shape[1] // width
        key, layers = _aux_layers(keys, table)
        for name, weight in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
            value = _outer_or_nested(config, name, getattr(keys, name), getattr(table, name))
            if value is not None and value != (weight in weights):
                raise config.error(
                    name, f"is {str(value).lower()}, and the files have {'' if not value else 'no '}{weight}"
                )
        normed = _outer_or_nested(config, "norm_before_residual", keys.norm_before_residual, table.norm_before_residual)
        verifier = keys.speculators_config.verifier if keys.speculators_config else None
        return cls(
            layer=layer, states=states, state_width=width, reads_aux_layers=reads_aux_layers, layers=layers, key=key,
            window=window_of(of_layer, 1), vocabulary=vocabulary,
            adds_normed=is_speculators if normed is None else normed,
            returns_normed=bool(_outer_or_nested(config, "norm_output", keys.norm_output, table.norm_output)),
            norms_states="input_norm.weight" in weights, norms_each_state="fc_norm.0.weight" in weights,
            norms_heads="midlayer.self_attn.q_norm.weight" in weights, stated=stated,
            base_architectures=tuple((verifier.architectures if verifier else None) or ()),
        )  # fmt: skip

    def aux_layers_of(self, model_type: str, layers: int) -> AuxLayers:
        """Return the layers whose inputs a head reads, of a base of this type with this many layers; empty without any.

        Raises ConfigError, naming the key, if the base lacks one of them.
        """
        if not self.reads_aux_layers:
            return ()
        key = OF_BOUNDARIES if self.key == OF_EAGLE and model_type in BOUNDARIES else self.key
        if key is OF_BOUNDARIES and self.layers and layers in self.layers:
            raise ConfigError(
                f"{key.name} names boundary {layers}, the output of the last layer before the final norm, which is not read"
            )
        aux_layers = default_aux_layers(layers) if self.layers is None or key is None else key.aux_layers(self.layers)
        require_aux_layers(aux_layers, key, self.states, layers)
        return aux_layers


def _aux_layers(keys: Eagle3Keys, table: Eagle3Table) -> tuple[TapKey | None, AuxLayers | None]:
    """Return the key that names layers, and these as it numbers them; None if no key does."""
    for key, layers in (
        (AUX_LAYERS, keys.eagle_aux_hidden_state_layer_ids), (OF_EAGLE, table.eagle_aux_hidden_state_layer_ids),
        (OUTPUTS, keys.target_layer_ids),
    ):  # fmt: skip
        if layers:
            return key, tuple(layers)
    return None, None


def _outer_or_nested(config: Config, key: str, outer: bool | None, nested: bool | None) -> bool | None:
    """Return the value of a key that may be in `eagle_config` too. Raises MissingAsset if the two differ."""
    if outer is not None and nested is not None and outer != nested:
        raise config.error(f"eagle_config.{key}", f"is {str(nested).lower()}, and {key} is {str(outer).lower()}")
    return nested if outer is None else outer


def default_aux_layers(layers: int) -> AuxLayers:
    """Return the layers whose inputs a head reads by default, of a base of this many layers; fewer for less than 7 layers."""
    return tuple(sorted({min(max(layer, 1), layers - 1) for layer in (2, layers // 2, layers - 3)}))
