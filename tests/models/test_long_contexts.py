"""Lengths at which a model changes: longrope's boundary, dynamic NTK, the windows of encoder-decoders; and other checkpoints.

Every method writes what `generate` writes, on toy models.
"""

import json

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, set_seed

import specbench
from specbench.config.pair import PACKAGE
from specbench.errors import ConfigError, MissingAsset
from specbench.models.heads import EagleHead

TOKENIZER = PACKAGE / "tiny/models/target"
TEXT = "Ben has 3 bags with 4 shells each. How many shells does Ben have now?"
DECODER = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
}  # fmt: skip
PICTURES = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip


def save(folder, model) -> None:
    """Save a model with the bundled tokenizer after spreading its weights, so that its greedy output is not constant."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
    model.eval().save_pretrained(folder)
    AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(folder)


def decoder(folder, kind: str, seed: int, **settings) -> None:
    set_seed(seed)
    sizes = {
        "vocab_size": 1024,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
    }
    save(folder, AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**DECODER, **sizes, **settings})))


def generated(folder, new: int) -> list[int]:
    """Return the tokens of transformers' `generate`."""
    config = AutoConfig.from_pretrained(folder)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]])
    model = kind.from_pretrained(folder).eval()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new)[0].tolist()
    return out[1:] if config.is_encoder_decoder else out[ids.shape[1] :]


def written(where, methods: list[str], new: int, **options) -> dict[str, list[int]]:
    """Return the tokens of methods on the models in the folders draft and target."""
    roles = [role for role in ("draft", "target") if (where / role).is_dir()]
    (where / "pair.toml").write_text("".join(f'[models.{role}]\npath = "{role}"\n' for role in roles))
    (where / "rows.jsonl").write_text(json.dumps({"prompt": TEXT}) + "\n")
    run = specbench.run(
        methods, str(where / "pair.toml"), "prompts", data=str(where / "rows.jsonl"), repeats=1, max_new_tokens=new,
        out=where / "out", device="cpu", **options,
    )  # fmt: skip
    assert not [record.error for record in run.records() if record.error]
    return {record.method: record.tokens for record in run.records()}


def longrope(boundary: int) -> dict[str, object]:
    factors = {"short_factor": [1.0] * 6, "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0, 6.0]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 1.0, **factors}
    return {
        "rope_parameters": {**rope, "original_max_position_embeddings": boundary},
        "original_max_position_embeddings": boundary, "sliding_window": None,
    }  # fmt: skip


@pytest.mark.parametrize("boundary", [12, 34, 48, 400])  # within the prompt, in the first rounds, later, never
def test_a_sequence_may_cross_the_length_at_which_angles_change(tmp_path, boundary):
    for role, seed in (("target", 1), ("draft", 2)):
        decoder(tmp_path / role, "phi3", seed, **longrope(boundary))
    wanted = generated(tmp_path / "target", 40)
    methods = ["ar", "sd", "pld", "hf-generate", "sd-tree"]
    for method, tokens in written(tmp_path, methods, 40).items():
        assert tokens == wanted, method


def test_the_window_ends_where_dynamic_angles_begin(tmp_path):
    """Beyond it, the angles of all positions change with every token."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    decoder(tmp_path / "target", "llama", 1, rope_parameters=rope, max_position_embeddings=40)
    tokens = written(tmp_path, ["ar", "pld"], 30)
    wanted = generated(tmp_path / "target", 30)
    room = 40 - len(AutoTokenizer.from_pretrained(TOKENIZER)(TEXT)["input_ids"])
    assert 0 < room < 30 and tokens["ar"] == tokens["pld"] == wanted[:room]


@pytest.mark.parametrize("kind", ["bart", "pegasus", "marian"])
def test_an_encoder_with_absolute_positions_has_a_window(tmp_path, kind):
    set_seed(1)
    sizes = {
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_start_token_id": 3, "pad_token_id": 1, "bos_token_id": 0,
    }  # fmt: skip
    config = AutoConfig.for_model(kind, vocab_size=1024, eos_token_id=0, max_position_embeddings=16, **sizes)
    save(tmp_path / "target", AutoModelForSeq2SeqLM.from_config(config))
    with pytest.raises(ConfigError, match=r"1 of 1 prompts have more than 16 tokens"):
        written(tmp_path, ["ar"], 30)
    tokens = written(tmp_path, ["ar"], 30, on_overflow="truncate-left")["ar"]
    assert 0 < len(tokens) <= 16, "the output ends at the decoder's window"


def test_a_checkpoint_that_reads_pictures_decodes_text(tmp_path):
    """Gemma 3 (4B and larger) and Mistral Small 3.1 have the text model's sizes under `text_config`."""
    set_seed(1)
    text = {**DECODER, "vocab_size": 1024, "max_position_embeddings": 512, "head_dim": 16}
    gemma = transformers.Gemma3Config(
        text_config={**text, "sliding_window": 8, "query_pre_attn_scalar": 16, "eos_token_id": 0}, vision_config=PICTURES,
        mm_tokens_per_image=4, boi_token_index=1000, eoi_token_index=1001, image_token_index=1002,
    )  # fmt: skip
    save(tmp_path / "target", transformers.Gemma3ForConditionalGeneration(gemma))
    wanted = generated(tmp_path / "target", 24)
    assert all(tokens == wanted for tokens in written(tmp_path, ["ar", "pld", "hf-generate"], 24).values())


def test_a_checkpoint_of_pictures_without_a_causal_class_decodes_text(tmp_path):
    set_seed(1)
    text = {**DECODER, "vocab_size": 1024, "max_position_embeddings": 512, "head_dim": 12, "model_type": "mistral"}
    mistral = transformers.Mistral3Config(
        text_config=text, vision_config={**PICTURES, "model_type": "pixtral", "head_dim": 16}, image_token_index=1002
    )
    save(tmp_path / "target", model := transformers.Mistral3ForConditionalGeneration(mistral))
    ids = torch.tensor([AutoTokenizer.from_pretrained(TOKENIZER)(TEXT)["input_ids"]])
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)[0].tolist()
    assert all(tokens == wanted[ids.shape[1] :] for tokens in written(tmp_path, ["ar", "pld"], 24).values())


def test_positions_that_depend_on_pictures_are_rejected_by_name(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    config = transformers.Qwen2_5_VLConfig(text_config={"rope_parameters": rope})
    config.save_pretrained(tmp_path / "target")
    AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(tmp_path / "target")
    with pytest.raises(ConfigError, match=r"is a qwen2_5_vl checkpoint, whose positions depend on pictures \(M-RoPE\)"):
        written(tmp_path, ["ar"], 4)


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        ({"speculators_model_type": "dflash"}, ("fc.weight",), "a DFlash drafter"),
        ({"model_type": "qwen3", "markov_rank": 256}, ("fc.weight",), "a DSpark drafter"),
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, ("fc.weight",), "a DFlash drafter"),
    ],
)
def test_other_drafters_are_named(tmp_path, config, weights, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({name: torch.zeros(2, 2) for name in weights}, tmp_path / "model.safetensors")
    with pytest.raises(
        MissingAsset, match=rf"holds {message}; the kind 'eagle' reads an EAGLE-1 head and an EAGLE-3 head"
    ):
        EagleHead.read(tmp_path)
