"""Small worlds in which laws can be computed: table models, random Hugging Face models, and how to run methods on them."""

from collections.abc import Callable

import torch
from transformers import (
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MistralConfig,
    MT5Config,
    MT5ForConditionalGeneration,
    OPTConfig,
    PreTrainedModel,
    Qwen2Config,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from specbench.engine import Graphs, GraphSession, LeanSession, network_of
from specbench.heads import Head
from specbench.laws import Opened, tables
from specbench.method import End, Method
from specbench.sampling import Sampler
from specbench.session import EagerSession


def table_world(vocabulary: int, seed: int = 0, spread: float = 1.5) -> Opened:
    return tables(tuple("abc"), vocabulary, seed, spread)


def spread_out(head: Head) -> Head:
    """Random weights, such that a head says now this, now that."""
    generator = torch.Generator().manual_seed(3)
    head.load_state_dict(
        {name: 0.5 * torch.randn(w.shape, generator=generator) for name, w in head.state_dict().items()}
    )
    return head.placed(torch.device("cpu"))


SHAPE = {"vocab_size": 40, "max_position_embeddings": 64}


def until_eos(method: Method, models: Opened, eos: int, sampler: Sampler, most: int = 3) -> tuple[int, ...]:
    """What a driver would keep: up to the first EOS, `most` tokens at most."""
    out: list[int] = []
    for step in method.steps(models, sampler, End(frozenset({eos}), 1 + most)):
        for token in step.tokens:
            out.append(token)
            if token == eos or len(out) == most:
                return tuple(out)
    raise AssertionError("it ended early")


T5_SHAPE = {
    "vocab_size": 40,
    "d_model": 32,
    "d_kv": 8,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 48,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}
FAMILIES: dict[str, Callable[[], object]] = {
    "llama": lambda: LlamaConfig(
        **SHAPE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48
    ),
    "qwen2": lambda: Qwen2Config(
        **SHAPE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48
    ),
    "gpt2": lambda: GPT2Config(vocab_size=40, n_positions=64, n_embd=32, n_layer=2, n_head=4),
    "gpt-neo": lambda: GPTNeoConfig(
        **SHAPE, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=5
    ),
    "opt": lambda: OPTConfig(
        **SHAPE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=32
    ),
    "t5": lambda: T5Config(**T5_SHAPE),
    "t5-v1.1": lambda: T5Config(**T5_SHAPE, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": lambda: MT5Config(**T5_SHAPE),
    "llama-scaled": lambda: LlamaConfig(
        **SHAPE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        intermediate_size=48,
        head_dim=16,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "mistral": lambda: MistralConfig(
        **SHAPE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        sliding_window=None,
    ),
}


def random_model(family: str, seed: int) -> PreTrainedModel:
    """A float32 model of that family, its weights spread out so that its choices are clear."""
    set_seed(seed)
    config = FAMILIES[family]()
    encoder_decoders = {T5Config: T5ForConditionalGeneration, MT5Config: MT5ForConditionalGeneration}
    kind = encoder_decoders.get(type(config)) or MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = kind(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, 0.6 if "embed" in name or "wte" in name or "shared" in name else 0.25)
    return model.eval()


ENGINES = ("eager", "lean", "graph")


def open_session(model: PreTrainedModel, engine: str = "eager", source: list[int] | None = None):
    """A fresh session; `graph` is the static forward that CUDA would record, run as it stands."""
    if engine == "eager":
        return EagerSession(model, 40, source)
    network = network_of(model)
    if engine == "lean":
        return LeanSession(network, 40, source)
    graphs = Graphs(network, model.device)
    graphs.prepare(64, most=4)
    return GraphSession(graphs, 40)


def open_models(models: dict[str, PreTrainedModel], prompt: list[int], engine: str = "eager") -> Opened:
    """Fresh sessions over these models; for encoder-decoder models the prompt is the encoder's."""
    seq2seq = next(iter(models.values())).config.is_encoder_decoder
    sessions = {role: open_session(model, engine, prompt if seq2seq else None) for role, model in models.items()}
    return Opened(sessions, [0] if seq2seq else list(prompt))
