"""Model families of transformers on the eager engine: toy checkpoints decode the tokens that they decode alone."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel, set_seed

from specbench.decoding.method import Method
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Diff, Last
from specbench.features.verify.enumeration import TableModels, generate
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.lookups import PromptLookup
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.models.cached_session import CachedSession
from specbench.models.transformers_session import EagerModelRunner

VOCABULARY, PROMPT, TOKENS = 64, [5, 11, 3, 8, 5, 11], 16
GREEDY = Sampler(temperature=0.0)
AR = Autoregressive(scorers=("target",), target=Last())
SD = Speculative(proposer=DraftModel(model="draft", gamma=3), scorers=("target",), target=Last())
PLD = Speculative(proposer=PromptLookup(gamma=4), scorers=("target",), target=Last())
CASCADE = Speculative(
    proposer=DraftModel(model="draft", gamma=3), scorers=("draft", "target"), target=Diff(alpha=0.2), bonus="deferred"
)

COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
LOCAL = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 2,
    "topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "first_k_dense_replace": 1,
}  # fmt: skip
ENCODER_DECODER = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_start_token_id": 2,
}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 48, "decoder_start_token_id": 0}
FAMILIES = {
    "apertus": {}, "arcee": {}, "biogpt": {}, "bloom": {"n_layer": 2, "n_head": 4}, "codegen": {**GPT, "rotary_dim": 4},
    "cohere": {}, "cohere2": {"sliding_window": 6}, "deepseek_v2": LATENT, "deepseek_v3": LATENT, "ernie4_5": {},
    "exaone4": LOCAL, "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True}, "gemma": {"head_dim": 8},
    "gemma2": LOCAL | {"query_pre_attn_scalar": 8}, "gemma3_text": LOCAL, "glm": {"head_dim": 8}, "glm4": {"head_dim": 8},
    "gpt2": GPT, "gpt_bigcode": GPT, "gpt_neo": {
        "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 5,
    },
    "gpt_neox": {}, "gpt_oss": LOCAL | {"num_local_experts": 4, "num_experts_per_tok": 2}, "gptj": {**GPT, "rotary_dim": 4},
    "granite": {}, "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2}, "helium": {"head_dim": 8}, "llama": {},
    "llama4_text": {
        "num_local_experts": 2, "interleave_moe_layer_step": 2, "attention_chunk_size": 8, "intermediate_size_mlp": 48,
        "head_dim": 8,
    },
    "mistral": {"sliding_window": 7}, "mixtral": {"num_local_experts": 4, "sliding_window": 7},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}, "nemotron": {}, "olmo": {}, "olmo2": {},
    "olmo3": {"sliding_window": 6}, "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32}, "persimmon": {}, "phi": {}, "phi3": {"sliding_window": 6},
    "phimoe": {"num_local_experts": 4}, "qwen2": {}, "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3": {"head_dim": 8}, "qwen3_moe": {**EXPERTS, "head_dim": 8}, "seed_oss": {"head_dim": 8}, "smollm3": {},
    "stablelm": {}, "starcoder2": {"sliding_window": 6}, "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4},
    "bart": ENCODER_DECODER, "marian": ENCODER_DECODER, "mt5": T5, "pegasus": ENCODER_DECODER, "t5": T5,
}  # fmt: skip
RECURRENT = {
    "mamba": {}, "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8}, "recurrent_gemma": {}, "rwkv": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {**EXPERTS, "shared_expert_intermediate_size": 24},
}  # fmt: skip


def toy(family: str, sizes: dict[str, object], seed: int) -> PreTrainedModel:
    """Return a float32 model of a family with random weights, large enough for tokens that vary."""
    set_seed(seed)
    config = AutoConfig.for_model(family, **COMMON | sizes)
    config._name_or_path = family
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = kind.from_config(config).eval().float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.25)
    return model


def tokens(method: Method, draft: PreTrainedModel, target: PreTrainedModel) -> list[int]:
    """Return the tokens that a method decodes."""
    source = PROMPT if target.config.is_encoder_decoder else None
    start = [target.config.decoder_start_token_id] if source else PROMPT
    roles = {"draft": draft, "target": target}
    sessions = {role: CachedSession(EagerModelRunner(model, VOCABULARY, source)) for role, model in roles.items()}
    return generate(method, TableModels(sessions, start, VOCABULARY), GREEDY, TOKENS)[0]


def test_the_families_are_many():
    assert len(FAMILIES) >= 32


@pytest.mark.parametrize("family", FAMILIES)
def test_speculation_decodes_the_tokens_of_the_target(family):
    """Beyond every window, with drafts of another model, which are rejected, and with drafts of the target, which are not."""
    target, other = (toy(family, FAMILIES[family], seed) for seed in (1, 2))
    alone = tokens(AR, target, target)
    for method, draft in ((SD, other), (SD, target), (PLD, target), (CASCADE, target)):
        assert tokens(method, draft, target) == alone


@pytest.mark.parametrize("family", ["gemma3_text", "mistral", "gpt_oss", "deepseek_v3", "t5"])
def test_tokens_are_those_of_generate(family):
    """`generate` keeps only what a window shows; sessions keep every position and hide it."""
    model = toy(family, FAMILIES[family], 1)
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([PROMPT]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, eos_token_id=None
        )
    assert tokens(AR, model, model) == out[0, -TOKENS:].tolist()


@pytest.mark.parametrize("family", RECURRENT)
def test_models_with_recurrent_states_are_rejected_with_the_reason(family):
    with pytest.raises(ValueError, match=rf"{family}: (recurrent states|a cache of \w+) cannot"):
        CachedSession(EagerModelRunner(toy(family, RECURRENT[family], 1), VOCABULARY))
