"""What the files of a DFlash or DSpark head say besides its weights, in the layouts of all producers."""

from dataclasses import dataclass, field

from transformers import LlamaConfig

from specbench.decoding.session import AuxLayers
from specbench.errors import MissingAsset, short_repr
from specbench.models.heads.draft_layers import TapKey, require_width
from specbench.models.heads.head_config import BlockKeys, Config, VocabularyKeys, layer_config, window_of
from specbench.models.heads.head_files import SPECULATORS, Drafter, HeadFiles
from specbench.models.heads.token_table import drafted_rows

INPUTS = TapKey("aux_hidden_state_layer_ids")
OUTPUTS = TapKey("target_layer_ids", of_outputs=True)
OF_ZLAB = "dflash_config"  # a table that may hold the keys
BLOCK_OF_SPECULATORS = 8  # its default of block_size


def default_aux_layers(layers: int, count: int) -> AuxLayers:
    """Return the layers whose inputs a head of `count` states reads by default, of a base of this many layers."""
    if count == 1:
        return (layers // 2 + 1,)
    return tuple(round(1 + i * (layers - 4) / (count - 1)) + 1 for i in range(count))


@dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """What the files of a head say besides its weights.

    Attributes:
        layer: The config of its decoder layers.
        layers: The number of decoder layers.
        states: The number m of layers of the base whose inputs it reads.
        state_width: The width of these inputs, the base's.
        aux_layers: The layers whose inputs it reads.
        key: The key of the config that names them.
        mask: The token of the rows to predict, by its row in the base's embedding.
        length: The number of tokens that it drafts.
        from_anchor: Whether a row predicts the token after it, so that the anchor's row predicts the first one. Otherwise a
            row predicts the token at its own position, and the block has one row more.
        vocabulary: The number V' of tokens of its own LM head; 0 if it uses the base's.
        norms_heads: Whether queries and keys are normed.
        stated: The numbers of tokens that the config states.
    """

    layer: LlamaConfig
    layers: int
    states: int
    state_width: int
    aux_layers: AuxLayers
    key: TapKey
    mask: int
    length: int
    from_anchor: bool = False
    vocabulary: int = 0
    norms_heads: bool = True
    stated: VocabularyKeys = field(default_factory=VocabularyKeys)

    @classmethod
    def of(cls, files: HeadFiles) -> "BlockSettings":
        """Return the settings of files. Raises MissingAsset for a layout that is not read."""
        config, weights, is_speculators = files.keys, files.weights, SPECULATORS in files.config
        nested = config.within(OF_ZLAB)
        keys = merged(config, nested).read(BlockKeys)
        of_layer = config.within("transformer_layer_config") if keys.transformer_layer_config else config
        for part in (config, nested, of_layer):
            part.require_known()
        fc, head = weights.get("fc.weight"), weights.get("lm_head.weight")
        if fc is None:
            raise MissingAsset(f"{files.folder} is not a block drafter: it has no fc.weight")
        if str(of_layer.table.get("model_type", "")).startswith("gemma"):
            raise MissingAsset(f"{files.folder}: block drafters with Gemma's layers are not supported")
        names = {name.split(".")[1] for name in weights if name.startswith("layers.")}
        if names != {str(i) for i in range(len(names))}:
            raise MissingAsset(f"{files.folder}: the weights have layers {', '.join(sorted(names)) or '(none)'}")
        if window := window_of(of_layer, len(names)):
            raise of_layer.error(
                "sliding_window", f"is {window}: block drafters with sliding attention are not supported"
            )
        block = keys.block_size or (BLOCK_OF_SPECULATORS if is_speculators else None)
        at = f"{nested.at if nested.table else ''}"
        if keys.mask_token_id is None or block is None:
            raise config.error(f"{at}{'block_size' if block is None else 'mask_token_id'}", "is missing")
        layer = layer_config(of_layer)
        width = require_width(files, layer.hidden_size, keys.target_hidden_size, fc)
        from_anchor = _predicts_from_anchor(config, keys, files.named == Drafter.dspark)
        if not from_anchor and block < 2:
            raise config.error(f"{at}block_size", f"is {block}, which leaves no token to draft")
        key, layers = (INPUTS, keys.aux_hidden_state_layer_ids) if keys.aux_hidden_state_layer_ids else (
            OUTPUTS, keys.target_layer_ids
        )  # fmt: skip
        if not layers:
            missing = INPUTS.name if is_speculators else f"{OF_ZLAB}.{OUTPUTS.name}" if nested.table else OUTPUTS.name
            raise config.error(missing, "is missing: it says which layers of the base the head was trained on")
        stated = config.read(VocabularyKeys)
        rows = drafted_rows(config, head, stated)
        return cls(
            layer=layer, layers=len(names), states=fc.shape[1] // width, state_width=width, aux_layers=key.aux_layers(layers),
            key=key,
            mask=keys.mask_token_id, length=block - (not from_anchor), from_anchor=from_anchor, vocabulary=rows,
            norms_heads="layers.0.self_attn.q_norm.weight" in weights, stated=stated,
        )  # fmt: skip


def merged(config: Config, nested: Config) -> Config:
    """Return a config whose nested keys replace the outer ones. Raises MissingAsset, naming the key, if they differ."""
    for key in {*BlockKeys.__struct_fields__} & {*config.table} & {*nested.table}:
        one, two = config.table[key], nested.table[key]
        if None not in (one, two) and one != two:
            raise nested.error(key, f"is {short_repr(two)}, and {key} is {short_repr(one)}")
    inner = {key: value for key, value in nested.table.items() if value is not None}
    return Config(config.folder, {**config.table, **inner})


def _predicts_from_anchor(config: Config, keys: BlockKeys, default: bool) -> bool:
    """Return whether the anchor's row predicts the first token, in either published spelling."""
    one, two = keys.sample_from_anchor, keys.query_zero_predicts_next
    if one is not None and two is not None and one != two:
        raise config.error("query_zero_predicts_next", f"is {str(two).lower()}, and sample_from_anchor the opposite")
    return one if one is not None else two if two is not None else default
