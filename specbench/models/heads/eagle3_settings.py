"""What the files of an EAGLE-3 head say besides its weights, in the layouts of all producers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import LlamaConfig

from specbench.decoding.session import Taps
from specbench.errors import MissingAsset
from specbench.models.heads.draft_layers import OUTPUTS, layer_config, require_width
from specbench.models.heads.head_files import SPECULATORS, HeadFiles

TAPS = "eagle_aux_hidden_state_layer_ids"  # a key that numbers inputs of layers
ARCHITECTURES = "speculators_config.verifier.architectures"
OF_SPECFORGE = "eagle_config"  # its table, in which TAPS numbers outputs


@dataclass(frozen=True, kw_only=True)
class Eagle3Settings:
    """What the files of a head say besides its weights.

    Attributes:
        layer: The config of its decoder layer.
        states: The number m of inputs that it reads.
        state_width: Their width, the base's.
        taps: Which; None for the second, the middle and the last but two of the base's layers.
        taps_key: The key that says so.
        vocabulary: The number V' of tokens that it drafts.
        adds_normed: Whether the layer's residual is the normed feature.
        returns_normed: Whether the next feature is the normed output.
        norms_output: Whether the LM head reads the normed output.
        norms_states: Whether all inputs are normed together before they are fused.
        norms_each_state: Whether each input is normed alone before they are fused.
        norms_heads: Whether queries and keys are normed.
        base_architectures: The architectures of its base, if they are known.
    """

    layer: LlamaConfig
    states: int
    state_width: int
    taps: Taps | None = None
    taps_key: str = ""
    vocabulary: int
    adds_normed: bool = False
    returns_normed: bool = False
    norms_output: bool = True
    norms_states: bool = False
    norms_each_state: bool = False
    norms_heads: bool = False
    base_architectures: tuple[str, ...] = ()

    @classmethod
    def of(cls, files: HeadFiles, weights: Mapping[str, Tensor]) -> "Eagle3Settings":
        """Return the settings of files whose weights have been renamed. Raises MissingAsset for a layout that is not read."""
        config, fc, head = files.config, weights.get("fc.weight"), weights.get("lm_head.weight")
        if fc is None:
            raise MissingAsset(f"{files.folder} is not an EAGLE-3 head: it has no fc.weight")
        is_speculators = SPECULATORS in config
        layer: Mapping[str, Any] = config.get("transformer_layer_config") or config
        if str(layer.get("model_type", "llama")).startswith("gemma"):
            raise MissingAsset(f"{files.folder}: EAGLE-3 heads with Gemma's layers are not supported")
        if beyond := sorted(name for name in weights if name.startswith("layers.")):
            raise MissingAsset(f"{files.folder}: EAGLE-3 heads of several layers are not supported ({beyond[0]})")
        width = require_width(files, layer, fc)
        taps, key = _taps(config)
        verifier = (config.get("speculators_config") or {}).get("verifier") or {}
        return cls(
            layer=layer_config(layer),
            states=fc.shape[1] // width,
            state_width=width,
            taps=taps,
            taps_key=key,
            vocabulary=0 if head is None else head.shape[0],
            adds_normed=bool(config.get("norm_before_residual", is_speculators)),
            returns_normed=is_speculators and bool(config.get("norm_output", False)),
            norms_output=is_speculators or bool(config.get("norm_output", True)),
            norms_states="input_norm.weight" in weights,
            norms_each_state="fc_norm.0.weight" in weights,
            norms_heads="midlayer.self_attn.q_norm.weight" in weights,
            base_architectures=tuple(verifier.get("architectures") or ()),
        )


def _taps(config: Mapping[str, Any]) -> tuple[Taps | None, str]:
    """Return the layers whose inputs are read, and the key that names them; None if no key does."""
    if ids := config.get(TAPS):
        return tuple(ids), TAPS
    if ids := (config.get(OF_SPECFORGE) or {}).get(TAPS):
        return tuple(layer + 1 for layer in ids), f"{OF_SPECFORGE}.{TAPS}"
    if ids := config.get(OUTPUTS):
        return tuple(layer + 1 for layer in ids), OUTPUTS
    return None, ""


def default_taps(layers: int) -> Taps:
    """Return the layers whose inputs a head reads by default, of a base of this many layers; fewer for less than 7 layers."""
    return tuple(sorted({min(max(layer, 1), layers - 1) for layer in (2, layers // 2, layers - 3)}))
