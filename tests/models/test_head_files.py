"""Files of heads as others write them, and damaged ones: each key is computed or an error that names it, before decoding."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError, MissingAsset
from specbench.models.heads import BlockSession, DFlashHead, DraftHead, DSparkHead, EagleHead, EagleSession, MtpHead
from specbench.models.heads.classifiers import AcceptanceHead, LengthHead, Verifier, read_probability
from specbench.models.heads.draft_head import kind_in
from tests.fixtures.worlds import open_session
from tests.models import test_block_heads as blocks
from tests.models import test_eagle3 as eagle3
from tests.models import test_mtp as mtp
from tests.models.test_eagle3 import LAYER, NO_EOS, H, V, base_model

SPECFORGE = replace(eagle3.LAYOUTS["SpecForge, several files"], files="safetensors")
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | LAYER


def changed(folder: Path, keys: dict[str, Any], **weights: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change keys of a head's config, which are removed for `...`, and its weights."""
    config = json.loads((folder / "config.json").read_text()) | keys
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    if weights:
        stored = load_file(folder / "model.safetensors")
        stored |= {name: make(stored) for name, make in weights.items()}
        save_file({name: weight for name, weight in stored.items() if weight is not None}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sliding_window": 4}, "sliding_window is 4, and there are no layer_types that say where"),
        ({"layer_types": ["sliding_attention"]}, "sliding_window is missing, and layer_types names sliding_attention"),
        ({"layer_types": ["linear_attention"]}, "layer_types names 'linear_attention'"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5, which is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, r"rope_parameters\.partial_rotary_factor is 0\.25"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, r"rope_parameters\.full_attention is a table"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, r"rope_scaling\.factor is -2"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "rope_scaling contradicts rope_parameters",
        ),
        ({"logit_scale": 0.5}, r"logit_scale is 0\.5, which is not supported"),
        ({"attention_chunk_window": 3}, "attention_chunk_window is unknown"),
        ({"hidden_size": "32"}, r"hidden_size is wrong: expected `int"),
        ({"num_attention_heads": 0}, "num_attention_heads is wrong"),
        ({"intermediate_size": ...}, "intermediate_size is missing"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is wrong"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide 4 heads"),
        ({"architectures": [1]}, r"architectures\[0\] is wrong"),
        ({"eagle_config": [1]}, "eagle_config is "),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1.5, 3]}}, "eagle_config.eagle_aux_hidden_state"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, r"eagle_config\.use_mtp_layernorm is True"),
        ({"norm_output": True, "eagle_config": {"norm_output": False}}, r"eagle_config\.norm_output is false"),
        ({"fc_norm": True}, r"fc_norm is true, and the files have no fc_norm\.0\.weight"),
        ({"draft_vocab_size": 12}, r"draft_vocab_size is 12, and lm_head\.weight has 9 rows"),
        ({"truncated_vocab_size": 12}, r"truncated_vocab_size is 12, and lm_head\.weight has 9 rows"),
        ({"model_type": "mistral", "sliding_window": 4, "layer_types": ["x"]}, "layer_types names 'x'"),
    ],
)  # fmt: skip
def test_a_key_that_is_not_computed_is_an_error_that_names_it(keys, message, tmp_path):
    eagle3.write(SPECFORGE, tmp_path)
    changed(tmp_path, keys)
    with pytest.raises(MissingAsset, match=message):
        EagleHead.read(tmp_path)


def test_keys_that_change_nothing_are_accepted(tmp_path):
    eagle3.write(SPECFORGE, tmp_path)
    keys = {
        "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "mlp_bias": False,
        "attention_dropout": 0.1, "partial_rotary_factor": 1.0, "rope_scaling": None, "ttt_length": 7, "step_loss_decay": 0.8,
        "max_grad_norm": 1.0,
        "torch_dtype": "bfloat16", "auto_map": {"AutoModel": "x.Y"}, "eagle_config": {"parallel_draft_step": 1},
    }  # fmt: skip
    changed(tmp_path, keys)
    assert EagleHead.read(tmp_path).eagle3.window is None


TABLES: dict[str, tuple[Callable[[dict[str, Tensor]], Tensor], str]] = {
    "a negative token": (lambda w: w["d2t"].index_fill(0, torch.tensor([1]), -5), "gives row 1 the token -4"),
    "fractions": (lambda w: w["d2t"].float() + 0.5, "is of type float32 and not of whole numbers"),
    "rounded": (lambda w: w["d2t"].to(torch.bfloat16), "is of type bfloat16"),
    "the same token twice": (lambda w: torch.tensor([0, -1, *w["d2t"][2:]]), "gives the token 0 to several rows"),
    "too short": (lambda w: w["d2t"][:-1].clone(), r"d2t has shape \(8,\), and lm_head\.weight 9 tokens"),
    "ids instead of offsets": (
        lambda w: w["d2t"] + torch.arange(9),
        "t2d marks 9 of 40 tokens, which are not the 9 tokens",
    ),
    "another choice": (lambda w: torch.arange(9), "t2d marks 9 of 40 tokens, which are not the 9 tokens of d2t"),
}


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("drafter", ["eagle3", "dflash"])
def test_a_wrong_table_of_drafted_tokens_is_an_error(case, drafter, tmp_path):
    if drafter == "eagle3":
        eagle3.write(SPECFORGE, tmp_path)
    else:
        blocks.write(blocks.LAYOUTS["speculators"], tmp_path)
        known = torch.tensor(blocks.LAYOUTS["speculators"].tokens)
        flags = torch.zeros(V, dtype=torch.bool).index_fill_(0, known, True)
        changed(tmp_path, {}, t2d=lambda _: flags)
    make, message = TABLES[case]
    changed(tmp_path, {}, d2t=make)
    with pytest.raises(MissingAsset, match=message):
        (EagleHead if drafter == "eagle3" else DFlashHead).read(tmp_path)


@pytest.mark.parametrize("flags", [torch.full((V,), 2), torch.zeros(V, 1), torch.ones(V, dtype=torch.bool)])
def test_a_wrong_table_of_flags_is_an_error(flags, tmp_path):
    eagle3.write(SPECFORGE, tmp_path)
    changed(tmp_path, {}, t2d=lambda _: flags)
    with pytest.raises(MissingAsset, match="t2d "):
        EagleHead.read(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("layout", "name"),
    [("eagle3", "midlayer.mlp.up_proj.weight"), ("dspark", "markov_head.markov_w2.weight"), ("dspark", "norm.weight")],
)
def test_a_weight_that_is_not_finite_is_an_error(layout, name, value, tmp_path):
    if layout == "eagle3":
        eagle3.write(SPECFORGE, tmp_path)
    else:
        blocks.write(blocks.LAYOUTS["DeepSpec, DSpark"], tmp_path)
    changed(
        tmp_path, {}, **{name: lambda w: w[name].flatten().index_fill(0, torch.tensor([3]), value).view_as(w[name])}
    )
    with pytest.raises(MissingAsset, match=f"{name} has NaN or infinite values"):
        DraftHead.read(tmp_path)


def test_logits_that_become_infinite_are_an_error_in_the_trial_and_while_drafting(tmp_path):
    blocks.write(blocks.LAYOUTS["DeepSpec, DSpark"], tmp_path)
    model = base_model()
    head = DSparkHead.read(tmp_path).double().goes_with(model.get_input_embeddings().weight, model.config)
    head.require_finite_output()
    with torch.no_grad():
        head.markov.markov_w1.weight[:] = 1e300
        head.markov.markov_w2.weight[:] = 1e300
    with pytest.raises(MissingAsset, match="NaN or infinite values"):
        head.require_finite_output()
    session = BlockSession(head, open_session(model), vocabulary=V)
    with pytest.raises(FloatingPointError, match="block drafter: NaN or infinite logits"):
        session.draft([3, 8, 1, 22], 4, Sampler(0.0), NO_EOS)
    with pytest.raises(FloatingPointError, match="a distribution has NaN"):
        session.draft([3, 8, 1, 22], 4, Sampler(1.0), NO_EOS)


@pytest.mark.parametrize("layout", eagle3.LAYOUTS)
def test_the_trial_forward_of_a_sound_head_passes(layout, tmp_path):
    eagle3.write(eagle3.LAYOUTS[layout], tmp_path)
    model = base_model()
    head = EagleHead.read(tmp_path).double().goes_with(model.get_input_embeddings().weight, model.config)
    head.require_finite_output()


@pytest.mark.parametrize(
    "head", [Verifier(8, "state+q+entropy"), AcceptanceHead(8), LengthHead()], ids=["sprinter", "specdec++", "dsl"]
)
def test_a_head_that_predicts_nan_is_an_error_before_decoding(head):
    head.require_finite_output()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(MissingAsset, match="predictions are NaN"):
        head.require_finite_output()
    with pytest.raises(FloatingPointError, match="returned NaN"):
        read_probability(torch.tensor([float("nan")]))


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        ({"target_layer_ids": ...}, {}, "target_layer_ids is missing: it says which layers of the base"),
        ({"query_zero_predicts_next": True, "sample_from_anchor": False}, {}, "query_zero_predicts_next is true"),
        ({"markov_rank": 9}, {}, "markov_rank is 9, and the Markov head in the files is of rank 5"),
        ({"markov_head_type": "rnn"}, {}, "markov_head_type is 'rnn', and the files are vanilla"),
        ({}, {"markov_head.markov_w1.weight": None}, r"the Markov head has no matrix markov_w1\.weight"),
        ({}, {"confidence_head.proj.weight": torch.zeros(1, 3)}, r"confidence_head\.proj\.weight reads 3 numbers"),
        ({}, {"layers.0.mlp.up_proj.weight": torch.zeros(3, 3)}, r"up_proj\.weight has shape \(3, 3\), and its config gives"),
        ({}, {"norm.weight": torch.zeros(H, dtype=torch.int32)}, r"norm\.weight is of type int32"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, {}, "sliding_window is 8: block drafters with"),
        ({"dflash_config": {"mask_token_id": 3}}, {}, r"dflash_config\.mask_token_id is 3, and mask_token_id is 39"),
    ],
)  # fmt: skip
def test_a_damaged_block_head_is_an_error_that_names_the_key_or_weight(config, weights, message, tmp_path):
    blocks.write(blocks.LAYOUTS["DeepSpec, DSpark"], tmp_path)
    changed(tmp_path, config, **{name: lambda _, w=w: w for name, w in weights.items()})
    with pytest.raises(MissingAsset, match=message):
        DraftHead.read(tmp_path)


def test_a_markov_head_of_fewer_tokens_than_the_base_is_an_error(tmp_path):
    blocks.write(blocks.LAYOUTS["DeepSpec, DSpark"], tmp_path)
    changed(tmp_path, {}, **{"markov_head.markov_w1.weight": lambda w: w["markov_head.markov_w1.weight"][:-1].clone()})
    model = base_model()
    with pytest.raises(ConfigError, match=r"markov_w1\.weight reads 39 tokens, and the base has 40"):
        DSparkHead.read(tmp_path).goes_with(model.get_input_embeddings().weight, model.config)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("key", ["sample_from_anchor", "query_zero_predicts_next"])
def test_both_published_spellings_of_the_anchor_are_read(key, nested, tmp_path):
    layout = blocks.LAYOUTS["z-lab"]
    table = layout.config | {} if nested else layout.config | {key: True}
    table["dflash_config"] = layout.config["dflash_config"] | ({key: True} if nested else {})
    blocks.write(replace(layout, config=table), tmp_path)
    head = DFlashHead.read(tmp_path)
    assert head.block.from_anchor and head.block.length == 5


def test_a_head_dimension_that_is_missing_is_that_of_the_drafters_own_config_class(tmp_path):
    blocks.write(blocks.LAYOUTS["z-lab"], tmp_path)
    changed(tmp_path, {"head_dim": ...})
    with pytest.raises(
        MissingAsset, match=r"has shape \(\d+,\), and its config gives \(128,\)|and its config gives \(512, 32\)"
    ):
        DFlashHead.read(tmp_path)
    changed(tmp_path, {"model_type": "llama"})
    assert DFlashHead.read(tmp_path).block.layer.head_dim == 8


def test_a_head_without_an_lm_head_drafts_its_bases_tokens(tmp_path):
    blocks.write(blocks.LAYOUTS["z-lab"], tmp_path)
    changed(tmp_path, {"draft_vocab_size": 20})
    model = base_model()
    with pytest.raises(ConfigError, match=r"draft_vocab_size is 20, and without lm_head\.weight it is the base's, 40"):
        DFlashHead.read(tmp_path).goes_with(model.get_input_embeddings().weight, model.config)


def test_a_weight_with_which_products_overflow_is_an_error(tmp_path):
    eagle3.write(SPECFORGE, tmp_path)
    changed(tmp_path, {}, **{"norm.weight": lambda w: w["norm.weight"] * 1e20})
    with pytest.raises(MissingAsset, match=r"norm\.weight has the value .*e\+20; weights are at most 1e\+09"):
        EagleHead.read(tmp_path)


def test_defaults_are_those_of_the_drafters_own_code(tmp_path):
    layout = blocks.LAYOUTS["speculators"]
    blocks.write(layout, tmp_path)
    changed(tmp_path, {"block_size": ...})
    assert DFlashHead.read(tmp_path).block.length == 7
    changed(tmp_path, {"speculators_model_type": "dspark", "block_size": 5})
    blocks.write(
        replace(layout, config=layout.config | {"speculators_model_type": "dspark"}, markov="vanilla"), tmp_path
    )
    assert DSparkHead.read(tmp_path).block.from_anchor


@pytest.mark.parametrize(
    ("model_type", "ids", "aux_layers"),
    [("llama", [1, 3, 7], (2, 4, 8)), ("gpt_oss", [1, 3, 7], (1, 3, 7)), ("gpt_oss", [3, 6, 9], "names boundary 9")],
)
def test_heads_of_gpt_oss_number_boundaries(model_type, ids, aux_layers, tmp_path):
    eagle3.write(SPECFORGE, tmp_path)
    changed(tmp_path, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}})
    settings = EagleHead.read(tmp_path).eagle3
    if isinstance(aux_layers, tuple):
        assert settings.aux_layers_of(model_type, 9) == aux_layers
        return
    with pytest.raises(ConfigError, match=aux_layers):
        settings.aux_layers_of(model_type, 9)


@pytest.mark.parametrize("engine", ["lean", "eager"])
@pytest.mark.parametrize("tap", [9, 2.5])
def test_a_tap_that_is_no_layer_is_rejected(tap, engine):
    session = open_session(base_model(), engine)
    with pytest.raises(ValueError, match=f"so no layer {tap}"):
        session.keep_states((tap,))


def of_eagle1(folder: Path, own_head: int = 0) -> dict[str, Tensor]:
    """Write an EAGLE-1 head in SafeAILab's layout. Returns its weights."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(3)
    shapes = {
        "fc.weight": (H, 2 * H), "layers.0.self_attn.q_proj.weight": (H, H), "layers.0.self_attn.k_proj.weight": (H // 2, H),
        "layers.0.self_attn.v_proj.weight": (H // 2, H), "layers.0.self_attn.o_proj.weight": (H, H),
        "layers.0.mlp.gate_proj.weight": (48, H), "layers.0.mlp.up_proj.weight": (48, H),
        "layers.0.mlp.down_proj.weight": (H, 48), "layers.0.post_attention_layernorm.weight": (H,),
    }  # fmt: skip
    weights = {name: torch.randn(shape, dtype=torch.float64) * 0.3 for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return weights


@pytest.mark.parametrize("prefix", ["", "model.", "model.model."])
def test_an_eagle1_head_that_vllm_converted_drafts_like_the_original(prefix, tmp_path):
    model = base_model()
    weights = of_eagle1(tmp_path / "one")
    lm_head = model.get_output_embeddings().weight.detach().clone()
    stored = {(name if name.startswith("fc.") else prefix + name): weight for name, weight in weights.items()}
    of_eagle1(tmp_path / "two")
    save_file(stored | {"lm_head.weight": lm_head}, tmp_path / "two/model.safetensors")
    (tmp_path / "two/config.json").write_text(
        json.dumps({"model_type": "eagle", "architectures": ["EAGLEModel"], "eagle_fc_bias": False, "model": LLAMA})
    )
    assert kind_in(tmp_path / "two") == "eagle"
    drafts = []
    for name in ("one", "two"):
        head = EagleHead.read(tmp_path / name).double().goes_with(model.get_input_embeddings().weight, model.config)
        head.require_finite_output()
        drafts.append(
            EagleSession(head, open_session(model), vocabulary=V).draft([3, 8, 1, 22], 4, Sampler(0.0), NO_EOS)
        )
    assert drafts[0].tokens == drafts[1].tokens


def test_an_eagle1_head_with_a_token_map_drafts_only_its_tokens(tmp_path):
    model, known = base_model(), torch.tensor([30, 2, 8, 21])
    of_eagle1(tmp_path)
    lm_head = model.get_output_embeddings().weight.detach().clone()
    changed(
        tmp_path, {"truncated_vocab_size": 4}, **{"lm_head.weight": lambda _: lm_head, "token_map": lambda _: known}
    )
    head = EagleHead.read(tmp_path).double().goes_with(model.get_input_embeddings().weight, model.config)
    draft = EagleSession(head, open_session(model), vocabulary=V).draft([3, 8, 1, 22], 3, Sampler(1.0), NO_EOS)
    assert {*draft.tokens} <= {*known.tolist()}
    assert (draft.probs > 0).sum(-1).tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "qwen3"}, "model_type is 'qwen3'; layers of EAGLE-1 heads: llama, qwen2, mistral"),
        ({"hidden_act": "gelu"}, "hidden_act is not supported"),
        ({"vocab_size": 10**12}, "vocab_size is wrong"),
        ({"intermediate_size": 10**6}, r"mlp\.\w+\.weight has shape"),
    ],
)
def test_an_eagle1_head_whose_layer_is_not_computed_is_an_error(keys, message, tmp_path):
    of_eagle1(tmp_path)
    changed(tmp_path, keys)
    with pytest.raises(MissingAsset, match=message):
        EagleHead.read(tmp_path)


def in_fp8(weight: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """Return a matrix in FP8 and its scales: one, one per row, or one per block of 16 x 16."""
    rows, columns = weight.shape
    blocks_of = weight.new_zeros(-(-rows // 16) * 16, -(-columns // 16) * 16)
    blocks_of[:rows, :columns] = weight
    most = {
        "tensor": weight.abs().max(), "channel": weight.abs().amax(1, keepdim=True),
        "block": blocks_of.view(-(-rows // 16), 16, -(-columns // 16), 16).abs().amax((1, 3)),
    }[form]  # fmt: skip
    scale = (most / 448).float()
    spread = scale.repeat_interleave(16, 0)[:rows].repeat_interleave(16, 1)[:, :columns] if form == "block" else scale
    return (weight / spread).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("form", ["block", "channel", "tensor"])
def test_an_mtp_layer_in_fp8_is_read_with_its_scales(form, tmp_path):
    family = mtp.FAMILIES["deepseek_v3"]
    reference = mtp.Reference(family, mtp.AutoModelForCausalLM.from_config(family.config).double())
    reference.write(tmp_path)
    path = tmp_path / "model.safetensors"
    stored = {k: w.float() for k, w in load_file(path).items()}
    plain = MtpHead.read(tmp_path).state_dict()
    quantized = dict(stored)
    for name, weight in stored.items():
        if name.startswith(family.at) and name.endswith("_proj.weight") and "experts" in name:
            end = "_scale_inv" if form == "block" else "_scale"
            quantized[name], quantized[name + end] = in_fp8(weight, form)
            quantized[f"{name.removesuffix('weight')}input_scale"] = torch.ones(1)
    save_file(quantized, path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = MtpHead.read(tmp_path).state_dict()
    assert read.keys() == plain.keys()
    for name, weight in read.items():
        torch.testing.assert_close(
            weight.double(), plain[name].double(), atol=0.04 * float(plain[name].abs().max()), rtol=0
        )
    scales = [name for name in quantized if name.endswith(("_scale", "_scale_inv"))]
    save_file({k: w for k, w in quantized.items() if k != scales[0]}, path)
    with pytest.raises(MissingAsset, match="is of type float8_e4m3fn, and has no"):
        MtpHead.read(tmp_path)
    save_file(quantized | {scales[0]: torch.full_like(quantized[scales[0]], float("nan"))}, path)
    with pytest.raises(MissingAsset, match="has NaN or infinite values"):
        MtpHead.read(tmp_path)
    save_file(quantized | {scales[0]: torch.ones(3, 7)}, path)
    with pytest.raises(MissingAsset, match=r"the scale of .* has shape \(3, 7\)"):
        MtpHead.read(tmp_path)


def test_the_trial_forward_of_mtp_layers_passes(tmp_path):
    for family in mtp.FAMILIES:
        model = mtp.AutoModelForCausalLM.from_config(mtp.FAMILIES[family].config)
        mtp.Reference(mtp.FAMILIES[family], model.double()).write(tmp_path)
        head = MtpHead.read(tmp_path).goes_with(model.float().get_input_embeddings().weight, model.config)
        head.require_finite_output()


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({"model_type": "qwen2", "sliding_window": 4096}, None),
        ({"model_type": "qwen3", "sliding_window": 4096}, None),
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral", "sliding_window": 8}, 8),
    ],
)
def test_a_window_without_layer_types_is_that_of_the_model_type(keys, window, tmp_path):
    eagle3.write(SPECFORGE, tmp_path)
    changed(tmp_path, keys)
    assert EagleHead.read(tmp_path).eagle3.window == window


def test_flags_without_d2t_are_an_error(tmp_path):
    eagle3.write(SPECFORGE, tmp_path)
    changed(tmp_path, {}, d2t=lambda _: None)
    with pytest.raises(MissingAsset, match="t2d without d2t"):
        EagleHead.read(tmp_path)


def test_flags_of_another_vocabulary_are_an_error(tmp_path):
    model = base_model()
    eagle3.write(SPECFORGE, tmp_path)
    changed(tmp_path, {}, t2d=lambda w: torch.cat([w["t2d"], w["t2d"].new_zeros(3)]))
    with pytest.raises(ConfigError, match="t2d has 43 flags, and the base has 40 tokens"):
        EagleHead.read(tmp_path).goes_with(model.get_input_embeddings().weight, model.config)


@pytest.mark.parametrize(
    ("keys", "weights", "message"),
    [
        ({}, {"token_map": lambda _: torch.tensor([1, 2])}, "token_map needs lm_head.weight"),
        ({"truncated_vocab_size": 5}, {"lm_head.weight": lambda w: torch.ones(V, len(w["fc.weight"]))}, "is 5, and lm_head"),
    ],
)  # fmt: skip
def test_tables_and_sizes_of_an_eagle1_vocabulary_must_agree(keys, weights, message, tmp_path):
    of_eagle1(tmp_path)
    changed(tmp_path, keys, **weights)
    with pytest.raises(MissingAsset, match=message):
        EagleHead.read(tmp_path)
